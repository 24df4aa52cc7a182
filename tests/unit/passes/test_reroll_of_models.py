"""A real recurrent model: its loops are found in what capture made, and give torch's values."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
import transformers

from runtime.compiler.capture import CapturedModel, capture
from runtime.compiler.capture.interpret import run_graph
from runtime.compiler.lower import lower_graph
from runtime.compiler.passes.reroll import reroll
from tests.unit.passes.loops import scans

_SEQ_LEN = 10


def _captured(seq_len: int) -> CapturedModel:
    config = transformers.MambaConfig(
        hidden_size=8, num_hidden_layers=1, vocab_size=32, state_size=4, expand=1, pad_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.MambaForCausalLM(config)
    return capture(model, micro_batch=1, seq_len=seq_len)


@pytest.fixture(scope="module")
def mamba() -> CapturedModel:
    """Give Mamba of one layer, captured."""
    return _captured(_SEQ_LEN)


def test_mambas_loss_and_gradients_are_torchs(mamba: CapturedModel) -> None:
    """The scans, lowered and run by XLA, against the unrolled graph that torch runs."""
    graph = mamba.package.graphs["grad"]
    rolled = reroll(graph)
    assert [scan.length for scan in scans(rolled)] == [_SEQ_LEN, _SEQ_LEN - 2]
    generator = np.random.default_rng(0)
    values = {}
    for item in graph.inputs:
        if item.target in mamba.arrays:
            values[item.name] = mamba.arrays[item.target]
        else:
            values[item.name] = generator.integers(1, 32, item.type.shape).astype(item.type.dtype)
    expected = run_graph(graph, {n: torch.from_numpy(np.array(v)) for n, v in values.items()})
    flat = [values[item.name] for item in rolled.inputs]
    flat = [value.astype(np.int32) if value.dtype == np.int64 else value for value in flat]
    results = jax.jit(lower_graph(rolled, "cpu"))(flat)
    for found, wanted in zip(results, expected.values(), strict=True):
        want = wanted.numpy()
        largest = max(float(np.abs(want).max()), 1e-6)
        np.testing.assert_allclose(np.asarray(found), want, rtol=0, atol=5e-6 * largest)


@pytest.mark.slow
def test_mambas_graph_does_not_grow_with_the_sequence(mamba: CapturedModel) -> None:
    """Twice the positions: the package doubles, what is lowered stays."""
    longer = _captured(2 * _SEQ_LEN)
    for name, graph in mamba.package.graphs.items():
        assert len(longer.package.graphs[name].nodes) > 1.5 * len(graph.nodes)
        assert len(reroll(longer.package.graphs[name]).nodes) == len(reroll(graph).nodes)

"""A model in bfloat16 is captured as it computes; the gate sees wrong formulas and more rounding."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

from runtime.compiler.capture import _attempt as attempts
from runtime.compiler.capture import _rounding, capture, load_model
from runtime.compiler.capture._check import Checked, Disagreement
from runtime.compiler.capture._names import model_tensors
from runtime.compiler.capture._narrow import in_float32, masters_of, to_bfloat16
from runtime.compiler.capture._rounding import check_in_its_dtype
from runtime.compiler.graph import Graph, Node
from runtime.spec import CaptureError

FAMILIES = [
    "llama",
    "gpt2",
    pytest.param("gemma2", marks=pytest.mark.slow),
    pytest.param("gpt2 attention dropout", marks=pytest.mark.slow),
]


@pytest.fixture
def narrow(build):
    """Give a function from a family's name to a random model in bfloat16."""

    def one(name: str) -> nn.Module:
        model = build(name)
        to_bfloat16(model)
        return model

    return one


@pytest.mark.parametrize("name", FAMILIES)
def test_a_bfloat16_model_is_captured_in_bfloat16(narrow, name):
    model = narrow(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    result = capture(model, micro_batch=2, seq_len=20, packing=name == "llama")
    graph = result.package.graphs["grad"]
    assert {item.type.dtype for item in graph.of_role("param")} == {"bfloat16"}
    assert result.check.worst_relative_gradient_error < 1e-5  # in float32: nothing to excuse
    gradients = {label: ref.name for label, ref in graph.outputs if label.startswith("grad:")}
    types = {node.name: node.out for node in graph.nodes}
    assert {types[name].dtype for name in gradients.values()} == {"bfloat16"}
    loss = dict(graph.outputs)["loss_sum"].name
    assert types[loss].dtype == "float32"
    for target, array in result.arrays.items():
        if target in before:
            assert array.dtype == ml_dtypes.bfloat16
    for key, value in model.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])


def test_a_wrong_formula_is_found_although_rounding_could_hide_it(narrow, monkeypatch):
    """The residual stream grows by 0.2 % a layer: half of what one rounding may take away."""

    def residual(node: Node) -> bool:
        return node.op == "aten.add.Tensor" and node.module.split(".")[-1].isdecimal()

    def gate(checked: Checked, **options):
        def grown(graph: Graph) -> Graph:
            nodes = [replace(n, kwargs={"alpha": 1.002}) if residual(n) else n for n in graph.nodes]
            assert any(map(residual, graph.nodes))
            return Graph(graph.inputs, tuple(nodes), graph.outputs)

        graphs = {name: grown(graph) for name, graph in checked.graphs.items()}
        return check_in_its_dtype(replace(checked, graphs=graphs), **options)

    monkeypatch.setattr(attempts, "check_in_its_dtype", gate)
    with pytest.raises(CaptureError, match=r"differs from eager's|eager's is"):
        capture(narrow("llama"), micro_batch=2, seq_len=20)


def _results(loss: float, error: float, *, large: float = 1.0) -> _rounding.Results:
    """Give results whose gradients are off by `error` of themselves, one of them by more."""
    draw = torch.Generator().manual_seed(hash(error))
    gradients = {}
    for index, (name, share) in enumerate((("a", 1.0), ("b", large))):
        exact = torch.randn(64, generator=torch.Generator().manual_seed(index)) * 10**-index
        gradients[name] = exact * (1 + share * error * torch.randn(64, generator=draw))
    return _rounding.Results(loss=loss, gradients=gradients, output=gradients["a"])


EXACT = _results(100.0, 0.0)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (_results(100.1, 0.021), None),
        (_results(99.5, 0.002, large=10.0), None),
        (_results(105.0, 0.02), "the loss"),
        (replace(_results(100.1, 0.04), output=EXACT.output), "all gradients"),
        (_results(100.1, 0.011, large=12.0), "the gradient of 'b'"),
        (replace(_results(100.1, 0.02), output=2 * EXACT.output), "the output"),
        (_results(float("nan"), 0.02), "the loss"),
        (_results(100.1, float("inf")), "the output"),
    ],
)
def test_the_graph_may_be_as_far_from_float32_as_the_model_is(graph, message):
    model = _results(100.2, 0.02)
    if message is None:
        _rounding.compare(graph, model, EXACT)
    else:
        with pytest.raises(Disagreement, match=message):
            _rounding.compare(graph, model, EXACT)


def test_in_float32_gives_the_tensors_back(narrow):
    model = narrow("llama")
    tensors = model_tensors(model)
    before = [item.tensor.data for item in tensors]
    with in_float32(tensors):
        assert all(item.tensor.dtype != torch.bfloat16 for item in tensors)
        model(input_ids=torch.zeros((1, 4), dtype=torch.int64)).logits.sum().backward()
    assert all(
        item.tensor.data.data_ptr() == data.data_ptr()
        for item, data in zip(tensors, before, strict=True)
    )
    assert all(item.tensor.grad is None for item in tensors)


def test_masters_keep_what_bfloat16_loses(build):
    model = build("llama")
    exact = {name: value.clone() for name, value in model.named_parameters()}
    masters = masters_of(model)
    to_bfloat16(model)
    for name, value in model.named_parameters():
        assert torch.equal(torch.from_numpy(masters[name]), exact[name])
        assert torch.equal(value, exact[name].bfloat16())
    frequencies = dict(model.named_buffers())["model.rotary_emb.inv_freq"]
    assert frequencies.dtype == torch.float32


def test_a_class_may_keep_modules_in_float32(build):
    model = build("llama")
    model._keep_in_fp32_modules_strict = {"norm"}
    to_bfloat16(model)
    wide = {name for name, value in model.named_parameters() if value.dtype == torch.float32}
    assert wide == {"model.norm.weight"}


def test_a_loaded_model_is_what_transformers_loads_in_bfloat16(build, tmp_path):
    build("gpt2").save_pretrained(tmp_path / "model")
    loaded = load_model("model", tmp_path, dtype="bf16")
    theirs = type(loaded.model).from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    for (name, ours), (_, other) in zip(
        loaded.model.state_dict().items(), theirs.state_dict().items(), strict=True
    ):
        assert ours.dtype == other.dtype, name
        assert torch.equal(ours, other), name
    assert loaded.model.config.dtype == theirs.config.dtype
    assert {array.dtype for array in loaded.masters.values()} == {np.dtype(np.float32)}
    assert set(loaded.masters) == {
        item.target for item in model_tensors(loaded.model) if item.role == "param"
    }


def test_an_adapter_on_a_bfloat16_model_is_float32(build, tmp_path):
    from types import SimpleNamespace

    build("llama").save_pretrained(tmp_path / "model")
    options = SimpleNamespace(r=2, alpha=4.0, dropout=0.0, target_modules=["q_proj"])
    loaded = load_model("model", tmp_path, dtype="bf16", adapter=options)
    assert not loaded.masters
    graph = capture(loaded.model, micro_batch=1, seq_len=12).package.graphs["grad"]
    assert {item.type.dtype for item in graph.of_role("param")} == {"float32"}
    assert {item.type.dtype for item in graph.of_role("frozen")} == {"bfloat16"}

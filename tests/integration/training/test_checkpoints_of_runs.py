"""What a run leaves: checkpoints that transformers loads as they are, with the run's own losses."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.agent.checkpoint import load_checkpoint
from runtime.agent.checkpoint_manifest import verify
from runtime.coordinator.plan import RunPlan
from tests.integration.training.conftest import STEPS, Launched, luma
from tests.integration.training.eager import load_module, mean_loss

HALF = 10

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("kind", ["packed", "chat"])
def test_torchtitan_4686_a_checkpoint_gives_the_loss_of_its_next_step(
    launched: Callable[[str], Launched], kind: str
) -> None:
    """Weights and data belong to the same step: the run's own loss comes out of the checkpoint."""
    run = launched(kind)
    model, report = AutoModelForCausalLM.from_pretrained(
        run.checkpoint(HALF), output_loading_info=True
    )
    assert not any(report.values()), report
    loss = mean_loss(model, run.spec, run.folder / "data", HALF)
    assert loss == pytest.approx(run.commits()[HALF].loss, rel=1e-6)


@pytest.mark.parametrize("kind", ["packed", "dropout", "chat"])
def test_final_checkpoint_loads_with_the_states_bits_and_generates(
    launched: Callable[[str], Launched], kind: str
) -> None:
    run = launched(kind)
    final = verify(run.checkpoint(STEPS), RunPlan.read(run.folder).job_digest)
    assert final.state_hash == run.certificate()["state_hash"]
    params = load_checkpoint(final).params
    model = AutoModelForCausalLM.from_pretrained(final.path)
    assert next(model.parameters()).dtype == torch.float32
    named = dict(model.named_parameters())
    assert set(named) == set(params)
    for name, array in params.items():
        np.testing.assert_array_equal(named[name].detach().numpy(), array)
    prompt = torch.tensor([[72, 101, 108, 108]])
    out = model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert out.shape[1] > prompt.shape[1]


def test_tied_weights_are_stored_once_and_are_tied_again(
    launched: Callable[[str], Launched],
) -> None:
    final = launched("packed").checkpoint(STEPS)
    assert "lm_head.weight" not in load_file(final / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(final)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("step", [0, HALF, STEPS])
def test_saved_buffers_and_frozen_weights_are_in_every_checkpoint(
    launched: Callable[[str], Launched], step: int
) -> None:
    """The first checkpoint is the launcher's, the others are the islands': all are whole models."""
    run = launched("buffer")
    weights = load_file(run.checkpoint(step) / "model.safetensors")
    assert weights["logit_scale"] == np.float32(1.75)
    assert "logit_bias" not in weights
    assert "model.layers.0.mlp.up_proj.weight" in weights
    module = load_module(run.place / "model.py")
    model, report = module.ScaledQwen3.from_pretrained(
        run.checkpoint(step), output_loading_info=True
    )
    assert not any(report.values()), report
    model.logit_bias.zero_()  # transformers leaves what a file does not hold as it finds it
    if step < STEPS:
        loss = mean_loss(model, run.spec, run.folder / "data", step)
        assert loss == pytest.approx(run.commits()[step].loss, rel=1e-6)


def test_frozen_weights_never_change(launched: Callable[[str], Launched]) -> None:
    run = launched("buffer")
    first = load_file(run.checkpoint(0) / "model.safetensors")
    last = load_file(run.checkpoint(STEPS) / "model.safetensors")
    for name, array in first.items():
        frozen = name.startswith("model.layers.0.") or name == "logit_scale"
        assert np.array_equal(array, last[name]) == frozen, name


def test_the_tokenizer_and_its_template_travel_with_the_weights(
    launched: Callable[[str], Launched],
) -> None:
    run = launched("chat")
    tokenizer = AutoTokenizer.from_pretrained(run.checkpoint(STEPS))
    original = AutoTokenizer.from_pretrained(run.place / "base")
    chat = [{"role": "user", "content": "What is a list?"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == original.apply_chat_template(
        chat, tokenize=False
    )


def test_two_models_of_one_file_are_two_captures(launched: Callable[[str], Launched]) -> None:
    """Their sizes are equal, and so are the files: the cache must tell them apart all the same."""
    digests = [
        json.loads((launched(kind).folder / "run.json").read_text())["capture"]["package_digest"]
        for kind in ("packed", "buffer")
    ]
    assert digests[0] != digests[1]


@pytest.mark.slow
def test_serve_on_a_port_in_use_is_refused(launched: Callable[[str], Launched]) -> None:
    run = launched("chat")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = luma("serve", run.folder, "--port", str(port))
    assert done.returncode == 2
    assert f"port: {port} on 127.0.0.1 is in use" in done.stderr
    assert "choose another --port" in done.stderr
    assert "Traceback" not in done.stderr

"""A job in bfloat16 is a loop of torch with float32 masters, and has the same bits on any fleet."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from runtime.agent.checkpoint import load_checkpoint
from runtime.agent.checkpoint_manifest import verify
from runtime.agent.samples import SampleFile
from runtime.spec import JobSpec
from tests.integration.training.conftest import MODELS, SEED, STEPS, Launched, job, luma
from tests.integration.training.eager import (
    eager_run,
    global_batch,
    load_module,
    make_optimizer,
    schedule,
    shard_loss,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# bfloat16 holds 8 bits: a value that was rounded once is off by at most this part of itself.
ROUNDING = 2.0**-8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, luma_home: Path) -> dict[int, Launched]:
    """Give the same job by its islands: one undisturbed, two of which one is killed."""
    place = tmp_path_factory.mktemp("bf16")
    shutil.copy(MODELS, place / "model.py")
    found = {}
    for islands, chaos in ((1, ()), (2, ("--chaos", "kill:1@step=7"))):
        document = job(
            "./model.py:qwen3",
            model={"dtype": "bf16"},
            train={"checkpointing": "layer"},
            resources={"islands": islands},
        )
        here = place / str(islands)
        here.mkdir()
        shutil.copy(MODELS, here / "model.py")
        (here / "job.yaml").write_text(json.dumps(document))
        done = luma("launch", here / "job.yaml", "--yes", "--run", here / "run", *chaos)
        assert done.returncode == 0, done.stderr
        found[islands] = Launched(here, here / "run")
    return found


def fresh_model(run: Launched) -> nn.Module:
    """Build the job's model with its initial weights, in float32, without the runtime."""
    torch.manual_seed(SEED)
    return load_module(run.place / "model.py").qwen3()


def losses_with_masters(masters: nn.Module, spec: JobSpec, data: Path) -> list[float]:
    """Train in plain torch: bfloat16 parameters, float32 masters, sums and optimizer.

    Args:
        masters: float32, trained in place.
        spec: the job.
        data: the folder of prepared samples.
    """
    samples = SampleFile.open(data)
    optimizer, rate = make_optimizer(masters, spec), schedule(spec, STEPS)
    model = copy.deepcopy(masters)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    pairs = list(zip(masters.parameters(), model.parameters(), strict=True))
    losses = []
    for step in range(STEPS):
        for master, parameter in pairs:
            parameter.data.copy_(master.data)
            master.grad = torch.zeros_like(master)
        batches = global_batch(spec, samples, step)
        tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches)
        total = 0.0
        for batch in batches:
            loss = shard_loss(model, batch, packed=spec.data.packing)
            total += float(loss.detach().double())
            gradients = torch.autograd.grad(loss, [parameter for _, parameter in pairs])
            for (master, _), gradient in zip(pairs, gradients, strict=True):
                assert master.grad is not None
                master.grad += gradient.float() / tokens
        nn.utils.clip_grad_norm_(masters.parameters(), spec.train.optimizer.grad_clip or math.inf)
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        losses.append(total / tokens)
    return losses


def test_losses_are_those_of_a_torch_loop_with_float32_masters(runs: dict[int, Launched]) -> None:
    run = runs[1]
    data = run.folder / "data"
    expected = np.array(losses_with_masters(fresh_model(run), run.spec, data))
    exact = np.array(eager_run(fresh_model(run), run.spec, data, steps=STEPS).losses)
    found = np.array([commit.loss for commit in run.commits()])
    assert expected[-1] < 0.9 * expected[0], "nothing was learned: a weak comparison"
    assert np.abs(found - expected).max() <= ROUNDING * expected.min()
    # No farther from float32 than torch's own bfloat16, and not by computing in float32.
    assert np.abs(found - exact).max() <= 2 * np.abs(expected - exact).max()
    assert np.abs(found - exact).max() > 1e-6


def test_the_bits_do_not_depend_on_the_fleet(runs: dict[int, Launched]) -> None:
    hashes = {islands: run.certificate()["state_hash"] for islands, run in runs.items()}
    assert hashes[1] == hashes[2]
    disturbed = runs[2].certificate()
    assert disturbed["level"] == "exact"
    assert disturbed["interruptions"]
    sums = {islands: [c.sum_hash for c in run.commits()] for islands, run in runs.items()}
    assert sums[1] == sums[2]


def test_checkpoints_hold_float32_masters_and_load_as_bfloat16(runs: dict[int, Launched]) -> None:
    path = runs[2].checkpoint(STEPS)
    state = load_checkpoint(verify(path, None))
    for group in (state.params, state.moment1, state.moment2):
        assert {array.dtype for array in group.values()} == {np.dtype(np.float32)}
    as_computed = AutoModelForCausalLM.from_pretrained(path)
    assert as_computed.dtype == torch.bfloat16
    rounded = 0
    for name, master in state.params.items():
        exact = torch.from_numpy(master)
        assert torch.equal(as_computed.get_parameter(name), exact.bfloat16())
        rounded += int((exact.bfloat16().float() != exact).sum())
    assert rounded, "the masters have no more bits than bfloat16: they were rounded"

"""A few steps of a real `Trainer` over a payload, in this process or in one of its own.

    python -m tests.unit.agent.training_support PAYLOAD RESULT

drives a payload by the loader of its form and stores the numbers as .npz. The process must have
been started with the target's environment.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import runtime
from runtime.agent.loaders import Loader, loader_for
from runtime.agent.samples import SampleFile
from runtime.agent.state import initial_state
from runtime.agent.threads import island_environment
from runtime.agent.trainer import COUNTERS, Totals, Trainer
from runtime.artifact.program import TargetPayload
from tests.unit.plans import make_plan

SHARDS = 4
STEPS = 3
ROOT = Path(runtime.__file__).parents[1]


def make_trainer(payload: TargetPayload, loader: Loader | None = None, seed: int = 3) -> Trainer:
    """Give a trainer with a fresh state, its samples and its state being functions of the seed."""
    grad = payload.programs["grad"]
    batch = next(spec for spec in grad.inputs if spec.role == "batch")
    micro_batch, seq_len = batch.shape
    plan = make_plan(micro_shards=SHARDS, micro_batch=micro_batch, target=payload.target)
    plan = dataclasses.replace(plan, optimizer=dataclasses.replace(plan.optimizer, lr=1e-3))
    rng = np.random.default_rng(seed)
    columns = {
        "input_ids": rng.integers(0, 5, (40, seq_len)).astype(np.int32),
        "labels": rng.integers(0, 5, (40, seq_len)).astype(np.int32),
        "segment_ids": np.ones((40, seq_len), np.int32),
    }
    samples = SampleFile(
        path=Path("/nowhere"), count=40, seq_len=seq_len, digest="d", supervised_tokens=0,
        columns=columns,
    )  # fmt: skip
    held = {role: {} for role in ("param", "frozen", "buffer")}
    for spec in grad.inputs:
        if spec.role in held:
            # Around one: also what a norm multiplies with is of a sensible size.
            values = rng.standard_normal(spec.shape) * 0.05 + (len(spec.shape) < 2)
            held[spec.role][spec.name] = values.astype(spec.dtype)
    trainer = Trainer(
        plan, payload, loader=loader or loader_for(payload), samples=samples,
        constants=held["frozen"] | held["buffer"], threads=1,
    )  # fmt: skip
    trainer.load_state(initial_state(held["param"], n_blocks=payload.blocks.n_blocks))
    return trainer


def step(trainer: Trainer) -> dict[str, Any]:
    """Compute and apply one step, redone with a larger scale where an integer overflowed.

    Returns:
        Its counters, sums, maxima and gradient norm.
    """
    totals = _compute(trainer)
    while totals.counters[COUNTERS.index("overflow")]:
        trainer.raise_scale(totals)
        totals = _compute(trainer)
    assert totals.grads is not None
    sums = totals.grads.copy()
    digest = trainer.hash_totals(totals)
    assert digest == trainer.hash_totals(trainer.own_totals()), "where sums lie changes no hash"
    norm = trainer.apply(totals)
    counters = dict(zip(COUNTERS, totals.counters.tolist(), strict=True))
    return {"sums": sums, "norm": norm, "maxima": totals.maxima, **counters}


def _compute(trainer: Trainer) -> Totals:
    """Sum all micro-shards of a step, as an island that is alone does."""
    for shard in range(SHARDS):
        trainer.run_shard(trainer.step, shard)
        trainer.fold()
    return trainer.totals_to_reduce()


def drive(payload: TargetPayload, loader: Loader | None = None) -> dict[str, np.ndarray]:
    """Train `STEPS` steps; give each step's numbers and the last state, by name."""
    trainer = make_trainer(payload, loader)
    found = {}
    for number in range(STEPS):
        found |= {f"{number}.{name}": np.asarray(v) for name, v in step(trainer).items()}
    found |= {name: np.array(array) for name, array in trainer.state().arrays()}
    return found


def drive_elsewhere(payload: TargetPayload, folder: Path) -> dict[str, np.ndarray]:
    """Train in a process that was started as an island's is."""
    folder.mkdir()
    (folder / "payload").write_bytes(payload.to_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.agent.training_support", "payload", "out.npz"],
        env={**os.environ, **island_environment(1, payload.target), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(folder / "out.npz") as stored:
        return dict(stored)


def check_equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], rtol: float) -> None:
    """Compare two trainings whose arithmetic runs in another order.

    Losses, norms and moments are compared, and of the first step the integer sums: parameters
    differ by up to the learning rate where a gradient is about as small as Adam's epsilon.
    """
    assert ours.keys() == theirs.keys()
    for number in range(STEPS):
        for name in ("tokens", "overflow", "nonfinite"):
            assert ours[f"{number}.{name}"] == theirs[f"{number}.{name}"], (number, name)
        for name in ("loss", "norm"):
            np.testing.assert_allclose(
                ours[f"{number}.{name}"], theirs[f"{number}.{name}"], rtol=rtol, err_msg=name
            )
    first, other = (found["0.sums"].astype(np.int64) for found in (ours, theirs))
    assert np.abs(first - other).max() <= max(2 * SHARDS, rtol * np.abs(other).max())
    assert np.abs(other).max() > 1000
    for name, array in theirs.items():
        if name.startswith(("moment1/", "moment2/")):
            scale = np.abs(array).max()
            np.testing.assert_allclose(
                ours[name], array, rtol=100 * rtol, atol=100 * rtol * scale, err_msg=name
            )


if __name__ == "__main__":
    np.savez(sys.argv[2], **drive(TargetPayload.from_bytes(Path(sys.argv[1]).read_bytes())))

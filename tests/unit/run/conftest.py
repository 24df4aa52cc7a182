"""Recorded runs for the unit tests: a folder with events, log, plan and record of a finished job.

The numbers are made up; the files are written by the real writers of plan and log.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtime.agent.checkpoint import write_checkpoint
from runtime.agent.state import initial_state
from runtime.coordinator.log import Commit, SqliteCommitLog
from runtime.coordinator.plan import OptimizerPlan, RunPlan, SchedulePlan
from runtime.run.folder import RUN_FORMAT, RunFolder

START = 1_790_000_000.0
STEPS = 20


def make_plan(*, steps: int = STEPS, islands: int = 3) -> RunPlan:
    """Give a plan of 8 micro-shards of 2 samples."""
    return RunPlan(
        run_id="r",
        total_steps=steps,
        micro_shards=8,
        micro_batch=2,
        seed=7,
        islands=islands,
        min_islands=1,
        threads_per_island=1,
        heartbeat_timeout_s=1.0,
        checkpoint_every=10,
        keep=2,
        target="cpu",
        artifact="artifact.luma",
        signer_file="signer.pem",
        key_file=None,
        job_digest="ab" * 32,
        headroom=3,
        optimizer=OptimizerPlan(
            lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, grad_clip=1.0
        ),
        schedule=SchedulePlan(kind="cosine", warmup_steps=2, min_lr_ratio=0.1),
        sample_count=100,
        data_digest="cd" * 32,
    )


def make_commit(step: int, members: tuple[str, ...]) -> Commit:
    """Give a commit whose shards are dealt in turn to the members."""
    shares: dict[str, list[int]] = {name: [] for name in members}
    for shard in range(8):
        shares[members[shard % len(members)]].append(shard)
    return Commit(
        step=step,
        epoch=1,
        attempt=0,
        members=members,
        shards=shares,
        sum_hash=f"{step:064x}",
        loss=5.5 * 0.93**step + 0.02 * (step % 3),
        tokens=2048,
    )


def write_recorded_run(path: Path, *, kill_step: int | None = 12, done: bool = True) -> RunFolder:
    """Write the records of a run of three islands in which island-1 was killed and replaced."""
    folder = RunFolder(path)
    folder.islands_dir.mkdir(parents=True)
    make_plan().write(path)
    record = {
        "format": RUN_FORMAT,
        "created": START,
        "name": "recorded",
        "artifact": {"digest": "sha384:" + "ef" * 48, "seal": "L1 (key file)"},
        "versions": {"python": "3.11.0", "luma": "0.1.0", "jax": "0.10.2", "torch": "2.13.0"},
        "machine": {"cpu": "Example CPU", "cores": 2, "system": "Linux", "architecture": "x86_64"},
    }
    (path / "run.json").write_text(json.dumps(record))
    log = SqliteCommitLog(folder.log_file)
    events = [{"time": START, "kind": "coordinator_started", "pid": 99, "restart": False}]
    members = ("island-0", "island-1", "island-2")
    for number, name in enumerate(members):
        events.append(
            {
                "time": START + 2 + 0.1 * number,
                "kind": "joined",
                "island": name,
                "pid": number,
                "chip_class": "cpu/x",
            }
        )
    events.append({"time": START + 2.3, "kind": "epoch", "epoch": 1, "members": members, "step": 0})
    now = START + 2.5
    for step in range(STEPS if done else STEPS - 5):
        if step == kill_step:
            events += _kill(now)
            members, now = ("island-0", "island-2", "island-3"), now + 1.1
        now += 0.4
        commit = make_commit(step, members)
        log.append(commit)
        events.append(
            {
                "time": now,
                "kind": "commit",
                "step": step,
                "loss": commit.loss,
                "tokens": 2048,
                "epoch": 1,
                "attempt": 0,
                "seconds": 0.4,
                "shards": commit.shards,
                "members": list(members),
                "sum_hash": commit.sum_hash,
            }
        )
        if step % 10 == 9:
            events.append(
                {
                    "time": now + 0.1,
                    "kind": "checkpoint",
                    "step": step + 1,
                    "writer": "island-0",
                    "state_hash": "12" * 32,
                    "path": "x",
                    "seconds": 0.1,
                    "stall_s": 0.01,
                }
            )
    if done:
        events.append({"time": now + 0.2, "kind": "done", "step": STEPS, "state_hash": "12" * 32})
        write_final_checkpoint(folder)
    log.close()
    folder.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def write_final_checkpoint(folder: RunFolder, state_hash: str = "12" * 32) -> None:
    """Write a small checkpoint of the last step, which says that its state has that hash."""
    params = {"weight": np.arange(6, dtype=np.float32)}
    state = dataclasses.replace(initial_state(params, n_blocks=1), step=STEPS)
    write_checkpoint(
        folder.checkpoints_dir,
        state,
        job_digest=make_plan().job_digest,
        durable=False,
        state_hash=state_hash,
    )


def _kill(now: float) -> list[dict]:
    return [
        {
            "time": now + 0.1,
            "kind": "interruption",
            "island": "island-1",
            "how": "SIGKILL",
            "at_step": 12,
            "pid": 1,
        },
        {"time": now + 0.15, "kind": "left", "island": "island-1", "reason": "connection closed"},
        {"time": now + 0.15, "kind": "redo", "step": 12, "reason": "membership", "shards": [1]},
        {"time": now + 0.2, "kind": "exited", "island": "island-1", "pid": 1, "code": -9},
        {
            "time": now + 1.0,
            "kind": "joined",
            "island": "island-3",
            "pid": 3,
            "chip_class": "cpu/x",
        },
    ]


@pytest.fixture
def recorded_run(tmp_path: Path) -> Callable[..., RunFolder]:
    """Give a function that writes a recorded run; keywords as of `write_recorded_run`."""
    return lambda **kwargs: write_recorded_run(tmp_path / "recorded", **kwargs)

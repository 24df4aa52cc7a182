"""Public bugs of other trainers, as tests of whole runs: one interrupted job, looked at from all
sides.

The job has dropout and passes over its data many times. Its uninterrupted run is
compared with one that began on one island, was killed whole with SIGKILL in its second pass
(launcher, coordinator, island) or soon after, went on with two islands, and lost one of those later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from runtime.agent.sampler import sample_indices
from runtime.coordinator.log import Commit
from runtime.coordinator.plan import RunPlan
from tests.integration.training.conftest import (
    LONG,
    MICRO_BATCH,
    SHARDS,
    Launched,
    luma,
)

KILLED_AT, LOST_AT = 12, 80
"""By step 12 the checkpoint of step 5 is durable: the next one waits for its buffers."""
COUNT = 50

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def whole(launched: Callable[[str], Launched]) -> Launched:
    """The uninterrupted run."""
    return launched("long")


@pytest.fixture(scope="module")
def interrupted(whole: Launched) -> Launched:
    """The same job, killed whole in step 12, resumed on two islands, one of them killed."""
    folder = whole.place / "interrupted"
    run = Launched(whole.place, folder)
    # The island is stopped in that step, so that the kill finds it there on any machine.
    words = ["launch", whole.place / "job.yaml", "--yes", "--run", folder]
    words += ["--chaos", f"stop:0@step={KILLED_AT}:for=120s"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "runtime.cli", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not run.events("interruption"):
            assert launcher.poll() is None, launcher.communicate()[0]
            assert time.monotonic() < deadline, "the island was never stopped"
            time.sleep(0.05)
    finally:
        launcher.kill()
        kill_processes_of(folder)
        launcher.communicate()
    resumed = luma(
        *("launch", "--resume", folder, "--islands", "2", "--chaos", f"kill:1@step={LOST_AT}")
    )
    assert resumed.returncode == 0, resumed.stderr
    return run


def kill_processes_of(folder: Path) -> None:
    """SIGKILL the coordinator and the islands of a run."""
    for process in psutil.process_iter(["cmdline", "pid"]):
        if str(folder) in (process.info["cmdline"] or []):
            os.kill(process.info["pid"], signal.SIGKILL)


def samples_read(commits: list[Commit], plan: RunPlan) -> list[int]:
    """Give the samples that were summed, in order, from the log and the sampler."""
    read: list[int] = []
    for commit in commits:
        shards = sorted(shard for held in commit.shards.values() for shard in held)
        for shard in shards:
            indices = sample_indices(
                seed=plan.seed,
                count=plan.sample_count,
                step=commit.step,
                shard=shard,
                micro_shards=plan.micro_shards,
                micro_batch=plan.micro_batch,
            )
            read += indices.tolist()
    return read


def test_the_final_state_is_the_uninterrupted_runs(whole: Launched, interrupted: Launched) -> None:
    certificate = interrupted.certificate()
    assert certificate["level"] == "exact", certificate["problems"]
    assert certificate["state_hash"] == whole.certificate()["state_hash"]
    assert certificate["steps_lost"] == 0
    assert certificate["samples_exactly_once"]
    assert {item["at_step"] for item in certificate["interruptions"]} >= {LOST_AT}


def test_transformers_40245_from_one_island_to_two_every_sample_is_read_once(
    interrupted: Launched,
) -> None:
    plan = RunPlan.read(interrupted.folder)
    assert plan.sample_count == COUNT
    read = samples_read(interrupted.commits(), plan)
    assert len(read) == LONG * SHARDS * MICRO_BATCH
    for epoch in range(len(read) // COUNT):
        assert sorted(read[epoch * COUNT : (epoch + 1) * COUNT]) == list(range(COUNT))


def test_accelerate_2016_resume_in_a_later_epoch_uses_that_epochs_order(
    whole: Launched, interrupted: Launched
) -> None:
    plan = RunPlan.read(whole.folder)
    read = samples_read(interrupted.commits(), plan)
    assert read == samples_read(whole.commits(), plan)
    epochs = [read[i : i + COUNT] for i in range(0, 3 * COUNT, COUNT)]
    assert len({tuple(epoch) for epoch in epochs}) == 3, "the epochs have one order"
    assert KILLED_AT * SHARDS * MICRO_BATCH > COUNT, "the kill was not in a later epoch"


def test_accelerate_1451_and_datasets_7447_later_epochs_are_whole(
    whole: Launched, interrupted: Launched
) -> None:
    """Token counts and losses tell what was really in each batch, whatever the log says."""
    ours, theirs = interrupted.commits(), whole.commits()
    assert [c.tokens for c in ours] == [c.tokens for c in theirs]
    assert [c.loss for c in ours] == [c.loss for c in theirs]


def test_torchtitan_816_what_one_island_saved_two_islands_load(interrupted: Launched) -> None:
    members = [set(commit.members) for commit in interrupted.commits()]
    assert len(members[0]) == 1
    assert max(len(m) for m in members[KILLED_AT:]) == 2
    (restored,) = interrupted.events("restored")
    told = [e for e in interrupted.events("checkpoint") if e["time"] < restored["time"]]
    # One more may have become durable without a word of it, as its coordinator was killed.
    newest = max((e["step"] for e in told), default=0)
    assert newest <= restored["to_step"] <= restored["from_step"], "not from the newest checkpoint"
    assert restored["to_step"] > 0


def test_torchft_309_a_failed_step_does_not_advance_the_data(
    whole: Launched, interrupted: Launched
) -> None:
    """The step of the second kill was done again with the same samples, and the end is reached."""
    ours, theirs = interrupted.commits()[LOST_AT], whole.commits()[LOST_AT]
    assert ours.sum_hash == theirs.sum_hash
    assert interrupted.commits()[-1].step == LONG - 1


def test_the_well_77_moments_and_schedule_survive(whole: Launched, interrupted: Launched) -> None:
    """Moments are part of the hash; the norm and the state after each checkpoint follow the rate."""
    hashes = {event["step"]: event["state_hash"] for event in whole.events("checkpoint")}
    for event in interrupted.events("checkpoint"):
        if event["step"] in hashes:
            assert event["state_hash"] == hashes[event["step"]]
    norms = {event["step"]: event["grad_norm"] for event in whole.events("applied")}
    for event in interrupted.events("applied"):
        assert event["grad_norm"] == norms[event["step"]]


def test_transformers_17032_dropout_and_order_are_unchanged_after_the_restore(
    whole: Launched, interrupted: Launched
) -> None:
    ours = [commit.sum_hash for commit in interrupted.commits()]
    assert ours == [commit.sum_hash for commit in whole.commits()]


def test_litgpt_1927_batch_and_rate_do_not_depend_on_the_number_of_islands(
    interrupted: Launched,
) -> None:
    for commit in interrupted.commits():
        counted = sorted(shard for shards in commit.shards.values() for shard in shards)
        assert counted == list(range(SHARDS))


def test_pytorch_182221_the_survivor_of_a_kill_is_not_restarted(interrupted: Launched) -> None:
    (hit,) = [e for e in interrupted.events("interruption") if e["how"] == "SIGKILL"]
    joined = [event["island"] for event in interrupted.events("joined")]
    survivors = set(interrupted.commits()[LOST_AT - 1].members) - {hit["island"]}
    assert survivors
    for name in survivors:
        assert joined.count(name) == 1, f"{name} had to join again"
        assert name in interrupted.commits()[-1].members
    pids = {e["island"]: e["pid"] for e in interrupted.events("spawned")}
    assert len(set(pids.values())) == len(pids)


def test_dlrover_1378_the_last_checkpoint_is_not_lost_at_the_exit(
    whole: Launched, interrupted: Launched
) -> None:
    for run in (whole, interrupted):
        assert max(event["step"] for event in run.events("checkpoint")) == LONG
        assert run.checkpoint(LONG).is_dir()


def test_entrenar_294_the_loader_does_not_begin_again_at_the_first_shard(
    interrupted: Launched,
) -> None:
    read = samples_read(interrupted.commits(), RunPlan.read(interrupted.folder))
    per_step = SHARDS * MICRO_BATCH
    first = read[:per_step]
    assert not np.array_equal(read[KILLED_AT * per_step : (KILLED_AT + 1) * per_step], first)

"""Real processes, killed at exact phases: the run ends with the bits of an undisturbed one."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
import time

import pytest

from runtime.agent.checkpoint import latest_checkpoint
from runtime.agent.exit_codes import ExitCode
from runtime.coordinator.fence import who_works_in
from runtime.coordinator.log import LOG_FILE, SqliteCommitLog
from runtime.coordinator.plan import RunPlan, new_run_id
from tests.integration.elastic.conftest import HERE, SHARDS

pytestmark = pytest.mark.timeout(400)

PHASES = [
    "before-shard:4",
    "in-shard:4",
    "after-shard:4",
    "before-ring:4",
    "in-ring:4",
    "after-ring:4",
    "before-apply:4",
    "after-apply:4",
    "before-checkpoint-rename",
    "after-checkpoint-rename",
]


@pytest.mark.parametrize("islands", [2, 3])
def test_number_of_islands_does_not_change_a_bit(make_fleet, same_bits, islands: int) -> None:
    fleet = make_fleet(islands)
    fleet.start(islands)
    same_bits(fleet)


@pytest.mark.parametrize("phase", PHASES)
def test_kill_at_a_phase(make_fleet, same_bits, phase: str) -> None:
    fleet = make_fleet(3)
    fleet.start(3, fault=f"kill@{phase}")
    fleet.wait_killed("island-0")
    fleet.start_island(3)
    same_bits(fleet)
    reasons = {event["island"]: event["reason"] for event in fleet.events("left")}
    assert reasons["island-0"] == "connection closed"


def test_two_islands_killed_at_once(make_fleet, same_bits) -> None:
    fleet = make_fleet(3)
    fleet.start(3)
    fleet.wait_for_step(3)
    fleet.processes["island-0"].kill()
    fleet.kill("island-2")
    fleet.start_island(3)
    same_bits(fleet)


def test_coordinator_killed_islands_go_on_or_wait(make_fleet, same_bits) -> None:
    fleet = make_fleet(3)
    fleet.start(3)
    for step in (2, 5):
        fleet.wait_for_step(step)
        fleet.kill_coordinator()
        time.sleep(0.3)
        assert all(p.poll() is None for p in fleet.processes.values()), "an island died with it"
        fleet.start_coordinator(restart=True)
    same_bits(fleet)
    assert fleet.events("left") == [], "an island had to leave"


def test_everything_killed_resumes_from_the_last_durable_step(make_fleet, same_bits) -> None:
    fleet = make_fleet(2)
    fleet.start(2)
    fleet.wait_for_step(6)
    fleet.kill_coordinator()
    fleet.kill("island-0")
    fleet.kill("island-1")
    durable = latest_checkpoint(fleet.run_dir / "checkpoints", None)
    assert durable is not None
    assert durable.step == 4
    fleet.start_coordinator()
    fleet.start_island(2)
    fleet.start_island(3)
    same_bits(fleet)
    (restored,) = fleet.events("restored")
    assert restored["to_step"] == 4
    assert restored["from_step"] >= 7
    log = SqliteCommitLog(fleet.run_dir / LOG_FILE, read_only=True)
    assert log.recommit_count() == restored["from_step"] - 4, "each was computed again, same bits"


def test_resume_falls_back_over_a_torn_checkpoint(make_fleet, same_bits) -> None:
    fleet = make_fleet(1)
    fleet.start(1)
    fleet.wait_for_step(9)
    fleet.wait(lambda: len(fleet.events("checkpoint")) >= 2, "the checkpoint of step 8")
    fleet.kill("island-0")
    fleet.kill_coordinator()
    newest = latest_checkpoint(fleet.run_dir / "checkpoints", None)
    assert newest is not None
    weights = newest.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    fleet.start_coordinator()
    fleet.start_island(1)
    same_bits(fleet)


def test_late_island_joins_with_the_state_of_a_donor(make_fleet, same_bits, tmp_path) -> None:
    fleet, gate = make_fleet(1), tmp_path / "gate"
    fleet.start(1, hold=(3, gate))
    fleet.wait_for_step(2)
    fleet.start_island(1)
    fleet.wait(lambda: len(fleet.events("joined")) == 2, "the newcomer")
    gate.touch()
    same_bits(fleet)
    shares = [commit["shards"].get("island-1", []) for commit in fleet.events("commit")]
    assert any(shares), "the newcomer computed nothing"


def test_island_four_times_slower_gets_fewer_shards(make_fleet, same_bits) -> None:
    fleet = make_fleet(2)
    fleet.start(2, slow=4.0)
    same_bits(fleet)
    settled = fleet.events("commit")[3:]
    slow = sum(len(commit["shards"].get("island-0", [])) for commit in settled)
    fast = sum(len(commit["shards"].get("island-1", [])) for commit in settled)
    assert 2 * slow <= fast


@pytest.mark.parametrize("phase", ["after-shard:4", "in-ring:4", "before-apply:4"])
def test_zombie_is_refused_and_comes_back_as_a_newcomer(
    make_fleet, same_bits, tmp_path, phase: str
) -> None:
    """SIGSTOP for longer than the heartbeat, then SIGCONT: the late result must not count."""
    fleet, gate = make_fleet(3), tmp_path / "gate"
    fleet.start(3, others={"hold": (6, gate)}, fault=f"stop@{phase}")
    fleet.wait(lambda: fleet.events("left"), "the expulsion")
    (left,) = fleet.events("left")
    assert (left["island"], left["reason"]) == ("island-0", "no heartbeat")
    fleet.processes["island-0"].send_signal(signal.SIGCONT)
    back = fleet.wait(
        lambda: [e for e in fleet.events("joined") if e["island"] == "island-0"][1:], "the return"
    )
    assert back[0]["pid"] == fleet.processes["island-0"].pid, "it is the same process"
    gate.touch()
    same_bits(fleet)


def test_notice_hands_over_and_leaves_without_a_redo(make_fleet, same_bits, tmp_path) -> None:
    fleet, gate = make_fleet(2), tmp_path / "gate"
    fleet.start(2, hold=(3, gate))
    fleet.wait_for_step(2)
    fleet.processes["island-0"].terminate()
    fleet.wait(lambda: fleet.events("leaving"), "the notice")
    gate.touch()
    fleet.wait(lambda: fleet.processes["island-0"].poll() is not None, "the end of island-0")
    assert fleet.processes["island-0"].returncode == 0
    same_bits(fleet)
    assert [e for e in fleet.events("redo") if e["reason"] == "membership"] == []


_LAUNCHER = """
import subprocess, sys, time
subprocess.Popen(sys.argv[1:])
time.sleep(600)
"""


def test_an_island_without_launcher_and_coordinator_leaves_and_the_run_can_be_resumed(
    make_fleet, same_bits, tmp_path
) -> None:
    fleet = make_fleet(1)
    island = [sys.executable, str(HERE / "faulty_island.py"), "--hold", "3", str(tmp_path / "gate")]
    island += ["--", "--run", str(fleet.run_dir), "--name", "island-0"]
    fleet.start_coordinator()
    launcher = subprocess.Popen([sys.executable, "-c", _LAUNCHER, *island])
    fleet.wait_for_step(2)
    launcher.kill()
    launcher.wait()
    fleet.kill_coordinator()
    assert who_works_in(fleet.run_dir) == "islands"
    fleet.wait(lambda: who_works_in(fleet.run_dir) is None, "the end of the orphan")
    fleet.start_coordinator()
    fleet.start_island(1)
    same_bits(fleet)


def test_an_island_of_an_older_run_is_refused_by_the_next_one(
    make_fleet, same_bits, tmp_path
) -> None:
    fleet, gate = make_fleet(1), tmp_path / "gate"
    fleet.start(1, hold=(3, gate))
    fleet.wait_for_step(2)
    fleet.kill_coordinator()
    plan = RunPlan.read(fleet.run_dir)
    dataclasses.replace(plan, run_id=new_run_id()).write(fleet.run_dir)
    for path in fleet.run_dir.glob("log.sqlite*"):
        path.unlink()
    shutil.rmtree(fleet.run_dir / "checkpoints" / "step-000004", ignore_errors=True)
    fleet.start_coordinator()
    fleet.wait(lambda: fleet.processes["island-0"].poll() is not None, "the end of the older one")
    assert fleet.processes["island-0"].returncode == ExitCode.REFUSED
    (refused,) = fleet.events("refused")
    assert (refused["island"], refused["reason"]) == ("island-0", "it belongs to another run")
    fleet.start_island(1)
    same_bits(fleet)


def test_a_plan_of_other_micro_shards_than_the_artifact_starts_nothing(make_fleet) -> None:
    fleet = make_fleet(1, micro_shards=SHARDS * 2)
    fleet.start(1)
    fleet.wait(lambda: fleet.processes["island-0"].poll() is not None, "the refusal")
    assert fleet.processes["island-0"].returncode == ExitCode.FATAL
    log = (fleet.run_dir / "islands" / "island-0.log").read_text()
    assert f"compiled for micro_shards {SHARDS}, plan.json has {SHARDS * 2}" in log
    assert "Traceback" not in log

"""Stopping a run, by Ctrl-C, by `luma cancel` and by killing its launcher, and going on with it.

Whatever ends a run early, resuming it must end in the hash of the uninterrupted reference.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from runtime.coordinator.client import read_status
from runtime.spec import LumaError

JOB = Path(__file__).resolve().parents[2] / "examples" / "tiny" / "job.yaml"

pytestmark = pytest.mark.timeout(600)


def wait_until(condition: Callable[[], bool], *, seconds: float = 240) -> None:
    """Wait for a condition, or fail."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def step_of(folder: Path) -> int:
    """Give the applied steps of a run that may not have begun."""
    try:
        return read_status(folder)["step"]
    except LumaError:
        return -1


def processes_of(folder: Path) -> list[psutil.Process]:
    """Give the run's coordinator and islands that are alive."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if str(folder) in words and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.fixture
def begun(place, first):
    """Give a function that begins a launch and waits until it has applied some steps."""
    del first  # its launch filled the caches
    begun: list[subprocess.Popen] = []

    def begin(name: str, *, steps: int = 3) -> tuple[subprocess.Popen, Path]:
        folder = place.path / "runs" / name
        process = subprocess.Popen(
            [sys.executable, "-m", "runtime.cli", "launch", JOB, "--yes", "--run", folder],
            env=place.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        wait_until(lambda: step_of(folder) >= steps or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process, folder

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def resumed(place, folder: Path) -> dict:
    """Resume a run to its end and give its certificate."""
    done = place.luma("launch", "--resume", folder, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["certificate"]


def test_ctrl_c_stops_resumably_and_the_resumed_run_is_exact(place, first, begun):
    process, folder = begun("stopped")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert f"luma launch --resume {folder}" in err
    assert "Traceback" not in err
    assert processes_of(folder) == []
    assert read_status(folder)["state"] == "terminated"
    certificate = resumed(place, folder)
    assert certificate["level"] == "exact", certificate["problems"]
    assert certificate["state_hash"] == first.certificate["state_hash"]
    assert certificate["attempts_redone"] <= first.certificate["attempts_redone"]


def test_a_second_ctrl_c_ends_everything_at_once_and_it_can_still_be_resumed(place, first, begun):
    process, folder = begun("killed-by-user")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while "stopping after the step" not in process.stderr.readline():
        pass  # two signals at once would be one
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    wait_until(lambda: processes_of(folder) == [], seconds=10)
    assert resumed(place, folder)["state_hash"] == first.certificate["state_hash"]


def test_luma_cancel_stops_it_from_outside(place, begun):
    process, folder = begun("cancelled")
    assert place.luma("cancel", folder).returncode == 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "--resume" in err
    assert place.luma("cancel", folder).returncode == 1  # nothing runs any more


def test_a_killed_launcher_takes_its_processes_along_and_leaves_a_run_to_resume(
    place, first, begun
):
    process, folder = begun("orphaned")
    assert len(processes_of(folder)) >= 4
    process.kill()
    process.communicate()
    wait_until(lambda: processes_of(folder) == [], seconds=30)
    certificate = resumed(place, folder)
    assert certificate["state_hash"] == first.certificate["state_hash"]
    assert certificate["steps_lost"] == 0


def test_another_launch_of_a_running_folder_is_refused(place, begun):
    process, folder = begun("busy")
    again = place.luma("launch", JOB, "--yes", "--run", folder)
    assert again.returncode == 1
    assert f"process {process.pid}" in again.stderr
    assert process.poll() is None


def test_the_sdk_launches_waits_and_tells(place, first, monkeypatch):
    from runtime.run import Job, Run

    monkeypatch.setenv("LUMA_HOME", place.environment["LUMA_HOME"])
    run = Job.from_yaml(JOB).launch(run=place.path / "runs" / "sdk", islands=1)
    certificate = run.wait(timeout_s=400)
    assert certificate["state_hash"] == first.certificate["state_hash"]
    assert certificate["islands"] == 1
    assert [event["step"] for event in run.events() if event["kind"] == "commit"] == list(range(30))
    assert Run.open(run.path).wait(timeout_s=1) == certificate
    assert isinstance(list(run.logs("island-0")), list)
    assert run.status()["state"] == "done"
    assert (run.path / "loss.png").is_file()

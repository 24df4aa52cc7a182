"""Processes that outlived their launcher: the next launch or resume of the folder waits for them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.coordinator.fence import ISLANDS_LOCK, LOG_FENCE, Fence, who_works_in
from runtime.coordinator.plan import RunPlan
from runtime.run import launch as launch_module
from runtime.run.files import write_json
from runtime.run.folder import RUN_FILE, RUN_FORMAT, RunFolder
from runtime.run.launch import _wait_for_orphans
from runtime.run.reference import prepare_reference
from runtime.spec import RunError
from tests.unit.run.conftest import make_plan

_HOLD = """
import sys, time
from pathlib import Path
from runtime.coordinator.fence import Fence
fence = Fence(Path(sys.argv[1]), shared=sys.argv[2] == "shared")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold() -> Iterator[Callable[[Path, bool], subprocess.Popen[str]]]:
    """Give a function that starts a process which holds a lock."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, shared: bool) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", _HOLD, str(path), "shared" if shared else "alone"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("name", "who"), [(LOG_FENCE, "a coordinator"), (ISLANDS_LOCK, "islands")])
@pytest.mark.parametrize("place", [".", "reference"])
def test_a_folder_whose_orphans_do_not_end_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold, name: str, who: str, place: str
) -> None:
    monkeypatch.setattr(launch_module, "_ORPHAN_WAIT_S", 0.3)
    (tmp_path / place).mkdir(exist_ok=True)
    process = hold(tmp_path / place / name, shared=name == ISLANDS_LOCK)
    with pytest.raises(RunError, match=f"still in use: {who} of an older launch"):
        _wait_for_orphans(RunFolder(tmp_path))
    process.kill()
    process.wait()
    _wait_for_orphans(RunFolder(tmp_path))


def test_the_wait_ends_with_the_last_orphan(tmp_path: Path, hold) -> None:
    first, last = (hold(tmp_path / ISLANDS_LOCK, shared=True) for _ in range(2))
    first.kill()
    first.wait()
    assert who_works_in(tmp_path) == "islands"
    threading.Timer(0.5, last.kill).start()
    begin = time.monotonic()
    _wait_for_orphans(RunFolder(tmp_path))
    assert time.monotonic() - begin >= 0.4


def test_a_folder_that_nobody_works_in_is_left_as_it_is(tmp_path: Path) -> None:
    _wait_for_orphans(RunFolder(tmp_path / "absent"))
    _wait_for_orphans(RunFolder(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_islands_share_their_lock_and_a_coordinator_is_alone(tmp_path: Path, hold) -> None:
    hold(tmp_path / ISLANDS_LOCK, shared=True)
    Fence(tmp_path / ISLANDS_LOCK, shared=True).close()
    hold(tmp_path / LOG_FENCE, shared=False)
    with pytest.raises(BlockingIOError):
        Fence(tmp_path / LOG_FENCE)


def test_the_reference_is_a_run_of_its_own(tmp_path: Path) -> None:
    plan = make_plan()
    plan.write(tmp_path)
    write_json(tmp_path / RUN_FILE, {"format": RUN_FORMAT})
    (tmp_path / "checkpoints" / "step-000000").mkdir(parents=True)
    reference = RunPlan.read(prepare_reference(RunFolder(tmp_path)).path)
    assert reference.run_id not in {"", plan.run_id}
    assert dataclasses.replace(reference, run_id=plan.run_id, islands=plan.islands) == plan

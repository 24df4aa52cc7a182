"""What the supervisor makes of an island's exit code; real processes, which only end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime.agent.exit_codes import ExitCode
from runtime.run import supervisor as supervisor_module
from runtime.run.folder import RunFolder
from runtime.run.processes import Process
from runtime.run.supervisor import FleetOptions, Supervisor
from runtime.spec import RunError


def _process(name: str, script: str) -> Process:
    popen: subprocess.Popen[bytes] = subprocess.Popen([sys.executable, "-c", script])
    return Process(name, popen, time.monotonic())


def _run(folder: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Supervise islands that end with `code`; give the error and how many were started."""
    started: list[str] = []

    def coordinator(_folder: RunFolder, *, restart: bool) -> Process:
        del restart
        return _process("coordinator", "import time; time.sleep(600)")

    def island(_folder: RunFolder, name: str, _environment: Mapping[str, str]) -> Process:
        started.append(name)
        return _process(name, f"import os; os._exit({code})")

    monkeypatch.setattr(supervisor_module, "spawn_coordinator", coordinator)
    monkeypatch.setattr(supervisor_module, "spawn_island", island)
    (folder / "islands").mkdir()
    supervisor = Supervisor(
        RunFolder(folder),
        FleetOptions(islands=1, max_restarts=1),
        on_event=lambda _event: None,
        stop_asked=lambda: False,
    )
    with pytest.raises(RunError) as caught:
        supervisor.run()
    return str(caught.value), len(started)


def test_a_fatal_error_starts_no_other_island(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, started = _run(tmp_path, ExitCode.FATAL, monkeypatch)
    assert "an error that no other island would escape" in message
    assert started == 1


@pytest.mark.parametrize("code", [ExitCode.CRASHED, ExitCode.FAILED, ExitCode.REFUSED])
def test_a_failure_of_the_island_is_counted_and_the_island_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: ExitCode
) -> None:
    message, started = _run(tmp_path, code, monkeypatch)
    assert "that is failure 2, and recovery.max_restarts allows 1" in message
    assert started == 2


def test_a_lost_coordinator_is_no_failure_of_the_island_but_does_not_go_on_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message, started = _run(tmp_path, ExitCode.LOST_COORDINATOR, monkeypatch)
    assert started == 6, "max_restarts, and two deaths for each process, without a commit"
    assert f"ended with exit code {int(ExitCode.LOST_COORDINATOR)}" in message

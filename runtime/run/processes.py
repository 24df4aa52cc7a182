"""The processes of a run on this machine: the coordinator and the islands.

Each gets a session of its own, so that a Ctrl-C in the terminal reaches only the launcher, and a
log file. They watch their parent themselves and end when it is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.agent.threads import ALLOCATOR
from runtime.run.files import disk_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from runtime.run.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a run.

    Attributes:
        name: `coordinator` or `island-N`.
        popen: the process.
        started: when, in seconds of the monotonic clock.
    """

    name: str
    popen: subprocess.Popen[bytes]
    started: float

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    def alive(self) -> bool:
        """Say whether it has not ended (a stopped one is alive)."""
        return self.popen.poll() is None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process has ended."""
        if not self.alive():
            return False
        self.popen.send_signal(number)
        return True


def spawn_coordinator(folder: RunFolder, *, restart: bool) -> Process:
    """Start the coordinator of a run.

    Args:
        folder: the run.
        restart: one of this run died, and its islands may be alive: wait for them.

    Raises:
        RunError: its log cannot be written.
    """
    return _spawn(
        folder, "coordinator", ["runtime.coordinator", *(["--restart"] if restart else [])], {}
    )


def spawn_island(folder: RunFolder, name: str, environment: Mapping[str, str]) -> Process:
    """Start one island.

    Args:
        folder: the run.
        name: its name, never used before in this run.
        environment: variables added to ours (the job's `envs`).

    Raises:
        RunError: its log cannot be written.
    """
    module = ["runtime.agent", "--name", name]
    return _spawn(folder, name, module, {**ALLOCATOR, **environment})


def end_all(processes: Sequence[Process], *, grace_s: float) -> None:
    """Ask processes to end (SIGTERM), wait, and kill those that remain."""
    for process in processes:
        process.send(signal.SIGCONT)
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while any(process.alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        process.popen.wait()


def _spawn(
    folder: RunFolder, name: str, module: Sequence[str], environment: Mapping[str, str]
) -> Process:
    path = folder.log_of(name)
    command = [sys.executable, "-m", *module, "--run", str(folder.path)]
    with disk_errors(path):
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )
    return Process(name, popen, time.monotonic())

"""Processes of a boot: their output in a file, waits that end, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.e2e.boot.tools import BootError

_POLL_S = 0.05
_GRACE_S = 5.0
_TAIL_LINES = 15

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Running:
    """A process that was started.

    Attributes:
        name: for messages.
        process: the process, first of a group of its own.
        output: where its standard output and error go.
    """

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    def lines(self) -> list[str]:
        """Give the whole lines of its output so far; a console's carriage returns are dropped."""
        text = self.output.read_bytes().decode("utf-8", "replace").replace("\r", "")
        return text.split("\n")[:-1]

    def events(self) -> list[dict[str, Any]]:
        """Give the service's log lines among its output."""
        return [found for found in map(read_event, self.lines()) if found is not None]

    def tail(self) -> str:
        """Give the end of its output, for a message."""
        return "\n".join(f"    {line}" for line in self.lines()[-_TAIL_LINES:])


def read_event(line: str) -> dict[str, Any] | None:
    """Read a line of the service's log; None for any other line of a console."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


@contextlib.contextmanager
def started(name: str, command: Sequence[str], output: Path) -> Generator[Running]:
    """Run a program while the block runs; its whole group is gone at the end, however that comes.

    Raises:
        BootError: it cannot be started.
    """
    with output.open("wb") as file:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise BootError(f"{name}: cannot be started: {error}") from error
    try:
        yield Running(name, process, output)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: asked first, then killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    # Its children may outlive it, and are of its group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(
    what: str, ready: Callable[[], T | None], running: Sequence[Running], *, timeout_s: float
) -> T:
    """Wait until `ready` gives something.

    Args:
        what: what is waited for, for messages.
        ready: asked again and again; None is "not yet".
        running: the processes that it depends on; the last one's output goes into messages.
        timeout_s: how long at most.

    Raises:
        BootError: one of the processes ended, or the time is over.
    """
    end = time.monotonic() + timeout_s
    while True:
        ended = next((one for one in running if one.process.poll() is not None), None)
        found = ready()  # after the look: what a process wrote before its end still counts
        if found is not None:
            return found
        if ended is not None:
            raise BootError(
                f"{what}: {ended.name} ended with exit code {ended.process.returncode} before; "
                f"its output ends with\n{ended.tail()}"
            )
        if time.monotonic() > end:
            tail = f"; {running[-1].name} says\n{running[-1].tail()}" if running else ""
            raise BootError(f"{what}: not within {timeout_s:g} s{tail}")
        time.sleep(_POLL_S)

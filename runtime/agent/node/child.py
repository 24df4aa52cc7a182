"""The process that does a work: started in a session of its own, with a log, tied to the daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from runtime.spec.errors import RunError

__all__ = ["Child", "Command"]

_TAIL_LINES: Final = 20
_TAIL_BYTES: Final = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What is started.

    Attributes:
        module: `python -m` of it.
        arguments: its arguments.
        log: the file that takes what it prints.
        environment: variables added to the daemon's.
    """

    module: str
    arguments: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A running command; it dies with this process.

    Start it from the main thread (see `tied`).

    Args:
        command: what to start.

    Raises:
        RunError: it cannot be started.
    """

    def __init__(self, command: Command) -> None:
        self.log = command.log
        tied = [sys.executable, "-m", "runtime.agent.node.tied", str(os.getpid())]
        words = [*tied, sys.executable, "-m", command.module, *command.arguments]
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                self._popen = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **command.environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise RunError(f"{command.module} cannot be started: {error}") from error

    def ended(self) -> int | None:
        """Give the exit code, negative for a signal; None while it runs."""
        return self._popen.poll()

    def leave(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it and everything that it started."""
        self._send(signal.SIGKILL)

    def tail(self) -> str:
        """Give the last lines of its log."""
        return log_tail(self.log)

    def _send(self, number: signal.Signals) -> None:
        if self._popen.poll() is None:
            try:
                # Its session's group: a compile has children of its own.
                os.killpg(self._popen.pid, number)
            except ProcessLookupError:
                return


def log_tail(path: Path) -> str:
    """Give the last lines of a log, '' where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(deque(text.splitlines(), maxlen=_TAIL_LINES))

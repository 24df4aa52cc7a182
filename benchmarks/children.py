"""Child processes that are asked to do one thing at a time, so that two sides can take turns.

Libraries read their flags and size their thread pools once a process, so each side lives in a
process of its own and sleeps while the other one works. One JSON line asks, one answers; what
libraries print goes to the child's log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Handlers = Mapping[str, Callable[..., Any]]


class ChildError(Exception):
    """A child answered with an error, or died."""


class Child:
    """One side's process; a context manager that ends it.

    Args:
        module: run as `python -m MODULE`; its main calls `serve`.
        environment: the child's whole environment.
        log: file that takes what the child prints.
    """

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        self._module, self._log = module, log
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=dict(environment),
                start_new_session=True,
            )

    def ask(self, command: str, **arguments: Any) -> Any:
        """Ask and wait for the answer.

        Raises:
            ChildError: the child failed; the message holds its reason.
        """
        self.tell(command, **arguments)
        return self.answer()

    def tell(self, command: str, **arguments: Any) -> None:
        """Ask without waiting; `answer` gives the answer.

        Raises:
            ChildError: the child died.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def answer(self) -> Any:
        """Wait for the answer to the last `tell`.

        Raises:
            ChildError: the child failed or died.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._died()
        answer = json.loads(line)
        if "error" in answer:
            raise ChildError(f"{self._module}: {answer['error']} (log: {self._log})")
        return answer["result"]

    def _died(self) -> ChildError:
        code = self._process.wait()
        lines = self._log.read_text(errors="replace").splitlines()[-8:]
        return ChildError(f"{self._module} ended with exit code {code}:\n" + "\n".join(lines))

    def close(self) -> None:
        """End the child."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        """Give the child."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the child."""
        self.close()


def serve(handlers: Handlers) -> None:
    """Be the child: answer requests until the parent closes the pipe or is gone.

    Args:
        handlers: functions by command; they take the request's arguments by name and give plain
            values.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries that print must not break the answers
    for line in sys.stdin:
        command, arguments = json.loads(line)
        try:
            answer = {"result": handlers[command](**arguments)}
        except Exception as error:  # noqa: BLE001 - told to the parent, traceback in the log
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    sys.stderr.flush()
    os._exit(0)  # compute threads of a library may not want to end

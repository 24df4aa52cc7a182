"""Run the compiling process and watch it: package in, events and payload out.

A child that ends in any other way than with exit code 0 and a whole payload gives an error, with
its own message where it sent one, else with the last lines of what it wrote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import runtime
from runtime.compiler.targets import Target
from runtime.spec import ArtifactError, CompileError, LoweringError, LumaError

_ERRORS: dict[str, type[LumaError]] = {
    error.__name__: error for error in (CompileError, LoweringError, ArtifactError)
}
_KEPT_LINES = 5
_DROPPED = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NPROC", "PJRT_NPROC", "JAX_")
"""Beginnings of variables that change what a compiler makes, beside what the cache knows."""

Emit = Callable[[Mapping[str, object]], None]


@dataclass(slots=True)
class _Watched:
    """What a child has sent so far."""

    payload: bytes = b""
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))


class Children:
    """The compiling processes of one call, so that whoever interrupts it can end them all.

    Args:
        user: uid and gid that they run as, in no other group; default: this process's own. Only
            root may name one, and Python has to be readable by everyone then.
    """

    def __init__(self, user: int | None = None) -> None:
        self.user = user
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Take a child in; after `end` it is killed at once."""
        with self._lock:
            self._running.add(child)
            if self._ended:
                child.kill()

    def remove(self, child: subprocess.Popen[bytes]) -> None:
        """Forget a child that has ended."""
        with self._lock:
            self._running.discard(child)

    def end(self) -> None:
        """Kill all children, and those that are still to come."""
        with self._lock:
            self._ended = True
            for child in self._running:
                child.kill()

    def ended(self) -> bool:
        """Say whether `end` was called."""
        with self._lock:
            return self._ended


def run_worker(
    package: bytes,
    *,
    target: Target,
    micro_shards: int,
    emit: Emit,
    children: Children,
) -> bytes:
    """Compile a package in a process of its own; give the payload's bytes.

    Args:
        package: canonical bytes of the graph package.
        target: what to compile for; its environment is the child's.
        micro_shards: M of the job.
        emit: takes the child's progress events, in this thread.
        children: knows the child while it runs.

    Raises:
        CompileError: the child failed or died.
        LoweringError: ops have no lowering for the target.
    """
    read_end, write_end = os.pipe()
    try:
        child = subprocess.Popen(
            _command(target, micro_shards, write_end),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(target, children.user),
            pass_fds=(write_end,),
            user=children.user,
            group=children.user,
            extra_groups=None if children.user is None else (),
        )
    except OSError as error:
        os.close(read_end)
        raise CompileError(f"the compiling process cannot start: {error.strerror}") from error
    finally:
        os.close(write_end)
    children.add(child)
    try:
        return _watch(child, package, read_end, emit)
    finally:
        child.kill()  # no effect on one that ended; Ctrl-C must not leave it running
        child.wait()
        children.remove(child)


def _watch(child: subprocess.Popen[bytes], package: bytes, read_end: int, emit: Emit) -> bytes:
    """Feed a child, pass its events on, and give its payload once it ended well."""
    stdin, stdout, stderr = child.stdin, child.stdout, child.stderr
    if stdin is None or stdout is None or stderr is None:  # never: all three are pipes
        raise CompileError("the compiling process has no pipes")
    watched = _Watched()
    threads = [
        threading.Thread(target=_feed, args=(stdin, package), daemon=True),
        threading.Thread(target=_drain, args=(read_end, watched), daemon=True),
        threading.Thread(target=_keep_tail, args=(stderr, watched), daemon=True),
    ]
    for thread in threads:
        thread.start()
    failure: LumaError | None = None
    for line in stdout:
        event = _event(line)
        if event.get("stage") == "error":
            failure = _error(event)
        elif event:
            emit(event)
    code = child.wait()
    for thread in threads:
        thread.join()
    if failure is not None:
        raise failure
    if code != 0 or not watched.payload:
        raise CompileError(_death(code, watched))
    return watched.payload


def _command(target: Target, micro_shards: int, result_fd: int) -> list[str]:
    """Give the child's command line."""
    return [
        sys.executable,
        "-m",
        "runtime.compiler.worker",
        f"--target={target.name}",
        f"--micro-shards={micro_shards}",
        f"--result-fd={result_fd}",
        f"--parent={os.getpid()}",
    ]


def _environment(target: Target, user: int | None) -> dict[str, str]:
    """Give the child's environment: ours, less what would change the compiler, plus the target's.

    Another user cannot write to our home: its own is where temporary files go.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    root = str(Path(runtime.__file__).parents[1])
    paths = [root, *filter(None, [kept.get("PYTHONPATH")])]
    if user is not None:
        kept["HOME"] = tempfile.gettempdir()
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), **target.environment}


def _feed(stdin: IO[bytes], package: bytes) -> None:
    """Write the package; a child that died early shows in its exit code."""
    try:
        with stdin:
            stdin.write(package)
    except BrokenPipeError:
        return


def _drain(read_end: int, watched: _Watched) -> None:
    """Read the payload until the child closes its end."""
    with os.fdopen(read_end, "rb") as pipe:
        watched.payload = pipe.read()


def _keep_tail(stderr: IO[bytes], watched: _Watched) -> None:
    """Keep the last lines of the child's log: the compiler is chatty."""
    with stderr:
        for line in stderr:
            watched.errors.append(line.decode("utf-8", "replace").rstrip())


def _event(line: bytes) -> dict[str, object]:
    """Read one event line; anything else that a library prints is not an event."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _error(event: Mapping[str, object]) -> LumaError:
    """Rebuild the error that the child sent."""
    kind = _ERRORS.get(str(event.get("kind")), CompileError)
    remedy = event.get("remedy")
    return kind(str(event.get("message")), remedy=None if remedy is None else str(remedy))


def _death(code: int, watched: _Watched) -> str:
    """Word the end of a child that sent no error."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    tail = " | ".join(watched.errors) or "it wrote nothing"
    return f"the compiling process {how} before its result was whole: {tail}"

"""A stage of a launch that runs in a process of its own, so that its libraries stay out of ours.

The parent sends one JSON line (the request) on the child's standard input and keeps that pipe open:
when it closes, the parent is gone and the child ends itself. The child answers with JSON lines on
its standard output: `{"progress": text}` any number of times, then `{"result": ...}`, or
`{"error": ...}` for a `LumaError`, or `{"crash": ...}` for anything else. Whatever its libraries
print goes to the stage's log.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import runtime.spec as errors
from runtime.run.files import disk_error
from runtime.spec import LumaError, RunError

Progress = Callable[[str], None]

_TAIL_LINES = 12


def run_stage(
    module: str, request: dict[str, Any], *, log: Path, progress: Progress
) -> dict[str, Any]:
    """Run `python -m MODULE` as a stage and give its result.

    Args:
        module: a module whose `main` calls `serve_stage`.
        request: plain values for the child.
        log: file that takes what the child prints.
        progress: called with each line of progress.

    Raises:
        LumaError: the child raised it; class, message and remedy are the child's.
        RunError: the child died or crashed; the message holds the end of its log.
    """
    with log.open("ab") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            start_new_session=True,
        )
    assert child.stdin is not None  # noqa: S101 - for the type checker
    assert child.stdout is not None  # noqa: S101 - for the type checker
    try:
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()
        answer = _follow(child.stdout, progress)
        code = child.wait()
    except BrokenPipeError:
        answer, code = {}, child.wait()
    finally:
        _end(child)
    if "result" in answer:
        return answer["result"]
    if "error" in answer:
        raise _rebuild(answer["error"])
    raise _died(module, answer, code, log)


def serve_stage(work: Callable[[dict[str, Any], Progress], dict[str, Any]]) -> None:
    """Be the child of `run_stage`: read the request, do the work, answer.

    Args:
        work: takes the request and a progress function, gives plain values.
    """
    # Ctrl-C goes to the parent, which ends us; libraries that print must not break the answers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        result = work(request, lambda text: answer({"progress": text}))
    except LumaError as error:
        answer({"error": _describe(error)})
    except OSError as error:
        _log_traceback()
        where = error.filename or request.get("folder", "")
        answer({"error": _describe(disk_error(Path(str(where)), error))})
    except Exception as error:  # noqa: BLE001 - reported, and its traceback goes to the log
        _log_traceback()
        answer({"crash": f"{type(error).__name__}: {error}"})
    else:
        answer({"result": result})


def _log_traceback() -> None:
    # The log may lie on the very disk that is full: then the answer alone must do.
    with contextlib.suppress(OSError):
        traceback.print_exc()
        sys.stderr.flush()


def _end_with_parent() -> None:
    # The descriptor, not the buffered stream: its lock would be held when the interpreter ends.
    while os.read(0, 4096):
        pass
    os._exit(130)


def _follow(stream: IO[bytes], progress: Progress) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for line in stream:
        answer = json.loads(line)
        if "progress" not in answer:
            return answer
        progress(answer["progress"])
    return {}


def _end(child: subprocess.Popen[bytes]) -> None:
    """Leave no child behind, whatever ended the parent's wait."""
    if child.poll() is None:
        child.kill()
        child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _describe(error: LumaError) -> dict[str, Any]:
    return {
        "class": next(
            kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__)
        ),
        "message": error.message,
        "remedy": error.remedy,
        "exit_code": error.exit_code,
    }


def _rebuild(fields: dict[str, Any]) -> LumaError:
    kind: type[LumaError] = getattr(errors, fields["class"], LumaError)
    return kind(fields["message"], remedy=fields["remedy"], exit_code=fields["exit_code"])


def _died(module: str, answer: dict[str, Any], code: int, log: Path) -> RunError:
    if code == -signal.SIGKILL:
        return RunError(
            f"the process of {module} was killed (SIGKILL)",
            remedy="most often the system ran out of memory: close other programs, then try again",
        )
    what = answer.get("crash", f"it ended with exit code {code} and no answer")
    lines = deque(log.read_text(errors="replace").splitlines(), maxlen=_TAIL_LINES)
    tail = "\n".join(f"  | {line}" for line in lines)
    return RunError(f"the process of {module} failed: {what}\n{tail}".rstrip())

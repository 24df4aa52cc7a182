"""Run one architecture in a process of its own, with a limit of time and of memory.

The process is forked from one that has imported everything and computed nothing, so that it starts
at once. A crash, a kill or the end of its time is a failure of its row, at the stage it was in.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
from pathlib import Path

from tests.coverage.row import Limits, Row, read_row


def run_one(model_type: str, folder: Path, limits: Limits) -> Row:
    """Cover one architecture; give its row, which also lies in `folder`."""
    Row(model_type).write(folder)
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(model_type, folder, limits)
    )
    process.start()
    try:
        process.join(limits.seconds)
        late = process.is_alive()
    finally:
        process.kill()  # no effect on one that ended; an interrupt must not leave it running
        process.join()
    row = read_row(folder, model_type) or Row(model_type)
    if process.exitcode != 0:
        row.error = row.reason = (
            f"not done after {limits.seconds:.0f} s" if late else _end(process.exitcode)
        )
        if row.stage == "eager":
            row.status = "not trainable"
        row.write(folder)
    return row


def _child(model_type: str, folder: Path, limits: Limits) -> None:
    """Limit this process, silence the libraries, and cover the architecture."""
    # Imported by the parent already; here by name, so that a row needs nothing else.
    from tests.coverage.one import cover

    size = int(limits.gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os.dup2(nowhere.fileno(), 2)
        cover(model_type, folder, limits)


def _end(exit_code: int | None) -> str:
    """Word the end of a process that left an unfinished row."""
    if exit_code is not None and exit_code < 0:
        return f"the process was killed by signal {-exit_code} (out of memory, or a crash)"
    return f"the process ended with exit code {exit_code}"

"""`events.jsonl`: one line for everything that happened in a run.

The coordinator and the launcher append to the same file; each line is one `write` on a descriptor
opened for appending, so that lines of two processes never mix. A line that a crash cut short is
left out by the reader.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.spec.errors import RunError

EVENTS_FILE = "events.jsonl"


class EventWriter:
    """Appends events to the file of a run folder.

    Args:
        run_dir: the run folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self._fd = os.open(
            run_dir / EVENTS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        self._cut = self._ends_in_a_cut_line()

    def _ends_in_a_cut_line(self) -> bool:
        size = os.fstat(self._fd).st_size
        return size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def write(self, kind: str, /, **fields: Any) -> None:
        """Append one event with the present time.

        Raises:
            RunError: the disk took no more, or only a part, which the reader then leaves out.
        """
        event = json.dumps({"time": round(time.time(), 4), "kind": kind, **fields})
        line = event.encode() + b"\n"
        if self._cut:
            line = b"\n" + line
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise RunError(f"{EVENTS_FILE}: cannot be written ({error.strerror})") from None
        self._cut = written != len(line)
        if self._cut:
            raise RunError(f"{EVENTS_FILE}: the disk is full")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_events(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Give the events of a run in order; lines that are not whole are left out."""
    try:
        lines = (run_dir / EVENTS_FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and {"time", "kind"} <= event.keys():
            yield event

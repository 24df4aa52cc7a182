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
        self._end_cut_line()

    def _end_cut_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def write(self, kind: str, /, **fields: Any) -> None:
        """Append one event with the present time."""
        line = json.dumps({"time": round(time.time(), 4), "kind": kind, **fields})
        os.write(self._fd, line.encode() + b"\n")

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
        if isinstance(event, dict) and "kind" in event:
            yield event

"""The launcher's side of a run's events: append its own, and follow the file as it grows.

The file's rules (a whole line a write, torn lines skipped) are those of `runtime.coordinator.events`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runtime.coordinator.events import EVENTS_FILE, EventWriter
from runtime.run.files import disk_errors

Event = dict[str, Any]


def append_event(run_dir: Path, kind: str, **fields: Any) -> None:
    """Append one event of the launcher to a run's events.

    Raises:
        RunError: the disk refuses.
    """
    with disk_errors(run_dir / EVENTS_FILE):
        writer = EventWriter(run_dir)
        try:
            writer.write(kind, **fields)
        finally:
            writer.close()


class EventFollower:
    """Reads the events that were appended to a run since the last call.

    Args:
        run_dir: the run folder; its events file may not exist yet.
        from_end: skip what is there already.
    """

    def __init__(self, run_dir: Path, *, from_end: bool = False) -> None:
        self._path = run_dir / EVENTS_FILE
        self._offset = self._path.stat().st_size if from_end and self._path.exists() else 0
        self._rest = b""

    def poll(self) -> list[Event]:
        """Give the new events; a last line without its newline waits for the next call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return list(_events(lines))


def _events(lines: Iterable[bytes]) -> Iterable[Event]:
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and {"time", "kind"} <= event.keys():
            yield event

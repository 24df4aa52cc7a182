"""New events of a run's file, as its coordinator writes them.

The file's rules (a whole line a write, torn lines skipped) are those of `runtime.coordinator.events`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.coordinator.events import EVENTS_FILE

__all__ = ["EventTail"]


class EventTail:
    """Reads what was appended to a run's events since the last call.

    Args:
        folder: the run folder; its events file may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS_FILE
        self._offset = 0
        self._rest = b""

    def poll(self) -> Iterator[dict[str, Any]]:
        """Give the new events; a last line without its newline waits for the next call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and {"time", "kind"} <= event.keys():
                yield event

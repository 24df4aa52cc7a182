"""Events of a run as notes in the table, numbered without a gap, whoever writes them.

`luma events` and `luma launch` follow a run by its notes: whoever has read the notes up to a number
asks for those after it. So a note must never appear before one with a lower number; a writer puts
its notes after the last one there is, all or none, and tries again where another writer was faster.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runtime.spec.account import note_item, run_key
from runtime.spec.table import ConditionFailed, Table

__all__ = ["NoteWriter"]

_BATCH: Final = 25
_ATTEMPTS: Final = 40
_NOTE: Final = "NOTE#"


class NoteWriter:
    """Writes notes of one run.

    Args:
        table: the table of runs.
        run: the run.
    """

    def __init__(self, table: Table, run: str) -> None:
        self._table, self._run = table, run
        self._next: int | None = None

    def write(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Append events, in their order.

        Args:
            events: each with `time` and `kind`, as `events.jsonl` has them.

        Raises:
            AwsError: the table cannot be written.
            ConditionFailed: other writers were faster every time.
        """
        for begin in range(0, len(events), _BATCH):
            self._append(events[begin : begin + _BATCH])

    def tell(self, kind: str, /, **fields: Any) -> None:
        """Append one event with the present time.

        Raises:
            AwsError: the table cannot be written.
        """
        self.write([{"time": round(time.time(), 4), "kind": kind, **fields}])

    def _append(self, events: Sequence[Mapping[str, Any]]) -> None:
        for attempt in range(_ATTEMPTS):
            first = self._last() + 1 if self._next is None else self._next
            items = [
                {
                    "pk": run_key(self._run),
                    "sk": note_item(first + index),
                    "kind": str(event["kind"]),
                    "event": json.dumps(event),
                }
                for index, event in enumerate(events)
            ]
            try:
                self._table.put_together(items)
            except ConditionFailed:
                self._next = None
                time.sleep(random.uniform(0, 0.02 * (attempt + 1)))
                continue
            self._next = first + len(items)
            return
        raise ConditionFailed

    def _last(self) -> int:
        newest = self._table.newest(run_key(self._run), _NOTE)
        return -1 if newest is None else int(newest["sk"].removeprefix(_NOTE))

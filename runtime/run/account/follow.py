"""A run in the account as it goes on: its notes, its state, and how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from runtime.run.account.stack import Stack
from runtime.run.account.start import execution_status
from runtime.spec.account import RUN_ITEM, note_item, run_key
from runtime.spec.errors import RunError
from runtime.spec.table import Item

__all__ = ["NoteFollower", "Outcome", "follow_run", "read_item"]

_POLL_S: Final = 2.0
_ENDED: Final = ("done", "failed", "terminated")
_NOTE: Final = "NOTE#"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        state: `done`, `failed` or `terminated`.
        item: the run's item.
    """

    state: str
    item: Item


def read_item(stack: Stack, run: str) -> Item:
    """Read a run's item.

    Raises:
        RunError: there is no such run.
        AwsError: the table cannot be read.
    """
    item = stack.table.get(run_key(run), RUN_ITEM)
    if item is None:
        raise RunError(
            f"there is no run '{run}' in stack '{stack.name}'",
            remedy=f"`luma status {stack.options}` lists them",
        )
    return item


class NoteFollower:
    """Reads the notes that were added to a run since the last call.

    Args:
        stack: where.
        run: the run's name.
        from_end: skip what is there already.
    """

    def __init__(self, stack: Stack, run: str, *, from_end: bool = False) -> None:
        self._stack, self._run = stack, run
        self._next = 0
        if from_end:
            newest = stack.table.newest(run_key(run), _NOTE)
            self._next = 0 if newest is None else int(newest["sk"].removeprefix(_NOTE)) + 1

    def poll(self) -> list[dict[str, Any]]:
        """Give the new events in order.

        Raises:
            AwsError: the table cannot be read.
        """
        after = note_item(self._next - 1) if self._next else None
        items = list(self._stack.table.query(run_key(self._run), _NOTE, after=after))
        if items:
            self._next = int(items[-1]["sk"].removeprefix(_NOTE)) + 1
        return [json.loads(item["event"]) for item in items]


def follow_run(
    stack: Stack,
    run: str,
    *,
    execution: str | None,
    on_event: Callable[[dict[str, Any]], None],
    on_state: Callable[[str], None] = lambda _: None,
    from_end: bool = False,
    poll_s: float = _POLL_S,
) -> Outcome:
    """Follow a run to its end.

    Args:
        stack: where.
        run: the run's name.
        execution: the execution that works on it; default: the one that its item names.
        on_event: called with each event in order.
        on_state: called with each new state.
        from_end: skip the events that are there already.
        poll_s: seconds between two looks.

    Raises:
        RunError: the run is gone, or its execution ended without recording the run's end.
        AwsError: AWS refuses.
    """
    notes, state = NoteFollower(stack, run, from_end=from_end), ""
    while True:
        # First whether it has ended, then the notes: all of them are there by then.
        item = read_item(stack, run)
        ended = _ended(stack, run, item, execution)
        for event in notes.poll():
            on_event(event)
        if item["state"] != state:
            state = str(item["state"])
            on_state(state)
        if ended:
            return Outcome(state=state, item=item)
        time.sleep(poll_s)


def _ended(stack: Stack, run: str, item: Item, execution: str | None) -> bool:
    """Say whether a run has ended; its execution tells the state before it from the one after.

    Raises:
        RunError: the execution is over and recorded no end.
    """
    known = execution or str(item.get("execution") or "")
    if not known:
        return item["state"] in _ENDED
    status = execution_status(stack, known)
    if status == "RUNNING":
        return False
    fresh = read_item(stack, run)
    if fresh["state"] in _ENDED:
        item.update(fresh)
        return True
    raise RunError(
        f"the execution of run '{run}' has ended ({status or 'it is gone'}) and the run's state is "
        f"still '{fresh['state']}'",
        remedy=f"nothing is lost; go on with `luma launch --resume {run} {stack.options}`",
    )


def events_of(stack: Stack, run: str, *, follow: bool, poll_s: float = _POLL_S) -> Iterator[Any]:
    """Give a run's events, and go on with new ones until it ends where `follow`.

    Raises:
        RunError: there is no such run.
        AwsError: AWS refuses.
    """
    read_item(stack, run)
    notes = NoteFollower(stack, run)
    while True:
        more = follow and read_item(stack, run)["state"] not in _ENDED
        yield from notes.poll()
        if not more:
            return
        time.sleep(poll_s)

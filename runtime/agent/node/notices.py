"""Notices that this node must leave, from the instance's metadata and from signals.

A notice is a hint, never a guarantee: what it spares is the step in flight. All of them mean the
same to a node, and the first one counts:

| source | where | time left |
|---|---|---|
| spot interruption | meta-data/spot/instance-action | until its `time`, 120 s |
| rebalance recommendation | meta-data/events/recommendations/rebalance | none is named |
| termination by the fleet | meta-data/autoscaling/target-lifecycle-state is Terminated | none |
| SIGTERM: drain, stop of the service, shutdown | signal | none is named |
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from runtime.agent.node.imds import Imds, ImdsError

__all__ = ["DEFAULT_LEAVE_S", "Notice", "NoticeWatch", "look"]

DEFAULT_LEAVE_S: Final = 60.0
"""Time to leave where the notice names none; half of a spot notice's two minutes."""

_MARGIN_S: Final = 15.0
"""Kept free before a named end, for the answer and the last records."""

_TERMINATED: Final = frozenset({"Terminated", "Warmed:Terminated"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """That this node must leave.

    Attributes:
        kind: `spot`, `rebalance`, `lifecycle` or `SIGTERM`.
        leave_s: time for leaving, in seconds.
    """

    kind: str
    leave_s: float


def look(imds: Imds, now: float) -> Notice | None:
    """Look once for a notice.

    Args:
        imds: the metadata service.
        now: seconds since 1970.

    Raises:
        ImdsError: the service does not answer.
    """
    action = imds.get_json("meta-data/spot/instance-action")
    if action is not None:
        return Notice(kind="spot", leave_s=_time_left(action.get("time"), now))
    if imds.get("meta-data/autoscaling/target-lifecycle-state") in _TERMINATED:
        return Notice(kind="lifecycle", leave_s=DEFAULT_LEAVE_S)
    if imds.get_json("meta-data/events/recommendations/rebalance") is not None:
        return Notice(kind="rebalance", leave_s=DEFAULT_LEAVE_S)
    return None


def _time_left(end: object, now: float) -> float:
    """Give the seconds until an ISO-8601 time, less the margin; never above the default."""
    try:
        moment = datetime.fromisoformat(str(end))
    except ValueError:
        return DEFAULT_LEAVE_S
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, min(DEFAULT_LEAVE_S, moment.timestamp() - now - _MARGIN_S))


class NoticeWatch:
    """A thread that looks for notices, and tells of the first.

    Args:
        imds: the metadata service.
        tell: called once, from the thread.
        complain: called with a line when the service stops answering, once each time.
        every_s: seconds between two looks; AWS recommends 5.
    """

    def __init__(
        self,
        imds: Imds,
        tell: Callable[[Notice], None],
        complain: Callable[[str], None],
        *,
        every_s: float = 5.0,
    ) -> None:
        self._imds, self._tell, self._complain = imds, tell, complain
        self._every_s = every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        silent = False
        while not self._end.is_set():
            try:
                notice = look(self._imds, time.time())
            except ImdsError as error:
                if not silent:
                    self._complain(error.diagnostics())
                silent, notice = True, None
            else:
                silent = False
            if notice is not None:
                self._tell(notice)
                return
            self._end.wait(self._every_s)

"""What a node decides, without I/O: events in, actions out.

    idle ──Taken──▶ preparing ──Ready──▶ working ──Ended──▶ idle
                        │                   │
                        ╰──Noticed, Stale───┴──▶ leaving ──Ended, time up──▶ left, or idle

A work is answered once, or not at all where its token is stale. After a notice the node takes no
more work: it is `left` as soon as the work in hand has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from runtime.agent.node.notices import Notice
from runtime.agent.node.tasks import Failure, Success
from runtime.spec.account import INTERRUPTED

__all__ = [
    "Action",
    "Answer",
    "Begin",
    "Ended",
    "Event",
    "Kill",
    "Leave",
    "NodeCore",
    "NodeState",
    "Noticed",
    "Ready",
    "Record",
    "Stale",
    "Start",
    "Taken",
    "Tick",
]

NodeState = Literal["idle", "working", "leaving", "left"]
"""What the node's item says."""

_STALE_LEAVE_S: Final = 10.0
"""An island whose slot was given away is asked to leave, and killed after that time."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message with a live token was taken from the queue.

    Attributes:
        graceful: whether its process can be asked to leave; any other one is killed.
    """

    graceful: bool


@dataclass(frozen=True, slots=True)
class Ready:
    """What the work needs is here."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The work has ended, or could not begin.

    Attributes:
        answer: what it came to.
    """

    answer: Success | Failure


@dataclass(frozen=True, slots=True)
class Noticed:
    """This node must leave.

    Attributes:
        notice: why, and in what time.
    """

    notice: Notice


@dataclass(frozen=True, slots=True)
class Stale:
    """Nobody waits for the work's token any more."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Taken | Ready | Ended | Noticed | Stale | Tick


@dataclass(frozen=True, slots=True)
class Begin:
    """Fetch what the work needs."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the work's process."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Ask the process to leave."""


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process, or the fetching, at once."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the token, and let go of the work.

    Attributes:
        answer: the answer; None says nothing, since nobody listens.
    """

    answer: Success | Failure | None


@dataclass(frozen=True, slots=True)
class Record:
    """Put the node's state into its item.

    Attributes:
        state: the state.
    """

    state: NodeState


Action = Begin | Start | Leave | Kill | Answer | Record

_Work = Literal["none", "preparing", "running", "ending"]


class NodeCore:
    """One node."""

    def __init__(self) -> None:
        self._work: _Work = "none"
        self._graceful = False
        self._stale = False
        self._notice: Notice | None = None
        self._deadline: float | None = None
        self._left = False

    @property
    def state(self) -> NodeState:
        """What the node does."""
        if self._left:
            return "left"
        if self._notice is not None:
            return "leaving"
        return "idle" if self._work == "none" else "working"

    @property
    def wants_work(self) -> bool:
        """Whether it may take a message."""
        return self.state == "idle"

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event in.

        Args:
            event: what happened.
            now: seconds of a monotonic clock.

        Returns:
            What to do, in order.
        """
        match event:
            case Taken(graceful):
                return self._taken(graceful=graceful)
            case Ready():
                return self._ready()
            case Ended(answer):
                return self._ended(answer)
            case Noticed(notice):
                return self._noticed(notice, now)
            case Stale():
                return self._went_stale(now)
            case Tick():
                return self._tick(now)

    def _taken(self, *, graceful: bool) -> list[Action]:
        if self._notice is not None:  # it came while the notice did
            return [Answer(self._interrupted(self._notice))]
        self._work, self._graceful, self._stale = "preparing", graceful, False
        return [Record("working"), Begin()]

    def _ready(self) -> list[Action]:
        if self._work != "preparing":
            return []
        self._work = "running"
        return [Start()]

    def _ended(self, answer: Success | Failure) -> list[Action]:
        if self._work == "none":
            return []
        if isinstance(answer, Failure) and self._notice is not None:
            # Whatever went wrong while it left: the state machine needs to know that it has left.
            answer = self._interrupted(self._notice)
        return self._let_go(answer)

    def _noticed(self, notice: Notice, now: float) -> list[Action]:
        if self._notice is not None:
            return []
        self._notice = notice
        if self._work == "none":
            self._left = True
            return [Record("left")]
        return [Record("leaving"), *self._end_work(now, notice.leave_s)]

    def _went_stale(self, now: float) -> list[Action]:
        if self._work == "none" or self._stale:
            return []
        self._stale = True
        return self._end_work(now, _STALE_LEAVE_S)

    def _end_work(self, now: float, leave_s: float) -> list[Action]:
        """Ask the work to end, or end it."""
        if self._work == "ending":
            return []
        if self._work == "running" and self._graceful and leave_s > 0:
            self._work, self._deadline = "ending", now + leave_s
            return [Leave()]
        notice = self._notice
        answer = None if notice is None else self._interrupted(notice)
        return [Kill(), *self._let_go(answer)]

    def _tick(self, now: float) -> list[Action]:
        if self._work != "ending" or self._deadline is None or now < self._deadline:
            return []
        notice = self._notice
        answer = None if notice is None else self._interrupted(notice)
        return [Kill(), *self._let_go(answer)]

    def _let_go(self, answer: Success | Failure | None) -> list[Action]:
        """Answer, and be free again or gone."""
        actions: list[Action] = [Answer(None if self._stale else answer)]
        self._work, self._deadline, self._stale = "none", None, False
        if self._notice is None:
            return [*actions, Record("idle")]
        self._left = True
        return [*actions, Record("left")]

    @staticmethod
    def _interrupted(notice: Notice) -> Failure:
        return Failure(INTERRUPTED, f"this node leaves: {notice.kind}")

"""The daemon's loop: everything that has an effect, around the decisions of `core`.

The main thread owns the core and the child process. Other threads (fetching, heartbeats, notices,
side duties, signal handlers) only put events into a queue. What AWS does not do at once is never
waited for by more than one request's own time-out.
"""

from __future__ import annotations

import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from runtime.agent.node import core
from runtime.agent.node.child import Child
from runtime.agent.node.imds import Imds
from runtime.agent.node.notices import DEFAULT_LEAVE_S, Notice, NoticeWatch
from runtime.agent.node.place import Place
from runtime.agent.node.queue import WorkQueue
from runtime.agent.node.records import NodeRecord, complete_lifecycle
from runtime.agent.node.tasks import Failure, Heartbeats, StaleTokenError, Success, Task
from runtime.agent.node.work import SIDE_EVERY_S, Given, WorkDoer, empty_folder
from runtime.agent.node.work_coordinate import CoordinateWork
from runtime.agent.node.work_island import IslandWork
from runtime.agent.node.work_stage import StageWork
from runtime.spec.account import RETRYABLE, Work
from runtime.spec.aws import AwsError
from runtime.spec.errors import LumaError

__all__ = ["Daemon"]

_POLL_S: Final = 0.2
_PAUSE_S: Final = 5.0
"""Between two attempts to take work while AWS refuses."""
_ANSWER_ATTEMPTS: Final = 5

_DOERS: Final[dict[str, Callable[[Given], WorkDoer]]] = {
    "island": IslandWork,
    "coordinate": CoordinateWork,
    "compile": StageWork,
    "export": StageWork,
}


class Daemon:
    """One node.

    Args:
        place: where it belongs.
        imds: the metadata service, for notices.
        once: end after one work, answered or dropped.
        wait_s: seconds that one look into the queue may take.
        notice_every_s: seconds between two looks for a notice.
    """

    def __init__(
        self,
        place: Place,
        imds: Imds,
        *,
        once: bool = False,
        wait_s: int = 10,
        notice_every_s: float = 5.0,
    ) -> None:
        self._place = place
        self._once, self._wait_s = once, wait_s
        self._queue = WorkQueue(place.queue, region=place.config.region)
        self._record = NodeRecord(place)
        self._core = core.NodeCore()
        self._events: queue.SimpleQueue[core.Event] = queue.SimpleQueue()
        self._watch = NoticeWatch(imds, self._notice, _log, every_s=notice_every_s)
        self._notice_kind = ""
        self._hand: _Hand | None = None
        self._interrupted: _Hand | None = None
        self._worked = False

    def run(self) -> int:
        """Take work until told to leave; give the process's exit code.

        Raises:
            AwsError: the queue of this fleet cannot be used at all.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        self._watch.start()
        _log(f"{self._place.identity.instance} serves fleet '{self._place.fleet}'")
        self._write_record("idle")
        try:
            while self._core.state != "left":
                self._round()
                if self._once and self._worked and self._hand is None:
                    break
        finally:
            if self._hand is not None:
                self._hand.end()
            self._watch.stop()
        if self._notice_kind == "lifecycle":
            self._try(lambda: complete_lifecycle(self._place))
        _log("left" if self._core.state == "left" else "ended")
        return 0

    def _round(self) -> None:
        """Take an event, or work where there is none in hand."""
        try:
            event: core.Event = self._events.get(timeout=_POLL_S if self._hand else 0.0)
        except queue.Empty:
            event = core.Tick()
        self._take(event)
        hand = self._hand
        if hand is not None and (verdict := hand.verdict()) is not None:
            self._take(core.Ended(verdict))
        if self._core.wants_work:
            self._look_for_work()

    def _take(self, event: core.Event) -> None:
        if isinstance(event, core.Noticed):
            self._notice_kind = self._notice_kind or event.notice.kind
            if self._hand is not None:
                hand = self._interrupted = self._hand
                self._try(lambda: hand.doer.noticed(self._notice_kind))
        for action in self._core.handle(event, time.monotonic()):
            self._carry_out(action)

    def _carry_out(self, action: core.Action) -> None:
        hand = self._hand
        match action:
            case core.Record(state):
                self._write_record(state)
            case core.Answer(answer):
                self._hand, self._worked = None, True
                if hand is not None:
                    hand.finish(answer)
            case core.Begin() if hand is not None:
                hand.begin(self._events.put)
            case core.Start() if hand is not None:
                hand.start()
            case core.Leave() if hand is not None:
                hand.leave()
            case core.Kill() if hand is not None:
                hand.kill()

    # ------------------------------------------------------------------- work

    def _look_for_work(self) -> None:
        """Take one message, show that its token lives, and delete it."""
        try:
            received = self._queue.receive(wait_s=self._wait_s)
            if received is None:
                return
            if received.work is None:
                _log(f"a message was dropped: {received.problem}")
                self._queue.delete(received)
                return
            work = received.work
            task = Task(work.token, region=self._place.config.region)
            try:
                task.beat()
            except StaleTokenError:
                _log(f"{work.kind} of '{work.run}': nobody waits for it; dropped")
                self._queue.delete(received)
                self._worked = True
                return
            self._queue.delete(received)
        except AwsError as error:
            _log(error.diagnostics())
            time.sleep(_PAUSE_S)
            return
        _log(f"{work.kind} of '{work.run}', slot {work.slot}, attempt {work.attempt}")
        self._hand = _Hand(work, task, self._place, self._events.put)
        self._take(core.Taken(graceful=self._hand.doer.graceful))

    # ---------------------------------------------------------------- notices

    def _notice(self, notice: Notice) -> None:
        _log(f"notice: {notice.kind}; {notice.leave_s:.0f} s to leave")
        self._events.put(core.Noticed(notice))

    def _signalled(self, number: int, _frame: object) -> None:
        notice = Notice(kind=signal.Signals(number).name, leave_s=DEFAULT_LEAVE_S)
        self._events.put(core.Noticed(notice))

    # ---------------------------------------------------------------- records

    def _write_record(self, state: core.NodeState) -> None:
        # A node that has left still says what it worked for: its place may need another fleet.
        hand = self._hand or self._interrupted
        work = None if hand is None else hand.work
        island = getattr(None if hand is None else hand.doer, "name", None)
        self._try(lambda: self._record.write(state, work, island))

    @staticmethod
    def _try(act: Callable[[], None]) -> None:
        """Do something that the work does not depend on."""
        try:
            act()
        except LumaError as error:
            _log(error.diagnostics())


class _Hand:
    """The work in hand: its threads, its process, its scratch folder."""

    def __init__(
        self, work: Work, task: Task, place: Place, put: Callable[[core.Event], None]
    ) -> None:
        self.work = work
        self._task = task
        self._given_up = threading.Event()
        self._side_end = threading.Event()
        self._side: threading.Thread | None = None
        self._child: Child | None = None
        self._folder = place.scratch / f"{work.kind}-{work.run}-{work.slot}"
        self.doer = _DOERS[work.kind](
            Given(
                work=work,
                place=place,
                folder=self._folder,
                cancelled=self._given_up.is_set,
                complain=_log,
            )
        )
        self._beats = ExitStack()
        self._beats.enter_context(
            Heartbeats(task, interval_s=work.heartbeat_s, on_stale=lambda: put(core.Stale()))
        )

    def begin(self, put: Callable[[core.Event], None]) -> None:
        """Fetch in a thread; an event says what it came to, unless it was given up."""

        def fetch() -> None:
            try:
                empty_folder(self._folder)
                answer = self.doer.prepare()
            except Exception as error:  # noqa: BLE001 - a bug must not leave the node mute
                answer = Failure(RETRYABLE, f"fetching failed: {type(error).__name__}: {error}")
            if not self._given_up.is_set():
                put(core.Ready() if answer is None else core.Ended(answer))

        threading.Thread(target=fetch, name="fetch", daemon=True).start()

    def start(self) -> None:
        """Start the process and the side duties. From the main thread: see `tied`."""
        self._child = Child(self.doer.command())
        self._side = threading.Thread(target=self._side_duties, name="side", daemon=True)
        self._side.start()

    def leave(self) -> None:
        """Ask the process to leave."""
        if self._child is not None:
            self._child.leave()

    def kill(self) -> None:
        """End fetching and process at once."""
        self._given_up.set()
        if self._child is not None:
            self._child.kill()

    def verdict(self) -> Success | Failure | None:
        """Give what the process's end means, once it has ended."""
        if self._child is None or (code := self._child.ended()) is None:
            return None
        self._stop_side()
        try:
            return self.doer.judge(code, self._child.tail())
        except LumaError as error:
            return Failure(RETRYABLE, f"its end cannot be judged: {error.diagnostics()}")

    def finish(self, answer: Success | Failure | None) -> None:
        """Put away what is to be kept, and answer; None answers nothing."""
        self._given_up.set()
        self._stop_side()
        self.doer.close()
        self._beats.close()
        if answer is not None:
            self._answer(answer)
        _log(f"{self.work.kind} of '{self.work.run}': {_text(answer)}")
        shutil.rmtree(self._folder, ignore_errors=True)

    def end(self) -> None:
        """End everything without an answer: the daemon itself has failed."""
        self.kill()
        self._stop_side()
        self._beats.close()

    def _answer(self, answer: Success | Failure) -> None:
        for attempt in range(_ANSWER_ATTEMPTS):
            try:
                return self._task.answer(answer)
            except StaleTokenError:
                _log(f"{self.work.kind} of '{self.work.run}': nobody waits for the answer")
                return None
            except AwsError as error:
                _log(error.diagnostics())
                time.sleep(attempt)
        return None

    def _side_duties(self) -> None:
        complained = ""
        while not self._side_end.wait(SIDE_EVERY_S):
            try:
                self.doer.side()
            except LumaError as error:
                if error.message != complained:
                    _log(error.diagnostics())
                complained = error.message

    def _stop_side(self) -> None:
        self._side_end.set()
        if self._side is not None:
            self._side.join()
            self._side = None


def _text(answer: Success | Failure | None) -> str:
    if answer is None:
        return "dropped"
    if isinstance(answer, Success):
        return f"done {dict(answer.output)}"
    return f"{answer.error}: {answer.cause.splitlines()[0] if answer.cause else ''}"


def _log(text: str) -> None:
    """Write to the daemon's own log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    print(f"{stamp} {text}", file=sys.stderr, flush=True)  # noqa: T201

"""The work `coordinate`: run the coordinator of a run to its end, and keep the run's books.

Side duties, every second: the coordinator's events become notes; RUN.cancel is looked at, and the
coordinator is asked to stop resumably; the cost is added up, and a stop is asked for before the
budget is passed; once a minute, figures for CloudWatch.

The coordinator is killed rather than asked when this node must leave: its log is in the table, so
that the next one goes on from there, while an orderly stop would send the islands home.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final

from runtime.agent.node.child import Command
from runtime.agent.node.cost import Meter, budget_reason, usd_per_hour
from runtime.agent.node.metrics import EVERY_S, RunFigures, send_figures
from runtime.agent.node.notes import NoteWriter
from runtime.agent.node.tail import EventTail
from runtime.agent.node.tasks import Failure, Success
from runtime.agent.node.work import Given, failure_of, last_commit, read_run
from runtime.coordinator.client import request_stop
from runtime.coordinator.plan import PLAN_FILE
from runtime.spec.account import (
    COORDINATOR_ITEM,
    INTERRUPTED,
    JOB_FAILED,
    LOGS_PREFIX,
    RETRYABLE,
    RUN_ITEM,
    run_key,
    run_object,
    run_prefix,
)
from runtime.spec.aws import AwsError
from runtime.spec.errors import CoordinationError, LumaError
from runtime.spec.objects import Cancelled

__all__ = ["CoordinateWork", "now_text"]

_FAILED: Final = 1
_ORDERLY: Final = frozenset({"notice", "done", "stopped"})
_COST_EVERY_S: Final = 5.0


def now_text() -> str:
    """Give the present time as the items have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class CoordinateWork:
    """The coordinator of a run."""

    graceful = False

    def __init__(self, given: Given) -> None:
        self._given, self._place, self._run = given, given.place, given.work.run
        self._folder = given.folder
        self._notes = NoteWriter(self._place.table, self._run)
        self._figures = RunFigures(time.time())
        self._tail = EventTail(given.folder)
        self._pending: list[dict[str, Any]] = []
        self._ending: dict[str, Any] | None = None
        self._step = 0
        self._restart = False
        self._stop_sent = False
        self._meter = Meter(since=time.monotonic())
        self._figures_sent = self._cost_added = time.monotonic()
        self._item: dict[str, Any] = {}

    # ---------------------------------------------------------------- fetching

    def prepare(self) -> Success | Failure | None:
        """Fetch the plan; answer at once for a run that has ended. See `WorkDoer`."""
        try:
            self._item = read_run(self._place, self._run)
            ended = self._ended_already()
            if ended is not None:
                return ended
            self._place.bucket.download_tree(
                run_prefix(self._run),
                self._folder,
                wanted=lambda path: path == PLAN_FILE or path.startswith("tls/"),
                cancelled=self._given.cancelled,
            )
            if not (self._folder / PLAN_FILE).is_file():
                return Failure(JOB_FAILED, f"run '{self._run}' is not prepared: no {PLAN_FILE}")
            known = self._place.table.get(run_key(self._run), COORDINATOR_ITEM)
            # Its islands may be alive and wait for it.
            self._restart = known is not None and "host" in known
            self._step = last_commit(self._place, self._run) + 1
            self._check_budget(self._rate())
        except Cancelled:
            return Failure(INTERRUPTED, "given up while it was fetched")
        except LumaError as error:
            return failure_of(error, JOB_FAILED, RETRYABLE)
        return self._stopped() if self._item.get("cancel") else None

    def _ended_already(self) -> Success | None:
        """Answer for a run that was done, or stopped, when its coordinator's node was lost."""
        total = self._item.get("total_steps")
        if isinstance(total, int) and last_commit(self._place, self._run) + 1 >= total:
            final = self._place.table.get(run_key(self._run), f"CHECKPOINT#{total:010d}")
            if final is not None:
                return self._answer("done", str(final["state_hash"]), total)
        return self._stopped() if self._item.get("cancel") else None

    def _stopped(self) -> Success:
        return self._answer("stopped", "", last_commit(self._place, self._run) + 1)

    def _answer(self, phase: str, state_hash: str, steps: int) -> Success:
        item = read_run(self._place, self._run)
        return Success(
            {
                "phase": phase,
                "state_hash": state_hash,
                "steps": steps,
                "cost_usd": round(float(item.get("cost_usd", 0.0)), 6),
                "reason": str(item.get("reason", "")),
            }
        )

    # ----------------------------------------------------------------- running

    def command(self) -> Command:
        """Give the coordinator's process."""
        place = self._place
        restart = ("--restart",) if self._restart else ()
        return Command(
            module="runtime.coordinator",
            arguments=(
                "--run",
                str(self._folder),
                "--log",
                f"dynamodb:{place.table.name}/{self._run}",
                "--host",
                place.identity.address,
                *restart,
            ),
            log=self._folder / "islands" / "coordinator.log",
        )

    def side(self) -> None:
        """Keep the books; see the module."""
        self._note_events()
        now = time.monotonic()
        if now - self._cost_added >= _COST_EVERY_S:
            self._cost_added = now
            self._check_budget(self._rate())
        else:
            self._item = read_run(self._place, self._run)
        if self._item.get("cancel") and not self._stop_sent:
            self._ask_to_stop()
        if now - self._figures_sent >= EVERY_S:
            self._figures_sent = now
            self._send_figures()

    def _note_events(self) -> None:
        """Turn the coordinator's new events into notes; those that fail to go are kept."""
        for event in self._tail.poll():
            self._take(event)
            self._pending.append(event)
        if self._pending:
            self._notes.write(self._pending)
            self._pending = []

    def _take(self, event: dict[str, Any]) -> None:
        self._figures.take(event)
        kind = event["kind"]
        if kind == "commit":
            self._step = int(event["step"]) + 1
        elif kind in {"done", "stopped", "failed"}:
            self._ending = event
        elif kind == "left" and event.get("reason") not in _ORDERLY:
            # Nobody else can tell of an instance that was gone without a word.
            self._pending.append(
                {
                    "time": event["time"],
                    "kind": "interruption",
                    "island": event["island"],
                    "how": "lost",
                    "at_step": self._step,
                    "pid": 0,
                }
            )

    def _rate(self) -> float:
        """Give what the run costs an hour."""
        slots = self._place.table.query(run_key(self._run), "SLOT#")
        prices = self._item.get("prices", {})
        own = self._place.usd_per_hour or prices.get(self._place.fleet)
        return usd_per_hour(slots, prices, own)

    def _check_budget(self, rate: float) -> None:
        """Add up the cost, and cancel the run where the budget nears its end."""
        added = self._meter.read(time.monotonic(), rate)
        self._item = self._place.table.update(
            run_key(self._run), RUN_ITEM, {"updated_at": now_text()}, add={"cost_usd": added}
        )
        limit = self._item.get("max_cost_usd")
        reason = budget_reason(
            float(self._item["cost_usd"]), rate, None if limit is None else float(limit)
        )
        if reason is not None and not self._item.get("cancel"):
            self._cancel(reason)

    def _cancel(self, reason: str) -> None:
        self._item = self._place.table.update(
            run_key(self._run),
            RUN_ITEM,
            {"cancel": True, "reason": reason, "updated_at": now_text()},
        )

    def _ask_to_stop(self) -> None:
        try:
            request_stop(self._folder)
        except CoordinationError:
            return  # it is just starting, or ends already: asked again in the next round
        self._stop_sent = True

    def _send_figures(self) -> None:
        place = self._place
        send_figures(
            self._figures.read(time.time(), self._meter.rate),
            stack=place.config.stack,
            run=self._run,
            region=place.config.region,
        )

    # --------------------------------------------------------------------- end

    def judge(self, code: int, tail: str) -> Success | Failure:
        """Give what the coordinator's end means; see `WorkDoer`."""
        self._note_events()
        self._check_budget(0.0)
        ending = self._ending or {}
        if code == _FAILED and ending.get("kind") == "failed":
            return Failure(JOB_FAILED, str(ending.get("error", tail)))
        if code != 0:
            return Failure(RETRYABLE, f"the coordinator ended with exit code {code}\n{tail}")
        steps = last_commit(self._place, self._run) + 1
        if ending.get("kind") == "done":
            return self._answer("done", str(ending["state_hash"]), steps)
        if not self._item.get("cancel"):
            # Islands that are given again must know that nobody will coordinate them.
            self._cancel("stopped")
        return self._answer("stopped", "", steps)

    def noticed(self, kind: str) -> None:
        """Record that the coordinator moves."""
        self._notes.tell(
            "interruption",
            island="coordinator",
            how=kind,
            at_step=self._step,
            pid=0,
            instance=self._place.identity.instance,
        )

    def close(self) -> None:
        """Put the last events and the log away."""
        try:
            self._note_events()
            log = self._folder / "islands" / "coordinator.log"
            if log.exists():
                key = run_object(self._run, f"{LOGS_PREFIX}coordinator.log")
                self._place.bucket.upload(log, key)
        except AwsError as error:
            self._given.complain(error.diagnostics())

"""Work for one place: given to whichever node of its fleet takes it, until a node has done it.

A message goes to the fleet's queue with a task token; the node that takes it answers by that token.
A node that is interrupted, or that falls silent, costs nothing but time: the place is read again,
since a failover may have moved it to another fleet, and the work is given anew.

- `Luma.Interrupted`, no heartbeat: as often as it takes.
- `Luma.Retryable`: counted, since what fails each time will go on failing.
- everything else ends the run; an island's `Luma.Refused` first tries the run's other fleets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aws_cdk import Duration
from aws_cdk import aws_stepfunctions as sfn

from luma_constructs import _names
from luma_constructs._asl import NO_ANSWER, Items, count, seconds, task, text
from luma_constructs._group_sizes import PLACE, Piece
from luma_constructs._run_items import RUN, RUN_KEY

__all__ = ["INTERRUPTED", "REFUSED", "RETRYABLE", "RUN_ITEM", "WorkLimits", "Works", "counters"]

INTERRUPTED = "Luma.Interrupted"
"""The node is leaving: another one may do the work."""

RETRYABLE = "Luma.Retryable"
"""It failed for a reason that may pass."""

REFUSED = "Luma.Refused"
"""The node cannot do such work, and no node of its fleet can."""

RUN_ITEM = "$.place.run.Item"
"""Path of the run's item, once work was looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkLimits:
    """How long and how often work is tried.

    Attributes:
        heartbeat: longest silence of a node that has the work, and of a queue that nobody serves.
        max_duration: longest time for one try.
        max_retries: how often one place's work may fail in a way that may pass.
        patience: how many heartbeats of silence in a row until an island goes to another fleet.
    """

    heartbeat: Duration
    max_duration: Duration
    max_retries: int
    patience: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Works:
    """The states that give one kind of work.

    Attributes:
        look: the way in: what the place and the run say now.
        give: the task; its answer is at `$.answer`.
        again: where to go to have it given once more.
        done: the way out.
    """

    look: sfn.CustomState
    give: sfn.CustomState
    again: sfn.Pass
    done: sfn.Pass

    @property
    def piece(self) -> Piece:
        """The same as a piece."""
        return Piece(self.look, self.done)

    @classmethod
    def of(
        cls,
        items: Items,
        where: str,
        *,
        name: str,
        kind: str,
        limits: WorkLimits,
        unwanted: sfn.Condition | None = None,
        answer_unwanted: Mapping[str, Any] | None = None,
    ) -> Works:
        """Make the states.

        Args:
            items: the table.
            where: ending of their names.
            name: of the task that gives the work.
            kind: of work, as the node reads it.
            limits: how long and how often.
            unwanted: when the work is not given any more. Default: - never.
            answer_unwanted: what stands for the answer then.
        """
        scope = items.scope
        look = items.get_together(
            f"Look at the run and its place{where}",
            [(RUN_KEY, RUN), (RUN_KEY, text("$.key"))],
            select={"run.$": "$.Responses[0]", "at.$": "$.Responses[1]"},
            keep="$.place",
        )
        give = _give(items, name, kind, limits)
        done = sfn.Pass(scope, f"Over{where}")
        again = count(scope, f"Give it to another node{where}", "attempt")
        again.next(look)
        give.next(done)
        if unwanted is None:
            look.next(give)
        else:
            over = sfn.Pass(
                scope,
                f"Not wanted any more{where}",
                parameters=dict(answer_unwanted or {}),
                result_path="$.answer",
            ).next(done)
            look.next(
                sfn.Choice(scope, f"Still wanted?{where}").when(unwanted, over).otherwise(give)
            )
        works = cls(look=look, give=give, again=again, done=done)
        works._retry(items, where, limits)
        return works

    def _retry(self, items: Items, where: str, limits: WorkLimits) -> None:
        """Give the work again after failures that may pass, so many times."""
        scope = items.scope
        retry = count(scope, f"Count the retry{where}", "retries")
        often = sfn.Fail(
            scope,
            f"Failed too often{where}",
            error=RETRYABLE,
            cause=f"the work failed {limits.max_retries + 1} times; the nodes' logs say why",
        )
        retry.next(
            sfn.Choice(scope, f"Once more?{where}")
            .when(
                sfn.Condition.number_less_than_equals("$.retries.value", limits.max_retries),
                self.again,
            )
            .otherwise(often)
        )
        self.give.add_catch(self.again, errors=[INTERRUPTED], result_path="$.error")
        self.give.add_catch(retry, errors=[RETRYABLE], result_path="$.error")

    def again_on_silence(self) -> None:
        """Give the work again whenever nobody answers; hosts have no other fleet to go to."""
        self.give.add_catch(self.again, errors=list(NO_ANSWER), result_path="$.error")


def counters() -> dict[str, Any]:
    """Give the counters that these states keep in the data."""
    return {"attempt": {"value": 0}, "retries": {"value": 0}}


def _give(items: Items, name: str, kind: str, limits: WorkLimits) -> sfn.CustomState:
    """Give the task that sends one message and waits for its answer."""
    body = {
        "schema": _names.WORK_SCHEMA,
        "kind": kind,
        "run.$": "$.run",
        "slot.$": "$.slot",
        "attempt.$": "$.attempt.value",
        "heartbeat_s": seconds(limits.heartbeat),
        "token.$": "$$.Task.Token",
    }
    return task(
        items.scope,
        name,
        "sqs:sendMessage.waitForTaskToken",
        {"QueueUrl.$": f"{PLACE}.queue.S", "MessageBody": body},
        keep="$.answer",
        heartbeat=limits.heartbeat,
        timeout=limits.max_duration,
    )

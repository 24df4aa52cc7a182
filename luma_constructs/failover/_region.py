"""Another region: asked where this one has no capacity at all, and answered where it asks us.

The request is an event of our own on this region's default bus. A rule carries it to the other
region's bus, since PutEvents itself reaches no other region. It names the run. The stack over there
resumes the run if it finds it in its own table: runs are there only where the table is a global table
and the bucket is replicated. A run of one island, which cannot go on here, is asked to stop resumably;
one of several goes on with those that it has.

Checked on the template and on an emulator; the way between two regions was never executed.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Aws
from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import ANY_ERROR, CONDITION_FAILED, Items, count, task
from luma_constructs._group_sizes import Piece
from luma_constructs._run_items import RUN, RUN_KEY
from luma_constructs.failover._drain import Polls
from luma_constructs.failover._event import REQUEST, SOURCE
from luma_constructs.failover._record import begin, finish

__all__ = ["answer_request", "ask_regions"]

_RUN = "$.read.Item"
_STARTED = ("Sfn.ExecutionAlreadyExistsException",)


def ask_regions(items: Items, regions: Sequence[str], failed: sfn.IChainable) -> Piece:
    """Give the states that ask other regions, and let a run of one island stop here.

    Args:
        items: the table.
        regions: names of the regions.
        failed: where to go when they could not be asked.
    """
    scope = items.scope
    entries = [
        {
            "Source": SOURCE,
            "DetailType": REQUEST,
            "Detail": {
                "event-id.$": "$.id",
                "to-region": region,
                "from-region": Aws.REGION,
                "cause.$": "$.kind",
                "run.$": "$.run",
                "place.$": "$.key",
            },
        }
        for region in regions
    ]
    ask = task(scope, "Ask another region", "events:putEvents", {"Entries": entries})
    path = sfn.Pass(
        scope,
        "Another region may take it",
        result=sfn.Result.from_string("other-region"),
        result_path="$.path",
    )
    stop = items.update(
        "Let a run of one island stop here",
        RUN_KEY,
        RUN,
        "SET cancel = :yes, reason = :why",
        {
            ":yes": {"BOOL": True},
            ":why": {"S": "no capacity here; another region was asked"},
            ":one": {"N": "1"},
        },
        condition="slots = :one",
    )
    stop.add_catch(path, errors=list(CONDITION_FAILED), result_path="$.error")
    ask.add_catch(failed, errors=list(ANY_ERROR), result_path="$.error")
    ask.next(stop).next(path)
    return Piece(ask, path)


def answer_request(
    items: Items, jobs: sfn.IStateMachine, polls: Polls, duplicate: sfn.IChainable
) -> Piece:
    """Give the states that resume a run which another region could not go on with.

    Args:
        items: the table.
        jobs: the machine that runs jobs here.
        polls: how long the run may take to stop over there.
        duplicate: where to go with a request that was answered before.
    """
    scope, when = items.scope, sfn.Condition
    start = sfn.Pass(
        scope,
        "Name the request",
        parameters={
            "id.$": "$.event.detail['event-id']",
            "kind.$": "$.event.kind",
            "instance": "",
            "run.$": "$.event.detail.run",
            "given": {"run.$": "$.event.detail.run"},
            "looks": {"value": 0},
        },
    )
    record = begin(items, "Record the request", duplicate)
    read = items.get("Read the requested run", RUN_KEY, RUN, keep="$.read")
    again = count(scope, "Count the looks at the run", "looks")
    again.next(polls.wait(items, "Wait for its end there")).next(read)
    due = when.number_less_than("$.looks.value", polls.capacity)
    finished = finish(items, "Mark the request done", "$.looks")
    absent = _path(items, "It is not here", "not-here")
    busy = _path(items, "It goes on elsewhere", "still-running")
    resumed = _path(items, "It was resumed here", "resumed")
    for end in (absent, busy, resumed):
        end.next(finished)
    resume = task(
        scope,
        "Resume the run here",
        "aws-sdk:sfn:startExecution",
        {
            "StateMachineArn": jobs.state_machine_arn,
            # The same request again finds the execution that it started.
            "Name.$": "States.Format('failover-{}', $.id)",
            "Input.$": "States.JsonToString($.given)",
        },
        select={"execution.$": "$.ExecutionArn"},
        keep="$.resumed",
    )
    resume.add_catch(resumed, errors=list(_STARTED), result_path="$.error")
    resume.next(resumed)
    at_rest = when.or_(
        *(when.string_equals(f"{_RUN}.state.S", one) for one in ("terminated", "failed", "pending"))
    )
    read.next(
        sfn.Choice(scope, "Can it be resumed?")
        .when(when.not_(when.is_present(f"{_RUN}.state.S")), absent)
        .when(at_rest, resume)
        .when(due, again)
        .otherwise(busy)
    )
    start.next(record).next(read)
    return Piece(start, finished)


def _path(items: Items, name: str, path: str) -> sfn.Pass:
    """Give the state that says how a request ended."""
    return sfn.Pass(items.scope, name, result=sfn.Result.from_string(path), result_path="$.path")

"""What the `Clean up` machine does behind an execution that could not end by itself.

Its input is EventBridge's "Step Functions Execution Status Change" of the job's machine. It acts only
on a run that this very execution had taken: an execution that was refused because another one has the
run must not take that one's instances away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import Items
from luma_constructs._run_items import RUN
from luma_constructs.training_jobs._end import end_states

if TYPE_CHECKING:
    from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["clean_up_states"]

_ITEM = "$.read.Item"


def clean_up_states(
    items: Items, fleets: Sequence[IAcceleratorFleet], topic: sns.ITopic | None
) -> sfn.Chain:
    """Give the states of the machine."""
    scope, when = items.scope, sfn.Condition
    start = sfn.Pass(
        scope,
        "Normalize",
        parameters={
            "execution.$": "$.detail.executionArn",
            "status.$": "$.detail.status",
            "given.$": "States.StringToJson($.detail.input)",
        },
    )
    nothing = sfn.Succeed(scope, "Nothing to clean up")
    read = items.get(
        "Read the run", {"S.$": "States.Format('RUN#{}', $.given.run)"}, RUN, keep="$.read"
    )
    named = when.and_(when.is_present("$.given.run"), when.is_string("$.given.run"))
    held = when.and_(
        when.is_present(f"{_ITEM}.execution.S"),
        when.string_equals_json_path(f"{_ITEM}.execution.S", "$.execution"),
        when.or_(
            *(
                when.string_equals(f"{_ITEM}.state.S", state)
                for state in ("provisioning", "running", "terminating")
            )
        ),
    )
    end = end_states(items, fleets, topic)
    end.end.next(sfn.Succeed(scope, "Cleaned up"))
    stopped = _end_as(items, "Stopped by hand", "terminated", end.start)
    broken = _end_as(items, "Ended early", "failed", end.start)
    by_hand = (
        sfn.Choice(scope, "Was it stopped by hand?")
        .when(when.string_equals("$.status", "ABORTED"), stopped)
        .otherwise(broken)
    )
    read.next(sfn.Choice(scope, "Has it a run?").when(held, by_hand).otherwise(nothing))
    return start.next(sfn.Choice(scope, "Is a run named?").when(named, read).otherwise(nothing))


def _end_as(items: Items, name: str, state: str, then: sfn.IChainable) -> sfn.IChainable:
    """Say how the run ended."""
    return sfn.Pass(
        items.scope,
        name,
        parameters={
            "run.$": "$.given.run",
            "end": {
                "state": state,
                "reason.$": "States.Format('its execution ended: {}', $.status)",
                "state_hash": "",
            },
            "numbers": {
                "all.$": "States.ArrayRange(0, States.MathAdd("
                f"States.StringToJson({_ITEM}.slots.N), 1), 1)"
            },
        },
    ).next(then)

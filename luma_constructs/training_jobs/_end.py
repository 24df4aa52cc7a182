"""The end of a run, whichever way it ended: give capacity back, record it, tell somebody.

Both machines end a run by these states: the job's own, and the one that cleans up behind an execution
that was stopped by hand, timed out or crashed. They can run twice: a place that has no claim any more
is passed by, and sizes follow the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import ANY_ERROR, NOW, Items, task, text
from luma_constructs._claims import over_places, release
from luma_constructs._group_sizes import Piece, match_every_group
from luma_constructs._run_items import RUN, RUN_KEY

if TYPE_CHECKING:
    from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["end_states"]


def end_states(
    items: Items, fleets: Sequence[IAcceleratorFleet], topic: sns.ITopic | None
) -> Piece:
    """Give the states that end `$.run` as `$.end` says: {state, reason, state_hash}.

    Args:
        items: the table.
        fleets: all fleets, the hosts among them.
        topic: who is told. Default: - nobody.
    """
    close = items.update(
        "Close the run",
        RUN_KEY,
        RUN,
        "SET #state = :terminating, updated_at = :now",
        {":terminating": {"S": "terminating"}, ":now": text(NOW)},
        names=["state"],
    )
    give_back = over_places(
        items, "Give capacity back", "$.numbers.all", release(items, " (release)")
    )
    record = items.update(
        "Record the end",
        RUN_KEY,
        RUN,
        "SET #state = :state, reason = :reason, state_hash = :hash, updated_at = :now",
        {
            ":state": text("$.end.state"),
            ":reason": text("$.end.reason"),
            ":hash": text("$.end.state_hash"),
            ":now": text(NOW),
        },
        names=["state"],
    )
    sizes = match_every_group(items, " (end)", fleets)
    close.next(give_back).next(sizes.start)
    sizes.end.next(record)
    if topic is None:
        return Piece(close, record)
    told = sfn.Pass(items.scope, "Told")
    tell = task(
        items.scope,
        "Tell how it ended",
        "sns:publish",
        {
            "TopicArn": topic.topic_arn,
            "Subject.$": "States.Format('Luma run {}: {}', $.run, $.end.state)",
            "Message": {
                "run.$": "$.run",
                "state.$": "$.end.state",
                "reason.$": "$.end.reason",
                "state_hash.$": "$.end.state_hash",
                "execution.$": "$$.Execution.Id",
            },
        },
    )
    # Whoever is not told finds the end in the table.
    tell.add_catch(told, errors=list(ANY_ERROR), result_path="$.error")
    record.next(tell).next(told)
    return Piece(close, told)

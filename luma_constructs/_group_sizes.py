"""Sizes of Auto Scaling groups follow the sums of claims.

The sum is read, the size is set, and the sum is read again: whoever sets the size last has seen the
last sum. No group gets more than it may have; the work that is left over waits for its nodes.

Each function gives the states of one such step. The data they work on: `$.fleet`, and `$.asg`, the
group's name ("" for nodes outside EC2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import DISCARD, Items, of_group, task
from luma_constructs._run_items import FLEET, FLEET_KEY

if TYPE_CHECKING:
    from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = [
    "NOTHING",
    "PLACE",
    "Piece",
    "match_every_group",
    "match_groups",
    "match_size",
]

NOTHING = {"N": "0"}
"""What adds nothing to a number, and makes it 0 where it is not there."""

PLACE = "$.place.at.Item"
"""Path of the place's item, once it was read."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some states with one way in and one way out.

    Attributes:
        start: the way in.
        end: the way out.
    """

    start: sfn.IChainable
    end: sfn.Chain | sfn.CustomState | sfn.Pass


def match_size(items: Items, where: str, *, in_ec2: bool = False) -> Piece:
    """Give the group of `$.fleet` as many instances as are claimed, or as many as it may have.

    Args:
        items: the table.
        where: ending of the states' names, such as " (release)".
        in_ec2: whether the fleet certainly has a group; else that is looked at first.
    """
    scope = items.scope
    matched = sfn.Pass(scope, f"Size is right{where}")
    read = _read_sum(items, f"Read the claims{where}", "$.claims")
    again = _read_sum(items, f"Any new claim?{where}", "$.again")
    look = task(
        scope,
        f"Look at the group{where}",
        "aws-sdk:autoscaling:describeAutoScalingGroups",
        {"AutoScalingGroupNames.$": "States.Array($.asg)"},
        select={
            "size.$": of_group("DesiredCapacity"),
            "most.$": of_group("MaxSize"),
        },
        keep="$.group",
    )
    exact = _set_size(items, f"Set the size{where}", "$.claims.desired").next(again)
    most = _set_size(items, f"Set the largest size{where}", "$.group.most").next(again)
    when = sfn.Condition
    over = when.number_greater_than_json_path("$.claims.desired", "$.group.most")
    full = when.number_equals_json_path("$.group.size", "$.group.most")
    as_claimed = when.number_equals_json_path("$.claims.desired", "$.group.size")
    look.next(
        sfn.Choice(scope, f"Is the size right?{where}")
        .when(when.or_(as_claimed, when.and_(over, full)), matched)
        .when(over, most)
        .otherwise(exact)
    )
    again.next(
        sfn.Choice(scope, f"Still the same claims?{where}")
        .when(when.number_equals_json_path("$.again.desired", "$.claims.desired"), matched)
        .otherwise(read)
    )
    read.next(look)
    if in_ec2:
        return Piece(read, matched)
    outside = when.string_equals("$.asg", "")
    start = sfn.Choice(scope, f"Has it a group?{where}").when(outside, matched).otherwise(read)
    return Piece(start, matched)


def _read_sum(items: Items, name: str, keep: str) -> sfn.CustomState:
    """Give the read of a fleet's sum of claims.

    It adds nothing to the sum and takes the answer, because a fleet that was never claimed has no
    item, and a path cannot read what is not there.
    """
    change = items.change(FLEET_KEY, FLEET, "ADD desired :nothing", {":nothing": NOTHING})
    return task(
        items.scope,
        name,
        "dynamodb:updateItem",
        {**change, "ReturnValues": "ALL_NEW"},
        select={"desired.$": "States.StringToJson($.Attributes.desired.N)"},
        keep=keep,
    )


def _set_size(items: Items, name: str, size: str) -> sfn.CustomState:
    """Give the state that sets a group's size."""
    return task(
        items.scope,
        name,
        "aws-sdk:autoscaling:setDesiredCapacity",
        {"AutoScalingGroupName.$": "$.asg", "DesiredCapacity.$": size, "HonorCooldown": False},
    )


def match_groups(items: Items, where: str, *, in_ec2: bool = False) -> Piece:
    """Match the sizes of the group that a place left and of the one that it went to."""
    both = sfn.Pass(
        items.scope,
        f"Name both groups{where}",
        parameters={
            "list": [
                {"fleet.$": f"{PLACE}.fleet.S", "asg.$": f"{PLACE}.asg.S"},
                {"fleet.$": "$.next.facts.fleet", "asg.$": "$.next.facts.asg"},
            ]
        },
        result_path="$.groups",
    )
    each = sfn.Map(
        items.scope,
        f"Match both groups{where}",
        items_path="$.groups.list",
        max_concurrency=1,
        result_path=DISCARD,
    )
    each.item_processor(sfn.Chain.start(match_size(items, where, in_ec2=in_ec2).start))
    return Piece(both, both.next(each))


def match_every_group(items: Items, where: str, fleets: Sequence[IAcceleratorFleet]) -> Piece:
    """Match the sizes of all groups, whichever of them a step that died had still to match.

    Args:
        items: the table.
        where: ending of the states' names.
        fleets: all fleets; those without a group are passed by.
    """
    groups = [
        {"fleet": fleet.fleet_name, "asg": fleet.auto_scaling_group.auto_scaling_group_name}
        for fleet in fleets
        if fleet.auto_scaling_group is not None
    ]
    every = sfn.Pass(
        items.scope,
        f"Name every group{where}",
        parameters={"list": groups},
        result_path="$.groups",
    )
    each = sfn.Map(
        items.scope,
        f"Match every group{where}",
        items_path="$.groups.list",
        max_concurrency=1,
        result_path=DISCARD,
    )
    each.item_processor(sfn.Chain.start(match_size(items, where, in_ec2=True).start))
    return Piece(every, every.next(each))

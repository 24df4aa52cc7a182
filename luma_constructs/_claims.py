"""Claims on capacity: how a run's places get instances, move, and give them back.

A fleet's `desired` is always the sum of the runs' claims on it, because a claim and the sum change in
one transaction together with the place that the claim is for. So a step that runs twice changes
nothing: the place says that it is claimed, or that it has moved. The Auto Scaling group's size then
follows the sum, and the sum is read again afterwards: whoever sets the size last has seen the last
sum.

Each function gives the states of one such step. The data they work on: `$.run`, `$.key` (the place's
sort key), and for groups `$.fleet` and `$.asg` ("" for nodes outside EC2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import DISCARD, Items, execution, of_group, task, text
from luma_constructs._run_items import FLEET, FLEET_KEY, RUN, RUN_KEY, place_key

__all__ = [
    "CANCELED",
    "PLACE",
    "Piece",
    "claim",
    "group_of",
    "match_groups",
    "match_size",
    "move_claim",
    "over_places",
    "release",
]

CANCELED = ("DynamoDb.TransactionCanceledException",)
"""A transaction that a condition refused."""

ONE = {"N": "1"}
LESS = {"N": "-1"}
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
    sum_of = {"desired.$": "States.StringToJson($.Item.desired.N)"}
    read = items.get(f"Read the claims{where}", FLEET_KEY, FLEET, select=sum_of, keep="$.claims")
    again = items.get(f"Any new claim?{where}", FLEET_KEY, FLEET, select=sum_of, keep="$.again")
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


def _set_size(items: Items, name: str, size: str) -> sfn.CustomState:
    """Give the state that sets a group's size."""
    return task(
        items.scope,
        name,
        "aws-sdk:autoscaling:setDesiredCapacity",
        {"AutoScalingGroupName.$": "$.asg", "DesiredCapacity.$": size, "HonorCooldown": False},
    )


def claim(items: Items, where: str, *, host: bool = False) -> Piece:
    """Claim an instance for the place `$.key`, unless it has one, and match the group's size.

    Args:
        items: the table.
        where: ending of the states' names.
        host: whether the place is surely one that was written and is in EC2.
    """
    mine = "attribute_not_exists(claimed) AND fleet = :fleet"
    writes = _claim_writes(items, "SET claimed = :execution", mine, ONE)
    taken = items.write_together(f"Claim a node{where}", writes)
    return _change_claim(items, where, taken, is_claimed=False, host=host)


def release(items: Items, where: str, *, host: bool = False) -> Piece:
    """Give the claim of the place `$.key` back, if it has one, and match the group's size.

    A slot's run must be `terminating`: then no failover moves the place meanwhile.

    Args:
        items: the table.
        where: ending of the states' names.
        host: whether the place is surely one that was written and is in EC2.
    """
    mine = "attribute_exists(claimed) AND fleet = :fleet"
    writes = _claim_writes(items, "REMOVE claimed", mine, LESS)
    given = items.write_together(f"Give the claim back{where}", writes)
    return _change_claim(items, where, given, is_claimed=True, host=host)


def _change_claim(
    items: Items, where: str, change: sfn.CustomState, *, is_claimed: bool, host: bool
) -> Piece:
    """Read the place, change its claim where that is due, and match the size of its group."""
    scope = items.scope
    read = items.get(
        f"Read the place{where}", RUN_KEY, text("$.key"), select={"at.$": "$"}, keep="$.place"
    )
    group = group_of(items, f"Name its group{where}")
    match = match_size(items, where, in_ec2=host)
    group.next(match.start)
    claimed = sfn.Condition.is_present(f"{PLACE}.claimed")
    due = claimed if is_claimed else sfn.Condition.not_(claimed)
    choice = sfn.Choice(scope, f"Is it claimed?{where}")
    if is_claimed and not host:
        # A run that ended early has no places yet.
        choice.when(sfn.Condition.not_(sfn.Condition.is_present(PLACE)), match.end)
    choice.when(due, change.next(group)).otherwise(group)
    read.next(choice)
    return Piece(read, match.end)


def group_of(items: Items, name: str) -> sfn.Pass:
    """Give the Pass that names the fleet and the group of the place that was read."""
    return sfn.Pass(
        items.scope,
        name,
        parameters={"fleet.$": f"{PLACE}.fleet.S", "asg.$": f"{PLACE}.asg.S"},
    )


def _claim_writes(
    items: Items, change: str, condition: str, by: dict[str, str]
) -> Sequence[dict[str, Any]]:
    """Give the transaction that changes the claim of a place by one."""
    fleet = text(f"{PLACE}.fleet.S")
    values: dict[str, Any] = {":fleet": fleet}
    if ":execution" in change:
        values[":execution"] = text(execution)
    place = items.change(RUN_KEY, text("$.key"), change, values, condition=condition)
    return [{"Update": place}, *_sums(items, f"{PLACE}.fleet.S", by)]


def _sums(items: Items, fleet: str, by: dict[str, str]) -> list[dict[str, Any]]:
    """Give the writes that change a fleet's sum and the run's part in it."""
    pk = {"S.$": f"States.Format('FLEET#{{}}', {fleet})"}
    values = {":by": by}
    # `count` is a reserved word.
    run = items.change(pk, RUN_KEY, "ADD #count :by", values, names=["count"])
    return [
        {"Update": run},
        {"Update": items.change(pk, FLEET, "ADD desired :by", values)},
    ]


def move_claim(items: Items, name: str) -> sfn.CustomState:
    """Give the transaction that moves a place, with its claim, to the fleet of `$.next.facts`.

    It is refused where the place is no longer on the fleet that was read, or the run is ending.
    """
    alive = items.check(
        RUN_KEY,
        RUN,
        "#state IN (:provisioning, :running)",
        {":provisioning": {"S": "provisioning"}, ":running": {"S": "running"}},
        names=["state"],
    )
    place = items.change(
        RUN_KEY,
        text("$.key"),
        "SET fleet = :fleet, queue = :queue, asg = :asg ADD moved :one",
        {
            ":fleet": text("$.next.facts.fleet"),
            ":queue": text("$.next.facts.queue"),
            ":asg": text("$.next.facts.asg"),
            ":old": text(f"{PLACE}.fleet.S"),
            ":one": ONE,
        },
        condition="attribute_exists(claimed) AND fleet = :old",
    )
    return items.write_together(
        name,
        [
            alive,
            {"Update": place},
            *_sums(items, f"{PLACE}.fleet.S", LESS),
            *_sums(items, "$.next.facts.fleet", ONE),
        ],
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


def over_places(items: Items, name: str, numbers: str, step: Piece, *, at_once: int = 1) -> sfn.Map:
    """Give the Map that takes one step for each of several places of `$.run`.

    Args:
        items: the table.
        name: as the console shows it.
        numbers: path of the places' numbers.
        step: what to do for each; it finds `$.run` and `$.key`.
        at_once: how many at a time. Claims of one fleet meet in one item, so one by one is fastest.
    """
    each = sfn.Map(
        items.scope,
        name,
        items_path=numbers,
        item_selector={
            "run.$": "$.run",
            "key.$": place_key("$$.Map.Item.Value"),
        },
        max_concurrency=at_once,
        result_path=DISCARD,
    )
    each.item_processor(sfn.Chain.start(step.start))
    return each

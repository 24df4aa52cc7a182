"""Claims on capacity: how a run's places get instances, move, and give them back.

A fleet's `desired` is always the sum of the runs' claims on it, because a claim and the sum change in
one transaction together with the place that the claim is for. So a step that runs twice changes
nothing: the place says that it is claimed, or that it has moved. The sizes of groups then follow the
sums (`_group_sizes`).

Each function gives the states of one such step. The data they work on: `$.run`, and `$.key`, the
place's sort key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import DISCARD, Items, execution, text
from luma_constructs._group_sizes import PLACE, Piece, match_size
from luma_constructs._run_items import FLEET, RUN, RUN_KEY, place_key

__all__ = [
    "CANCELED",
    "claim",
    "group_of",
    "move_claim",
    "over_places",
    "release",
    "release_host",
]

CANCELED = ("DynamoDb.TransactionCanceledException",)
"""A transaction that a condition refused."""

ONE = {"N": "1"}
LESS = {"N": "-1"}


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


def release(items: Items, where: str) -> Piece:
    """Give the claim of the place `$.key` back, if it has one; sizes are matched afterwards.

    The run must be `terminating`: then no failover moves the place meanwhile.
    """
    read = _read_place(items, where)
    over = sfn.Pass(items.scope, f"Not claimed{where}")
    # A run that ended early has no places yet.
    claimed = sfn.Condition.is_present(f"{PLACE}.claimed")
    back = _give_back(items, where).next(over)
    choice = sfn.Choice(items.scope, f"Is it claimed?{where}").when(claimed, back).otherwise(over)
    read.next(choice)
    return Piece(read, over)


def release_host(items: Items, where: str) -> Piece:
    """Give the claim of a host's place back, if it has one, and match the size of its group."""
    return _change_claim(items, where, _give_back(items, where), is_claimed=True, host=True)


def _give_back(items: Items, where: str) -> sfn.CustomState:
    """Give the transaction that ends a claim."""
    mine = "attribute_exists(claimed) AND fleet = :fleet"
    writes = _claim_writes(items, "REMOVE claimed", mine, LESS)
    return items.write_together(f"Give the claim back{where}", writes)


def _read_place(items: Items, where: str) -> sfn.CustomState:
    """Give the read of the place `$.key`."""
    return items.get(
        f"Read the place{where}", RUN_KEY, text("$.key"), select={"at.$": "$"}, keep="$.place"
    )


def _change_claim(
    items: Items, where: str, change: sfn.CustomState, *, is_claimed: bool, host: bool
) -> Piece:
    """Read the place, change its claim where that is due, and match the size of its group."""
    read = _read_place(items, where)
    group = group_of(items, f"Name its group{where}")
    match = match_size(items, where, in_ec2=host)
    group.next(match.start)
    claimed = sfn.Condition.is_present(f"{PLACE}.claimed")
    due = claimed if is_claimed else sfn.Condition.not_(claimed)
    choice = sfn.Choice(items.scope, f"Is it claimed?{where}")
    read.next(choice.when(due, change.next(group)).otherwise(group))
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

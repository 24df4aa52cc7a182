"""Where a run's work goes: the places of the hosts and of the slots are written before any claim.

Queues and groups are looked up at each start, since a run may be resumed in a new stack over the same
table. A slot that exists keeps its fleet: `luma launch` spreads slots by writing them, and a failover
moves them. Where the input names fleets, slots start on the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import DISCARD, Items, has_no, task, text
from luma_constructs._group_sizes import NOTHING, PLACE
from luma_constructs._run_items import (
    COMPILER_PLACE,
    COORDINATOR_PLACE,
    RUN_KEY,
    place_key,
)
from luma_constructs.training_jobs._islands import look_up_fleet, without_group

if TYPE_CHECKING:
    from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["count_places", "place_hosts", "place_slots"]


def count_places(items: Items) -> sfn.Pass:
    """Give the Pass that lists the run's places by number."""
    return sfn.Pass(
        items.scope,
        "Count the places",
        parameters={
            "slots.$": "States.ArrayRange(2, States.MathAdd($.plan.slots, 1), 1)",
            "claimed.$": "States.ArrayRange(1, States.MathAdd($.plan.slots, 1), 1)",
            "all.$": "States.ArrayRange(0, States.MathAdd($.plan.slots, 1), 1)",
            "compiler": [0],
        },
        result_path="$.numbers",
    )


def place_hosts(
    items: Items, coordinator: IAcceleratorFleet, compiler: IAcceleratorFleet | None
) -> sfn.CustomState:
    """Give the write of the places of the coordinator and the compiler."""
    hosts = [(COORDINATOR_PLACE, coordinator)]
    if compiler is not None:
        hosts.append((COMPILER_PLACE, compiler))
    writes: list[dict[str, Any]] = []
    for place, host in hosts:
        group = host.auto_scaling_group
        values = {
            ":fleet": {"S": host.fleet_name},
            ":queue": {"S": host.queue.queue_url},
            ":asg": {"S": "" if group is None else group.auto_scaling_group_name},
        }
        writes.append({"Update": _place_write(items, {"S": place}, values)})
    return items.write_together("Place the hosts", writes)


def _place_write(items: Items, key: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the write of one place."""
    return items.change(
        RUN_KEY,
        key,
        "SET fleet = :fleet, queue = :queue, asg = :asg ADD moved :nothing",
        {**values, ":nothing": NOTHING},
    )


def place_slots(items: Items, fleets_path: str) -> sfn.Map:
    """Give the Map that places each slot.

    Args:
        items: the table.
        fleets_path: start of the names of the fleets' parameters.
    """
    scope, when = items.scope, sfn.Condition
    read = items.get("Read the slot", RUN_KEY, text("$.key"), select={"at.$": "$"}, keep="$.place")
    own = _fleet_of(items, "Keep its fleet", f"{PLACE}.fleet.S")
    first = _fleet_of(items, "Start on the first fleet", "$.first")
    look_up = look_up_fleet(items, "Look up its fleet", fleets_path, "$.fleet")
    write = _write_slot(items)
    # A slot that is still claimed, by an execution that died with its stack, keeps its fleet too:
    # the claim is on that one.
    keeps = when.and_(
        when.is_present(f"{PLACE}.fleet.S"),
        when.or_(when.not_(when.is_present("$.given.fleets")), when.is_present(f"{PLACE}.claimed")),
    )
    read.next(sfn.Choice(scope, "Has it a fleet?").when(keeps, own).otherwise(first))
    own.next(look_up)
    first.next(look_up)
    look_up.next(
        sfn.Choice(scope, "Is it in EC2?")
        .when(has_no("$.next.facts.asg"), without_group(items, "It has no group").next(write))
        .otherwise(write)
    )
    each = sfn.Map(
        scope,
        "Place the slots",
        items_path="$.numbers.slots",
        item_selector={
            "run.$": "$.run",
            "given.$": "$.given",
            "first.$": "$.plan.fleets[0]",
            "key.$": place_key("$$.Map.Item.Value"),
        },
        max_concurrency=1,
        result_path=DISCARD,
    )
    each.item_processor(sfn.Chain.start(read))
    return each


def _fleet_of(items: Items, name: str, fleet: str) -> sfn.Pass:
    """Give the Pass that names the fleet of a slot."""
    return sfn.Pass(
        items.scope,
        name,
        parameters={"run.$": "$.run", "key.$": "$.key", "fleet.$": fleet},
    )


def _write_slot(items: Items) -> sfn.CustomState:
    """Write where the slot is."""
    values = {
        ":fleet": text("$.next.facts.fleet"),
        ":queue": text("$.next.facts.queue"),
        ":asg": text("$.next.facts.asg"),
    }
    return task(
        items.scope,
        "Write its place",
        "dynamodb:updateItem",
        _place_write(items, text("$.key"), values),
    )

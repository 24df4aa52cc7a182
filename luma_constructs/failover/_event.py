"""What a failover is about: the event, made plain, and the nodes that it names.

Fields of events have hyphens in their names, which intrinsic functions cannot read: the first state
gives them plain names. A spot or state event names one instance. The expiry of a capacity block names
the block, so the instances are those of the fleet that was made for it. A request of another region
names a run.

Forms of the events: EC2 user guide, "Spot interruption notices", "EC2 instance rebalance
recommendations", "Automate Amazon EC2 with EventBridge", "Monitor Capacity Blocks using EventBridge".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import Items, equals, of_group, task

if TYPE_CHECKING:
    from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["REQUEST", "SOURCE", "nodes_of_event", "normalize"]

SOURCE = "luma"
"""Source of our own events."""

REQUEST = "Luma Failover Requested"
"""Detail type of a request to another region."""

INSTANCE = "$.event.detail['instance-id']"
BLOCK = "$.event.detail['capacity-reservation-id']"


def normalize(items: Items) -> sfn.Pass:
    """Give the first state: the event with plain names."""
    return sfn.Pass(
        items.scope,
        "Normalize",
        parameters={
            "event": {
                "id.$": "$.id",
                "kind.$": "$['detail-type']",
                "at.$": "$.time",
                "detail.$": "$.detail",
            }
        },
    )


def nodes_of_event(
    items: Items,
    blocks: Mapping[str, IAcceleratorFleet],
    *,
    to_nodes: sfn.IChainable,
    to_request: sfn.IChainable,
    to_nothing: sfn.IChainable,
) -> sfn.Choice:
    """Give the choice by kind of event.

    Args:
        items: the table.
        blocks: fleets by the id of their capacity block.
        to_nodes: where to go with `$.nodes`, a list of {id, instance}; the id is the event's, with the
            instance behind it where the event names several.
        to_request: where to go with another region's request.
        to_nothing: where to go with what is not ours.
    """
    scope, when = items.scope, sfn.Condition
    one = sfn.Pass(
        scope,
        "Name the node",
        parameters={
            "event.$": "$.event",
            "nodes": [{"id.$": "$.event.id", "instance.$": INSTANCE}],
        },
    )
    one.next(to_nodes)
    kind = sfn.Choice(scope, "Which kind of event?")
    kind.when(equals("$.event.kind", REQUEST), to_request)
    kind.when(when.is_present(INSTANCE), one)
    for number, (block, fleet) in enumerate(blocks.items()):
        kind.when(equals(BLOCK, block), _nodes_of_block(items, number, fleet, to_nodes, to_nothing))
    return kind.otherwise(to_nothing)


def _nodes_of_block(
    items: Items,
    number: int,
    fleet: IAcceleratorFleet,
    to_nodes: sfn.IChainable,
    to_nothing: sfn.IChainable,
) -> sfn.IChainable:
    """Give the states that name the nodes of a capacity block's fleet."""
    scope, when = items.scope, sfn.Condition
    group = fleet.auto_scaling_group
    look = task(
        scope,
        f"Look at the block of {fleet.fleet_name}",
        "aws-sdk:autoscaling:describeAutoScalingGroups",
        {"AutoScalingGroupNames": ["" if group is None else group.auto_scaling_group_name]},
        select={"instances.$": of_group("Instances")},
        keep="$.block",
    )
    each = sfn.Map(
        scope,
        f"Name the nodes of {fleet.fleet_name}",
        items_path="$.block.instances",
        item_selector={
            "id.$": "States.Format('{}.{}', $.event.id, $$.Map.Item.Value.InstanceId)",
            "instance.$": "$$.Map.Item.Value.InstanceId",
        },
        result_path="$.nodes",
    )
    each.item_processor(sfn.Pass(scope, f"Name it ({number})"))
    each.next(to_nodes)
    some = when.is_present("$.block.instances[0]")
    look.next(
        sfn.Choice(scope, f"Has {fleet.fleet_name} nodes?").when(some, each).otherwise(to_nothing)
    )
    return look

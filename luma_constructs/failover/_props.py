"""What a failover machine's props come to, and which of them are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from aws_cdk import Duration, Stack, Token
from aws_cdk import aws_events as events
from constructs import Construct

from luma_constructs import _names
from luma_constructs._asl import exact_seconds
from luma_constructs._validation import Problems, is_known
from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["check", "default_bus", "floors", "looks"]

_HOSTS = (_names.COORDINATOR_FLEET, _names.COMPILER_FLEET)


def floors(
    fleets: Sequence[IAcceleratorFleet], blocks: Mapping[str, IAcceleratorFleet]
) -> list[str]:
    """Give the names of the fleets that can always be bought: on demand, in no capacity block."""
    paid = {fleet.fleet_name for fleet in blocks.values()}
    return [
        fleet.fleet_name
        for fleet in fleets
        if fleet.purchase == "on-demand"
        and fleet.auto_scaling_group is not None
        and fleet.fleet_name not in paid
        and fleet.fleet_name not in _HOSTS
    ]


def looks(timeout: Duration, poll: Duration) -> int:
    """Give how many looks after the first fit into a time."""
    return math.ceil(timeout.to_seconds() / poll.to_seconds())


def default_bus(scope: Construct) -> str:
    """Give the ARN of the region's default event bus."""
    return Stack.of(scope).format_arn(
        service="events", resource="event-bus", resource_name="default"
    )


def check(
    failover: Construct,
    fleets: Sequence[IAcceleratorFleet],
    blocks: Mapping[str, IAcceleratorFleet],
    regions: Mapping[str, events.IEventBus],
    waits: Mapping[str, Duration],
) -> None:
    """Refuse props that cannot work."""
    problems = Problems("FailoverStateMachine", failover)
    names = [fleet.fleet_name for fleet in fleets]
    problems.check(bool(names), "fleets", names, "at least one fleet")
    problems.check(
        len(set(names)) == len(names), "fleets", names, "fleets of different names", "rename one"
    )
    strange = sorted({fleet.fleet_name for fleet in blocks.values()} - set(names))
    problems.check(not strange, "capacity_blocks", strange, f"fleets that are in `fleets`: {names}")
    own = Stack.of(failover).region
    problems.check(
        Token.is_unresolved(own) or own not in regions,
        "other_regions",
        own,
        "regions other than the stack's own",
    )
    for name, value in waits.items():
        if is_known(value):
            problems.whole(f"{name} (seconds)", exact_seconds(value), 1, 3600)
    problems.raise_all()

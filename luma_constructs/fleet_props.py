"""`FleetProps`: one fleet of a `LumaStack`, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aws_cdk import aws_ec2 as ec2

from luma_constructs.accelerator_fleet import FleetNetwork
from luma_constructs.fleet_purchase import Purchase

__all__ = ["FleetProps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetProps:
    """One accelerator family of a deployment; `AcceleratorFleet` checks the values.

    Attributes:
        name: how people and parameters name the fleet, such as "l4".
        target: what its islands are compiled for, such as "cuda-sm89" or "cuda-sm90x8".
        max_capacity: nodes at most. Default: 8.
        purchase: spot, on demand, a share of both, or a capacity block. Default: Purchase.spot().
        instance_types: allowed types. Default: - all of the catalogue that hold one island.
        network: how islands reach each other. Default: FleetNetwork.STANDARD
    """

    name: str
    target: str
    max_capacity: int = 8
    purchase: Purchase = field(default_factory=Purchase.spot)
    instance_types: Sequence[ec2.InstanceType] | None = None
    network: FleetNetwork = FleetNetwork.STANDARD

"""How a fleet's instances are bought: spot, on demand, both, or a capacity block."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from aws_cdk import aws_autoscaling as autoscaling

__all__ = ["Purchase"]

_RESERVATION = re.compile(r"cr-[0-9a-f]{8,32}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    """How instances are bought; make one with `spot`, `on_demand`, `mixed` or `capacity_block`.

    Attributes:
        label: which of the four.
        on_demand_base: instances that are on demand before any is spot.
        on_demand_percent: share of the others that is on demand.
        reservation_id: of a capacity block; "" where there is none.
    """

    label: Literal["spot", "on-demand", "mixed", "capacity-block"]
    on_demand_base: int = 0
    on_demand_percent: int = 0
    reservation_id: str = ""

    @classmethod
    def spot(cls) -> Purchase:
        """All instances are spot, up to the on-demand price."""
        return cls(label="spot")

    @classmethod
    def on_demand(cls) -> Purchase:
        """No instance is spot: what a job falls back to where it may."""
        return cls(label="on-demand", on_demand_percent=100)

    @classmethod
    def mixed(cls, *, on_demand_base: int = 0, on_demand_percent: int = 0) -> Purchase:
        """Some instances are on demand, the others spot.

        Args:
            on_demand_base: instances that are on demand before any is spot.
            on_demand_percent: share of the others that is on demand, 0 to 100.
        """
        return cls(
            label="mixed", on_demand_base=on_demand_base, on_demand_percent=on_demand_percent
        )

    @classmethod
    def capacity_block(cls, reservation_id: str) -> Purchase:
        """All instances come from an EC2 Capacity Block for ML, and end with it.

        Args:
            reservation_id: of the block, `cr-...`; the fleet's one instance type and its subnets
                must be the block's.
        """
        return cls(label="capacity-block", on_demand_percent=100, reservation_id=reservation_id)

    @property
    def parameter(self) -> Literal["spot", "on-demand", "mixed"]:
        """What the fleet's parameter says; a capacity block is paid for, and is not reclaimed."""
        return "on-demand" if self.label == "capacity-block" else self.label

    @property
    def is_spot(self) -> bool:
        """Whether instances can be reclaimed."""
        return self.label in ("spot", "mixed") and self.on_demand_percent < 100

    @property
    def usage_classes(self) -> tuple[str, ...]:
        """What an instance type must be sold as, in EC2's words."""
        if self.label == "mixed":
            return ("spot", "on-demand")
        return (self.label,)

    @property
    def problem(self) -> str:
        """What is not allowed about the figures, "" for nothing."""
        if self.on_demand_base < 0 or not 0 <= self.on_demand_percent <= 100:
            return "on_demand_base of at least 0 and on_demand_percent of 0 to 100"
        if self.label == "mixed" and not (self.on_demand_base or self.on_demand_percent):
            return "a share on demand; use Purchase.spot() for none"
        if self.label == "capacity-block" and not _RESERVATION.fullmatch(self.reservation_id):
            return "the id of a capacity block, such as cr-0123456789abcdef0"
        return ""

    @property
    def distribution(self) -> autoscaling.InstancesDistribution:
        """The same for a MixedInstancesPolicy.

        It is always stated: a policy without it launches everything on demand. Spot takes the pools
        with the most room at a good price, since the cheapest ones are reclaimed soonest.
        """
        spot = autoscaling.SpotAllocationStrategy.PRICE_CAPACITY_OPTIMIZED
        return autoscaling.InstancesDistribution(
            on_demand_allocation_strategy=autoscaling.OnDemandAllocationStrategy.LOWEST_PRICE,
            on_demand_base_capacity=self.on_demand_base,
            on_demand_percentage_above_base_capacity=self.on_demand_percent,
            spot_allocation_strategy=spot,
        )

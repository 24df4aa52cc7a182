"""Which of the listed instance types a fleet takes when its author names none.

All that hold exactly one island, because spot capacity is where it happens to be; but not those that
differ so much that a plan could not rely on the fleet: what an Auto Scaling group launches is its own
choice.
"""

from __future__ import annotations

from collections.abc import Iterable

from luma_constructs._catalogue import InstanceRow, TargetParts, fitting, offered
from luma_constructs.fleet_purchase import Purchase

__all__ = ["default_types"]

_CPU_VCPUS = 8
"""Processors of a CPU fleet's hosts: islands of one size, about equally fast."""

_DEAREST = 2.0
"""Price over the cheapest host of the same chip: g6.16xlarge has one L4, as g6.xlarge has, for four
times its price."""


def default_types(
    target: TargetParts, *, with_efa: bool, region: str, purchase: Purchase
) -> tuple[str, ...]:
    """Give the types, in the catalogue's order: x86_64, arm64 where there is nothing else.

    Args:
        target: what the islands run.
        with_efa: whether the types must have EFA.
        region: where they must be offered, as far as that is known; may be a token.
        purchase: how they must be sold.
    """
    rows = fitting(target, "x86_64") or fitting(target, "arm64")
    chosen = [
        row
        for row in rows
        if offered(row, region)
        and (row.efa_interfaces or not with_efa)
        and _sold(row, purchase)
        and (row.vcpus == _CPU_VCPUS or target.family != "cpu")
    ]
    return tuple(row.name for row in _without_the_dearest(chosen))


def _sold(row: InstanceRow, purchase: Purchase) -> bool:
    """Tell whether a type is sold in the wanted way, as far as that is known."""
    return row.usage_classes is None or set(purchase.usage_classes) <= set(row.usage_classes)


def _without_the_dearest(rows: list[InstanceRow]) -> Iterable[InstanceRow]:
    """Leave out hosts that cost much more than another one with the same chip."""
    cheapest: dict[str, float] = {}
    for row in rows:
        if row.usd_per_hour is not None:
            cheapest[row.chip] = min(row.usd_per_hour, cheapest.get(row.chip, row.usd_per_hour))
    return (
        row
        for row in rows
        if row.usd_per_hour is None or row.usd_per_hour <= _DEAREST * cheapest[row.chip]
    )

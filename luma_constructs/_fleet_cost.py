"""What fleets cost an hour, from the instances that Auto Scaling counts and the catalogue's prices.

It needs no node that reports anything, so it also shows instances that nobody uses. On-demand prices
are taken for spot instances too: the true cost is never higher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch

from luma_constructs._catalogue import row_of
from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["MOST_FLEETS", "cost_per_hour", "price_of"]

MOST_FLEETS = 10
"""Metrics that one alarm may join (CloudWatch user guide, "Create a CloudWatch alarm based on a metric
math expression")."""


@runtime_checkable
class _HasTypes(Protocol):
    """A fleet that knows its instance types."""

    instance_types: Sequence[str]


def price_of(fleet: IAcceleratorFleet, prices: Mapping[str, float]) -> float | None:
    """Give the highest price of one of a fleet's instances, $ an hour; None where it is not known."""
    if fleet.fleet_name in prices:
        return prices[fleet.fleet_name]
    if not isinstance(fleet, _HasTypes):
        return None
    rows = [row_of(name) for name in fleet.instance_types]
    known = [row.usd_per_hour for row in rows if row is not None and row.usd_per_hour is not None]
    return max(known, default=None)


def cost_per_hour(
    fleets: Sequence[IAcceleratorFleet], prices: Mapping[str, float], period: Duration
) -> cloudwatch.MathExpression | None:
    """Give what the fleets' instances cost an hour, $; None where no fleet has instances and a price."""
    terms: list[str] = []
    metrics: dict[str, cloudwatch.IMetric] = {}
    for fleet in fleets:
        price = price_of(fleet, prices)
        count = fleet.metric_in_service(period=period, statistic="Maximum")
        if price is None or count is None:
            continue
        name = f"m{len(terms)}"
        # Auto Scaling reports nothing for a group that is empty and new.
        terms.append(f"FILL({name}, 0) * {price:g}")
        metrics[name] = count
    if not terms:
        return None
    return cloudwatch.MathExpression(
        expression=" + ".join(terms),
        using_metrics=metrics,
        label="$/h at most",
        period=period,
    )

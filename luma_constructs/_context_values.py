"""Values of context parameters: each reader gives the value, or raises ValueError, perhaps with why.

The command line gives text and cdk.json any JSON value; both forms of a value mean the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from aws_cdk import aws_ec2 as ec2

from luma_constructs.deployment_props import BudgetProps, FleetProps
from luma_constructs.fleet_purchase import Purchase

__all__ = ["FLEET_FIELDS", "budget", "fleets", "matching", "one_of", "regions", "subnets", "whole"]

FLEET_FIELDS = ("name", "target", "max", "purchase", "instance_types")
"""A fleet's fields in JSON; the first four are its short form, in this order."""

_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-[0-9]", re.ASCII)
_SUBNET = re.compile(r"([a-z0-9-]+)=(subnet-[0-9a-f]{8,17})", re.ASCII)
_LIMIT = re.compile(r"([0-9]{1,9}(?:\.[0-9]+)?)/(month|h)", re.ASCII)


def whole(low: int, high: int) -> Callable[[Any], int]:
    """Give the reader of a whole number, as text or as a number."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", str(value), re.ASCII):
            raise ValueError
        if not low <= int(value) <= high:
            raise ValueError
        return int(value)

    return read


def budget(value: Any) -> BudgetProps:
    """Read limits with their units, such as "500/month,40/h"."""
    limits: dict[str, float] = {}
    for item in _listed(value):
        match = _LIMIT.fullmatch(item) if isinstance(item, str) else None
        if match is None:
            raise ValueError(f"{item!r} has no unit" if str(item).isdigit() else f"{item!r}")
        name = {"month": "usd_per_month", "h": "usd_per_hour"}[match[2]]
        if name in limits or not float(match[1]):
            raise ValueError(f"{item!r} is zero or stands twice")
        limits[name] = float(match[1])
    return BudgetProps(**limits)


def one_of(*allowed: str) -> Callable[[Any], str]:
    """Give the reader of one of some words."""

    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError
        return value

    return read


def matching(pattern: re.Pattern[str]) -> Callable[[Any], str]:
    """Give the reader of a text of one form."""

    def read(value: Any) -> str:
        if not (isinstance(value, str) and pattern.fullmatch(value)):
            raise ValueError
        return value

    return read


def _listed(value: Any) -> list[Any]:
    """Take a JSON list as it is, and text at its commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not (isinstance(items, list) and items and all(items)):
        raise ValueError
    return [item.strip() if isinstance(item, str) else item for item in items]


def regions(value: Any) -> tuple[str, ...]:
    """Read regions, each once."""
    found = tuple(_listed(value))
    for region in found:
        if not (isinstance(region, str) and _REGION.fullmatch(region)):
            raise ValueError(f"{region!r} is no region")
    if len(set(found)) < len(found):
        raise ValueError("a region stands twice")
    return found


def subnets(value: Any) -> dict[str, str]:
    """Read subnets by their zones, as pairs or as an object."""
    if isinstance(value, dict):
        value = [f"{zone}={subnet}" for zone, subnet in value.items()]
    found: dict[str, str] = {}
    for pair in _listed(value):
        match = _SUBNET.fullmatch(pair) if isinstance(pair, str) else None
        if match is None:
            raise ValueError(f"{pair!r} is not ZONE=SUBNET")
        if match[1] in found:
            raise ValueError(f"zone {match[1]} stands twice")
        found[match[1]] = match[2]
    return found


def fleets(value: Any) -> tuple[FleetProps, ...]:
    """Read fleets, in their short form or as JSON, each name once."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _parsed(value)
    found = tuple(_fleet(item) for item in _listed(value))
    names = [fleet.name for fleet in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the name {twice[0]!r} stands twice")
    return found


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists lie too deep in each other") from None


def _fleet(item: Any) -> FleetProps:
    if isinstance(item, str):
        parts = item.split(":")
        if not 2 <= len(parts) <= 4 or not all(parts):
            raise ValueError(f"{item!r} is not NAME:TARGET[:MAX[:PURCHASE]]")
        item = dict(zip(FLEET_FIELDS, parts, strict=False))
    if not isinstance(item, dict):
        raise ValueError(f"{item!r} is no fleet")  # noqa: TRY004 (a mistake of the user)
    unknown = sorted(set(item) - set(FLEET_FIELDS))
    if unknown:
        raise ValueError(f"a fleet has no {unknown[0]!r}, only {', '.join(FLEET_FIELDS)}")
    if not all(isinstance(item.get(field), str) for field in ("name", "target")):
        raise ValueError("a fleet needs a name and a target, both texts")
    return FleetProps(
        name=item["name"],
        target=item["target"],
        max_capacity=_capacity(item.get("max", 8)),
        purchase=_purchase(item.get("purchase", "spot")),
        instance_types=_types(item.get("instance_types")),
    )


def _capacity(value: Any) -> int:
    try:
        return whole(1, 1000)(value)
    except ValueError:
        raise ValueError(f"max {value!r} is no whole number from 1 to 1000") from None


def _purchase(value: Any) -> Purchase:
    """Read "spot", "on-demand", a spot share such as "70%", or a capacity block's id."""
    if value == "spot":
        return Purchase.spot()
    if value == "on-demand":
        return Purchase.on_demand()
    if isinstance(value, str) and (share := re.fullmatch(r"([1-9][0-9]?)%", value, re.ASCII)):
        return Purchase.mixed(on_demand_percent=100 - int(share[1]))
    if isinstance(value, str) and value.startswith("cr-"):
        return Purchase.capacity_block(value)
    raise ValueError(
        f"purchase {value!r} is neither spot, on-demand, a spot share such as 70%, "
        "nor a capacity block such as cr-0123456789abcdef0"
    )


def _types(value: Any) -> tuple[ec2.InstanceType, ...] | None:
    if value is None:
        return None
    if not (isinstance(value, list) and value and all(isinstance(item, str) for item in value)):
        raise ValueError(f"instance_types {value!r} is no list of names")
    return tuple(ec2.InstanceType(item) for item in value)

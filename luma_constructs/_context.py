"""Context parameters of app.py: read, checked, and refused together.

    cdk deploy -c fleets=cpu:cpu:4,l4:cuda-sm89:8 -c budget=500/month

The command line gives text and cdk.json any JSON value; both forms of a parameter mean the same.
A parameter that is misspelt would be ignored by CDK: here it is an error that names the right one.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aws_cdk import aws_ec2 as ec2

from luma_constructs.deployment_props import BudgetProps, FleetProps
from luma_constructs.fleet_purchase import Purchase

__all__ = ["DEFAULT_FLEETS", "FLEET_FIELDS", "KEYS", "AppContext", "ContextError", "ContextKey"]

DEFAULT_FLEETS = (
    FleetProps(name="l4", target="cuda-sm89"),
    FleetProps(name="cpu", target="cpu", max_capacity=4),
    FleetProps(name="cpu-floor", target="cpu", max_capacity=2, purchase=Purchase.on_demand()),
)
"""Without `fleets`: an accelerator, and CPUs with an on-demand floor. None costs anything idle."""

FLEET_FIELDS = ("name", "target", "max", "purchase", "instance_types")
"""A fleet's fields in JSON; the first four are its short form, in this order."""

_STACK = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}", re.ASCII)
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-[0-9]", re.ASCII)
_VPC = re.compile(r"vpc-[0-9a-f]{8,17}", re.ASCII)
_SUBNET = re.compile(r"([a-z0-9-]+)=(subnet-[0-9a-f]{8,17})", re.ASCII)
_CUSTOMER = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
_PATH = re.compile(r".+\.eif")
_LIMIT = re.compile(r"([0-9]{1,9}(?:\.[0-9]+)?)/(month|h)", re.ASCII)
_EMAIL = re.compile(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+")
_KEY = re.compile(
    r"arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/"
    r"(?:mrk-[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    re.ASCII,
)
_TABLE = re.compile(r"[a-zA-Z0-9_.-]{3,255}", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


class ContextError(ValueError):
    """Context parameters that cannot be deployed, a line for each.

    Attributes:
        problems: one line for each parameter: its key, the value, what is allowed.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"context {problem}" for problem in problems))


@dataclass(frozen=True, kw_only=True, slots=True)
class AppContext:
    """The checked parameters; each attribute is a context key.

    Attributes:
        stack: the stack's name, and the deployment's.
        fleets: the fleets, in the order in which failover tries them.
        level: seal level of the compiler in the account; "none" leaves it out.
        customer: whose artifacts are sealed, under a key of KMS; None for key files, at L1 only.
        image: path of the enclave's image, which L2 needs.
        budget: USD an hour or a month, above which people are told; None for no limit.
        failover: regions whose Luma stack takes over when this one has no capacity.
        heartbeat: seconds after which a silent node is given up; None for the constructs' own.
        patience: seconds that failover waits for each of a drain, a commit and new capacity; None for
            the construct's own.
        network: "nat" or "public"; see docs/how-to/deploy.md for the idle cost of each.
        zones: availability zones of a new network.
        vpc: id of a network that is there already; None for a new one.
        subnets: its private subnets by zone.
        bucket: name of a bucket that is there already; None for a new one.
        table: name of a table that is there already, with its bucket; None for a new one.
        key: ARN of the customer's key for all data; None for keys that AWS manages.
        email: who is told of failovers and alarms; None for nobody.
    """

    stack: str = "Luma"
    fleets: tuple[FleetProps, ...] = DEFAULT_FLEETS
    level: str = "L1"
    customer: str | None = None
    image: str | None = None
    budget: BudgetProps | None = None
    failover: tuple[str, ...] = ()
    heartbeat: int | None = None
    patience: int | None = None
    network: str = "nat"
    zones: int = 2
    vpc: str | None = None
    subnets: Mapping[str, str] | None = None
    bucket: str | None = None
    table: str | None = None
    key: str | None = None
    email: str | None = None

    @classmethod
    def read(cls, context: Mapping[str, Any]) -> AppContext:
        """Read the parameters from an app's context.

        Args:
            context: all of it; keys that are CDK's own are left alone.

        Raises:
            ContextError: values that are not allowed, and keys that are misspelt, all at once.
        """
        given: dict[str, Any] = {}
        problems = [_misspelt(key) for key in context if _near(key)]
        for key in KEYS:
            if key.name not in context:
                continue
            try:
                given[key.name] = key.read(context[key.name])
            except ValueError as error:
                why = f" ({error})" if str(error) else ""
                value = _shown(context[key.name])
                problems.append(f"{key.name}: {value}{why}; expected {key.allowed}; {key.remedy}")
        problems += _joint(given)
        if problems:
            raise ContextError(problems)
        return cls(**given)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextKey:
    """One parameter.

    Attributes:
        name: the key.
        allowed: what is allowed, for people.
        remedy: what to write, or to leave out.
        read: gives the value; raises ValueError, perhaps with a reason, where it is not allowed.
    """

    name: str
    allowed: str
    remedy: str
    read: Callable[[Any], Any]


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", str(value), re.ASCII):
            raise ValueError
        if not low <= int(value) <= high:
            raise ValueError
        return int(value)

    return read


def _budget(value: Any) -> BudgetProps:
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


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise ValueError
        return value

    return read


def _matching(pattern: re.Pattern[str]) -> Callable[[Any], str]:
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


def _regions(value: Any) -> tuple[str, ...]:
    found = tuple(_listed(value))
    for region in found:
        if not (isinstance(region, str) and _REGION.fullmatch(region)):
            raise ValueError(f"{region!r} is no region")
    if len(set(found)) < len(found):
        raise ValueError("a region stands twice")
    return found


def _subnets(value: Any) -> dict[str, str]:
    pairs = [f"{zone}={subnet}" for zone, subnet in value.items()] if isinstance(
        value, dict
    ) else _listed(value)  # fmt: skip
    found: dict[str, str] = {}
    for pair in pairs:
        match = _SUBNET.fullmatch(pair) if isinstance(pair, str) else None
        if match is None:
            raise ValueError(f"{pair!r} is not ZONE=SUBNET")
        if match[1] in found:
            raise ValueError(f"zone {match[1]} stands twice")
        found[match[1]] = match[2]
    return found


def _fleets(value: Any) -> tuple[FleetProps, ...]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = json.loads(value)
    found = tuple(_fleet(item) for item in _listed(value))
    names = [fleet.name for fleet in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the name {twice[0]!r} stands twice")
    return found


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
    if not {"name", "target"} <= set(item):
        raise ValueError("a fleet needs a name and a target")
    return FleetProps(
        name=item["name"],
        target=item["target"],
        max_capacity=_capacity(item.get("max", 8)),
        purchase=_purchase(item.get("purchase", "spot")),
        instance_types=_types(item.get("instance_types")),
    )


def _capacity(value: Any) -> int:
    try:
        return _whole(1, 1000)(value)
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


KEYS = (
    ContextKey(
        name="stack", read=_matching(_STACK), allowed="letters, digits and '-', a letter first",
        remedy="leave it out for Luma",
    ),
    ContextKey(
        name="fleets", read=_fleets,
        allowed="NAME:TARGET[:MAX[:PURCHASE]], separated by commas, or a JSON list of objects",
        remedy="write for example fleets=l4:cuda-sm89:8,cpu:cpu:2:on-demand",
    ),
    ContextKey(
        name="level", read=_one_of("none", "L1", "L2"), allowed="none, L1 or L2",
        remedy="L2 needs an instance type with Nitro Enclaves",
    ),
    ContextKey(
        name="customer", read=_matching(_CUSTOMER), allowed="1 to 63 of a-z, 0-9, '.', '_' and '-'",
        remedy="leave it out for artifacts sealed with key files",
    ),
    ContextKey(
        name="image", read=_matching(_PATH), allowed="the path of an image, such as build/luma.eif",
        remedy="make one with luma enclave build",
    ),
    ContextKey(
        name="budget", read=_budget,
        allowed="USD above zero with a unit: 500/month, 40/h, or both with a comma",
        remedy="leave it out for no limit",
    ),
    ContextKey(
        name="failover", read=_regions, allowed="regions, separated by commas",
        remedy="deploy the stack in each of them too",
    ),
    ContextKey(
        name="heartbeat", read=_whole(2, 3600), allowed="whole seconds from 2 to 3600",
        remedy="leave it out for the default",
    ),
    ContextKey(
        name="patience", read=_whole(2, 3600), allowed="whole seconds from 2 to 3600",
        remedy="leave it out for the default",
    ),
    ContextKey(
        name="network", read=_one_of("nat", "public"), allowed="nat or public",
        remedy="give vpc and subnets for a network that is there already",
    ),
    ContextKey(
        name="zones", read=_whole(1, 6), allowed="a whole number from 1 to 6",
        remedy="no more than the region has",
    ),
    ContextKey(
        name="vpc", read=_matching(_VPC), allowed="a VPC's id, such as vpc-0123456789abcdef0",
        remedy="leave it out for a new network",
    ),
    ContextKey(
        name="subnets", read=_subnets,
        allowed="ZONE=SUBNET, separated by commas, or a JSON object",
        remedy="write for example subnets=us-east-1a=subnet-0123456789abcdef0",
    ),
    ContextKey(
        name="bucket", read=_matching(_BUCKET), allowed="a bucket's name",
        remedy="leave it out for a new bucket",
    ),
    ContextKey(
        name="table", read=_matching(_TABLE), allowed="a table's name",
        remedy="leave it out for a new table",
    ),
    ContextKey(
        name="key", read=_matching(_KEY), allowed="a KMS key's ARN",
        remedy="leave it out for encryption that AWS manages",
    ),
    ContextKey(
        name="email", read=_matching(_EMAIL), allowed="an address",
        remedy="leave it out for no messages",
    ),
)  # fmt: skip
"""Every parameter, in the order of the documentation."""

_NAMES = [key.name for key in KEYS]


def _joint(given: Mapping[str, Any]) -> list[str]:
    """What two parameters must say together."""
    problems = []
    if ("vpc" in given) != ("subnets" in given):
        here, missing = ("vpc", "subnets") if "vpc" in given else ("subnets", "vpc")
        problems.append(f"{missing}: not given, though {here} is; expected both; nothing is looked "
                        "up at synth, so name the subnets of the VPC")  # fmt: skip
    if given.get("level") == "L2":
        problems += [
            f"{key}: not given; expected one with level=L2; {remedy}"
            for key, remedy in (
                ("customer", "the key of KMS is the customer's"),
                ("image", "make one with luma enclave build"),
            )
            if key not in given
        ]
    elif "image" in given:
        problems.append(f"image: {given['image']!r} without level=L2; expected both; only an enclave "
                        "boots an image")  # fmt: skip
    if "vpc" in given:
        problems += [
            f"{key}: {given[key]!r} beside vpc; expected one of them; it shapes a new network only"
            for key in ("network", "zones")
            if key in given
        ]
    return problems


def _near(key: str) -> bool:
    """Say whether a key looks like one of ours and is none; CDK's own have '@', ':' or '/'."""
    if key in _NAMES or re.search(r"[@:/]", key):
        return False
    return bool(difflib.get_close_matches(key, _NAMES, cutoff=0.7))


def _misspelt(key: str) -> str:
    right = difflib.get_close_matches(key, _NAMES, n=1, cutoff=0.7)[0]
    return f"{key}: there is no such parameter; expected one of {', '.join(_NAMES)}; write {right}"


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 120 else f"{shown[:120]}…"

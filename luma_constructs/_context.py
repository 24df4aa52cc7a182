"""Context parameters of app.py: read, checked, and refused together.

    cdk deploy -c fleets=cpu:cpu:4,l4:cuda-sm89:8 -c budget=500/month

The command line gives text and cdk.json any JSON value; both forms of a parameter mean the same.
A parameter that is misspelt would be ignored by CDK: here it is an error that names the right one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from luma_constructs._context_keys import KEYS
from luma_constructs.deployment_props import BudgetProps, FleetProps
from luma_constructs.fleet_purchase import Purchase

__all__ = ["DEFAULT_FLEETS", "AppContext", "ContextError"]

DEFAULT_FLEETS = (
    FleetProps(name="l4", target="cuda-sm89"),
    FleetProps(name="cpu", target="cpu", max_capacity=4),
    FleetProps(name="cpu-floor", target="cpu", max_capacity=2, purchase=Purchase.on_demand()),
)
"""Without `fleets`: an accelerator, and CPUs with an on-demand floor. None costs anything idle."""


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

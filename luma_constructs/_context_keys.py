"""The context parameters of app.py, one by one: what is allowed, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from luma_constructs import _context_values as values

__all__ = ["KEYS", "ContextKey"]

_STACK = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}", re.ASCII)
_VPC = re.compile(r"vpc-[0-9a-f]{8,17}", re.ASCII)
_CUSTOMER = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
_PATH = re.compile(r".+\.eif")
_EMAIL = re.compile(r"[^@\s,]+@[^@\s,]+\.[^@\s,]+")
_KEY = re.compile(
    r"arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/"
    r"(?:mrk-[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    re.ASCII,
)
_TABLE = re.compile(r"[a-zA-Z0-9_.-]{3,255}", re.ASCII)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


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


KEYS = (
    ContextKey(
        name="stack", read=values.matching(_STACK), allowed="letters, digits and '-', a letter first",
        remedy="leave it out for Luma",
    ),
    ContextKey(
        name="fleets", read=values.fleets,
        allowed="NAME:TARGET[:MAX[:PURCHASE]], separated by commas, or a JSON list of objects",
        remedy="write for example fleets=l4:cuda-sm89:8,cpu:cpu:2:on-demand",
    ),
    ContextKey(
        name="level", read=values.one_of("none", "L1", "L2"), allowed="none, L1 or L2",
        remedy="L2 needs an instance type with Nitro Enclaves",
    ),
    ContextKey(
        name="customer", read=values.matching(_CUSTOMER), allowed="1 to 63 of a-z, 0-9, '.', '_' and '-'",
        remedy="leave it out for artifacts sealed with key files",
    ),
    ContextKey(
        name="image", read=values.matching(_PATH), allowed="the path of an image, such as build/luma.eif",
        remedy="make one with luma enclave build",
    ),
    ContextKey(
        name="budget", read=values.budget,
        allowed="USD above zero with a unit: 500/month, 40/h, or both with a comma",
        remedy="leave it out for no limit",
    ),
    ContextKey(
        name="failover", read=values.regions, allowed="regions, separated by commas",
        remedy="deploy the stack in each of them too",
    ),
    ContextKey(
        name="heartbeat", read=values.whole(2, 3600), allowed="whole seconds from 2 to 3600",
        remedy="leave it out for the default",
    ),
    ContextKey(
        name="patience", read=values.whole(2, 3600), allowed="whole seconds from 2 to 3600",
        remedy="leave it out for the default",
    ),
    ContextKey(
        name="network", read=values.one_of("nat", "public"), allowed="nat or public",
        remedy="give vpc and subnets for a network that is there already",
    ),
    ContextKey(
        name="zones", read=values.whole(1, 6), allowed="a whole number from 1 to 6",
        remedy="no more than the region has",
    ),
    ContextKey(
        name="vpc", read=values.matching(_VPC), allowed="a VPC's id, such as vpc-0123456789abcdef0",
        remedy="leave it out for a new network",
    ),
    ContextKey(
        name="subnets", read=values.subnets,
        allowed="ZONE=SUBNET, separated by commas, or a JSON object",
        remedy="write for example subnets=us-east-1a=subnet-0123456789abcdef0",
    ),
    ContextKey(
        name="bucket", read=values.matching(_BUCKET), allowed="a bucket's name",
        remedy="leave it out for a new bucket",
    ),
    ContextKey(
        name="table", read=values.matching(_TABLE), allowed="a table's name",
        remedy="leave it out for a new table",
    ),
    ContextKey(
        name="key", read=values.matching(_KEY), allowed="a KMS key's ARN",
        remedy="leave it out for encryption that AWS manages",
    ),
    ContextKey(
        name="email", read=values.matching(_EMAIL), allowed="an address",
        remedy="leave it out for no messages",
    ),
)  # fmt: skip
"""Every parameter, in the order of the documentation."""

"""Where a node belongs: its stack and fleet by the parameters, itself by the instance's metadata."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.agent.node.imds import Identity, Imds
from runtime.spec.account import (
    AccountConfig,
    Fleet,
    check_stack_name,
    config_parameter,
    fleet_parameter,
)
from runtime.spec.aws import AwsError, aws_client, aws_errors
from runtime.spec.errors import RunError, SpecError
from runtime.spec.objects import Bucket
from runtime.spec.table import Table

__all__ = ["Place", "find_place"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where this node belongs, and what it talks to.

    Attributes:
        config: the stack's configuration.
        fleet: the fleet's name.
        queue: URL of the fleet's queue.
        target: what its islands run; None for the compiler.
        asg: its Auto Scaling group, where it has one.
        usd_per_hour: the price of this node, where the stack states it.
        identity: who this node is.
        table: the table of runs.
        bucket: the bucket of runs.
        scratch: folder of the works' scratch folders.
    """

    config: AccountConfig
    fleet: str
    queue: str
    target: str | None
    asg: str | None
    usd_per_hour: float | None
    identity: Identity
    table: Table
    bucket: Bucket
    scratch: Path


def find_place(imds: Imds, scratch: Path) -> Place:
    """Find out where this node belongs.

    Args:
        imds: the metadata service.
        scratch: folder of the works' scratch folders.

    Raises:
        SpecError: the environment names no stack or fleet, or the stack has no such fleet.
        AwsError: the parameters cannot be read.
        RunError: the metadata service does not answer, or this instance is in another region.
    """
    stack = check_stack_name(_variable("LUMA_STACK"))
    fleet, region = _variable("LUMA_FLEET"), _variable("AWS_REGION")
    identity = imds.identity()
    if identity.region != region:
        raise RunError(
            f"AWS_REGION is {region}, and this instance is in {identity.region}",
            remedy="start the node with the region of its stack",
        )
    config = AccountConfig.from_json(_read(config_parameter(stack), region), name="config")
    shared: dict[str, Any] = {
        "config": config,
        "fleet": fleet,
        "identity": identity,
        "table": Table(config.table, region=region),
        "bucket": Bucket(config.bucket, region=region),
        "scratch": scratch,
    }
    if fleet == config.compiler_fleet and config.compiler_queue is not None:
        return Place(
            **shared,
            queue=config.compiler_queue,
            target=None,
            asg=config.compiler_asg,
            usd_per_hour=None,
        )
    known = Fleet.from_json(_read(fleet_parameter(stack, fleet), region), name=f"fleet '{fleet}'")
    return Place(
        **shared,
        queue=known.queue,
        target=known.target,
        asg=known.asg,
        usd_per_hour=known.usd_per_hour,
    )


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise SpecError(
            f"{name} is not set",
            remedy="the instance's user data writes LUMA_STACK, LUMA_FLEET and AWS_REGION into "
            "the daemon's environment",
        )
    return value


def _read(name: str, region: str) -> str:
    try:
        with aws_errors(f"read the parameter {name}"):
            answer = aws_client("ssm", region=region).get_parameter(Name=name)
    except AwsError as error:
        if error.reason != "missing":
            raise
        raise AwsError(
            f"there is no parameter {name}",
            reason="missing",
            remedy="check LUMA_STACK, LUMA_FLEET and AWS_REGION, and that the stack is deployed",
        ) from error
    return answer["Parameter"]["Value"]

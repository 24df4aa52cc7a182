"""A deployed stack as an engineer's machine sees it: its configuration, its fleets, its stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.spec.account import (
    DEFAULT_STACK,
    AccountConfig,
    Fleet,
    check_stack_name,
    config_parameter,
    parameters_path,
)
from runtime.spec.aws import AwsError, aws_client, aws_errors
from runtime.spec.errors import RunError
from runtime.spec.objects import Bucket
from runtime.spec.table import Table

__all__ = ["Stack", "open_stack"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """One deployed stack.

    Attributes:
        config: its configuration.
        fleets: its fleets by name, the coordinator's included.
        table: the table of runs.
        bucket: the bucket of runs.
    """

    config: AccountConfig
    fleets: Mapping[str, Fleet]
    table: Table
    bucket: Bucket

    @property
    def name(self) -> str:
        """The stack's name."""
        return self.config.stack

    @property
    def region(self) -> str:
        """The stack's region."""
        return self.config.region

    @property
    def options(self) -> str:
        """What a command needs to name this stack again."""
        return f"--stack {self.name}"


def open_stack(name: str = DEFAULT_STACK, *, region: str | None = None) -> Stack:
    """Read a stack's parameters.

    Args:
        name: the stack's name.
        region: its region; default: that of the environment or the shared files.

    Raises:
        SpecError: the name has another form, or a parameter is of another version.
        AwsError: the parameters cannot be read.
        RunError: there is no such stack in the region.
    """
    check_stack_name(name)
    values = _parameters(name, region)
    config_name = config_parameter(name)
    if config_name not in values:
        raise RunError(
            f"there is no stack '{name}' of Luma in {_region_text(region)}: the parameter "
            f"{config_name} is missing",
            remedy="deploy it (`cdk deploy`, docs/how-to/deploy.md), or name another with --stack "
            "or another region with AWS_REGION",
        )
    config = AccountConfig.from_json(values.pop(config_name), name=config_name)
    fleets = {
        key: Fleet.from_json(text, name=key) for key, text in values.items() if _is_fleet(key)
    }
    return Stack(
        config=config,
        fleets={fleet.name: fleet for fleet in fleets.values()},
        table=Table(config.table, region=config.region),
        bucket=Bucket(config.bucket, region=config.region),
    )


def _parameters(name: str, region: str | None) -> dict[str, str]:
    path = parameters_path(name)
    client = aws_client("ssm", region=region)
    found: dict[str, str] = {}
    try:
        with aws_errors(f"read the parameters of stack '{name}'"):
            pages = client.get_paginator("get_parameters_by_path").paginate(
                Path=path, Recursive=True
            )
            for page in pages:
                found |= {item["Name"]: item["Value"] for item in page["Parameters"]}
    except AwsError as error:
        if error.reason != "missing":
            raise
    return found


def _is_fleet(name: str) -> bool:
    return name.split("/")[-2] == "fleets"


def _region_text(region: str | None) -> str:
    given = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return given or "the region of your AWS profile"

"""User data of Luma's instances: fetch the runtime, check it, set it up, start the node's service.

What happens on the instance stands in `data/bootstrap.sh`, which comes with the runtime. User data
itself is a few lines: it ends the instance where anything fails, so that one that could not be set
up does not cost money while it waits. Checked by running the script here and on the template; never
executed on EC2.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import Aws
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from luma_constructs.runtime_asset import RuntimeAsset

__all__ = ["SERVICE", "WheelSource", "bootstrap", "instance_commands", "unpack_commands"]

SERVICE = "luma-node.service"
"""The systemd service of the node's daemon."""

_SOURCE = "/opt/luma/src"
_ARCHIVE = "/opt/luma/runtime.zip"
_END_ON_FAILURE = (
    'trap \'echo "luma: set-up failed at line $LINENO; ending this instance" >&2; '
    "shutdown -h now' ERR"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelSource:
    """A folder of wheels in S3, for a VPC without a way to a package index.

    Attributes:
        bucket: where the wheels lie; the instances' role is let read the folder.
        prefix: the folder, such as "wheels/cuda/".
    """

    bucket: s3.IBucket
    prefix: str

    @property
    def url(self) -> str:
        """S3 URL of the folder."""
        return self.bucket.s3_url_for_object(self.prefix)

    def grant_read(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let instances read the folder."""
        objects = iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["s3:GetObject"],
            resource_arns=[self.bucket.arn_for_objects(f"{self.prefix}*")],
        )
        listed = iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["s3:ListBucket"],
            resource_arns=[self.bucket.bucket_arn],
            conditions={"StringLike": {"s3:prefix": [f"{self.prefix}*"]}},
        )
        return objects.combine(listed)


def bootstrap(
    asset: RuntimeAsset,
    *,
    deployment: str,
    fleet: str,
    family: str,
    wheels: WheelSource | None = None,
    environment: Mapping[str, str] | None = None,
    prepare: Sequence[str] = (),
) -> ec2.UserData:
    """Give user data that makes an instance a node, or ends the instance.

    Args:
        asset: the runtime.
        deployment: name of the deployment.
        fleet: name of the fleet.
        family: set of requirements, one of `luma_constructs._bundle.FAMILIES`.
        wheels: where packages come from. Default: the package index that pip is configured for.
        environment: more variables of the service.
        prepare: commands of the shell, once the runtime is unpacked and before the node is set up.
    """
    options = [
        ("--deployment", deployment),
        ("--fleet", fleet),
        ("--family", family),
        ("--region", Aws.REGION),
        *([("--wheels", wheels.url)] if wheels else []),
        *(("--env", f"{name}={value}") for name, value in (environment or {}).items()),
    ]
    words = " ".join(f"{option} {shlex.quote(value)}" for option, value in options)
    return instance_commands(
        [*unpack_commands(asset), *prepare, f"bash {_SOURCE}/node/bootstrap.sh {words}"]
    )


def instance_commands(commands: Sequence[str]) -> ec2.UserData:
    """Give user data that runs commands, and ends the instance where one fails."""
    data = ec2.UserData.for_linux(shebang="#!/bin/bash")
    data.add_commands("set -euo pipefail", _END_ON_FAILURE, *commands)
    return data


def unpack_commands(asset: RuntimeAsset) -> list[str]:
    """Give the commands that fetch the runtime, check its digest and unpack it."""
    return [
        f"mkdir -p {_SOURCE}",
        f"aws s3 cp --only-show-errors {shlex.quote(asset.url)} {_ARCHIVE}",
        f"echo '{asset.digest}  {_ARCHIVE}' | sha256sum --check --status",
        f"python3 -m zipfile -e {_ARCHIVE} {_SOURCE}",
    ]

"""`LumaStack`: a stack with one `LumaDeployment`, which looks nothing up.

    LumaStack(app, "Luma", fleets=[FleetProps(name="l4", target="cuda-sm89")])

Resources of other stacks can be passed. What exists already and belongs to no stack of the app is
imported inside a stack: then put a `LumaDeployment` into a stack of your own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from luma_constructs._network import zones_of_account
from luma_constructs.acknowledgements import acknowledge
from luma_constructs.deployment_props import FleetProps
from luma_constructs.luma_deployment import LumaDeployment

__all__ = ["LumaStack", "StackOptions", "StackWithoutLookups"]


class StackOptions(TypedDict, total=False):
    """What a `LumaStack` passes on to `aws_cdk.Stack`."""

    env: cdk.Environment
    stack_name: str
    description: str
    tags: Mapping[str, str]
    termination_protection: bool
    synthesizer: cdk.IStackSynthesizer
    permissions_boundary: cdk.PermissionsBoundary


class StackWithoutLookups(cdk.Stack):
    """A stack that names the account's zones by a function of CloudFormation.

    With an account and a region CDK would ask AWS for them at synth, even where they are given.
    """

    @property
    def availability_zones(self) -> list[str]:
        """The account's zones, known to CloudFormation alone."""
        return zones_of_account()


class LumaStack(StackWithoutLookups):
    """A deployment in a stack of its own; `LumaDeployment` has more props.

    Args:
        fleets: at least one; their order is the order in which failover tries them.
        vpc: network of everything. Default: - a new one with private subnets and one NAT gateway.
        bucket: where runs lie. Default: - a new one, retained.
        encryption_key: customer's key of bucket, table and queues. Default: - keys of AWS's.
        options: of the stack itself, as `aws_cdk.Stack` takes them.

    Raises:
        PropError: props that cannot work.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleets: Sequence[FleetProps],
        vpc: ec2.IVpc | None = None,
        bucket: s3.IBucket | None = None,
        encryption_key: kms.IKey | None = None,
        **options: Unpack[StackOptions],
    ) -> None:
        super().__init__(scope, id, **options)
        # "Default" is an id that CDK leaves out of logical ids.
        self.deployment = LumaDeployment(
            self, "Default", fleets=fleets, vpc=vpc, bucket=bucket, encryption_key=encryption_key
        )
        """What is deployed."""
        self.deployment.add_outputs()
        acknowledge(self)

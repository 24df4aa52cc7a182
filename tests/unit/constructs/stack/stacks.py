"""The stacks that these tests look at; each is synthesized at most once in a process."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3

from luma_constructs.acknowledgements import acknowledge
from luma_constructs.deployment_props import FleetProps, LumaRoles
from luma_constructs.fleet_purchase import Purchase
from luma_constructs.luma_deployment import LumaDeployment
from luma_constructs.luma_stack import LumaStack, StackWithoutLookups

KEY_ID = "1234abcd-12ab-34cd-56ef-1234567890ab"

FLEETS = (
    FleetProps(name="l4", target="cuda-sm89", max_capacity=4),
    FleetProps(name="floor", target="cpu", purchase=Purchase.on_demand(), max_capacity=2),
)


def plain(app: cdk.App) -> cdk.Stack:
    """No environment, everything new."""
    return LumaStack(app, "Luma", fleets=FLEETS)


def with_environment(app: cdk.App) -> cdk.Stack:
    """An account and a region, without credentials for either."""
    env = cdk.Environment(account="123456789012", region="us-east-1")
    return LumaStack(app, "Luma", fleets=FLEETS, env=env)


def in_china(app: cdk.App) -> cdk.Stack:
    """Another partition."""
    env = cdk.Environment(account="123456789012", region="cn-north-1")
    fleets = (FleetProps(name="cpu", target="cpu"),)
    return LumaStack(app, "Luma", fleets=fleets, env=env)


def public(app: cdk.App) -> cdk.Stack:
    """The network that costs nothing idle, in three zones."""
    stack = StackWithoutLookups(app, "Luma")
    LumaDeployment(stack, "Default", fleets=FLEETS, network="public", zones=3)
    acknowledge(stack)
    return stack


def own_everything(app: cdk.App) -> cdk.Stack:
    """A network, a bucket, a key and roles that exist already."""
    stack = cdk.Stack(app, "Mine")
    arn = f"arn:aws:kms:us-east-1:111122223333:key/{KEY_ID}"
    key = kms.Key.from_key_arn(stack, "Key", arn)
    vpc = ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-01234567",
        availability_zones=["us-east-1a", "us-east-1b"],
        private_subnet_ids=["subnet-0a000000", "subnet-0b000000"],
    )
    LumaDeployment(
        stack,
        "Luma",
        fleets=FLEETS,
        vpc=vpc,
        bucket=s3.Bucket.from_bucket_name(stack, "Bucket", "our-runs"),
        encryption_key=key,
        roles=LumaRoles(
            nodes=iam.Role.from_role_name(stack, "Nodes", "our-nodes"),
            coordinator=iam.Role.from_role_name(stack, "CoordinatorRole", "our-coordinator"),
            compiler=iam.Role.from_role_name(stack, "CompilerRole", "our-compiler"),
        ),
    )
    acknowledge(stack)
    return stack


def two_in_one_app(app: cdk.App) -> cdk.Stack:
    """Two deployments, of which the second is looked at."""
    LumaStack(app, "Blue", fleets=FLEETS)
    return LumaStack(app, "Green", fleets=FLEETS)

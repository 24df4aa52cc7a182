"""The network of a `LumaStack` that is given none.

S3 and DynamoDB are reached by gateway endpoints, which are free: checkpoints and weights never pass a
NAT gateway. What else nodes call (SQS, SSM, Step Functions, KMS, a package index) are a few small
requests, for which one NAT gateway is cheaper than an interface endpoint for each service in each
zone. It is what costs money while nothing runs; `public` has none, and gives every node an address
that nothing may connect to.
"""

from __future__ import annotations

from typing import Literal

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

__all__ = ["NetworkKind", "new_network", "subnets_of", "zones_of_account"]

NetworkKind = Literal["nat", "public"]
"""Private subnets behind one NAT gateway; or public subnets, where nothing costs money idle."""

_MOST_ZONES = 6


def zones_of_account() -> list[str]:
    """Name the zones of whatever account and region the stack is deployed to, without a look-up."""
    return [cdk.Fn.select(index, cdk.Fn.get_azs()) for index in range(_MOST_ZONES)]


def new_network(scope: Construct, *, kind: NetworkKind, zones: int) -> ec2.Vpc:
    """Make the network.

    Args:
        scope: a stack whose zones are `zones_of_account`.
        kind: how its nodes reach AWS.
        zones: in how many zones it lies; more zones are more pools of spot capacity.
    """
    public = ec2.SubnetConfiguration(
        name="Public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=20 if kind == "public" else 26,
        map_public_ip_on_launch=kind == "public",
    )  # fmt: skip
    private = ec2.SubnetConfiguration(
        name="Private", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, cidr_mask=20
    )
    endpoint = ec2.GatewayVpcEndpointAwsService
    vpc = ec2.Vpc(
        scope,
        "Network",
        max_azs=zones,
        nat_gateways=1 if kind == "nat" else 0,
        subnet_configuration=[public, private] if kind == "nat" else [public],
        gateway_endpoints={
            "S3": ec2.GatewayVpcEndpointOptions(service=endpoint.S3),
            "DynamoDB": ec2.GatewayVpcEndpointOptions(service=endpoint.DYNAMODB),
        },
        # True, which the recommended flags imply, would be a custom resource with a Lambda function.
        restrict_default_security_group=False,
    )
    group = logs.LogGroup(
        vpc,
        "Rejected",
        retention=logs.RetentionDays.ONE_MONTH,
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
    vpc.add_flow_log(
        "FlowLog",
        destination=ec2.FlowLogDestination.to_cloud_watch_logs(group),
        traffic_type=ec2.FlowLogTrafficType.REJECT,
    )
    return vpc


def subnets_of(kind: NetworkKind) -> ec2.SubnetSelection:
    """Give the subnets that nodes are launched in."""
    if kind == "public":
        return ec2.SubnetSelection(subnet_type=ec2.SubnetType.PUBLIC)
    return ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS)

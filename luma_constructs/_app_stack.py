"""The stack of app.py: a `LumaDeployment` as the context parameters ask for it."""

from __future__ import annotations

from typing import cast

from aws_cdk import Duration
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_events as events
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from constructs import Construct

from luma_constructs._context import AppContext
from luma_constructs._network import NetworkKind
from luma_constructs.acknowledgements import acknowledge
from luma_constructs.deployment_props import CompilerProps
from luma_constructs.enclave_image_file import EnclaveImage
from luma_constructs.key_policy import Level
from luma_constructs.luma_deployment import LumaDeployment
from luma_constructs.luma_stack import StackWithoutLookups

__all__ = ["AppStack"]


class AppStack(StackWithoutLookups):
    """What `cdk deploy` deploys.

    Args:
        context: the checked parameters.

    Raises:
        PropError: values that only a construct can judge, such as a fleet's target.
    """

    def __init__(self, scope: Construct, context: AppContext) -> None:
        super().__init__(scope, context.stack, description="Luma: training on whatever is there")
        self.deployment = LumaDeployment(
            self,
            "Default",
            fleets=context.fleets,
            compiler=_compiler(context),
            vpc=_vpc(self, context),
            network=cast("NetworkKind", context.network),
            zones=context.zones,
            bucket=_bucket(self, context),
            table=_table(self, context),
            encryption_key=_key(self, context),
            heartbeat=_seconds(context.heartbeat),
            patience=_seconds(context.patience),
            budget=context.budget,
            other_regions={region: self._bus(region) for region in context.failover},
        )
        """What is deployed."""
        self.deployment.add_outputs()
        if context.email is not None:
            sns.Subscription(
                self,
                "Email",
                topic=self.deployment.topic,
                protocol=sns.SubscriptionProtocol.EMAIL,
                endpoint=context.email,
            )
        acknowledge(self)

    def _bus(self, region: str) -> events.IEventBus:
        """Give the default bus of another region, where that region's stack listens."""
        arn = self.format_arn(
            service="events", region=region, resource="event-bus", resource_name="default"
        )
        return events.EventBus.from_event_bus_arn(self, f"Bus{region}", arn)


def _seconds(value: int | None) -> Duration | None:
    return None if value is None else Duration.seconds(value)


def _compiler(context: AppContext) -> CompilerProps | None:
    if context.level == "none":
        return None
    return CompilerProps(
        level=cast("Level", context.level),
        customer=context.customer,
        enclave_image=None if context.image is None else EnclaveImage.from_file(context.image),
    )


def _vpc(scope: Construct, context: AppContext) -> ec2.IVpc | None:
    if context.vpc is None or context.subnets is None:
        return None
    return ec2.Vpc.from_vpc_attributes(
        scope,
        "ExistingNetwork",
        vpc_id=context.vpc,
        availability_zones=list(context.subnets),
        private_subnet_ids=list(context.subnets.values()),
    )


def _bucket(scope: Construct, context: AppContext) -> s3.IBucket | None:
    if context.bucket is None:
        return None
    return s3.Bucket.from_bucket_name(scope, "ExistingBucket", context.bucket)


def _table(scope: Construct, context: AppContext) -> dynamodb.ITable | None:
    if context.table is None:
        return None
    return dynamodb.Table.from_table_name(scope, "ExistingTable", context.table)


def _key(scope: Construct, context: AppContext) -> kms.IKey | None:
    if context.key is None:
        return None
    return kms.Key.from_key_arn(scope, "ExistingKey", context.key)

"""`IAcceleratorFleet`: what every group of nodes offers to the constructs that give it work.

`AcceleratorFleet`, `CoordinatorHost`, `SealedCompiler` and `ExternalFleet` are fleets; each has a
queue that its nodes take work from. A fleet of another stack is imported by its attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack, runtime_checkable

import jsii
from aws_cdk import Annotations, Duration, Stack, Tags
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from luma_constructs import _fleet_parts as parts
from luma_constructs import _names
from luma_constructs.fleet_grants import FleetGrants

if TYPE_CHECKING:
    from luma_constructs.run_store import RunStore

__all__ = ["FleetBase", "IAcceleratorFleet", "ImportedFleet", "MetricOptions"]

_MINUTE = Duration.minutes(1)
_IGNORED_EGRESS = "@aws-cdk/aws-ec2:ipv4IgnoreEgressRule"


class MetricOptions(TypedDict, total=False):
    """What `metric_*` methods pass on to `aws_cloudwatch.Metric`."""

    label: str
    color: str
    period: Duration
    statistic: str
    region: str
    account: str


@runtime_checkable
class IAcceleratorFleet(Protocol):
    """A group of nodes that take work from one queue.

    It is also an `iam.IGrantable` (its nodes) and an `ec2.IConnectable` (their network).
    """

    @property
    def fleet_name(self) -> str:
        """Name, unique in the deployment."""

    @property
    def deployment_name(self) -> str:
        """Name of the deployment that it belongs to."""

    @property
    def target(self) -> str:
        """What its islands run, such as "cuda-sm90x8"."""

    @property
    def chips(self) -> int:
        """Chips of one island."""

    @property
    def purchase(self) -> str:
        """How its nodes are bought: "spot", "on-demand" or "mixed"."""

    @property
    def queue(self) -> sqs.IQueue:
        """Where its nodes take work from."""

    @property
    def auto_scaling_group(self) -> autoscaling.IAutoScalingGroup | None:
        """Its Auto Scaling group; None for nodes outside EC2."""

    @property
    def max_capacity(self) -> int:
        """How many nodes it may have."""

    @property
    def role(self) -> iam.IRole:
        """Role of its nodes."""

    @property
    def grants(self) -> FleetGrants:
        """Permissions on the fleet."""

    @property
    def grant_principal(self) -> iam.IPrincipal:
        """Its nodes, as a principal."""

    @property
    def connections(self) -> ec2.Connections:
        """Its nodes, as a network."""

    def metric_queue_depth(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the messages that wait, largest value over a minute."""

    def metric_oldest_work(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the age of the oldest message, in seconds, largest value over a minute."""

    def metric_in_service(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric | None:
        """Give the instances in service, smallest value over a minute; None outside EC2."""

    def metric_desired(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric | None:
        """Give the wanted instances, largest value over a minute; None outside EC2."""


@jsii.implements(iam.IGrantable, ec2.IConnectable)
class FleetBase(Construct):
    """What all fleets share. Not for direct use."""

    _fleet_name: str
    _deployment: str
    _target: str
    _chips: int
    _purchase: str
    _queue: sqs.IQueue
    _group: autoscaling.IAutoScalingGroup | None
    _max_capacity: int
    _role: iam.IRole
    _connections: ec2.Connections

    @property
    def fleet_name(self) -> str:
        """Name, unique in the deployment."""
        return self._fleet_name

    @property
    def deployment_name(self) -> str:
        """Name of the deployment that it belongs to."""
        return self._deployment

    @property
    def target(self) -> str:
        """What its islands run, such as "cuda-sm90x8"."""
        return self._target

    @property
    def chips(self) -> int:
        """Chips of one island."""
        return self._chips

    @property
    def purchase(self) -> str:
        """How its nodes are bought: "spot", "on-demand" or "mixed"."""
        return self._purchase

    @property
    def queue(self) -> sqs.IQueue:
        """Where its nodes take work from."""
        return self._queue

    @property
    def auto_scaling_group(self) -> autoscaling.IAutoScalingGroup | None:
        """Its Auto Scaling group; None for nodes outside EC2."""
        return self._group

    @property
    def max_capacity(self) -> int:
        """How many nodes it may have."""
        return self._max_capacity

    @property
    def role(self) -> iam.IRole:
        """Role of its nodes."""
        return self._role

    @property
    def grant_principal(self) -> iam.IPrincipal:
        """Its nodes, as a principal."""
        return self._role.grant_principal

    @property
    def connections(self) -> ec2.Connections:
        """Its nodes, as a network."""
        return self._connections

    @property
    def grants(self) -> FleetGrants:
        """Permissions on the fleet."""
        return FleetGrants.from_fleet(self)

    def add_to_role_policy(self, statement: iam.PolicyStatement) -> None:
        """Add a statement to the nodes' role."""
        self._role.add_to_principal_policy(statement)

    def connect_islands(self, other: IAcceleratorFleet) -> None:
        """Let nodes of both fleets reach each other; islands and coordinators use any TCP port."""
        islands = ec2.Port.all_tcp()
        self._connections.allow_from(other, islands, "islands")
        # Both rules stay in this fleet's stack, or two stacks would need each other. CDK warns that a
        # group which allows all egress ignores its half of the second one; that is as it should be.
        for group in self._connections.security_groups:
            Annotations.of(group).acknowledge_warning(
                _IGNORED_EGRESS, "the group allows all egress already"
            )
        self._connections.allow_to(other, islands, "islands")

    def metric(self, name: str, **options: Unpack[MetricOptions]) -> cloudwatch.Metric | None:
        """Give a metric of the Auto Scaling group, such as "GroupTotalInstances"; its average.

        None outside EC2.
        """
        return self._group_metric(name, "Average", options)

    def metric_queue_depth(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the messages that wait, largest value over a minute."""
        return self._queue_metric("ApproximateNumberOfMessagesVisible", options)

    def metric_oldest_work(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the age of the oldest message, in seconds, largest value over a minute."""
        return self._queue_metric("ApproximateAgeOfOldestMessage", options)

    def metric_in_service(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric | None:
        """Give the instances in service, smallest value over a minute; None outside EC2."""
        return self._group_metric("GroupInServiceInstances", "Minimum", options)

    def metric_desired(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric | None:
        """Give the wanted instances, largest value over a minute; None outside EC2."""
        return self._group_metric("GroupDesiredCapacity", "Maximum", options)

    def _queue_metric(self, name: str, options: MetricOptions) -> cloudwatch.Metric:
        return _metric("AWS/SQS", name, {"QueueName": self._queue.queue_name}, "Maximum", options)

    def _group_metric(
        self, name: str, statistic: str, options: MetricOptions
    ) -> cloudwatch.Metric | None:
        if self._group is None:
            return None
        group = {"AutoScalingGroupName": self._group.auto_scaling_group_name}
        return _metric("AWS/AutoScaling", name, group, statistic, options)

    def _allow_work(
        self, store: RunStore, *, commands: bool = True, compiles: bool = False
    ) -> None:
        """Give the role what a node does, and no more.

        Args:
            store: where its runs lie.
            commands: whether SSM's agent is there to take commands.
            compiles: whether its work is to compile, for which it sees less of a run.
        """
        if compiles:
            store.grants.compile(self._role)
        else:
            store.grants.work(self._role)
        self.grants.take_work(self._role)
        self.grants.leave(self._role)
        if commands:
            parts.allow_run_command(self._role, self)
        parts.allow_metrics(self._role)

    def _tag(self) -> None:
        """Tag everything below; Auto Scaling passes the tags to instances and volumes."""
        Tags.of(self).add(_names.DEPLOYMENT_TAG, self._deployment)
        Tags.of(self).add(_names.FLEET_TAG, self._fleet_name)

    def _publish(
        self,
        store: RunStore,
        instance_types: Sequence[str],
        order: int,
        usd_per_hour: float | None,
    ) -> ssm.StringParameter:
        """Write the parameter by which nodes and engineers find the fleet."""
        group = self._group
        return ssm.StringParameter(
            self,
            "Parameter",
            parameter_name=_names.fleet_parameter(store.deployment_name, self._fleet_name),
            description=f"Luma fleet {self._fleet_name}",
            string_value=Stack.of(self).to_json_string(
                {
                    "fleet": self._fleet_name,
                    "target": self._target,
                    "chips": self._chips,
                    "queue": self._queue.queue_url,
                    "asg": None if group is None else group.auto_scaling_group_name,
                    "purchase": self._purchase,
                    "instance_types": list(instance_types),
                    "order": order,
                    "usd_per_hour": usd_per_hour,
                    "max": self._max_capacity,
                }
            ),
        )


class ImportedFleet(FleetBase):
    """A fleet that exists already: of another stack, or one that was not made by CDK.

    It makes no resource.

    Args:
        fleet_name: its name in its deployment.
        target: what its islands run.
        queue: where its nodes take work from.
        role: role of its nodes.
        auto_scaling_group: Default: - none; its nodes are outside EC2.
        security_group: of its nodes. Default: - none; rules of connections go nowhere.
        chips: chips of one island. Default: 1
        purchase: "spot", "on-demand" or "mixed". Default: "on-demand"
        max_capacity: how many nodes it may have. Default: 1
        deployment_name: name of its deployment. Default: - the stack's name.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleet_name: str,
        target: str,
        queue: sqs.IQueue,
        role: iam.IRole,
        auto_scaling_group: autoscaling.IAutoScalingGroup | None = None,
        security_group: ec2.ISecurityGroup | None = None,
        chips: int = 1,
        purchase: str = "on-demand",
        max_capacity: int = 1,
        deployment_name: str | None = None,
    ) -> None:
        super().__init__(scope, id)
        self._fleet_name = fleet_name
        self._deployment = deployment_name or Stack.of(self).stack_name
        self._target = target
        self._chips = chips
        self._purchase = purchase
        self._queue = queue
        self._group = auto_scaling_group
        self._max_capacity = max_capacity
        self._role = role
        groups = [security_group] if security_group else []
        self._connections = ec2.Connections(security_groups=groups)


def _metric(
    namespace: str,
    name: str,
    dimensions: dict[str, str],
    statistic: str,
    options: MetricOptions,
) -> cloudwatch.Metric:
    """Give a metric; the caller's options win over our defaults."""
    chosen: MetricOptions = {"statistic": statistic, "period": _MINUTE}
    chosen.update(options)
    return cloudwatch.Metric(
        namespace=namespace, metric_name=name, dimensions_map=dimensions, **chosen
    )

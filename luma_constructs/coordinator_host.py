"""`CoordinatorHost`: the small instance that a run's coordinator lives on, only while it runs.

It is a fleet of its own, of none or a few on-demand instances. Its state is in the run store: where
the instance is lost, islands keep their own state, and the coordinator goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Duration
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from luma_constructs import _names
from luma_constructs._host_fleet import HostFleet, HostPlan, check_hosts, highest_price, imported
from luma_constructs._validation import Problems
from luma_constructs.fleet_interface import IAcceleratorFleet
from luma_constructs.host_settings import HostSettings
from luma_constructs.run_store import RunStore

__all__ = ["CoordinatorHost"]

_TYPES = ("m7i.large", "c7i.xlarge", "m7i.xlarge")
"""8 GiB and more: the coordinator adds no tensors, and an export streams a checkpoint."""

_DRAIN = Duration.minutes(2)


class CoordinatorHost(HostFleet):
    """On-demand instances for coordinators and exports, none while nothing runs.

    Args:
        vpc: network of the instances; the same as the fleets', or one with a route to it.
        store: where its runs lie.
        max_capacity: runs that can be coordinated at a time. Default: 1
        instance_types: of one processor architecture; the cheapest that is there is taken. Default:
            - x86 types with 8 GiB or 16 GiB.
        vpc_subnets: where instances go. Default: - private subnets of every zone.
        security_group: Default: - a new one.
        role: of the instances; it gets the permissions of a node. Default: - a new one.
        host: image, disk and packages. Default: - `HostSettings()`

    Raises:
        PropError: props that cannot work, all of them at once.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        vpc: ec2.IVpc,
        store: RunStore,
        max_capacity: int = 1,
        instance_types: Sequence[ec2.InstanceType] | None = None,
        vpc_subnets: ec2.SubnetSelection | None = None,
        security_group: ec2.ISecurityGroup | None = None,
        role: iam.IRole | None = None,
        host: HostSettings | None = None,
    ) -> None:
        super().__init__(scope, id)
        host = host or HostSettings()
        given = tuple(dict.fromkeys(one.to_string() for one in instance_types or ()))
        names = _TYPES if instance_types is None else given
        problems = Problems("CoordinatorHost", self)
        check_hosts(problems, names, max_capacity, host)
        problems.raise_all()
        self._build(
            HostPlan(
                fleet_name=_names.COORDINATOR_FLEET,
                target=_names.COORDINATOR_TARGET,
                vpc=vpc,
                store=store,
                max_capacity=max_capacity,
                instance_types=names,
                family="cpu",
                drain_timeout=_DRAIN,
                vpc_subnets=vpc_subnets,
                security_group=security_group,
                role=role,
                host=host,
            )
        )
        self.parameter = self._publish(store, names, 0, highest_price(names))
        """The parameter by which nodes and engineers find it."""

    @classmethod
    def from_coordinator_attributes(
        cls,
        scope: Construct,
        id: str,
        *,
        queue: sqs.IQueue,
        role: iam.IRole,
        auto_scaling_group: autoscaling.IAutoScalingGroup,
        security_group: ec2.ISecurityGroup | None = None,
        deployment_name: str | None = None,
    ) -> IAcceleratorFleet:
        """Give a coordinator's hosts that exist already; no resource is made.

        Args:
            scope: the construct that it belongs to.
            id: of the import.
            queue: where they take work from.
            role: role of the instances.
            auto_scaling_group: the instances.
            security_group: Default: - none; rules of connections go nowhere.
            deployment_name: name of its deployment. Default: - the stack's name.
        """
        return imported(
            scope,
            id,
            _names.COORDINATOR_FLEET,
            queue=queue,
            role=role,
            auto_scaling_group=auto_scaling_group,
            security_group=security_group,
            deployment_name=deployment_name,
        )

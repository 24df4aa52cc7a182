"""`AcceleratorFleet`: the instances of one accelerator family, from nothing to as many as are there.

    fleet = AcceleratorFleet(
        self, "L4",
        fleet_name="l4", target="cuda-sm89", vpc=vpc, store=store,
        purchase=Purchase.mixed(on_demand_base=1), max_capacity=8,
    )

One instance holds one island. The group may use every listed instance type that holds exactly such
an island, in every zone of the VPC, because spot capacity is where it happens to be. Its size is the
state machines' affair, and nothing by default.

Checked on the template and in an emulated account; no instance was ever started.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from aws_cdk import Annotations, Duration, Stack
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from luma_constructs import _fleet_parts as parts
from luma_constructs._catalogue import TargetParts, known_regions
from luma_constructs._fleet_types import FleetNetwork, FleetTypes, choose_types
from luma_constructs._names import COMPILER_FLEET, COORDINATOR_FLEET, FLEET_NAME
from luma_constructs._node_template import node_parts
from luma_constructs._validation import Problems, is_known
from luma_constructs.fleet_interface import FleetBase, IAcceleratorFleet, ImportedFleet
from luma_constructs.fleet_purchase import Purchase
from luma_constructs.host_settings import HostSettings
from luma_constructs.run_store import RunStore

__all__ = ["AcceleratorFleet", "FleetNetwork"]

_RESERVED = (COORDINATOR_FLEET, COMPILER_FLEET)
_DRAIN = Duration.minutes(2)
_SPOT = Purchase.spot()

_MOST_INSTANCES = 1000


class AcceleratorFleet(FleetBase):
    """Instances that run islands of one target.

    Args:
        fleet_name: name, unique in the deployment: 1 to 32 of a-z, 0-9 and '-'.
        target: what its islands run, such as "cuda-sm89" or "cuda-sm90x8" for islands of 8 chips.
        vpc: network of the instances.
        store: where its runs lie.
        purchase: how instances are bought. Default: Purchase.spot()
        max_capacity: most instances. Default: 8
        instance_types: listed types to use. Default: - all listed types that hold exactly one
            island.
        unlisted_instance_types: types that the catalogue does not have, used unchecked. Default: -
            none.
        network: Default: FleetNetwork.STANDARD
        order: place in the order of preference of failover, the lowest first. Default: 0
        vpc_subnets: where instances go. Default: - private subnets of every zone.
        security_group: of the instances; it gets a rule that lets islands reach each other.
            Default: - a new one.
        role: of the instances; it gets the permissions of a node. Default: - a new one.
        host: image, disk and packages. Default: - `HostSettings()`
        drain_timeout: how long a leaving instance is held for its island to leave. Default:
            Duration.minutes(2)

    Raises:
        PropError: props that cannot work, all of them at once.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleet_name: str,
        target: str,
        vpc: ec2.IVpc,
        store: RunStore,
        purchase: Purchase = _SPOT,
        max_capacity: int = 8,
        instance_types: Sequence[ec2.InstanceType] | None = None,
        unlisted_instance_types: Sequence[ec2.InstanceType] = (),
        network: FleetNetwork = FleetNetwork.STANDARD,
        order: int = 0,
        vpc_subnets: ec2.SubnetSelection | None = None,
        security_group: ec2.ISecurityGroup | None = None,
        role: iam.IRole | None = None,
        host: HostSettings | None = None,
        drain_timeout: Duration = _DRAIN,
    ) -> None:
        super().__init__(scope, id)
        host = host or HostSettings()
        problems = Problems("AcceleratorFleet", self)
        _check(problems, fleet_name, max_capacity, order, purchase, drain_timeout)
        host.check(problems)
        parsed, types = choose_types(
            problems,
            target,
            named=instance_types,
            unlisted=unlisted_instance_types,
            purchase=purchase,
            region=Stack.of(self).region,
            network=network,
        )
        self._fleet_name = fleet_name
        self._deployment = store.deployment_name
        self._target = target
        self._chips = parsed.chips
        self._purchase = purchase.parameter
        self._max_capacity = max_capacity
        self.instance_types = types.names
        """Names of the instance types that the fleet may use."""
        self._queue, self.dead_letter_queue = parts.work_queue(self, store.encryption_key)
        self._role = parts.fleet_role(self, role)
        efa = network is FleetNetwork.EFA
        group = parts.island_security_group(self, vpc, security_group, efa=efa)
        self._connections = ec2.Connections(security_groups=[group])
        made = self._templates(parsed, types, purchase, network, host, group)
        self.launch_templates: tuple[ec2.LaunchTemplate, ...] = tuple(one for one, _ in made)
        """Launch templates; one, or with EFA one a number of interfaces."""
        self._group = parts.fleet_group(
            self,
            vpc=vpc,
            vpc_subnets=vpc_subnets,
            max_capacity=max_capacity,
            purchase=purchase,
            templates=made,
            drain_timeout=drain_timeout,
        )
        self._allow_work(store)
        self.parameter = self._publish(store, types.names, order, types.usd_per_hour)
        """The parameter by which nodes and engineers find the fleet."""
        self._tag()
        self._say_what_is_unknown(types)

    @classmethod
    def from_fleet_attributes(
        cls,
        scope: Construct,
        id: str,
        *,
        fleet_name: str,
        target: str,
        queue: sqs.IQueue,
        role: iam.IRole,
        auto_scaling_group: autoscaling.IAutoScalingGroup | None = None,
        security_group: ec2.ISecurityGroup | None = None,
        purchase: str = "spot",
        max_capacity: int = 8,
        deployment_name: str | None = None,
    ) -> IAcceleratorFleet:
        """Give a fleet that exists already; no resource is made.

        Args:
            scope: the construct that it belongs to.
            id: of the import.
            fleet_name: its name in its deployment.
            target: what its islands run.
            queue: where its nodes take work from.
            role: role of its nodes.
            auto_scaling_group: Default: - none; its nodes are outside EC2.
            security_group: of its nodes. Default: - none; rules of connections go nowhere.
            purchase: "spot", "on-demand" or "mixed". Default: "spot"
            max_capacity: most instances. Default: 8
            deployment_name: name of its deployment. Default: - the stack's name.
        """
        parsed = TargetParts.parse(target)
        return ImportedFleet(
            scope,
            id,
            fleet_name=fleet_name,
            target=target,
            queue=queue,
            role=role,
            auto_scaling_group=auto_scaling_group,
            security_group=security_group,
            chips=parsed.chips if parsed else 1,
            purchase=purchase,
            max_capacity=max_capacity,
            deployment_name=deployment_name,
        )

    def _templates(
        self,
        target: TargetParts,
        types: FleetTypes,
        purchase: Purchase,
        network: FleetNetwork,
        host: HostSettings,
        security_group: ec2.ISecurityGroup,
    ) -> list[tuple[ec2.LaunchTemplate, Sequence[str]]]:
        """Make the launch templates, each with its instance types."""
        efa = network is FleetNetwork.EFA
        strategy = ec2.PlacementGroupStrategy.CLUSTER
        block = purchase.label == "capacity-block"
        shared = dataclasses.replace(
            node_parts(
                self,
                host,
                deployment=self._deployment,
                fleet=self._fleet_name,
                family=target.family,
                architecture=types.architecture,
                role=self._role,
                security_group=security_group,
            ),
            capacity_block=purchase.reservation_id,
            placement_group=ec2.PlacementGroup(self, "Placement", strategy=strategy)
            if efa
            else None,
            instance_type=ec2.InstanceType(types.names[0]) if block else None,
        )
        if not efa:
            return [(parts.launch_template(self, "Template", shared), types.names)]
        return [
            (parts.launch_template(self, f"Efa{n}Template", shared, efa_interfaces=n), names)
            for n, names in types.by_efa
        ]

    def _say_what_is_unknown(self, types: FleetTypes) -> None:
        """Say what synth could not check."""
        unlisted = [name for name in types.names if name not in types.rows]
        if unlisted:
            Annotations.of(self).add_warning_v2(
                "luma:unlistedInstanceTypes",
                f"{', '.join(unlisted)}: not in the catalogue, so nothing was checked",
            )
        uncounted = [name for name, row in types.rows.items() if row.count is None]
        if uncounted:
            Annotations.of(self).add_warning_v2(
                "luma:unknownChips",
                f"{', '.join(uncounted)}: the catalogue does not know the number of chips",
            )
        region = Stack.of(self).region
        if is_known(region) and region not in known_regions():
            Annotations.of(self).add_info_v2(
                "luma:unknownRegion",
                f"{region}: the catalogue does not know which types it offers",
            )


def _check(
    problems: Problems,
    fleet_name: str,
    max_capacity: int,
    order: int,
    purchase: Purchase,
    drain_timeout: Duration,
) -> None:
    """Note what is wrong with the props that need no catalogue."""
    check_fleet_name(problems, fleet_name)
    problems.whole("max_capacity", max_capacity, 1, _MOST_INSTANCES)
    problems.whole("order", order, 0, 65536)
    problems.check(not purchase.problem, "purchase", purchase, purchase.problem)
    # Limits of a lifecycle hook (EC2 Auto Scaling, API reference of PutLifecycleHook).
    problems.whole("drain_timeout", int(drain_timeout.to_seconds()), 30, 7200)


def check_fleet_name(problems: Problems, name: str) -> None:
    """Note a fleet's name that is not allowed."""
    problems.check(
        FLEET_NAME.fullmatch(name) is not None and name not in _RESERVED,
        "fleet_name",
        name,
        f"1 to 32 of a-z, 0-9 and '-', the first no '-', and not {' or '.join(_RESERVED)}",
    )

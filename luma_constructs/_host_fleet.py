"""Fleets of plain hosts, with one launch template: coordinators, compilers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aws_cdk import Duration
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from luma_constructs import _fleet_parts as parts
from luma_constructs._catalogue import architecture_of, row_of
from luma_constructs._node_template import node_parts
from luma_constructs._validation import Problems
from luma_constructs.fleet_interface import FleetBase, IAcceleratorFleet, ImportedFleet
from luma_constructs.fleet_purchase import Purchase
from luma_constructs.host_settings import HostSettings
from luma_constructs.run_store import RunStore

__all__ = ["HostFleet", "HostPlan", "check_hosts", "highest_price", "imported"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostPlan:
    """What a fleet of hosts is made of.

    Attributes:
        fleet_name: its name.
        target: what stands in place of a target.
        vpc: network of the instances.
        store: where its runs lie.
        max_capacity: most instances.
        instance_types: names of types, of one processor architecture.
        family: set of requirements to install.
        drain_timeout: how long a leaving instance is held.
        vpc_subnets: where instances go; None for private subnets of every zone.
        security_group: None for a new one.
        role: None for a new one.
        host: image, disk and packages.
        enclave: whether instances can start a Nitro Enclave.
        compiles: whether their work is to compile.
        prepare: commands before the node is set up.
        environment: variables of the node's service, beside the host's.
    """

    fleet_name: str
    target: str
    vpc: ec2.IVpc
    store: RunStore
    max_capacity: int
    instance_types: tuple[str, ...]
    family: str
    drain_timeout: Duration
    vpc_subnets: ec2.SubnetSelection | None
    security_group: ec2.ISecurityGroup | None
    role: iam.IRole | None
    host: HostSettings
    enclave: bool = False
    compiles: bool = False
    prepare: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class HostFleet(FleetBase):
    """On-demand hosts, none while nothing runs. Not for direct use."""

    def _build(self, plan: HostPlan) -> None:
        """Make the resources, once the props are checked."""
        purchase = Purchase.on_demand()
        self._fleet_name, self._target, self._chips = plan.fleet_name, plan.target, 1
        self._deployment = plan.store.deployment_name
        self._purchase, self._max_capacity = purchase.parameter, plan.max_capacity
        self.instance_types = plan.instance_types
        """Names of the instance types that it may use."""
        self._queue, self.dead_letter_queue = parts.work_queue(self, plan.store.encryption_key)
        self._role = parts.fleet_role(self, plan.role)
        group = parts.island_security_group(self, plan.vpc, plan.security_group)
        self._connections = ec2.Connections(security_groups=[group])
        template = self._template(plan, group)
        self.launch_templates: tuple[ec2.LaunchTemplate, ...] = (template,)
        """The launch template."""
        self._group = parts.fleet_group(
            self,
            vpc=plan.vpc,
            vpc_subnets=plan.vpc_subnets,
            max_capacity=plan.max_capacity,
            purchase=purchase,
            templates=[(template, plan.instance_types)],
            drain_timeout=plan.drain_timeout,
        )
        self._allow_work(plan.store, compiles=plan.compiles)
        self._tag()

    def _template(self, plan: HostPlan, group: ec2.ISecurityGroup) -> ec2.LaunchTemplate:
        """Make the launch template."""
        shared = dataclasses.replace(
            node_parts(
                self,
                plan.host,
                deployment=self._deployment,
                fleet=self._fleet_name,
                family=plan.family,
                architecture=architecture_of(plan.instance_types[0]),
                role=self._role,
                security_group=group,
                prepare=plan.prepare,
                environment=plan.environment,
            ),
            enclave=plan.enclave,
        )
        return parts.launch_template(self, "Template", shared)


def imported(
    scope: Construct,
    id: str,
    fleet_name: str,
    *,
    queue: sqs.IQueue,
    role: iam.IRole,
    auto_scaling_group: autoscaling.IAutoScalingGroup,
    security_group: ec2.ISecurityGroup | None,
    deployment_name: str | None,
) -> IAcceleratorFleet:
    """Give hosts that exist already; no resource is made."""
    return ImportedFleet(
        scope,
        id,
        fleet_name=fleet_name,
        target=fleet_name,
        queue=queue,
        role=role,
        auto_scaling_group=auto_scaling_group,
        security_group=security_group,
        deployment_name=deployment_name,
    )


def check_hosts(
    problems: Problems, names: Sequence[str], max_capacity: int, host: HostSettings
) -> None:
    """Note what is wrong with the props that all hosts have."""
    problems.whole("max_capacity", max_capacity, 1, 100)
    problems.check(
        len({architecture_of(name) for name in names}) == 1,
        "instance_types",
        list(names),
        "at least one type, and all of one processor architecture",
    )
    host.check(problems)


def highest_price(names: Sequence[str]) -> float | None:
    """Give the highest on-demand price, None where the catalogue lacks one."""
    rows = [row_of(name) for name in names]
    known = [row.usd_per_hour for row in rows if row is not None and row.usd_per_hour is not None]
    return max(known) if len(known) == len(names) else None

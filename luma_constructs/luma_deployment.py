"""`LumaDeployment`: run state, fleets, coordinator, compiler, jobs and failover, joined.

    LumaDeployment(self, "Luma", vpc=vpc, fleets=[
        FleetProps(name="l4", target="cuda-sm89"),
        FleetProps(name="floor", target="cpu", purchase=Purchase.on_demand(), max_capacity=2),
    ])

It has no logic of its own: whoever needs another shape joins the same constructs
(docs/how-to/use-a-construct.md). `LumaStack` is a stack with nothing but one of these.

While nothing runs it has no instance. What then costs money is the data, and a new network's NAT
gateway; docs/how-to/deploy.md has the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TypedDict, cast

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from luma_constructs import _names
from luma_constructs._network import NetworkKind, new_network, subnets_of
from luma_constructs._validation import Problems
from luma_constructs.accelerator_fleet import AcceleratorFleet
from luma_constructs.coordinator_host import CoordinatorHost
from luma_constructs.deployment_props import BudgetProps, CompilerProps, FleetProps, LumaRoles
from luma_constructs.failover import FailoverStateMachine
from luma_constructs.fleet_budget import FleetBudget
from luma_constructs.fleet_interface import FleetBase
from luma_constructs.luma_dashboard import LumaAlarms, LumaDashboard
from luma_constructs.run_store import RunStore
from luma_constructs.sealed_compiler import SealedCompiler
from luma_constructs.spot_interruption_rules import SpotInterruptionRules
from luma_constructs.training_jobs import TrainingJobs

__all__ = ["LumaDeployment"]

_COMPILER = CompilerProps()
_SHORT_S = 30
_SHORT_POLL = Duration.seconds(1)
"""Failover that may wait only seconds looks every second."""


class _JobWaits(TypedDict, total=False):
    heartbeat: Duration
    capacity_timeout: Duration


class _FailoverWaits(TypedDict, total=False):
    drain_timeout: Duration
    commit_timeout: Duration
    capacity_timeout: Duration
    poll: Duration


class LumaDeployment(Construct):
    """Everything that jobs need in one region of an account.

    Args:
        fleets: at least one; their order is the order in which failover tries them.
        compiler: what compiles in the account; None where jobs bring their artifacts. Default:
            CompilerProps()
        vpc: network of everything. Default: - a new one, as `network` and `zones` say.
        vpc_subnets: where instances go. Default: - private subnets of every zone.
        network: "nat": private subnets behind one NAT gateway, which costs money idle; "public":
            public subnets, nothing idle, and no way in. Default: "nat"
        zones: of a new network. Default: 2
        bucket: where runs lie. Default: - a new one, retained.
        table: run state. Default: - a new one, retained.
        encryption_key: customer's key of bucket, table and queues. Default: - keys of AWS's.
        heartbeat: longest silence of a node at work. Default: Duration.seconds(90)
        patience: how long failover waits for each of a drain, a commit and new capacity; an island
            waits four times as long for a node. Default: - what each construct takes.
        budget: above which people are told. Default: - no limit.
        other_regions: default buses of other regions with a deployment of the same name, by region;
            asked when there is no capacity here. Default: - none.
        topic: who is told of failovers, ends of runs and alarms. Default: - a new one.
        roles: of instances, where they exist already. Default: - new ones.

    Raises:
        PropError: props that cannot work.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleets: Sequence[FleetProps],
        compiler: CompilerProps | None = _COMPILER,
        vpc: ec2.IVpc | None = None,
        vpc_subnets: ec2.SubnetSelection | None = None,
        network: NetworkKind = "nat",
        zones: int = 2,
        bucket: s3.IBucket | None = None,
        table: dynamodb.ITable | None = None,
        encryption_key: kms.IKey | None = None,
        heartbeat: Duration | None = None,
        patience: Duration | None = None,
        budget: BudgetProps | None = None,
        other_regions: Mapping[str, events.IEventBus] | None = None,
        topic: sns.ITopic | None = None,
        roles: LumaRoles | None = None,
    ) -> None:
        super().__init__(scope, id)
        _check(self, fleets, vpc, vpc_subnets)
        roles = roles or LumaRoles()
        self.vpc: ec2.IVpc = vpc or new_network(self, kind=network, zones=zones)
        """Network of everything."""
        self._subnets = vpc_subnets or (subnets_of(network) if vpc is None else None)
        self.store = RunStore(
            self, "Store", bucket=bucket, table=table, encryption_key=encryption_key
        )
        """Everything that a run needs to go on."""
        # Its messages hold names and states, so it needs no customer's key.
        self.topic: sns.ITopic = topic or cast(
            "sns.ITopic", sns.Topic(self, "Notices", enforce_ssl=True, display_name="Luma")
        )
        """Who is told of failovers, ends of runs and alarms."""
        self.fleets = self._new_fleets(fleets, roles.nodes)
        """The fleets, in the order in which failover tries them."""
        self.coordinator = CoordinatorHost(
            self,
            "Coordinator",
            vpc=self.vpc,
            vpc_subnets=self._subnets,
            store=self.store,
            role=roles.coordinator,
        )
        """The host of coordinators."""
        _connect([*self.fleets, self.coordinator])
        self.compiler: SealedCompiler | None = (
            None if compiler is None else self._new_compiler(compiler, roles.compiler)
        )
        """What compiles in the account; None where jobs bring their artifacts."""
        self.jobs = self._new_jobs(heartbeat, patience)
        """The state machine of jobs."""
        self.failover = self._new_failover(fleets, other_regions, patience)
        """The state machine that replaces what EC2 takes back."""
        self.interruptions = SpotInterruptionRules(
            self, "Interruptions", encryption_key=encryption_key
        )
        """The rules that start it."""
        self.interruptions.start(self.failover.state_machine)
        every = [*self.fleets, *self._hosts]
        self.dashboard = LumaDashboard(
            self,
            "Dashboard",
            fleets=every,
            store=self.store,
            jobs=self.jobs,
            failover=self.failover,
            alarms=LumaAlarms(topic=self.topic),
        )
        """How runs do, what they cost, what waits; its alarms tell the topic."""
        self.budget = budget and FleetBudget(
            self,
            "Budget",
            fleets=every,
            store=self.store,
            topic=self.topic,
            limit_usd_per_hour=budget.usd_per_hour,
            limit_usd_per_month=budget.usd_per_month,
        )
        """Who hears of it before it costs too much; None without a limit."""
        self._publish()

    def add_outputs(self) -> None:
        """Put into the stack's outputs what people need: for the console, and to deploy over the data."""
        outputs = {
            "BucketName": (self.store.bucket.bucket_name, "where runs lie; retained"),
            "TableName": (self.store.table.table_name, "state of runs; retained"),
            "JobsMachine": (self.jobs.state_machine.state_machine_arn, "starts runs"),
            "TopicArn": (self.topic.topic_arn, "tells of failovers, ends and alarms"),
        }
        for name, (value, description) in outputs.items():
            CfnOutput(self, name, value=value, description=description)

    @property
    def _hosts(self) -> list[FleetBase]:
        """What is not a fleet of islands."""
        hosts: list[FleetBase] = [self.coordinator]
        if self.compiler is not None:
            hosts.append(self.compiler)
        return hosts

    def _new_fleets(
        self, fleets: Sequence[FleetProps], role: iam.IRole | None
    ) -> tuple[AcceleratorFleet, ...]:
        """Make the fleets below one construct, so that no name of theirs is one of ours."""
        group = Construct(self, "Fleets")
        return tuple(
            AcceleratorFleet(
                group,
                fleet.name,
                fleet_name=fleet.name,
                target=fleet.target,
                vpc=self.vpc,
                vpc_subnets=self._subnets,
                store=self.store,
                purchase=fleet.purchase,
                max_capacity=fleet.max_capacity,
                instance_types=fleet.instance_types,
                network=fleet.network,
                order=order,
                role=role,
            )
            for order, fleet in enumerate(fleets)
        )

    def _new_compiler(self, props: CompilerProps, role: iam.IRole | None) -> SealedCompiler:
        """Make the compiler; every node may open what it made."""
        return SealedCompiler(
            self,
            "Compiler",
            vpc=self.vpc,
            vpc_subnets=self._subnets,
            store=self.store,
            level=props.level,
            customer=props.customer,
            enclave_image=props.enclave_image,
            administrators=props.administrators,
            agents=[*(fleet.role for fleet in self.fleets), self.coordinator.role],
            role=role,
        )

    def _new_jobs(self, heartbeat: Duration | None, patience: Duration | None) -> TrainingJobs:
        """Make the machine of jobs, and let its nodes answer it."""
        waits: _JobWaits = {}
        if heartbeat is not None:
            waits["heartbeat"] = heartbeat
        if patience is not None:
            # The jobs' machine waits longer than the failover in all, or it would move every place
            # before the failover could.
            waits["capacity_timeout"] = Duration.seconds(4 * patience.to_seconds())
        jobs = TrainingJobs(
            self,
            "Jobs",
            fleets=self.fleets,
            coordinator=self.coordinator,
            compiler=self.compiler,
            store=self.store,
            topic=self.topic,
            **waits,
        )
        # A policy of its own: an instance waits for its role's default policy, and the machine for
        # the instances' group, so the machine's name in that policy would close a circle.
        roles = dict.fromkeys(worker.role for worker in (*self.fleets, *self._hosts))
        jobs.grants.answer(iam.Policy(self, "Answers", roles=list(roles)))
        return jobs

    def _new_failover(
        self,
        fleets: Sequence[FleetProps],
        other_regions: Mapping[str, events.IEventBus] | None,
        patience: Duration | None,
    ) -> FailoverStateMachine:
        """Make the machine of failovers, which looks after the hosts too."""
        in_blocks = {
            props.purchase.reservation_id: fleet
            for props, fleet in zip(fleets, self.fleets, strict=True)
            if props.purchase.reservation_id
        }
        waits: _FailoverWaits = {}
        if patience is not None:
            waits = {
                "drain_timeout": patience,
                "commit_timeout": patience,
                "capacity_timeout": patience,
            }
            if patience.to_seconds() < _SHORT_S:
                waits["poll"] = _SHORT_POLL
        return FailoverStateMachine(
            self,
            "Failover",
            fleets=[*self.fleets, *self._hosts],
            store=self.store,
            jobs=self.jobs.state_machine,
            capacity_blocks=in_blocks,
            topic=self.topic,
            other_regions=other_regions,
            **waits,
        )

    def _publish(self) -> None:
        """Write the parameter by which nodes and engineers find everything."""
        name, compiler = self.store.deployment_name, self.compiler
        group = None if compiler is None else compiler.auto_scaling_group
        value = {
            "schema": _names.ACCOUNT_SCHEMA,
            "stack": name,
            "region": Stack.of(self).region,
            "bucket": self.store.bucket.bucket_name,
            "table": self.store.table.table_name,
            "jobs_machine": self.jobs.state_machine.state_machine_arn,
            "failover_machine": self.failover.state_machine.state_machine_arn,
            "topic": self.topic.topic_arn,
            "coordinator_fleet": self.coordinator.fleet_name,
            "compiler_queue": None if compiler is None else compiler.queue.queue_url,
            "compiler_fleet": None if compiler is None else compiler.fleet_name,
            "compiler_asg": None if group is None else group.auto_scaling_group_name,
        }
        ssm.StringParameter(
            self,
            "Parameter",
            parameter_name=_names.config_parameter(name),
            description=f"Luma deployment {name}",
            string_value=Stack.of(self).to_json_string(value),
        )


def _check(
    deployment: LumaDeployment,
    fleets: Sequence[FleetProps],
    vpc: ec2.IVpc | None,
    vpc_subnets: ec2.SubnetSelection | None,
) -> None:
    """Refuse what no construct could say better.

    Raises:
        PropError: props that cannot work.
    """
    problems = Problems("LumaDeployment", deployment)
    names = [fleet.name for fleet in fleets]
    problems.check(bool(names), "fleets", [], "at least one fleet")
    problems.check(len(set(names)) == len(names), "fleets", names, "a name once")
    problems.check(
        vpc is not None or vpc_subnets is None,
        "vpc_subnets",
        vpc_subnets,
        "nothing beside a new network",
        "pass the vpc of the subnets too",
    )
    problems.raise_all()


def _connect(fleets: Sequence[FleetBase]) -> None:
    """Let islands and the coordinator reach each other, whatever fleets they are of."""
    for one, other in combinations(fleets, 2):
        one.connect_islands(other)

"""`TrainingJobs`: the state machine that runs a job, and the one that cleans up behind it.

    jobs = TrainingJobs(self, "Jobs", fleets=[l4, cpu], coordinator=coordinator, store=store)
    jobs.grants.start(engineers)

It is started with {"run": "<name>"} by `luma launch` or by a person in the console. The same input
again resumes a run that failed or was stopped. Nothing runs between jobs.

Checked on the template and run by an emulator's interpreter; never executed in AWS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

from aws_cdk import Duration, Tags
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from luma_constructs import _names
from luma_constructs._asl import ANY_ERROR, Items, exact_seconds
from luma_constructs._event_targets import dead_letters, start_machine
from luma_constructs._state_machine import (
    allow_items,
    definition_of,
    new_machine_role,
    new_state_machine,
)
from luma_constructs._validation import Problems, is_known
from luma_constructs.fleet_interface import IAcceleratorFleet, MetricOptions
from luma_constructs.run_store import RunStore
from luma_constructs.training_jobs._clean_up import clean_up_states
from luma_constructs.training_jobs._end import end_states
from luma_constructs.training_jobs._plan import Plan
from luma_constructs.training_jobs._run import RunParts, run_states
from luma_constructs.training_jobs._work import WorkLimits
from luma_constructs.training_jobs.grants import TrainingJobsGrants

__all__ = ["TrainingJobs"]

_MAX_DURATION = Duration.days(7)
_HEARTBEAT = Duration.seconds(90)
_CAPACITY = Duration.minutes(10)
_CLEAN_UP = Duration.minutes(15)
_YEAR_S = 365 * 24 * 3600


class TrainingJobs(Construct):
    """Runs jobs: compile, get instances, train, export, give them back.

    Args:
        fleets: where islands may run. The sizes of their groups belong to this construct: they are
            set to what runs have claimed.
        coordinator: host of coordinators and exports.
        store: where runs lie.
        compiler: host of the sealed compiler. Default: - none; runs come with their artifact.
        topic: who is told how runs ended. Default: - nobody.
        max_duration: of one execution; a run that needs longer is started again. An execution has
            25,000 events at most: an island's slot that no node serves takes about 20 of them every
            `heartbeat`. Default: Duration.days(7)
        heartbeat: longest silence of a node at work before its work is given to another.
            Default: Duration.seconds(90)
        capacity_timeout: how long an island waits for a node before it goes to the run's next
            fleet. Default: Duration.minutes(10)
        max_retries: how often the work of one place may fail in a way that may pass. Default: 10
        role: of both machines; it gets the permissions that they need. Default: - a new one each.

    Raises:
        PropError: props that cannot work, all of them at once.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleets: Sequence[IAcceleratorFleet],
        coordinator: IAcceleratorFleet,
        store: RunStore,
        compiler: IAcceleratorFleet | None = None,
        topic: sns.ITopic | None = None,
        max_duration: Duration = _MAX_DURATION,
        heartbeat: Duration = _HEARTBEAT,
        capacity_timeout: Duration = _CAPACITY,
        max_retries: int = 10,
        role: iam.IRole | None = None,
    ) -> None:
        super().__init__(scope, id)
        _check(self, fleets, coordinator, max_duration, heartbeat, capacity_timeout, max_retries)
        self.store = store
        """Where runs lie."""
        self.fleets = tuple(fleets)
        """Where islands may run."""
        self._hosts = [coordinator] if compiler is None else [coordinator, compiler]
        self._topic = topic
        limits = WorkLimits(
            heartbeat=heartbeat,
            max_duration=max_duration,
            max_retries=max_retries,
            patience=math.ceil(capacity_timeout.to_seconds() / heartbeat.to_seconds()),
        )
        job = Construct(self, "Job")
        parts = RunParts(
            items=Items(Construct(job, "States"), store.table.table_name),
            fleets_path=_names.fleet_parameter(store.deployment_name, ""),
            coordinator=coordinator,
            compiler=compiler,
            limits=limits,
        )
        self._role = self._allow(new_machine_role(job, role))
        for fleet in (*self.fleets, *self._hosts):
            fleet.grants.give_work(self._role)
        store.grants.read_parameters(self._role)
        self.definition_body = definition_of(
            _job_states(parts, (*self.fleets, *self._hosts), topic)
        )
        """Definition of the job's own machine."""
        self.state_machine = new_state_machine(
            job,
            role=self._role,
            body=self.definition_body,
            timeout=max_duration,
            comment="A Luma run: compile, get instances, train, export, give them back",
        )
        """The job's own machine."""
        self.clean_up_machine = self._clean_up(role)
        """The machine that gives back what a stopped, timed out or crashed execution held."""
        Tags.of(self).add(_names.DEPLOYMENT_TAG, store.deployment_name)

    @property
    def grants(self) -> TrainingJobsGrants:
        """Permissions on jobs."""
        return TrainingJobsGrants.from_jobs(self)

    @property
    def role(self) -> iam.IRole:
        """What the job's machine may do."""
        return self._role

    @property
    def grant_principal(self) -> iam.IPrincipal:
        """The job's machine, as a principal."""
        return self._role.grant_principal

    def add_to_role_policy(self, statement: iam.PolicyStatement) -> None:
        """Add a statement to the role of the job's machine."""
        self._role.add_to_principal_policy(statement)

    def metric(self, name: str, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give a metric of the job's machine, in AWS/States; its average."""
        return self.state_machine.metric(name, **options)

    def metric_started(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the executions that began, their sum."""
        return self.state_machine.metric_started(**options)

    def metric_succeeded(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the executions that ended well, their sum."""
        return self.state_machine.metric_succeeded(**options)

    def metric_failed(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the executions that failed, their sum."""
        return self.state_machine.metric_failed(**options)

    def metric_timed_out(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the executions that took too long, their sum."""
        return self.state_machine.metric_timed_out(**options)

    def metric_aborted(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the executions that were stopped by hand, their sum."""
        return self.state_machine.metric_aborted(**options)

    def _allow(self, role: iam.IRole) -> iam.IRole:
        """Let a machine hold and give back claims, and tell of ends."""
        allow_items(role, self.store, ("RUN#*", "FLEET#*"))
        for fleet in (*self.fleets, *self._hosts):
            fleet.grants.scale(role)
        self._hosts[0].grants.watch(role)
        if self._topic is not None:
            self._topic.grant_publish(role)
        return role

    def _clean_up(self, role: iam.IRole | None) -> sfn.StateMachine:
        """Make the machine that cleans up, and the rule that starts it."""
        scope = Construct(self, "CleanUp")
        items = Items(Construct(scope, "States"), self.store.table.table_name)
        machine = new_state_machine(
            scope,
            role=self._allow(new_machine_role(scope, role)),
            body=definition_of(clean_up_states(items, (*self.fleets, *self._hosts), self._topic)),
            timeout=_CLEAN_UP,
            comment="Gives back what a Luma run held whose execution could not end by itself",
        )
        self.dead_letter_queue = dead_letters(scope, self.store.encryption_key)
        """Ends of executions that could not be cleaned up."""
        rule = events.Rule(
            scope,
            "Rule",
            description="A Luma run's execution ended without ending its run",
            event_pattern=events.EventPattern(
                source=["aws.states"],
                detail_type=["Step Functions Execution Status Change"],
                detail={
                    "stateMachineArn": [self.state_machine.state_machine_arn],
                    "status": ["ABORTED", "FAILED", "TIMED_OUT"],
                },
            ),
        )
        rule.add_target(start_machine(machine, self.dead_letter_queue))
        return machine


def _job_states(
    parts: RunParts, fleets: Sequence[IAcceleratorFleet], topic: sns.ITopic | None
) -> sfn.IChainable:
    """Give the states of the job's machine."""
    items, scope = parts.items, parts.items.scope
    plan = Plan.of(items)
    run = sfn.Parallel(
        scope,
        "Run the job",
        result_selector={
            "state.$": "States.ArrayGetItem($[*].state, 0)",
            "reason.$": "States.ArrayGetItem($[*].reason, 0)",
            "state_hash.$": "States.ArrayGetItem($[*].state_hash, 0)",
        },
        result_path="$.end",
    ).branch(run_states(parts))
    end = end_states(items, fleets, topic)
    failed = sfn.Pass(
        scope,
        "Say what went wrong",
        parameters={
            "state": "failed",
            "reason.$": "States.JsonToString($.error)",
            "state_hash": "",
        },
        result_path="$.end",
    )
    ended = sfn.Pass(
        scope,
        "List what it held",
        parameters={"all.$": "States.ArrayRange(0, States.MathAdd($.plan.slots, 1), 1)"},
        result_path="$.numbers",
    )
    run.add_catch(failed.next(ended), errors=list(ANY_ERROR), result_path="$.error")
    plan.taken.next(run)
    run.next(ended)
    ended.next(end.start)
    lost = sfn.Fail(
        scope,
        "Failed",
        error="Luma.RunFailed",
        cause="the run's item holds the reason; `luma status`",
    )
    end.end.next(
        sfn.Choice(scope, "How did it end?")
        .when(sfn.Condition.string_equals("$.end.state", "failed"), lost)
        .otherwise(sfn.Succeed(scope, "Ended"))
    )
    return plan.start


def _check(
    jobs: TrainingJobs,
    fleets: Sequence[IAcceleratorFleet],
    coordinator: IAcceleratorFleet,
    max_duration: Duration,
    heartbeat: Duration,
    capacity_timeout: Duration,
    max_retries: int,
) -> None:
    """Refuse props that cannot work."""
    problems = Problems("TrainingJobs", jobs)
    names = [fleet.fleet_name for fleet in fleets]
    problems.check(bool(names), "fleets", names, "at least one fleet")
    problems.check(
        len(set(names)) == len(names), "fleets", names, "fleets of different names", "rename one"
    )
    problems.check(
        coordinator.fleet_name == _names.COORDINATOR_FLEET,
        "coordinator",
        coordinator.fleet_name,
        "a CoordinatorHost, or an imported fleet of that name",
    )
    problems.whole("max_retries", max_retries, 0, 1000)
    for name, value, most in (
        ("max_duration", max_duration, _YEAR_S),
        ("heartbeat", heartbeat, 3600),
        ("capacity_timeout", capacity_timeout, 24 * 3600),
    ):
        if is_known(value):
            problems.whole(f"{name} (seconds)", exact_seconds(value), 1, most)
    problems.raise_all()

"""`FailoverStateMachine`: what happens when a node is about to go, or is gone.

    failover = FailoverStateMachine(
        self, "Failover", fleets=[l4, cpu, floor, coordinator], store=store, topic=topic
    )
    SpotInterruptionRules(self, "Rules").add_target(failover.target)

    event, find the node, record, ask it to leave, order a replacement, wait for its part's commit,
    wait for capacity, else move to another fleet, the on-demand floor, another region, tell, mark

Every step sees what was done before, so an event may arrive twice and a failover may die anywhere: run
again, it goes on. Checked on the template and run by an emulator's interpreter; never executed in AWS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from aws_cdk import Aws, Duration, Tags
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from luma_constructs import _names
from luma_constructs._asl import ANY_ERROR, Items, task
from luma_constructs._event_targets import dead_letters, other_bus, start_machine
from luma_constructs._state_machine import (
    allow_items,
    definition_of,
    new_machine_role,
    new_state_machine,
)
from luma_constructs.drain_document import DrainDocument
from luma_constructs.failover._drain import Polls
from luma_constructs.failover._event import REQUEST, SOURCE, nodes_of_event, normalize
from luma_constructs.failover._node import NodeParts, node_states
from luma_constructs.failover._props import check, default_bus, floors, looks
from luma_constructs.failover._region import answer_request
from luma_constructs.failover.grants import FailoverGrants
from luma_constructs.fleet_interface import IAcceleratorFleet, MetricOptions
from luma_constructs.run_store import RunStore

__all__ = ["FailoverStateMachine"]

_DRAIN = Duration.seconds(90)
_COMMIT = Duration.seconds(60)
_CAPACITY = Duration.minutes(4)
_POLL = Duration.seconds(5)


class FailoverStateMachine(Construct):
    """Replaces nodes that EC2 takes back, on whatever fleet has capacity.

    Args:
        fleets: all fleets whose nodes it looks after, the coordinator's and the compiler's hosts
            among them; those that are bought on demand are the floor that a place falls back to.
        store: where runs lie.
        jobs: the machine that runs jobs, to resume runs which another region could not go on with.
            Default: - requests of other regions are not answered.
        capacity_blocks: fleets by the id of the capacity block that they run in. Default: - none.
        topic: who is told. Default: - nobody.
        other_regions: event buses of other regions' stacks, by region; asked when there is no
            capacity here, for runs whose data is there too. Default: - none.
        drain_document: the command that asks a node to leave. Default: - a new one.
        drain_timeout: how long a node may take to answer it. Default: Duration.seconds(90)
        commit_timeout: how long to wait until the run does without it. Default:
            Duration.seconds(60)
        capacity_timeout: how long a fleet may take to get an instance. Default:
            Duration.minutes(4)
        poll: time between two looks. Default: Duration.seconds(5)
        role: of the machine; it gets the permissions that it needs. Default: - a new one.

    Raises:
        PropError: props that cannot work, all of them at once.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        fleets: Sequence[IAcceleratorFleet],
        store: RunStore,
        jobs: sfn.IStateMachine | None = None,
        capacity_blocks: Mapping[str, IAcceleratorFleet] | None = None,
        topic: sns.ITopic | None = None,
        other_regions: Mapping[str, events.IEventBus] | None = None,
        drain_document: DrainDocument | None = None,
        drain_timeout: Duration = _DRAIN,
        commit_timeout: Duration = _COMMIT,
        capacity_timeout: Duration = _CAPACITY,
        poll: Duration = _POLL,
        role: iam.IRole | None = None,
    ) -> None:
        super().__init__(scope, id)
        blocks, regions = dict(capacity_blocks or {}), dict(other_regions or {})
        waits = {
            "drain_timeout": drain_timeout,
            "commit_timeout": commit_timeout,
            "capacity_timeout": capacity_timeout,
            "poll": poll,
        }
        check(self, fleets, blocks, regions, waits)
        self.fleets = tuple(fleets)
        """The fleets that it looks after."""
        self.store = store
        """Where runs lie."""
        self.drain_document = drain_document or DrainDocument(
            self, "Drain", deployment_name=store.deployment_name
        )
        """The command that asks a node to leave."""
        polls = Polls(
            every=poll,
            drain=looks(drain_timeout, poll),
            commit=looks(commit_timeout, poll),
            capacity=looks(capacity_timeout, poll),
        )
        self._role = new_machine_role(self, role)
        self._allow(topic, jobs, regions)
        items = Items(Construct(self, "States"), store.table.table_name)
        self.definition_body = definition_of(
            self._states(items, blocks, topic, tuple(regions), jobs, polls)
        )
        """The machine's definition."""
        self.state_machine = new_state_machine(
            self,
            role=self._role,
            body=self.definition_body,
            timeout=self._timeout(waits),
            comment="Replaces a node of a Luma deployment that EC2 takes back",
        )
        """The machine; its input is the event as EventBridge sends it."""
        self.dead_letter_queue = dead_letters(self, store.encryption_key)
        """Requests and events that did not reach their machine or region."""
        self._requests(regions, jobs)
        Tags.of(self).add(_names.DEPLOYMENT_TAG, store.deployment_name)

    @property
    def grants(self) -> FailoverGrants:
        """Permissions on failovers."""
        return FailoverGrants.from_failover(self)

    @property
    def role(self) -> iam.IRole:
        """What the machine may do."""
        return self._role

    @property
    def grant_principal(self) -> iam.IPrincipal:
        """The machine, as a principal."""
        return self._role.grant_principal

    @property
    def target(self) -> events.IRuleTarget:
        """The machine as the target of a rule, tried again for an hour."""
        return start_machine(self.state_machine, self.dead_letter_queue)

    def add_to_role_policy(self, statement: iam.PolicyStatement) -> None:
        """Add a statement to the machine's role."""
        self._role.add_to_principal_policy(statement)

    def metric(self, name: str, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give a metric of the machine, in AWS/States; its average."""
        return self.state_machine.metric(name, **options)

    def metric_started(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the executions that began, foreign instances' among them; their sum."""
        return self.state_machine.metric_started(**options)

    def metric_failed(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the failovers that could not be finished, their sum."""
        return self.state_machine.metric_failed(**options)

    def metric_timed_out(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the failovers that took too long, their sum."""
        return self.state_machine.metric_timed_out(**options)

    def metric_time(self, **options: Unpack[MetricOptions]) -> cloudwatch.Metric:
        """Give the time from start to end, in milliseconds, on average."""
        return self.state_machine.metric_time(**options)

    def _timeout(self, waits: Mapping[str, Duration]) -> Duration:
        """Give the time for one failover: all waits, the last one for each fleet, and some."""
        once = waits["drain_timeout"].to_seconds() + waits["commit_timeout"].to_seconds()
        fleets = (len(self.fleets) + 1) * waits["capacity_timeout"].to_seconds()
        # Each look costs about a second beside its wait.
        return Duration.seconds(int(600 + 2 * (once + fleets)))

    def _allow(
        self,
        topic: sns.ITopic | None,
        jobs: sfn.IStateMachine | None,
        regions: Mapping[str, events.IEventBus],
    ) -> None:
        """Give the role what the machine does, and no more."""
        allow_items(self._role, self.store, ("RUN#*", "FLEET#*", "NODE#*", "EVENT#*"))
        self.store.grants.read_parameters(self._role)
        for fleet in self.fleets:
            fleet.grants.scale(self._role)
            fleet.grants.replace(self._role)
            fleet.grants.drain(self._role, self.drain_document)
        self.fleets[0].grants.watch(self._role)
        if topic is not None:
            topic.grant_publish(self._role)
        if jobs is not None:
            jobs.grant_start_execution(self._role)
        if regions:
            iam.Grant.add_to_principal(
                grantee=self._role,
                actions=["events:PutEvents"],
                resource_arns=[default_bus(self)],
                conditions={
                    "StringEquals": {"events:source": SOURCE, "events:detail-type": REQUEST}
                },
            )

    def _states(
        self,
        items: Items,
        blocks: Mapping[str, IAcceleratorFleet],
        topic: sns.ITopic | None,
        regions: Sequence[str],
        jobs: sfn.IStateMachine | None,
        polls: Polls,
    ) -> sfn.IChainable:
        """Give the states of the machine."""
        scope = items.scope
        parts = NodeParts(
            items=items,
            fleets=self.fleets,
            fleets_path=_names.fleet_parameter(self.store.deployment_name, ""),
            floors=floors(self.fleets, blocks),
            regions=regions,
            document=self.drain_document.drain_document_name,
            topic=topic,
            polls=polls,
            duplicate=sfn.Pass(scope, "Duplicate", parameters={"path": "duplicate"}),
            foreign=sfn.Pass(scope, "Not ours", parameters={"path": "not-ours"}),
        )
        each = sfn.Map(
            scope,
            "For each node",
            items_path="$.nodes",
            item_selector={
                "id.$": "$$.Map.Item.Value.id",
                "instance.$": "$$.Map.Item.Value.instance",
                "kind.$": "$.event.kind",
                "detail.$": "$.event.detail",
                "notes": {},
            },
            result_path="$.outcomes",
        )
        each.item_processor(sfn.Chain.start(node_states(parts)))
        done = sfn.Succeed(scope, "Done")
        each.next(done)
        each.add_catch(_unfinished(items, topic), errors=list(ANY_ERROR), result_path="$.error")
        foreign = sfn.Succeed(scope, "Not about us")
        request: sfn.IChainable = foreign
        if jobs is not None:
            again = sfn.Succeed(scope, "Answered before")
            answer = answer_request(items, jobs, polls, again)
            answer.end.next(sfn.Succeed(scope, "Answered"))
            request = answer.start
        kind = nodes_of_event(items, blocks, to_nodes=each, to_request=request, to_nothing=foreign)
        return normalize(items).next(kind)

    def _requests(
        self, regions: Mapping[str, events.IEventBus], jobs: sfn.IStateMachine | None
    ) -> None:
        """Carry requests to other regions, and take those of other regions."""
        for region, bus in regions.items():
            target = other_bus(bus, self.dead_letter_queue)
            self._request_rule(f"To{region}", region).add_target(target)
        if jobs is not None:
            self._request_rule("FromElsewhere", Aws.REGION).add_target(self.target)

    def _request_rule(self, id: str, region: str) -> events.Rule:
        """Make the rule for requests to a region."""
        return events.Rule(
            self,
            id,
            description="Runs of a Luma deployment that their region cannot go on with",
            event_pattern=events.EventPattern(
                source=[SOURCE], detail_type=[REQUEST], detail={"to-region": [region]}
            ),
        )


def _unfinished(items: Items, topic: sns.ITopic | None) -> sfn.IChainable:
    """Give the end of a failover that could not be finished: told, and red in the console."""
    failed = sfn.Fail(
        items.scope,
        "Could not finish",
        error="Luma.FailoverFailed",
        cause="a step failed; start the machine again with the same event, it goes on from there",
    )
    if topic is None:
        return failed
    tell = task(
        items.scope,
        "Tell that it failed",
        "sns:publish",
        {
            "TopicArn": topic.topic_arn,
            "Subject": "Luma failover could not be finished",
            "Message": {
                "event.$": "$.event",
                "error.$": "$.error",
                "execution.$": "$$.Execution.Id",
            },
        },
    )
    tell.add_catch(failed, errors=list(ANY_ERROR), result_path="$.error")
    tell.next(failed)
    return tell

"""Stacks of the orchestrating constructs over small fleets, for assertions and for execution.

A fleet here is a queue, a group, a parameter and `ImportedFleet`: what the machines work with, and no
network. Groups have fixed names, which an emulator takes; the constructs themselves give none.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_events as events
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from aws_cdk import aws_ssm as ssm

from luma_constructs import _names
from luma_constructs.failover import FailoverStateMachine
from luma_constructs.fleet_interface import ImportedFleet
from luma_constructs.run_store import RunStore
from luma_constructs.spot_interruption_rules import SpotInterruptionRules
from luma_constructs.training_jobs import TrainingJobs

DEPLOYMENT = "Machines"
BLOCK = "cr-0123456789abcdef0"
OTHER_REGION = "eu-west-1"
MOST = 3
"""Instances that a group may have."""


def fleet(
    stack: cdk.Stack, name: str, *, purchase: str = "spot", in_ec2: bool = True
) -> ImportedFleet:
    """A fleet: queue, group, parameter."""
    queue = sqs.Queue(stack, f"{name}-queue")
    group = f"group-{name}" if in_ec2 else None
    if group is not None:
        _group(stack, name, group)
    ssm.StringParameter(
        stack,
        f"{name}-parameter",
        parameter_name=_names.fleet_parameter(DEPLOYMENT, name),
        string_value=stack.to_json_string(
            {"fleet": name, "queue": queue.queue_url, "asg": group, "purchase": purchase}
        ),
    )
    return ImportedFleet(
        stack,
        name,
        fleet_name=name,
        target="cpu",
        queue=queue,
        role=iam.Role(stack, f"{name}-role", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com")),
        auto_scaling_group=group
        and autoscaling.AutoScalingGroup.from_auto_scaling_group_name(
            stack, f"{name}-imported", group
        ),
        purchase=purchase,
        max_capacity=MOST,
    )


def _group(stack: cdk.Stack, name: str, group: str) -> None:
    """An Auto Scaling group of nothing, up to three."""
    template = ec2.CfnLaunchTemplate(
        stack,
        f"{name}-template",
        launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
            image_id="ami-12c6146b", instance_type="t3.micro"
        ),
    )
    autoscaling.CfnAutoScalingGroup(
        stack,
        f"{name}-group",
        auto_scaling_group_name=group,
        min_size="0",
        max_size=str(MOST),
        availability_zones=[cdk.Fn.select(0, cdk.Fn.get_azs())],
        launch_template=autoscaling.CfnAutoScalingGroup.LaunchTemplateSpecificationProperty(
            launch_template_id=template.ref, version=template.attr_latest_version_number
        ),
    )


def machines(app: cdk.App) -> cdk.Stack:
    """Everything that orchestrates, with short waits; outputs name what tests need."""
    stack = cdk.Stack(
        app,
        DEPLOYMENT,
        # It has no assets, and nothing is bootstrapped where it goes.
        synthesizer=cdk.DefaultStackSynthesizer(generate_bootstrap_version_rule=False),
    )
    store = RunStore(stack, "Store", removal_policy=cdk.RemovalPolicy.DESTROY)
    topic = sns.Topic(stack, "Topic")
    fleets = [
        fleet(stack, "l4"),
        fleet(stack, "a10"),
        fleet(stack, "floor", purchase="on-demand"),
        fleet(stack, "block", purchase="on-demand"),
        fleet(stack, "lab", in_ec2=False),
    ]
    coordinator = fleet(stack, _names.COORDINATOR_FLEET, purchase="on-demand")
    compiler = fleet(stack, _names.COMPILER_FLEET, purchase="on-demand")
    jobs = TrainingJobs(
        stack,
        "Jobs",
        fleets=fleets,
        coordinator=coordinator,
        compiler=compiler,
        store=store,
        topic=topic,
        max_duration=cdk.Duration.minutes(10),
        # Nothing here may depend on how fast the computer is.
        heartbeat=cdk.Duration.minutes(9),
        max_retries=1,
    )
    hasty = TrainingJobs(
        stack,
        "Hasty",
        fleets=fleets,
        coordinator=coordinator,
        compiler=compiler,
        store=store,
        topic=topic,
        max_duration=cdk.Duration.minutes(10),
        heartbeat=cdk.Duration.seconds(1),
        capacity_timeout=cdk.Duration.seconds(2),
    )
    bare = TrainingJobs(stack, "Bare", fleets=fleets, coordinator=coordinator, store=store)
    second = cdk.Duration.seconds(1)
    failover = FailoverStateMachine(
        stack,
        "Failover",
        fleets=[*fleets, coordinator, compiler],
        store=store,
        jobs=jobs.state_machine,
        capacity_blocks={BLOCK: fleets[3]},
        topic=topic,
        other_regions={
            OTHER_REGION: events.EventBus.from_event_bus_arn(
                stack, "Elsewhere", f"arn:aws:events:{OTHER_REGION}:123456789012:event-bus/default"
            )
        },
        drain_timeout=second,
        commit_timeout=second,
        capacity_timeout=second,
        poll=second,
    )
    alone = FailoverStateMachine(
        stack,
        "Alone",
        fleets=[fleets[0], coordinator],
        store=store,
        drain_timeout=second,
        commit_timeout=second,
        capacity_timeout=second,
        poll=second,
    )
    SpotInterruptionRules(stack, "Rules").start(failover.state_machine)
    for name, value in {
        "Table": store.table.table_name,
        "Topic": topic.topic_arn,
        "Jobs": jobs.state_machine.state_machine_arn,
        "JobsCleanUp": jobs.clean_up_machine.state_machine_arn,
        "Hasty": hasty.state_machine.state_machine_arn,
        "Bare": bare.state_machine.state_machine_arn,
        "Failover": failover.state_machine.state_machine_arn,
        "Alone": alone.state_machine.state_machine_arn,
        **{
            f"Queue{one.fleet_name}": one.queue.queue_url
            for one in [*fleets, coordinator, compiler]
        },
    }.items():
        cdk.CfnOutput(stack, f"Out{name}", value=value)
    return stack


def encrypted(app: cdk.App) -> cdk.Stack:
    """The same constructs over a customer's key, with roles of the caller's own."""
    stack = cdk.Stack(app, "Encrypted")
    key = kms.Key(stack, "Key")
    store = RunStore(stack, "Store", encryption_key=key, deployment_name=DEPLOYMENT)
    one = fleet(stack, "l4")
    coordinator = fleet(stack, _names.COORDINATOR_FLEET, purchase="on-demand")
    role = iam.Role(stack, "Mine", assumed_by=iam.ServicePrincipal("states.amazonaws.com"))
    jobs = TrainingJobs(
        stack, "Jobs", fleets=[one], coordinator=coordinator, store=store, role=role
    )
    FailoverStateMachine(stack, "Failover", fleets=[one, coordinator], store=store)
    people = iam.Role(stack, "People", assumed_by=iam.AccountRootPrincipal())
    jobs.grants.start(people)
    jobs.grants.cancel(people)
    nodes = iam.Policy(stack, "Answers", roles=[one.role])
    jobs.grants.answer(nodes)
    return stack

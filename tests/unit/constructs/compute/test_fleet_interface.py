"""What all fleets offer: imports, metrics, grants, network."""

from __future__ import annotations

import aws_cdk as cdk
import pytest
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs
from aws_cdk.assertions import Template

from luma_constructs import (
    AcceleratorFleet,
    CoordinatorHost,
    DrainDocument,
    IAcceleratorFleet,
    RunStore,
    SealedCompiler,
)


@pytest.fixture
def stack():
    return cdk.Stack(cdk.App(), "Luma")


@pytest.fixture
def parts(stack):
    account = "arn:aws:sqs:us-east-1:111122223333"
    return {
        "queue": sqs.Queue.from_queue_arn(stack, "Queue", f"{account}:work"),
        "role": iam.Role.from_role_arn(stack, "Role", "arn:aws:iam::111122223333:role/node"),
        "auto_scaling_group": autoscaling.AutoScalingGroup.from_auto_scaling_group_name(
            stack, "Group", "there-already"
        ),
    }


def imports(stack, parts):
    yield AcceleratorFleet.from_fleet_attributes(
        stack, "Fleet", fleet_name="l4", target="cuda-sm89x4", deployment_name="Other", **parts
    )
    yield CoordinatorHost.from_coordinator_attributes(stack, "Coordinator", **parts)
    yield SealedCompiler.from_compiler_attributes(stack, "Compiler", **parts)


def test_imported_fleets_are_fleets_and_make_no_resource(stack, parts):
    fleet, coordinator, compiler = imports(stack, parts)
    for one in (fleet, coordinator, compiler):
        assert isinstance(one, IAcceleratorFleet)
    assert (fleet.fleet_name, fleet.target, fleet.chips) == ("l4", "cuda-sm89x4", 4)
    assert (coordinator.fleet_name, coordinator.target) == ("coordinator", "coordinator")
    assert (compiler.fleet_name, compiler.target) == ("compiler", "compiler")
    assert (fleet.deployment_name, coordinator.deployment_name) == ("Other", "Luma")
    assert not [c for c in stack.node.find_all() if isinstance(c, cdk.CfnResource)]


def test_a_fleet_that_is_made_has_the_interface(stack):
    vpc = ec2.Vpc(stack, "Vpc")
    store = RunStore(stack, "Store")
    fleet = AcceleratorFleet(stack, "F", fleet_name="l4", target="cuda-sm89", vpc=vpc, store=store)
    assert isinstance(fleet, IAcceleratorFleet)
    assert fleet.node.default_child is None
    assert (fleet.purchase, fleet.max_capacity) == ("spot", 8)


@pytest.mark.parametrize(
    ("method", "namespace", "name", "statistic"),
    [
        ("metric_queue_depth", "AWS/SQS", "ApproximateNumberOfMessagesVisible", "Maximum"),
        ("metric_oldest_work", "AWS/SQS", "ApproximateAgeOfOldestMessage", "Maximum"),
        ("metric_in_service", "AWS/AutoScaling", "GroupInServiceInstances", "Minimum"),
        ("metric_desired", "AWS/AutoScaling", "GroupDesiredCapacity", "Maximum"),
    ],
)
def test_metrics_have_the_statistic_that_fits_them(
    stack, parts, method, namespace, name, statistic
):
    fleet, *_ = imports(stack, parts)
    metric = getattr(fleet, method)(label="x")
    assert (metric.namespace, metric.metric_name, metric.statistic) == (namespace, name, statistic)
    assert metric.period.to_seconds() == 60
    assert metric.label == "x"
    other = getattr(fleet, method)(statistic="p99", period=cdk.Duration.minutes(5))
    assert (other.statistic, other.period.to_seconds()) == ("p99", 300)


def test_any_metric_of_the_group_can_be_asked_for(stack, parts):
    fleet, *_ = imports(stack, parts)
    metric = fleet.metric("GroupTotalInstances")
    assert metric.metric_name == "GroupTotalInstances"
    assert metric.dimensions == {"AutoScalingGroupName": "there-already"}


def test_without_a_group_there_is_nothing_to_scale_and_no_such_metric(stack, parts):
    parts.pop("auto_scaling_group")
    fleet = AcceleratorFleet.from_fleet_attributes(
        stack, "Fleet", fleet_name="mi", target="rocm-gfx942", **parts
    )
    machine = iam.Role(stack, "M", assumed_by=iam.ServicePrincipal("states.amazonaws.com"))
    assert fleet.metric_in_service() is None
    assert fleet.metric_desired() is None
    assert fleet.metric("GroupTotalInstances") is None
    grants = fleet.grants
    for grant in (grants.scale, grants.replace, grants.leave, grants.give_work):
        grant(machine)
    grants.drain(machine, DrainDocument(stack, "Drain"))
    (policy,) = Template.from_stack(stack).find_resources("AWS::IAM::Policy").values()
    statements = policy["Properties"]["PolicyDocument"]["Statement"]
    actions = {s["Action"] for s in statements}
    assert actions == {"sqs:SendMessage", "ssm:SendCommand", "ssm:GetCommandInvocation"}


def test_statements_can_be_added_to_the_nodes_role(stack):
    vpc = ec2.Vpc(stack, "Vpc")
    host = CoordinatorHost(stack, "Coordinator", vpc=vpc, store=RunStore(stack, "Store"))
    host.add_to_role_policy(iam.PolicyStatement(actions=["ec2:DescribeTags"], resources=["*"]))
    policies = Template.from_stack(stack).find_resources("AWS::IAM::Policy")
    assert "ec2:DescribeTags" in str(policies)


def test_two_stacks_share_a_store_and_reach_each_other_s_nodes():
    app = cdk.App()
    first = cdk.Stack(app, "First")
    vpc = ec2.Vpc(first, "Vpc")
    store = RunStore(first, "Store")
    coordinator = CoordinatorHost(first, "Coordinator", vpc=vpc, store=store)
    second = cdk.Stack(app, "Second")
    fleet = AcceleratorFleet(second, "F", fleet_name="l4", target="cuda-sm89", vpc=vpc, store=store)
    fleet.connect_islands(coordinator)
    template = Template.from_stack(second)
    (parameter,) = template.find_resources("AWS::SSM::Parameter").values()
    assert parameter["Properties"]["Name"] == "/luma/First/fleets/l4"

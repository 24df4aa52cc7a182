"""What the machines, engineers and rules may do: each action with its resource and condition."""

import pytest

from tests.support.cdk import synthesized
from tests.unit.constructs.compute.policies import all_statements, statements_of
from tests.unit.constructs.orchestration import stacks

REGION = {"StringEquals": {"aws:RequestedRegion": {"Ref": "AWS::Region"}}}
ON_GROUPS = {"autoscaling:SetDesiredCapacity", "autoscaling:DetachInstances"}


@pytest.fixture(scope="module")
def deployed():
    return synthesized(stacks.machines)


@pytest.fixture(scope="module")
def over_a_key():
    return synthesized(stacks.encrypted)


def actions(assembly, role):
    return {action for one in statements_of(assembly, role) for action in one["Action"]}


def doing(assembly, role, action):
    """The statements of a role that allow an action."""
    return [one for one in statements_of(assembly, role) if action in one["Action"]]


def test_no_statement_has_a_wildcard_action_or_an_unconditional_wildcard(deployed, over_a_key):
    for assembly in (deployed, over_a_key):
        for statement in all_statements(assembly):
            assert not [action for action in statement["Action"] if "*" in action]
            if "*" in statement["Resource"]:
                assert statement["Condition"], statement


def test_the_job_does_this_and_no_more(deployed):
    assert actions(deployed, "JobsJobRole") == {
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeAutoScalingInstances",
        "autoscaling:DescribeScalingActivities",
        "autoscaling:SetDesiredCapacity",
        "dynamodb:ConditionCheckItem",
        "dynamodb:GetItem",
        "dynamodb:UpdateItem",
        "logs:CreateLogDelivery",
        "logs:DeleteLogDelivery",
        "logs:DescribeLogGroups",
        "logs:DescribeResourcePolicies",
        "logs:GetLogDelivery",
        "logs:ListLogDeliveries",
        "logs:PutResourcePolicy",
        "logs:UpdateLogDelivery",
        "sns:Publish",
        "sqs:SendMessage",
        "ssm:GetParameter",
        "ssm:GetParameters",
        "ssm:GetParametersByPath",
        "xray:GetSamplingRules",
        "xray:GetSamplingTargets",
        "xray:PutTelemetryRecords",
        "xray:PutTraceSegments",
    }


def test_cleaning_up_gives_no_work_and_reads_no_parameter(deployed):
    given = actions(deployed, "JobsCleanUpRole")
    assert "autoscaling:SetDesiredCapacity" in given
    assert not [action for action in given if action.startswith(("sqs:", "ssm:"))]


def test_machines_write_the_items_that_they_work_on(deployed):
    for role, keys in (
        ("JobsJobRole", ["RUN#*", "FLEET#*"]),
        ("JobsCleanUpRole", ["RUN#*", "FLEET#*"]),
        ("FailoverRole", ["RUN#*", "FLEET#*", "NODE#*", "EVENT#*"]),
    ):
        [statement] = doing(deployed, role, "dynamodb:UpdateItem")
        assert statement["Condition"] == {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": keys}}
        assert statement["Resource"]["Fn::GetAtt"][0].startswith("StoreTable")


def test_actions_on_groups_name_their_groups(deployed):
    for role in ("JobsJobRole", "FailoverRole"):
        for statement in statements_of(deployed, role):
            if ON_GROUPS & set(statement["Action"]):
                assert "autoScalingGroupName/group-" in str(statement["Resource"])


def test_failover_runs_one_command_on_nodes_of_its_fleets(deployed):
    found = doing(deployed, "FailoverRole", "ssm:SendCommand")
    on_nodes = [one for one in found if "instance/*" in str(one["Resource"])]
    on_document = [one for one in found if one not in on_nodes]
    assert {str(one["Resource"]).count("document/") for one in on_document} == {1}
    assert "FailoverDrain" in str(on_document)
    for statement in on_nodes:
        assert "ssm:resourceTag/luma:fleet" in statement["Condition"]["StringEquals"]


def test_failover_ends_instances_of_its_fleets_alone(deployed):
    found = doing(deployed, "FailoverRole", "ec2:TerminateInstances")
    fleets = {one["Condition"]["StringEquals"]["aws:ResourceTag/luma:fleet"] for one in found}
    assert fleets == {"l4", "a10", "floor", "block", "coordinator", "compiler"}


def test_failover_sends_requests_to_other_regions_and_no_other_event(deployed):
    [statement] = doing(deployed, "FailoverRole", "events:PutEvents")
    assert statement["Condition"] == {
        "StringEquals": {"events:source": "luma", "events:detail-type": "Luma Failover Requested"}
    }
    assert str(statement["Resource"]).count("event-bus/default") == 1
    assert "events:PutEvents" not in actions(deployed, "AloneRole")
    assert "states:StartExecution" not in actions(deployed, "AloneRole")


def test_what_knows_no_resource_is_limited_to_the_region(deployed):
    for role in ("JobsJobRole", "JobsCleanUpRole", "FailoverRole"):
        wild = [one for one in statements_of(deployed, role) if one["Resource"] == "*"]
        assert wild
        assert all(one["Condition"] == REGION for one in wild)


def test_the_customers_key_is_used_by_name(over_a_key):
    for role in ("Mine", "FailoverRole"):
        [statement] = doing(over_a_key, role, "kms:GenerateDataKey")
        assert statement["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]
        assert statement["Resource"]["Fn::GetAtt"][0].startswith("Key")


def test_a_role_of_ones_own_gets_what_both_machines_need(over_a_key):
    assert {"sqs:SendMessage", "autoscaling:SetDesiredCapacity"} <= actions(over_a_key, "Mine")
    roles = over_a_key.of_type("AWS::IAM::Role")
    assert not [name for name in roles if name.startswith("JobsJobRole")]


def test_people_may_start_follow_and_stop_jobs(over_a_key):
    given = actions(over_a_key, "People")
    assert {"states:StartExecution", "states:DescribeExecution", "states:StopExecution"} <= given
    assert "dynamodb:UpdateItem" in given
    assert "autoscaling:SetDesiredCapacity" not in given


def test_nodes_answer_in_a_policy_of_its_own(over_a_key):
    [statement] = doing(over_a_key, "l4role", "states:SendTaskSuccess")
    assert set(statement["Action"]) == {
        "states:SendTaskFailure",
        "states:SendTaskHeartbeat",
        "states:SendTaskSuccess",
    }
    assert statement["Resource"] == {"Ref": "JobsJobCED146D7"}


def test_only_step_functions_takes_the_machines_roles(deployed):
    for name, role in deployed.of_type("AWS::IAM::Role").items():
        if name.startswith(("JobsJobRole", "JobsCleanUpRole", "FailoverRole")):
            [statement] = role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
            assert statement["Principal"] == {"Service": "states.amazonaws.com"}

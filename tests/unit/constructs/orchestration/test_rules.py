"""Rules: which events, to which machine, and what becomes of those that do not arrive."""

import aws_cdk as cdk
import pytest
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sqs as sqs

from luma_constructs.spot_interruption_rules import SpotInterruptionRules
from tests.support.cdk import assembled, synthesized
from tests.unit.constructs.orchestration import stacks

PATTERNS = {
    "RulesInterruption": {"detail-type": ["EC2 Spot Instance Interruption Warning"]},
    "RulesRebalance": {"detail-type": ["EC2 Instance Rebalance Recommendation"]},
    "RulesStateChange": {
        "detail-type": ["EC2 Instance State-change Notification"],
        "detail": {"state": ["stopping", "terminated"]},
    },
    "RulesCapacityBlockExpiry": {
        "detail-type": [
            "Capacity Block Expiration Warning",
            "Capacity Block Reservation Expiration Warning",
        ]
    },
}


@pytest.fixture(scope="module")
def rules():
    return synthesized(stacks.machines).of_type("AWS::Events::Rule")


def rule(rules, name):
    """The one rule whose logical id starts so."""
    [found] = [one["Properties"] for key, one in rules.items() if key.startswith(name)]
    return found


@pytest.mark.parametrize("name", PATTERNS)
def test_each_kind_of_event_has_a_rule_that_starts_the_failover(rules, name):
    found = rule(rules, name)
    assert found["EventPattern"] == {"source": ["aws.ec2"], **PATTERNS[name]}
    [target] = found["Targets"]
    assert target["Arn"]["Ref"].startswith("Failover")
    assert target["RetryPolicy"] == {
        "MaximumEventAgeInSeconds": 3600,
        "MaximumRetryAttempts": 20,
    }
    assert target["DeadLetterConfig"]["Arn"]["Fn::GetAtt"][0].startswith("RulesDeadLetters")
    assert "Input" not in target  # the event as it is
    assert "RoleArn" in target


def test_requests_go_to_their_region_and_come_to_ours(rules):
    sent = rule(rules, f"FailoverTo{stacks.OTHER_REGION.replace('-', '')}")
    assert sent["EventPattern"]["detail"] == {"to-region": [stacks.OTHER_REGION]}
    assert stacks.OTHER_REGION in sent["Targets"][0]["Arn"]
    taken = rule(rules, "FailoverFromElsewhere")
    assert taken["EventPattern"]["detail"] == {"to-region": [{"Ref": "AWS::Region"}]}
    assert taken["Targets"][0]["Arn"]["Ref"].startswith("Failover")
    assert not [name for name in rules if name.startswith("Alone")]


def test_executions_that_could_not_end_their_run_are_cleaned_up(rules):
    found = rule(rules, "JobsCleanUpRule")
    assert found["EventPattern"] == {
        "source": ["aws.states"],
        "detail-type": ["Step Functions Execution Status Change"],
        "detail": {
            "stateMachineArn": [{"Ref": "JobsJobCED146D7"}],
            "status": ["ABORTED", "FAILED", "TIMED_OUT"],
        },
    }
    [target] = found["Targets"]
    assert target["Arn"]["Ref"].startswith("JobsCleanUp")
    assert target["DeadLetterConfig"]


def test_what_does_not_arrive_is_kept_encrypted_and_comes_over_tls():
    assembly = synthesized(stacks.machines)
    queues = assembly.of_type("AWS::SQS::Queue")
    kept = {name: one["Properties"] for name, one in queues.items() if "DeadLetters" in name}
    assert len(kept) == 6  # the rules', and one of each machine
    for name, properties in kept.items():
        assert properties["MessageRetentionPeriod"] == 14 * 24 * 3600, name
        assert properties["SqsManagedSseEnabled"] is True, name
    secure = str(assembly.of_type("AWS::SQS::QueuePolicy"))
    assert secure.count("aws:SecureTransport") >= len(kept)


def test_a_target_of_ones_own_gets_one_kind_of_event(tmp_path):
    def build(app):
        stack = cdk.Stack(app, "Own")
        queue = sqs.Queue(stack, "Queue")
        found = SpotInterruptionRules(stack, "Rules")
        to = targets.SqsQueue(queue)
        found.on_interruption("A", target=to)
        found.on_rebalance("B", target=to)
        found.on_state_change("C", target=to, states=["shutting-down"])
        found.on_capacity_block_expiry("D", target=to)
        return stack

    made = assembled(build, tmp_path).of_type("AWS::Events::Rule")
    own = {name: one["Properties"] for name, one in made.items() if "Targets" in one["Properties"]}
    kinds = [one["EventPattern"]["detail-type"][0] for one in own.values()]
    assert sorted(kinds) == sorted(pattern["detail-type"][0] for pattern in PATTERNS.values())
    details = [
        one["EventPattern"]["detail"] for one in own.values() if "detail" in one["EventPattern"]
    ]
    assert details == [{"state": ["shutting-down"]}]

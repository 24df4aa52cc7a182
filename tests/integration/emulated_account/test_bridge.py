"""EventBridge to Step Functions: each form of a target's input, and what AWS sends by itself."""

import json
import uuid

import pytest

from tests.emulator import events
from tests.emulator.waiting import until

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)

INSTANCE = "i-0123456789abcdef0"


@pytest.fixture
def rule(server):
    """Send some events to a target."""
    client = server.client("events")
    made = []

    def make(arn, pattern, **form):
        name = f"r-{uuid.uuid4().hex}"
        client.put_rule(Name=name, EventPattern=json.dumps(pattern))
        client.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": arn, **form}])
        made.append(name)
        return name

    yield make
    for name in made:
        client.remove_targets(Rule=name, Ids=["1"])
        client.delete_rule(Name=name)


@pytest.fixture
def inputs(server, machine, rule, ended):
    """Deliver an event through a rule of some form, and give what its machine was started with."""
    client = server.client("stepfunctions")

    def deliver(send, **form):
        arn = machine(P={"Type": "Pass", "End": True})
        rule(arn, {"source": ["aws.ec2"], "detail": {"instance-id": [INSTANCE]}}, **form)
        send()

        def started():
            return client.list_executions(stateMachineArn=arn)["executions"]

        [execution] = until(started, "an execution")
        return json.loads(ended(execution["executionArn"])["input"])

    return deliver


def test_the_whole_event_has_aws_form(server, inputs):
    ids = []
    got = inputs(lambda: ids.append(events.interruption(server, INSTANCE)))
    assert got["id"] == ids[0]
    assert got["detail"] == {"instance-id": INSTANCE, "instance-action": "terminate"}
    assert got["detail-type"] == "EC2 Spot Instance Interruption Warning"
    assert got["time"].endswith("Z")
    assert "T" in got["time"]
    assert "ingestion-time" not in got
    assert got["resources"] == [f"arn:aws:ec2:us-east-1:123456789012:instance/{INSTANCE}"]


def test_a_constant_input(server, inputs):
    got = inputs(lambda: events.rebalance(server, INSTANCE), Input='{"a": [1, "b"]}')
    assert got == {"a": [1, "b"]}


def test_a_part_of_the_event(server, inputs):
    got = inputs(lambda: events.rebalance(server, INSTANCE), InputPath="$.detail")
    assert got == {"instance-id": INSTANCE}


@pytest.mark.parametrize("template", ['{"id": <i>, "say": "<i>"}', '{"id": "<i>", "say": <i>}'])
def test_a_transformer_quotes_strings_with_and_without_quotes(server, inputs, template):
    transformer = {"InputPathsMap": {"i": "$.detail.instance-id"}, "InputTemplate": template}
    got = inputs(lambda: events.rebalance(server, INSTANCE), InputTransformer=transformer)
    assert got == {"id": INSTANCE, "say": INSTANCE}


def test_another_instances_event_starts_nothing(server, machine, rule):
    arn = machine(P={"Type": "Pass", "End": True})
    rule(arn, {"detail": {"instance-id": ["i-other"]}})
    events.interruption(server, INSTANCE)
    assert not server.client("stepfunctions").list_executions(stateMachineArn=arn)["executions"]


def test_a_disabled_rule_starts_nothing(server, machine, rule):
    arn = machine(P={"Type": "Pass", "End": True})
    server.client("events").disable_rule(Name=rule(arn, {"source": ["aws.ec2"]}))
    events.interruption(server, INSTANCE)
    assert not server.client("stepfunctions").list_executions(stateMachineArn=arn)["executions"]


def test_a_target_that_is_gone_does_not_keep_the_event_from_others(server, machine, rule, queue):
    arn = machine(P={"Type": "Pass", "End": True})
    rule(arn.replace("stateMachine:m", "stateMachine:gone"), {"source": ["aws.ec2"]})
    rule(arn, {"source": ["aws.ec2"]})
    events.interruption(server, INSTANCE)
    assert server.client("stepfunctions").list_executions(stateMachineArn=arn)["executions"]


@pytest.fixture
def told(server, rule, queue, received):
    """Listen for events on a queue."""
    arn = server.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])

    def listen(pattern):
        rule(arn["Attributes"]["QueueArn"], pattern)
        return received

    return listen


def test_an_execution_announces_its_start_and_end(server, machine, told):
    arn = machine(F={"Type": "Fail", "Error": "Luma.Wrong", "Cause": "because"})
    take = told({"source": ["aws.states"], "detail": {"stateMachineArn": [arn]}})
    client = server.client("stepfunctions")
    started = client.start_execution(stateMachineArn=arn, input='{"run": "r"}')
    first, last = (event["detail"] for event in take(2))
    assert (first["status"], first["stopDate"]) == ("RUNNING", None)
    assert (last["status"], last["error"], last["cause"]) == ("FAILED", "Luma.Wrong", "because")
    assert last["executionArn"] == started["executionArn"]
    assert json.loads(last["input"]) == {"run": "r"}
    assert last["stopDate"] >= last["startDate"]


def test_an_instance_announces_its_states(server, told):
    take = told({"detail-type": ["EC2 Instance State-change Notification"]})
    ec2 = server.client("ec2")
    made = ec2.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)["Instances"][0]
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    details = [event["detail"] for event in take(4)]
    assert {detail["instance-id"] for detail in details} == {made["InstanceId"]}
    states = [detail["state"] for detail in details]
    assert states == ["pending", "running", "shutting-down", "terminated"]

"""Canaries: unpatched moto still has the gaps that the bridge closes. One that fails is good news:
the part of the bridge that it names can go."""

import json

import pytest
from botocore.exceptions import ClientError

from tests.emulator.waiting import until

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)

ROLE = "arn:aws:iam::123456789012:role/anything"
PASS = json.dumps({"StartAt": "P", "States": {"P": {"Type": "Pass", "End": True}}})
STACK = {
    "Resources": {
        "M": {
            "Type": "AWS::StepFunctions::StateMachine",
            "Properties": {"DefinitionString": PASS, "RoleArn": ROLE},
        }
    }
}


def machines(server):
    return server.client("stepfunctions").list_state_machines()["stateMachines"]


def configure_execution(server):
    import urllib.request

    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/moto-api/config",
        data=json.dumps({"stepfunctions": {"execute_state_machine": True}}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)


@pytest.fixture(scope="module")
def executing(plain):
    configure_execution(plain)
    return plain


def test_a_machine_of_a_stack_is_not_where_machines_are_executed(executing):
    cloudformation = executing.client("cloudformation")
    cloudformation.create_stack(StackName="gap", TemplateBody=json.dumps(STACK))
    try:
        assert not [m for m in machines(executing) if m["name"].startswith("gap")]
    finally:
        cloudformation.delete_stack(StackName="gap")


def test_a_rule_cannot_start_a_machine(executing):
    created = executing.client("stepfunctions").create_state_machine(
        name="target", definition=PASS, roleArn=ROLE
    )
    events = executing.client("events")
    events.put_rule(Name="gap", EventPattern=json.dumps({"source": ["luma.gap"]}))
    events.put_targets(Rule="gap", Targets=[{"Id": "1", "Arn": created["stateMachineArn"]}])
    entry = {"Source": "luma.gap", "DetailType": "x", "Detail": "{}"}
    with pytest.raises(ClientError) as caught:
        events.put_events(Entries=[entry])
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500


def test_an_events_time_is_a_number():
    from moto.events.models import Rule

    seen = []
    rule = Rule("r", "1", "us-east-1", None, None, None, None, "default", None)
    rule.send_to_targets = seen.append
    backend = _events_backend_with(rule)
    backend.put_events([{"Source": "s", "DetailType": "d", "Detail": "{}"}])
    assert isinstance(seen[0]["time"], float)
    assert "ingestion-time" in seen[0]


def _events_backend_with(rule):
    from moto.events.models import EventsBackend

    backend = EventsBackend("us-east-1", "123456789012")
    backend.describe_event_bus("default").rules["r"] = rule
    return backend


def test_scaling_activities_are_always_empty(plain):
    autoscaling, ec2 = plain.client("autoscaling"), plain.client("ec2")
    template = {"ImageId": "ami-12345678", "InstanceType": "c7i.large"}
    ec2.create_launch_template(LaunchTemplateName="gap", LaunchTemplateData=template)
    autoscaling.create_auto_scaling_group(
        AutoScalingGroupName="gap",
        MinSize=0,
        MaxSize=2,
        DesiredCapacity=1,
        AvailabilityZones=["us-east-1a"],
        LaunchTemplate={"LaunchTemplateName": "gap"},
    )
    found = autoscaling.describe_scaling_activities(AutoScalingGroupName="gap")
    assert found["Activities"] == []


def test_a_command_succeeds_by_itself(plain):
    instance = "i-0123456789abcdef0"
    ssm = plain.client("ssm")
    sent = ssm.send_command(InstanceIds=[instance], DocumentName="AWS-RunShellScript")
    command = sent["Command"]["CommandId"]
    found = ssm.get_command_invocation(CommandId=command, InstanceId=instance)
    assert found["Status"] == "Success"


def test_no_execution_announces_its_end(executing):
    client, events = executing.client("stepfunctions"), executing.client("events")
    sqs = executing.client("sqs")
    url = sqs.create_queue(QueueName="ends")["QueueUrl"]
    events.put_rule(Name="ends", EventPattern=json.dumps({"source": ["aws.states"]}))
    arn = "arn:aws:sqs:us-east-1:123456789012:ends"
    events.put_targets(Rule="ends", Targets=[{"Id": "1", "Arn": arn}])
    created = client.create_state_machine(name="quiet", definition=PASS, roleArn=ROLE)
    started = client.start_execution(stateMachineArn=created["stateMachineArn"], name="once")
    _wait_for_end(client, started["executionArn"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def _wait_for_end(client, arn):
    def over():
        return client.describe_execution(executionArn=arn)["status"] != "RUNNING"

    until(over, "the end of the execution")

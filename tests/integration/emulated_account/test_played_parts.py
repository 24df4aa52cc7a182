"""The parts that play instances: metadata, user data, branches; and resources moto would skip."""

import base64
import json
import urllib.error
import urllib.request
import uuid

import pytest

from tests.emulator import user_data
from tests.emulator.branches import BranchRecord, edges_of, executed_edges
from tests.emulator.imds import FakeImds, Metadata

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def metadata():
    return Metadata(
        instance_id="i-0123456789abcdef0",
        instance_type="c7i.large",
        region="us-east-1",
        zone="us-east-1a",
    )


@pytest.fixture
def imds(metadata):
    with FakeImds(metadata) as running:
        yield running


def ask(imds, path, method="GET", **headers):
    """Status and text of one request."""
    request = urllib.request.Request(f"{imds.endpoint}/latest/{path}", method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


@pytest.fixture
def read(imds):
    _, token = ask(imds, "api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="21600")

    def with_token(path):
        return ask(imds, path, X_aws_ec2_metadata_token=token)

    return with_token


def test_nothing_is_read_without_a_token(imds):
    assert ask(imds, "meta-data/instance-id")[0] == 401
    assert ask(imds, "meta-data/instance-id", X_aws_ec2_metadata_token="guessed")[0] == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "soon"])
def test_a_token_needs_a_time_to_live(imds, ttl):
    assert ask(imds, "api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds=ttl)[0] == 400


def test_notices_appear_when_they_are_given(metadata, read):
    paths = ("meta-data/spot/instance-action", "meta-data/events/recommendations/rebalance")
    assert [read(path)[0] for path in paths] == [404, 404]
    metadata.notice_interruption(120)
    metadata.recommend_rebalance()
    action, rebalance = (json.loads(read(path)[1]) for path in paths)
    assert action["action"] == "terminate"
    assert action["time"].endswith("Z")
    assert set(rebalance) == {"noticeTime"}


def test_the_role_and_the_identity_are_there(read):
    assert read("meta-data/iam/security-credentials/") == (200, "role")
    keys = json.loads(read("meta-data/iam/security-credentials/role")[1])
    assert {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"} <= set(keys)
    identity = json.loads(read("dynamic/instance-identity/document")[1])
    assert identity["instanceId"] == "i-0123456789abcdef0"
    assert read("meta-data/nothing")[0] == 404


USER_DATA = """#!/bin/bash
aws s3 cp --only-show-errors 's3://assets-1/abc.zip' /opt/luma/runtime.zip
echo '{digest}  /opt/luma/runtime.zip' | sha256sum --check --status
bash /opt/luma/src/node/bootstrap.sh --deployment Luma --fleet c7i --family cpu --region us-east-1 --env 'A=b c'
"""


def test_user_data_is_read_as_an_instance_would():
    text = USER_DATA.format(digest="0" * 64)
    found = user_data.read(base64.b64encode(text.encode()).decode())
    assert (found.bucket, found.key, found.digest) == ("assets-1", "abc.zip", "0" * 64)
    assert found.environment == {
        "LUMA_STACK": "Luma",
        "LUMA_FLEET": "c7i",
        "AWS_REGION": "us-east-1",
        "A": "b c",
    }


@pytest.mark.parametrize("missing", ["aws s3 cp", "sha256sum", "bootstrap.sh"])
def test_user_data_without_a_part_is_refused(missing):
    lines = USER_DATA.format(digest="0" * 64).splitlines()
    text = "\n".join(line for line in lines if missing not in line)
    with pytest.raises(user_data.UserDataError):
        user_data.read(base64.b64encode(text.encode()).decode())


def test_branches_are_counted_inside_and_out(machine, server, ended, tmp_path):
    inner = {
        "StartAt": "Look",
        "States": {
            "Look": {
                "Type": "Choice",
                "Choices": [{"Variable": "$.n", "NumericEquals": 1, "Next": "One"}],
                "Default": "Many",
            },
            "One": {"Type": "Pass", "End": True},
            "Many": {"Type": "Pass", "End": True},
        },
    }
    each = {
        "Type": "Map",
        "ItemsPath": "$.items",
        "ItemProcessor": inner,
        "Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Failed"}],
        "Next": "Done",
    }
    arn = machine(Each=each, Done={"Type": "Succeed"}, Failed={"Type": "Fail"})
    client = server.client("stepfunctions")
    definition = json.loads(client.describe_state_machine(stateMachineArn=arn)["definition"])
    edges = edges_of(definition)
    assert edges == {("Look", "One"), ("Look", "Many"), ("Each", "Failed"), ("Each", "Done")}

    def run(*numbers):
        items = json.dumps({"items": [{"n": n} for n in numbers]})
        started = client.start_execution(stateMachineArn=arn, input=items)["executionArn"]
        assert ended(started)["status"] == "SUCCEEDED"
        return client.get_execution_history(executionArn=started)["events"]

    assert executed_edges(run(1), edges) == {("Look", "One"), ("Each", "Done")}
    record = BranchRecord()
    record.add_machine(client, arn)
    assert (record.executed, record.total) == (2, 4)
    run(1, 2)
    later = BranchRecord()
    later.add_machine(client, arn)
    later.write(tmp_path / "later.json")
    record.merge(tmp_path / "later.json")
    assert record.executed == 3
    assert record.missing() == [("Each", "Failed")]


@pytest.fixture
def stack(server):
    """Make a stack of some resources."""
    client = server.client("cloudformation")
    made = []

    def make(**resources):
        name = f"s-{uuid.uuid4().hex}"
        client.create_stack(StackName=name, TemplateBody=json.dumps({"Resources": resources}))
        made.append(name)
        return client.describe_stacks(StackName=name)["Stacks"][0]

    yield make
    for name in made:
        client.delete_stack(StackName=name)


def test_a_parameters_tags_and_a_documents_content_are_taken(server, stack):
    name = f"/p/{uuid.uuid4().hex}"
    parameter = {"Name": name, "Type": "String", "Value": "v", "Tags": {"a": "b"}}
    steps = [{"action": "aws:runShellScript", "name": "n", "inputs": {"runCommand": ["true"]}}]
    content = {"schemaVersion": "2.2", "description": "d", "mainSteps": steps}
    document = {"Content": content, "DocumentType": "Command"}
    made = stack(
        P={"Type": "AWS::SSM::Parameter", "Properties": parameter},
        D={"Type": "AWS::SSM::Document", "Properties": document},
    )
    assert made["StackStatus"] == "CREATE_COMPLETE"
    assert server.client("ssm").get_parameter(Name=name)["Parameter"]["Value"] == "v"


def test_an_alarm_can_be_referred_to(server, stack):
    alarm = {
        "Namespace": "Luma",
        "MetricName": "StepsLost",
        "ComparisonOperator": "GreaterThanThreshold",
        "EvaluationPeriods": 1,
        "Threshold": 0,
        "Period": 60,
        "Statistic": "Sum",
    }
    value = {"Fn::GetAtt": ["A", "Arn"]}
    name = f"/p/{uuid.uuid4().hex}"
    parameter = {"Name": name, "Type": "String", "Value": value}
    stack(
        A={"Type": "AWS::CloudWatch::Alarm", "Properties": alarm},
        P={"Type": "AWS::SSM::Parameter", "Properties": parameter},
    )
    arn = server.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    alarms = server.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert arn in [found["AlarmArn"] for found in alarms]


def test_a_stack_that_fails_half_way_is_rolled_back(server, stack):
    sqs, ssm = server.client("sqs"), server.client("ssm")
    name = f"q-{uuid.uuid4().hex}"
    taken = f"/p/{uuid.uuid4().hex}"
    ssm.put_parameter(Name=taken, Value="v", Type="String")
    made = stack(
        Q={"Type": "AWS::SQS::Queue", "Properties": {"QueueName": name}},
        P={
            "Type": "AWS::SSM::Parameter",
            "DependsOn": "Q",
            "Properties": {"Name": taken, "Type": "String", "Value": "mine"},
        },
    )
    assert made["StackStatus"] == "ROLLBACK_COMPLETE"
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=name)
    assert ssm.get_parameter(Name=taken)["Parameter"]["Value"] == "v"
    events = server.client("cloudformation").describe_stack_events(StackName=made["StackName"])
    reasons = [e.get("ResourceStatusReason", "") for e in events["StackEvents"]]
    assert any("ParameterAlreadyExists" in reason for reason in reasons)


def test_deleting_a_machine_ends_its_executions(server, machine, queue, received):
    client = server.client("stepfunctions")
    state = {
        "Type": "Task",
        "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
        "Parameters": {"QueueUrl": queue, "MessageBody": {"token.$": "$$.Task.Token"}},
        "End": True,
    }
    arn = machine(W=state)
    client.start_execution(stateMachineArn=arn)
    [work] = received(1)
    client.delete_state_machine(stateMachineArn=arn)
    with pytest.raises(client.exceptions.InvalidToken):
        client.send_task_heartbeat(taskToken=work["token"])

"""SSM commands that wait for their instance, and errors that a test orders."""

import json
import threading

import pytest
from botocore.exceptions import ClientError

from tests.emulator.faults import Fault
from tests.emulator.waiting import until

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def ssm(server):
    return server.client("ssm")


@pytest.fixture
def instance(server):
    ec2 = server.client("ec2")
    made = ec2.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)["Instances"][0]
    yield made["InstanceId"]
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    server.commands(None)


def send(ssm, instance, **options):
    sent = ssm.send_command(InstanceIds=[instance], DocumentName="AWS-RunShellScript", **options)
    return sent["Command"]["CommandId"]


def status(ssm, instance, command):
    return ssm.get_command_invocation(CommandId=command, InstanceId=instance)["Status"]


@pytest.mark.parametrize("answer", ["Success", "Failed", "TimedOut", "Cancelled"])
def test_a_rule_answers_at_once(server, ssm, instance, answer):
    server.commands(answer)
    assert status(ssm, instance, send(ssm, instance)) == answer


def test_a_silent_instance_times_out_after_the_commands_time(server, ssm, instance):
    server.commands("silent")
    command = send(ssm, instance, TimeoutSeconds=30)
    assert status(ssm, instance, command) == "Pending"


def test_a_player_takes_a_command_once_and_answers_it(server, ssm, instance):
    server.commands("played")
    command = send(ssm, instance, Parameters={"commands": ["true"]})
    [taken] = server.control("take-commands", instance=instance)
    assert taken["command_id"] == command
    assert server.control("take-commands", instance=instance) == []
    assert status(ssm, instance, command) == "InProgress"
    server.control(
        "answer-command", command_id=command, instance_id=instance, code=3, out="a", err="b"
    )
    found = ssm.get_command_invocation(CommandId=command, InstanceId=instance)
    assert (found["Status"], found["ResponseCode"]) == ("Failed", 3)
    assert (found["StandardOutputContent"], found["StandardErrorContent"]) == ("a", "b")


def test_a_command_goes_to_nobody_else(server, ssm, instance):
    ec2 = server.client("ec2")
    made = ec2.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)["Instances"][0]
    server.commands("played")
    send(ssm, instance)
    assert server.control("take-commands", instance=made["InstanceId"]) == []
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])


def test_an_instance_that_is_gone_takes_no_command(server, ssm, instance):
    server.client("ec2").terminate_instances(InstanceIds=[instance])
    with pytest.raises(ClientError) as caught:
        send(ssm, instance)
    assert caught.value.response["Error"]["Code"] == "InvalidInstanceId"


def test_an_unknown_answer_is_refused(server):
    with pytest.raises(Exception, match="400"):
        server.commands("Perhaps")


@pytest.fixture
def ordered(server):
    """Order faults for one test."""
    yield server.fault
    server.lift_faults()


CALLS = [
    ("sqs", "ListQueues", lambda c: c.list_queues(), "AccessDenied"),
    ("dynamodb", "ListTables", lambda c: c.list_tables(), "ThrottlingException"),
    ("s3", "GET", lambda c: c.list_buckets(), "AccessDenied"),
    ("ec2", "DescribeVpcs", lambda c: c.describe_vpcs(), "UnauthorizedOperation"),
    (
        "autoscaling",
        "DescribeAutoScalingGroups",
        lambda c: c.describe_auto_scaling_groups(),
        "Throttling",
    ),
    ("ssm", "DescribeParameters", lambda c: c.describe_parameters(), "AccessDeniedException"),
]


@pytest.mark.parametrize(
    ("service", "operation", "call", "error"), CALLS, ids=[row[0] for row in CALLS]
)
def test_a_fault_meets_so_many_calls_in_the_services_own_form(
    server, ordered, service, operation, call, error
):
    client = server.client(service)
    ordered(Fault(service=service, operation=operation, code=error, message="no", times=2))
    for _ in range(2):
        with pytest.raises(ClientError) as caught:
            call(client)
        assert caught.value.response["Error"]["Code"] == error
        assert caught.value.response["Error"]["Message"] == "no"
    call(client)
    assert server.lift_faults() >= 2


def test_a_fault_meets_only_calls_that_hold_its_text(server, ordered):
    client = server.client("s3")
    ordered(Fault(service="s3", operation="PUT", holding="refused-bucket"))
    client.create_bucket(Bucket="other-bucket")
    with pytest.raises(ClientError):
        client.create_bucket(Bucket="refused-bucket")
    client.delete_bucket(Bucket="other-bucket")


def test_a_states_retry_meets_a_fault_as_well(server, ordered, machine, ended):
    task = {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:dynamodb:listTables",
        "Retry": [{"ErrorEquals": ["States.TaskFailed"], "IntervalSeconds": 1, "MaxAttempts": 3}],
        "End": True,
    }
    fault = Fault(service="dynamodb", operation="ListTables", code="ThrottlingException", times=2)
    ordered(fault)
    client = server.client("stepfunctions")
    arn = client.start_execution(stateMachineArn=machine(T=task))["executionArn"]
    end = ended(arn)
    assert "TableNames" in json.loads(end["output"])
    until(lambda: server.lift_faults() >= 2, "both calls met the fault")


def test_held_calls_go_on_one_by_one(server):
    client = server.client("dynamodb")
    server.hold("dynamodb", "ListTables")
    answered = []

    def call():
        client.list_tables()
        answered.append(1)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(server.held()) == 3, "three held calls")
    server.release("dynamodb", "ListTables")
    until(lambda: len(server.held()) == 2, "one released")
    until(lambda: len(answered) == 1, "its answer")
    client.describe_limits()  # others of the service are not held
    server.release("dynamodb", "ListTables", everything=True)
    for thread in threads:
        thread.join()
    assert len(answered) == 3
    client.list_tables()


def test_lifting_faults_ends_holds(server):
    server.hold("sqs", "ListQueues")
    waiting = threading.Thread(target=server.client("sqs").list_queues)
    waiting.start()
    until(server.held, "a held call")
    server.lift_faults()
    waiting.join()

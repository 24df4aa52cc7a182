"""Step Functions where moto's interpreter differs from AWS: tokens, heartbeats, errors, stops."""

import json

import pytest
from botocore.exceptions import ClientError

from tests.emulator.waiting import until

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)

WAIT_FOR_TOKEN = "arn:aws:states:::sqs:sendMessage.waitForTaskToken"


def waiting(queue, **more):
    """A state that gives work to a queue and waits for the answer."""
    return {
        "Type": "Task",
        "Resource": WAIT_FOR_TOKEN,
        "TimeoutSeconds": 300,
        "Parameters": {"QueueUrl": queue, "MessageBody": {"token.$": "$$.Task.Token"}},
        **({"End": True} if "Next" not in more else {}),
        **more,
    }


@pytest.fixture
def client(server):
    return server.client("stepfunctions")


@pytest.fixture
def start(client):
    def begin(arn):
        return client.start_execution(stateMachineArn=arn, input="{}")["executionArn"]

    return begin


def code(call, **arguments):
    """The error code of a call that fails."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"]


def test_an_answer_ends_the_task_and_closes_its_token(
    client, machine, queue, received, start, ended
):
    arn = start(machine(W=waiting(queue)))
    [work] = received(1)
    client.send_task_heartbeat(taskToken=work["token"])
    client.send_task_success(taskToken=work["token"], output='{"ended": "done"}')
    assert json.loads(ended(arn)["output"]) == {"ended": "done"}
    for call in (client.send_task_heartbeat, client.send_task_failure):
        assert code(call, taskToken=work["token"]) == "TaskTimedOut"


def test_only_the_first_of_two_answers_counts(client, machine, queue, received, start, ended):
    arn = start(machine(W=waiting(queue)))
    [work] = received(1)
    client.send_task_success(taskToken=work["token"], output='"first"')
    late = code(client.send_task_success, taskToken=work["token"], output='"second"')
    assert late == "TaskTimedOut"
    assert json.loads(ended(arn)["output"]) == "first"


def test_a_token_that_never_was_is_invalid(client):
    assert code(client.send_task_heartbeat, taskToken="nobody's") == "InvalidToken"


def test_a_failure_keeps_error_and_cause(client, machine, queue, received, start, ended):
    arn = start(machine(W=waiting(queue)))
    [work] = received(1)
    client.send_task_failure(taskToken=work["token"], error="Luma.Refused", cause="too big")
    end = ended(arn)
    assert (end["status"], end["error"], end["cause"]) == ("FAILED", "Luma.Refused", "too big")


@pytest.mark.parametrize("caught", ["States.HeartbeatTimeout", "States.Timeout"])
def test_a_missed_heartbeat_is_caught_by_both_names(
    client, machine, queue, received, start, ended, caught
):
    catch = [{"ErrorEquals": [caught], "ResultPath": "$.error", "Next": "Again"}]
    again = {"Type": "Pass", "End": True}
    arn = start(machine(W=waiting(queue, HeartbeatSeconds=1, Catch=catch), Again=again))
    [work] = received(1)
    output = json.loads(ended(arn)["output"])
    assert output["error"]["Error"] == "States.HeartbeatTimeout"
    assert code(client.send_task_heartbeat, taskToken=work["token"]) == "TaskTimedOut"


def test_the_time_limit_of_a_task_holds_without_heartbeats(machine, queue, start, ended):
    end = ended(start(machine(W=waiting(queue, TimeoutSeconds=1))))
    assert (end["status"], end["error"]) == ("FAILED", "States.Timeout")


@pytest.mark.parametrize("error", ["Luma.JobFailed", "States.Timeout"])
def test_a_failed_branch_ends_the_others_with_its_error(
    client, machine, queue, received, start, ended, error
):
    fails = waiting(queue, TimeoutSeconds=1) if error == "States.Timeout" else waiting(queue)
    fails["Parameters"]["MessageBody"]["fails"] = True
    branches = [
        {"StartAt": "Fails", "States": {"Fails": fails}},
        {"StartAt": "Waits", "States": {"Waits": waiting(queue)}},
    ]
    catch = [{"ErrorEquals": [error], "ResultPath": "$.error", "Next": "Caught"}]
    both = {"Type": "Parallel", "Branches": branches, "Catch": catch, "End": True}
    arn = start(machine(Both=both, Caught={"Type": "Pass", "End": True}))
    works = received(2)
    if error == "Luma.JobFailed":
        [failing] = [work for work in works if "fails" in work]
        client.send_task_failure(taskToken=failing["token"], error=error)
    assert json.loads(ended(arn)["output"])["error"]["Error"] == error
    for work in works:

        def closed(token=work["token"]):
            try:
                client.send_task_heartbeat(taskToken=token)
            except client.exceptions.TaskTimedOut:
                return True
            return False

        until(closed, "the end of the branch's task")


def test_a_stop_is_at_once_and_keeps_its_words(client, machine, queue, received, start):
    arn = start(machine(W=waiting(queue)))
    [work] = received(1)
    client.stop_execution(executionArn=arn, error="Person", cause="changed my mind")
    end = client.describe_execution(executionArn=arn)
    assert (end["status"], end["error"], end["cause"]) == ("ABORTED", "Person", "changed my mind")
    assert "stopDate" in end
    assert code(client.send_task_heartbeat, taskToken=work["token"]) == "TaskTimedOut"


def test_an_execution_that_is_stopped_at_its_first_breath_does_not_run_on(
    client, machine, queue, start, server
):
    for _ in range(5):
        arn = start(machine(P={"Type": "Pass", "Next": "W"}, W=waiting(queue)))
        client.stop_execution(executionArn=arn)
        assert client.describe_execution(executionArn=arn)["status"] == "ABORTED"


def test_an_execution_out_of_time_says_when(client, machine, ended, start, queue):
    arn = machine(W=waiting(queue))
    definition = json.loads(client.describe_state_machine(stateMachineArn=arn)["definition"])
    limited = json.dumps({**definition, "TimeoutSeconds": 1})
    client.update_state_machine(stateMachineArn=arn, definition=limited)
    end = ended(start(arn))
    assert end["status"] == "TIMED_OUT"
    assert end["stopDate"] >= end["startDate"]


def test_an_execution_has_a_name_of_its_own(machine, start, ended):
    names = {"Type": "Pass", "Parameters": {"name.$": "$$.Execution.Name"}, "End": True}
    arn = machine(P=names)
    found = {json.loads(ended(start(arn))["output"])["name"] for _ in range(3)}
    assert len(found) == 3
    assert None not in found


def test_errors_of_sdk_tasks_carry_the_services_name(machine, start, ended):
    task = {
        "Type": "Task",
        "Resource": "arn:aws:states:::aws-sdk:autoscaling:setDesiredCapacity",
        "Parameters": {"AutoScalingGroupName": "nobody's", "DesiredCapacity": 1},
        "End": True,
    }
    assert ended(start(machine(T=task)))["error"].startswith("AutoScaling.")

"""One emulated account for each module of tests, and small resources in it."""

import json
import uuid
from typing import Any

import pytest

from tests.emulator.server import EmulatedServer
from tests.emulator.waiting import until

ROLE = "arn:aws:iam::123456789012:role/anything"


@pytest.fixture(scope="module")
def server():
    with EmulatedServer() as running:
        yield running


@pytest.fixture(scope="module")
def plain():
    """moto as it is."""
    with EmulatedServer(plain=True) as running:
        yield running


@pytest.fixture
def machine(server):
    """Make a state machine of some states, the first of which starts."""
    client = server.client("stepfunctions")
    made = []

    def make(**states: dict[str, Any]) -> str:
        name = f"m-{uuid.uuid4().hex}"
        definition = {"StartAt": next(iter(states)), "States": states}
        answer = client.create_state_machine(
            name=name, definition=json.dumps(definition), roleArn=ROLE
        )
        made.append(answer["stateMachineArn"])
        return made[-1]

    yield make
    for arn in made:
        client.delete_state_machine(stateMachineArn=arn)


@pytest.fixture
def queue(server):
    """A queue of the test's own: its URL."""
    client = server.client("sqs")
    url = client.create_queue(QueueName=f"q-{uuid.uuid4().hex}")["QueueUrl"]
    yield url
    client.delete_queue(QueueUrl=url)


@pytest.fixture
def received(server, queue):
    """Take messages off the queue, as JSON, until there are so many."""
    client = server.client("sqs")

    def take(count: int) -> list[Any]:
        bodies: list[Any] = []

        def enough() -> bool:
            answer = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
            for message in answer.get("Messages", []):
                bodies.append(json.loads(message["Body"]))
                client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            return len(bodies) >= count

        until(enough, f"{count} messages in the queue")
        return bodies

    return take


@pytest.fixture
def ended(server):
    """Wait for an execution's end and give its description."""
    client = server.client("stepfunctions")

    def wait(arn: str) -> dict[str, Any]:
        def over() -> dict[str, Any] | None:
            found = client.describe_execution(executionArn=arn)
            return found if found["status"] != "RUNNING" else None

        return until(over, f"the end of {arn}")

    return wait

"""Answers and heartbeats of a task token, with a client that says what AWS may say.

The same on an emulated account: tests/integration/account.
"""

from __future__ import annotations

import threading

import pytest

from runtime.agent.node import tasks
from runtime.agent.node.tasks import Failure, Heartbeats, StaleTokenError, Success, Task
from runtime.spec.aws import AwsError


@pytest.fixture
def states(monkeypatch):
    """Stand in for the client: it keeps what was said, and fails as it is told to."""

    class States:
        def __init__(self) -> None:
            self.said: list[tuple[str, dict]] = []
            self.fails: list[str] = []

        def _say(self, name: str, fields: dict) -> None:
            if self.fails:
                from botocore.exceptions import ClientError

                code = self.fails.pop(0)
                raise ClientError({"Error": {"Code": code, "Message": "said so"}}, name)
            self.said.append((name, fields))

        def __getattr__(self, name: str):
            return lambda **fields: self._say(name, fields)

    made = States()
    monkeypatch.setattr(tasks, "aws_client", lambda service, region: made)
    return made


def test_answers_go_out_with_the_token(states):
    task = Task("token", region="us-east-1")
    task.beat()
    task.answer(Success({"ended": "done"}))
    task.answer(Failure("Luma.Refused", "x" * 40_000))
    assert states.said[0] == ("send_task_heartbeat", {"taskToken": "token"})
    assert states.said[1][1]["output"] == '{"ended": "done"}'
    name, fields = states.said[2]
    assert (name, fields["error"], len(fields["cause"])) == (
        "send_task_failure",
        "Luma.Refused",
        30_000,
    )


@pytest.mark.parametrize("code", ["TaskTimedOut", "TaskDoesNotExist", "InvalidToken"])
def test_a_closed_token_is_stale(states, code):
    states.fails = [code]
    with pytest.raises(StaleTokenError):
        Task("token", region="us-east-1").beat()


def test_any_other_refusal_is_an_error_without_the_token(states):
    states.fails = ["AccessDeniedException"]
    with pytest.raises(AwsError) as refused:
        Task("secret-token", region="us-east-1").answer(Success({}))
    assert "secret-token" not in refused.value.diagnostics()


def test_heartbeats_go_on_through_errors_and_end_when_stale(states):
    stale = threading.Event()
    states.fails = ["ThrottlingException", "InternalError", "TaskTimedOut"]
    task = Task("token", region="us-east-1")
    with Heartbeats(task, interval_s=0.04, on_stale=stale.set):
        assert stale.wait(60)
    assert states.fails == []
    assert states.said == []


def test_heartbeats_end_with_the_work(states):
    task = Task("token", region="us-east-1")
    with Heartbeats(task, interval_s=0.02, on_stale=lambda: None):
        while not states.said:
            threading.Event().wait(0.005)
    count = len(states.said)
    threading.Event().wait(0.1)
    assert len(states.said) == count

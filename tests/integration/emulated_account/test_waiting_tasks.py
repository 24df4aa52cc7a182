"""The wait for a task's answer, on a clock of its own: heartbeats, time-outs, stops."""

import pytest
from moto.stepfunctions.parser.asl.eval.callback.callback import (
    CallbackEndpoint,
    CallbackOutcomeSuccess,
    CallbackOutcomeTimedOut,
    HeartbeatTimedOut,
)

from tests.emulator import executions

# Several processes start here: pytest's own limit is too short for a busy machine.
pytestmark = pytest.mark.timeout(900)


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self):
        self.now = 0.0
        self.plans = {}  # whole second -> what happens in it

    def monotonic(self):
        return self.now

    def wait(self, seconds):
        before = int(self.now)
        self.now += seconds
        for second in range(before + 1, int(self.now) + 1):
            self.plans.pop(second, lambda: None)()
        return False


class Execution:
    running = True

    def is_running(self):
        return self.running


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(executions, "time", made)
    return made


@pytest.fixture
def endpoint(clock):
    made = CallbackEndpoint("token")
    made._notify_event = clock
    clock.set = lambda: None
    return made


def wait(endpoint, env=None, *, timeout=100, heartbeat=None):
    beats = endpoint.setup_heartbeat_endpoint(heartbeat) if heartbeat else None
    return executions._wait_for_task_token(None, None, env or Execution(), timeout, endpoint, beats)


def test_heartbeats_keep_a_task_beyond_their_interval(clock, endpoint):
    answer = CallbackOutcomeSuccess("token", "1")
    for second in range(2, 20, 2):
        clock.plans[second] = endpoint.notify_heartbeat
    clock.plans[21] = lambda: endpoint.notify(answer)
    assert wait(endpoint, heartbeat=3) is answer
    assert clock.now >= 21


def test_a_task_ends_where_heartbeats_stop(clock, endpoint):
    clock.plans[2] = endpoint.notify_heartbeat
    assert isinstance(wait(endpoint, heartbeat=3), HeartbeatTimedOut)
    assert 5 < clock.now < 6


def test_heartbeats_do_not_extend_the_tasks_own_limit(clock, endpoint):
    for second in range(1, 30):
        clock.plans[second] = endpoint.notify_heartbeat
    assert isinstance(wait(endpoint, timeout=10, heartbeat=3), CallbackOutcomeTimedOut)
    assert 10 < clock.now < 11


def test_a_stopped_execution_waits_no_longer(clock, endpoint):
    env = Execution()
    clock.plans[4] = lambda: setattr(env, "running", False)
    assert isinstance(wait(endpoint, env, heartbeat=10), CallbackOutcomeTimedOut)
    assert clock.now < 5


def test_an_answer_before_the_wait_counts(clock, endpoint):
    answer = CallbackOutcomeSuccess("token", "1")
    endpoint.notify(answer)
    assert wait(endpoint, heartbeat=1) is answer

"""The machine that cleans up behind executions which could not end by themselves."""

import json

import pytest

from tests.integration.state_machines.scenes import (
    place,
)
from tests.integration.state_machines.world import Contender

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def status_change(status, given, arn="an execution"):
    """An execution's end, as EventBridge delivers it."""
    return {
        "id": "end",
        "detail-type": "Step Functions Execution Status Change",
        "source": "aws.states",
        "time": "2026-11-30T20:00:00Z",
        "detail": {"executionArn": arn, "status": status, "input": json.dumps(given)},
    }


def held(world, state="running", slots=2):
    """A run whose execution is gone, with claims on a node in EC2 and on one outside."""
    world.prepare("one", state=state, slots=slots, execution="an execution")
    place(world, "one")
    world.put("RUN#one", "SLOT#01", fleet="lab", queue="q", asg="", moved=0, claimed="x")
    world.put("FLEET#lab", "FLEET", desired=1)
    world.put("FLEET#lab", "RUN#one", count=1)


def cleaned(world, event):
    """Run the machine on an event and give what it did."""
    arn = world.start("JobsCleanUp", event)
    assert world.end(arn)["status"] == "SUCCEEDED"
    return world.path(arn)


def test_a_run_that_is_stopped_in_the_console_gives_everything_back(world):
    world.prepare("one", slots=1)
    arn = world.start("Jobs", {"run": "one"})
    world.take("coordinator")
    world.take("l4")
    world.stop(arn)
    [cleaning] = world.awaited("JobsCleanUp", 1)
    assert world.end(cleaning)["status"] == "SUCCEEDED"
    assert world.run("one")["state"] == "terminated"
    assert "ABORTED" in world.run("one")["reason"]
    assert world.claims("one") == {}
    assert (world.size("l4"), world.size("coordinator")) == (0, 0)
    again = world.start("Jobs", {"run": "one"})
    world.take("coordinator")
    world.take("l4")
    world.stop(again)


@pytest.mark.parametrize("state", ["provisioning", "running", "terminating"])
@pytest.mark.parametrize("status", ["TIMED_OUT", "FAILED"])
def test_a_run_whose_execution_ended_early_has_failed(world, state, status):
    held(world, state)
    assert cleaned(world, status_change(status, {"run": "one"}))[-1] == "Cleaned up"
    assert world.run("one")["state"] == "failed"
    assert status in world.run("one")["reason"]
    assert world.claims("one") == {}
    assert world.size("l4") == 0


def test_twice_gives_back_once(world):
    held(world)
    world.put("FLEET#l4", "FLEET", desired=2)
    event = status_change("FAILED", {"run": "one"})
    cleaned(world, event)
    world.change("RUN#one", "RUN", state="terminating")
    cleaned(world, event)
    assert world.claims("one") == {"l4": (0, 1)}


@pytest.mark.parametrize(
    ("given", "arn"), [({}, "an execution"), ({"run": "one"}, "another"), ({"run": 1}, "x")]
)
def test_an_end_that_is_no_runs_changes_nothing(world, given, arn):
    held(world)
    path = cleaned(world, status_change("FAILED", given, arn))
    assert path[-1] == "Nothing to clean up"
    assert world.claims("one") == {"l4": (1, 1), "lab": (1, 1)}


def test_a_run_that_had_no_places_yet_is_ended(world):
    world.prepare("one", state="provisioning", execution="an execution")
    world.fault("sns", "Publish", "InternalError")
    path = cleaned(world, status_change("FAILED", {"run": "one"}))
    assert "Told" in path
    assert world.run("one")["state"] == "failed"


def test_claims_of_others_are_seen_and_no_group_gets_more_than_it_may_have(world):
    held(world)
    world.put("FLEET#l4", "FLEET", desired=9)
    with Contender(world, "l4"):
        cleaned(world, status_change("FAILED", {"run": "one"}))
    assert world.claims("one") == {"l4": (0, 9)}
    assert world.size("l4") == 3
    world.put("FLEET#l4", "FLEET", desired=0)
    world.resize("l4", 0)
    held(world)
    world.put("FLEET#l4", "FLEET", desired=9)
    cleaned(world, status_change("FAILED", {"run": "one"}))
    assert world.size("l4") == 3

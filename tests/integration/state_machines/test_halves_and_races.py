"""What goes on while others do something: failovers that die half-way, claims that change, places
that move. Calls are held until the test has changed what they are about to meet."""

import pytest

from tests.integration.state_machines.scenes import (
    DONE,
    at_work,
    left,
    over,
    place,
    spot_warning,
)
from tests.integration.state_machines.world import Contender

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


CHANGES = [
    ("ssm", "SendCommand"),
    ("autoscaling", "DetachInstances"),
    ("autoscaling", "DescribeAutoScalingGroups"),
    ("ec2", "TerminateInstances"),
    ("sns", "Publish"),
]
"""Calls of a failover, in their order: where it is killed."""


@pytest.mark.parametrize(("service", "operation"), CHANGES)
def test_a_failover_that_died_anywhere_is_finished_by_the_same_event(world, service, operation):
    instance = at_work(world)
    left(world, instance)
    world.server.hold(service, operation)
    dying = world.start("Failover", spot_warning(instance))
    world.held(service, operation)
    world.stop(dying)
    world.server.lift_faults()
    assert world.end(dying)["status"] == "ABORTED"
    assert world.item("EVENT#e1", "EVENT")["status"] == "started"
    over(world, world.start("Failover", spot_warning(instance)), "replaced")
    assert world.claims("one") == {"l4": (1, 1)}
    assert (world.size("l4"), len(world.instances("l4"))) == (1, 1)
    assert world.instance_state(instance) == "terminated"


def test_a_move_in_crowded_fleets_that_died_half_way_is_finished_too(world):
    instance = at_work(world)
    left(world, instance)
    for fleet in ("l4", "a10"):
        world.put(f"FLEET#{fleet}", "FLEET", desired=10)
    world.none_left("l4")
    world.server.hold("autoscaling", "SetDesiredCapacity")
    dying = world.start("Failover", spot_warning(instance))
    world.held("autoscaling", "SetDesiredCapacity")
    world.stop(dying)
    world.server.lift_faults()
    with Contender(world, "a10"):
        over(world, world.start("Failover", spot_warning(instance)), "moved")
    assert (world.size("l4"), world.size("a10")) == (3, 3)
    assert world.item("RUN#one", "SLOT#00")["moved"] == 1


def test_two_events_of_one_reclaim_at_once_move_one_claim(world):
    instance = at_work(world)
    left(world, instance)
    world.none_left("l4")
    world.server.hold("ssm", "GetParameter")
    both = [world.start("Failover", spot_warning(instance, event)) for event in ("e1", "e2")]
    for arn in both:
        world.reached(arn, "Look up the fleet (failover)")
    world.server.lift_faults()
    for arn, event in zip(both, ("e1", "e2"), strict=True):
        over(world, arn, "moved", event)
    assert world.claims("one") == {"a10": (1, 1)}
    assert world.item("RUN#one", "SLOT#00")["moved"] == 1
    assert len(world.instances("a10")) == 1


def test_a_run_that_ends_during_a_failover_keeps_its_place_where_it_is(world):
    instance = at_work(world)
    left(world, instance)
    world.none_left("l4")
    world.server.hold("ssm", "GetParameter")
    arn = world.start("Failover", spot_warning(instance))
    world.held("ssm", "GetParameter")
    world.change("RUN#one", "RUN", state="terminating")
    world.server.lift_faults()
    over(world, arn, "idle")
    assert world.item("RUN#one", "SLOT#00")["fleet"] == "l4"


def test_an_instance_that_was_detached_by_hand_is_ended_without_a_second_order(world):
    instance = at_work(world)
    left(world, instance)
    world.detach("l4", instance)
    arn = world.start("Failover", spot_warning(instance))
    over(world, arn, "replaced")
    assert "Order a replacement" not in world.path(arn)
    assert world.instance_state(instance) == "terminated"


def test_claims_that_change_while_a_job_sets_sizes_are_seen(world):
    world.prepare("one", artifact=None, slots=1)
    fleets = ("l4", "a10", "coordinator", "compiler")
    with Contender(world, *fleets) as others:
        arn = world.start("Jobs", {"run": "one"})
        world.succeed(world.take("compiler"), artifact="a", level="L1", targets=[])
        coordinate = world.take("coordinator")
        world.fail(world.take("l4"), "Luma.Refused")
        island = world.take("a10")
        world.succeed(coordinate, **DONE)
        world.succeed(island, ended="done")
        world.succeed(world.take("coordinator"), state_hash="abc", certificate="", export="")
        assert world.end(arn)["status"] == "SUCCEEDED"
    assert {state.rpartition(" (")[2] for state in others.states} == {
        "compiler up)",
        "compiler down)",
        "claim)",
        "island)",
        "end)",
    }
    sums = {fleet: world.item(f"FLEET#{fleet}", "FLEET")["desired"] for fleet in fleets}
    assert {fleet: world.size(fleet) for fleet in fleets} == {
        fleet: min(total, 3) for fleet, total in sums.items()
    }


def test_claims_that_change_while_a_failover_moves_one_are_seen(world):
    instance = at_work(world)
    left(world, instance)
    world.none_left("l4")
    with Contender(world, "l4", "a10"):
        over(world, world.start("Failover", spot_warning(instance)), "moved")
    assert world.claims("one") == {"l4": (0, 1), "a10": (1, 2)}
    assert (world.size("l4"), world.size("a10")) == (1, 2)


def test_a_failover_in_crowded_fleets_sets_no_size_that_a_group_cannot_have(world):
    world.prepare("one", state="running", slots=1, fleets=["l4", "a10"])
    instance = place(world, "one")
    left(world, instance)
    for fleet in ("l4", "a10"):
        world.put(f"FLEET#{fleet}", "FLEET", desired=10)
    world.resize("a10", 3)
    world.none_left("l4")
    over(world, world.start("Failover", spot_warning(instance)), "moved")
    assert (world.size("l4"), world.size("a10")) == (3, 3)


def test_claims_of_an_execution_that_is_gone_are_taken_over(world):
    world.prepare("one", state="terminated", artifact=None, slots=1)
    place(world, "one")
    place(world, "one", "compiler")
    arn = world.start("Jobs", {"run": "one", "fleets": ["a10"]})
    world.succeed(world.take("compiler"), artifact="a", level="L1", targets=[])
    coordinate, island = world.take("coordinator"), world.take("l4")
    assert world.claims("one") == {"l4": (1, 1), "coordinator": (1, 1)}
    world.succeed(coordinate, **DONE)
    world.succeed(island, ended="done")
    world.succeed(world.take("coordinator"), state_hash="abc", certificate="", export="")
    assert world.end(arn)["status"] == "SUCCEEDED"
    assert world.claims("one") == {}


def test_a_claim_on_the_compiler_that_somebody_took_away_is_not_given_back_twice(world):
    world.prepare("one", artifact=None, slots=1)
    arn = world.start("Jobs", {"run": "one"})
    compiling = world.take("compiler")
    world.put("RUN#one", "HOST#compiler", fleet="compiler", queue="q", asg="group-compiler")
    world.put("FLEET#compiler", "FLEET", desired=0)
    world.resize("compiler", 0)
    world.succeed(compiling, artifact="a", level="L1", targets=[])
    world.take("coordinator")
    assert world.item("FLEET#compiler", "FLEET")["desired"] == 0
    assert world.size("compiler") == 0
    world.stop(arn)

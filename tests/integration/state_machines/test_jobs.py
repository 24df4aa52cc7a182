"""The job's machine, executed: the test plays the nodes, and says what each answers."""

import pytest

from tests.integration.state_machines.scenes import (
    DONE,
    STOPPED,
    ended,
    finish,
)
from tests.integration.state_machines.world import Keeper

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_deployment_without_a_compiler_says_so(world):
    world.prepare("raw", artifact=None)
    arn = world.start("Bare", {"run": "raw"})
    assert "luma compile" in ended(world, arn, "raw", "failed")["reason"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "Luma.NoRun"),
        ({"run": ""}, "Luma.NoRun"),
        ({"run": 7}, "Luma.NoRun"),
        ({"run": "never"}, "Luma.NotPrepared"),
        ({"run": "one", "slots": 0}, "Luma.BadPlan"),
        ({"run": "one", "slots": "many"}, "Luma.BadPlan"),
        ({"run": "one", "fleets": []}, "Luma.BadPlan"),
    ],
)
def test_an_input_that_cannot_work_ends_before_anything_is_rented(world, given, error):
    world.prepare("one")
    found = world.end(world.start("Jobs", given))
    assert (found["status"], found["error"]) == ("FAILED", error)
    assert world.run("one")["state"] == "pending"
    assert world.claims("one") == {}


def test_a_done_run_is_not_run_again(world):
    world.prepare("one", state="done", state_hash="abc")
    arn = world.start("Jobs", {"run": "one"})
    assert world.end(arn)["status"] == "SUCCEEDED"
    assert world.path(arn)[-1] == "Done before"


def test_of_two_executions_for_one_run_one_goes_on(world):
    world.prepare("one", slots=1)
    first = world.start("Jobs", {"run": "one"})
    coordinate, island = world.take("coordinator"), world.take("l4")
    second = world.start("Jobs", {"run": "one"})
    assert world.end(second)["error"] == "Luma.AlreadyRunning"
    # The rule starts the machine that cleans up, which sees that the run is another one's.
    [cleaning] = world.awaited("JobsCleanUp", 1)
    assert world.end(cleaning)["status"] == "SUCCEEDED"
    assert world.path(cleaning)[-1] == "Nothing to clean up"
    assert world.claims("one") == {"l4": (1, 1), "coordinator": (1, 1)}
    finish(world, coordinate, island)
    ended(world, first, "one", "done")


def test_a_run_stopped_by_its_budget_is_resumed_by_the_same_input(world):
    world.prepare("one", slots=1)
    arn = world.start("Jobs", {"run": "one", "max_cost_usd": 5})
    coordinate, island = world.take("coordinator"), world.take("l4")
    assert world.run("one")["max_cost_usd"] == 5
    world.succeed(coordinate, **STOPPED)
    world.succeed(island, ended="stopped")
    assert ended(world, arn, "one", "terminated")["reason"] == "budget"
    again = world.start("Jobs", {"run": "one", "max_cost_usd": 9})
    finish(world, world.take("coordinator"), world.take("l4"))
    assert ended(world, again, "one", "done")["max_cost_usd"] == 9


def test_slots_that_were_placed_keep_their_fleet(world):
    world.prepare("mix")
    world.put("RUN#mix", "SLOT#01", fleet="a10", queue="of an older stack", moved=2)
    arn = world.start("Jobs", {"run": "mix"})
    coordinate = world.take("coordinator")
    islands = {fleet: world.take(fleet) for fleet in ("l4", "a10")}
    assert {fleet: work["slot"] for fleet, work in islands.items()} == {"l4": 0, "a10": 1}
    assert world.item("RUN#mix", "SLOT#01")["queue"] == world.out["Queuea10"]
    assert world.item("RUN#mix", "SLOT#01")["moved"] == 2
    finish(world, coordinate, *islands.values())
    ended(world, arn, "mix", "done")


def test_fleets_of_the_input_win_and_nodes_outside_ec2_need_no_group(world):
    world.prepare("lab", slots=3)
    world.put("RUN#lab", "SLOT#00", fleet="l4", queue="q", moved=0)
    arn = world.start("Jobs", {"run": "lab", "slots": 1, "fleets": ["lab"]})
    coordinate, island = world.take("coordinator"), world.take("lab", "island")
    assert world.claims("lab") == {"lab": (1, 1), "coordinator": (1, 1)}
    assert (world.run("lab")["slots"], world.run("lab")["fleets"]) == (1, ["lab"])
    finish(world, coordinate, island)
    ended(world, arn, "lab", "done")


def test_a_fleet_that_is_not_there_fails_the_run_with_its_name(world):
    world.prepare("one", fleets=["nowhere"])
    arn = world.start("Jobs", {"run": "one"})
    assert "/luma/Machines/fleets/nowhere" in ended(world, arn, "one", "failed")["reason"]


def test_a_job_that_is_wrong_ends_the_run_with_its_reason(world):
    world.prepare("one", slots=1)
    arn = world.start("Jobs", {"run": "one"})
    world.take("coordinator")
    world.fail(world.take("l4"), "Luma.JobFailed", "loss is not a number at step 3")
    reason = ended(world, arn, "one", "failed")["reason"]
    assert "Luma.JobFailed" in reason
    assert "loss is not a number" in reason


def test_interrupted_work_is_given_to_another_node_wherever_it_was(world):
    world.prepare("one", artifact=None, slots=1)
    arn = world.start("Jobs", {"run": "one"})
    for kind, fleet, answer in (
        ("compile", "compiler", {"artifact": "a", "level": "L1", "targets": []}),
        ("coordinate", "coordinator", None),
        ("island", "l4", None),
    ):
        world.fail(world.take(fleet, kind), "Luma.Interrupted")
        again = world.take(fleet, kind)
        assert again["attempt"] == 1
        if answer:
            world.succeed(again, **answer)
        elif kind == "coordinate":
            coordinate = again
    world.succeed(coordinate, **DONE)
    world.succeed(again, ended="done")
    world.fail(world.take("coordinator", "export"), "Luma.Interrupted")
    world.succeed(world.take("coordinator", "export"), state_hash="h", certificate="", export="")
    ended(world, arn, "one", "done")


@pytest.mark.parametrize("kind", ["compile", "coordinate", "island", "export"])
def test_what_fails_each_time_ends_the_run(world, kind):
    world.prepare("one", artifact=None if kind == "compile" else "a", slots=1)
    arn = world.start("Jobs", {"run": "one"})
    fleet = {"compile": "compiler", "island": "l4"}.get(kind, "coordinator")
    if kind == "export":
        world.succeed(world.take("coordinator", "coordinate"), **DONE)
        world.succeed(world.take("l4"), ended="done")
    for _ in range(2):
        world.fail(world.take(fleet, kind), "Luma.Retryable", "no route to the bucket")
    assert "Luma.Retryable" in ended(world, arn, "one", "failed")["reason"]


def test_an_island_that_every_fleet_refuses_ends_the_run(world):
    world.prepare("one", slots=1, fleets=["l4", "lab"])
    arn = world.start("Jobs", {"run": "one"})
    world.take("coordinator")
    for fleet in ("l4", "lab"):
        world.fail(world.take(fleet), "Luma.Refused")
    assert "Luma.Refused" in ended(world, arn, "one", "failed")["reason"]


def test_an_island_follows_a_failover_that_moved_its_slot(world):
    world.prepare("one", slots=1)
    arn = world.start("Jobs", {"run": "one"})
    coordinate, island = world.take("coordinator"), world.take("l4")
    world.move("one", "SLOT#00", "l4", "a10")
    # Its own move is refused, since the slot is elsewhere by now; it reads the place again.
    world.fail(island, "Luma.Refused")
    finish(world, coordinate, world.take("a10"))
    ended(world, arn, "one", "done")


def test_islands_of_an_ended_run_are_not_given_again(world):
    world.prepare("one", slots=1)
    arn = world.start("Jobs", {"run": "one"})
    coordinate, island = world.take("coordinator"), world.take("l4")
    world.succeed(coordinate, **STOPPED)
    world.reached(arn, "Hand on its answer")
    world.fail(island, "Luma.Interrupted")
    ended(world, arn, "one", "terminated")
    assert "Not wanted any more (island)" in world.path(arn)


@pytest.mark.parametrize(
    ("kind", "fleet"), [("compile", "compiler"), ("coordinate", "coordinator")]
)
def test_a_cancelled_run_is_not_given_to_the_next_host(world, kind, fleet):
    world.prepare("one", artifact=None if kind == "compile" else "a", slots=1)
    arn = world.start("Jobs", {"run": "one"})
    work = world.take(fleet, kind)
    island = None if kind == "compile" else world.take("l4")
    world.change("RUN#one", "RUN", cancel=True)
    world.fail(work, "Luma.Interrupted")
    if island:
        world.reached(arn, "Hand on its answer")
        world.succeed(island, ended="stopped")
    assert "cancelled" in ended(world, arn, "one", "terminated")["reason"]


def test_nobody_hears_of_an_end_and_the_run_ends_all_the_same(world):
    world.prepare("one", fleets=["nowhere"])
    world.fault("sns", "Publish", "InternalError")
    arn = world.start("Jobs", {"run": "one"})
    ended(world, arn, "one", "failed")
    assert "Told" in world.path(arn)


def test_silent_hosts_and_islands_are_given_up_within_their_heartbeat(world):
    world.prepare("one", artifact=None, slots=1)
    arn = world.start("Hasty", {"run": "one"})
    for fleet, answer in (
        ("compiler", {"artifact": "a", "level": "L1", "targets": []}),
        ("coordinator", DONE),
    ):
        world.reached(
            arn, f"Give it to another node ({'compile' if fleet == 'compiler' else fleet})"
        )
        world.answer(fleet, **answer)
    world.reached(arn, "Give it to another node (export)")
    world.answer("coordinator", state_hash="abc", certificate="", export="")
    ended(world, arn, "one", "done")


def test_an_island_that_no_node_takes_goes_to_the_next_fleet_and_round_again(world):
    world.prepare("one", slots=1)
    arn = world.start("Hasty", {"run": "one"})
    with Keeper(world, "coordinator") as coordinate:
        world.reached(arn, "Stay, then begin with the first")
        assert world.path(arn).count("No node came") >= 2
        assert world.item("RUN#one", "SLOT#00")["moved"] >= 1
        world.answer("l4", "a10", ended="done")
        coordinate.succeed(**DONE)
    world.answer("coordinator", state_hash="abc", certificate="", export="")
    ended(world, arn, "one", "done")


def test_more_claims_than_a_group_may_have_wait_for_its_nodes(world):
    world.prepare("one", artifact=None, slots=1)
    for fleet in ("l4", "coordinator", "compiler", "a10"):
        world.put(f"FLEET#{fleet}", "FLEET", desired=10)
    arn = world.start("Jobs", {"run": "one"})
    compiling = world.take("compiler")
    assert world.size("compiler") == 3
    world.resize("compiler", 1)
    world.succeed(compiling, artifact="a", level="L1", targets=[])
    coordinate, island = world.take("coordinator"), world.take("l4")
    assert world.size("l4") == 3
    world.resize("l4", 1)
    world.fail(island, "Luma.Refused")
    island = world.take("a10")
    assert (world.size("l4"), world.size("a10")) == (3, 3)
    world.resize("a10", 0)
    finish(world, coordinate, island)
    assert world.end(arn)["status"] == "SUCCEEDED"
    assert world.claims("one") == dict.fromkeys(("l4", "a10", "coordinator", "compiler"), (0, 10))
    assert [world.size(f) for f in ("l4", "a10", "coordinator", "compiler")] == [3] * 4

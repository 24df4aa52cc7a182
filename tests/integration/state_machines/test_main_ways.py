"""The main ways through the machines, executed; the other ways are in the slow tests beside this."""

import pytest

from tests.integration.state_machines.scenes import (
    at_work,
    ended,
    finish,
    left,
    notes,
    over,
    spot_warning,
)

pytestmark = pytest.mark.timeout(600)


def test_a_compiled_run_trains_exports_and_gives_everything_back(world):
    world.prepare("one")
    arn = world.start("Jobs", {"run": "one"})
    coordinate = world.take("coordinator", "coordinate")
    islands = [world.take("l4", "island") for _ in range(2)]
    assert {work["slot"] for work in islands} == {0, 1}
    assert {work["schema"] for work in islands} == {"luma/work/1"}
    assert world.claims("one") == {"l4": (2, 2), "coordinator": (1, 1)}
    assert (world.size("l4"), world.size("coordinator")) == (2, 1)
    assert world.run("one")["state"] == "running"
    assert world.run("one")["execution"] == arn
    finish(world, coordinate, *islands)
    run = ended(world, arn, "one", "done")
    assert (run["state_hash"], run["reason"]) == ("abc", "")


def test_a_run_without_an_artifact_is_compiled_on_a_host_that_goes_again(world):
    world.prepare("raw", artifact=None, slots=1)
    arn = world.start("Jobs", {"run": "raw"})
    compiling = world.take("compiler", "compile")
    assert (world.size("compiler"), world.size("l4")) == (1, 0)
    world.succeed(compiling, artifact="runs/raw/artifact.luma", level="L2", targets=["cpu"])
    coordinate, island = world.take("coordinator", "coordinate"), world.take("l4", "island")
    assert world.run("raw")["artifact"] == "runs/raw/artifact.luma"
    assert world.size("compiler") == 0
    finish(world, coordinate, island)
    ended(world, arn, "raw", "done")


def test_a_refused_island_goes_to_the_next_fleet_with_its_claim(world):
    world.prepare("one", slots=1, fleets=["l4", "a10"])
    arn = world.start("Jobs", {"run": "one"})
    coordinate = world.take("coordinator")
    world.fail(world.take("l4"), "Luma.Refused", "needs 40 GiB")
    island = world.take("a10")
    assert world.claims("one") == {"a10": (1, 1), "coordinator": (1, 1)}
    assert (world.size("l4"), world.size("a10")) == (0, 1)
    finish(world, coordinate, island)
    ended(world, arn, "one", "done")


def test_a_warned_node_leaves_and_another_takes_its_place(world):
    instance = at_work(world)
    left(world, instance)
    arn = world.start("Failover", spot_warning(instance))
    item = over(world, arn, "replaced")
    assert notes(item) == {}
    assert item["execution"] == arn
    assert (world.size("l4"), len(world.instances("l4"))) == (1, 1)
    assert instance not in world.instances("l4")
    assert world.instance_state(instance) == "terminated"
    assert world.item("RUN#one", "SLOT#00")["fleet"] == "l4"
    assert world.claims("one") == {"l4": (1, 1)}


def test_without_capacity_the_slot_goes_to_the_next_fleet_with_its_claim(world):
    instance = at_work(world, fleets=["gone", "l4", "lab", "a10"])
    left(world, instance)
    world.none_left("l4")
    arn = world.start("Failover", spot_warning(instance))
    item = over(world, arn, "moved")
    assert "sufficient" in notes(item)["capacity"]["said"][0]
    slot = world.item("RUN#one", "SLOT#00")
    assert (slot["fleet"], slot["queue"], slot["moved"]) == ("a10", world.out["Queuea10"], 1)
    assert world.claims("one") == {"a10": (1, 1)}
    assert (world.size("l4"), world.size("a10")) == (0, 1)


@pytest.mark.parametrize("operation", ["TransactWriteItems", "SetDesiredCapacity"])
def test_a_move_that_died_half_way_moves_one_claim_once(world, operation):
    instance = at_work(world)
    left(world, instance)
    world.none_left("l4")
    service = "dynamodb" if operation == "TransactWriteItems" else "autoscaling"
    world.server.hold(service, operation)
    dying = world.start("Failover", spot_warning(instance))
    world.held(service, operation)
    world.stop(dying)
    world.server.lift_faults()
    over(world, world.start("Failover", spot_warning(instance)), "moved")
    assert world.claims("one") == {"a10": (1, 1)}
    assert world.item("RUN#one", "SLOT#00")["moved"] == 1
    assert len(world.instances("a10")) == 1

"""The failover machine, executed: what EC2, SSM and the table say is set before, or changed meanwhile."""

import pytest

from tests.integration.state_machines.scenes import (
    FOREIGN,
    at_work,
    block_expiry,
    left,
    notes,
    over,
    place,
    request,
    spot_warning,
    state_change,
)
from tests.unit.constructs.orchestration.stacks import BLOCK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_same_event_twice_and_the_next_one_of_the_reclaim_change_nothing(world):
    instance = at_work(world)
    left(world, instance)
    over(world, world.start("Failover", spot_warning(instance)), "replaced")
    after = world.instances("l4")
    again = world.start("Failover", spot_warning(instance))
    over(world, again, "replaced")
    assert "Duplicate" in world.path(again)
    over(world, world.start("Failover", spot_warning(instance, "e2")), "handled", "e2")
    assert world.instances("l4") == after


def test_an_instance_that_is_not_ours_is_left_alone(world):
    arn = world.start("Failover", spot_warning(FOREIGN))
    assert world.end(arn)["status"] == "SUCCEEDED"
    assert "Not ours" in world.path(arn)
    assert world.item("EVENT#e1", "EVENT") == {}


@pytest.mark.parametrize("node", [None, {"run": ""}, {"run": "over", "slot": 0}])
def test_a_node_that_no_run_needs_is_left_to_its_group(world, node):
    world.prepare("over", state="done")
    world.resize("l4", 1)
    [instance] = world.instances("l4")
    if node is not None:
        world.put(f"NODE#{instance}", "NODE", fleet="l4", state="idle", **node)
    over(world, world.start("Failover", spot_warning(instance)), "idle")
    assert world.instances("l4") == [instance]


@pytest.mark.parametrize(
    ("trouble", "note"),
    [
        (lambda world: world.fault("ssm", "SendCommand", "InvalidInstanceId"), "be asked"),
        (lambda world: world.fault("ssm", "GetCommandInvocation", "InternalServerError"), "answer"),
        (lambda world: world.server.commands("Failed"), "leave in time"),
        (lambda world: world.server.commands("silent"), "leave in time"),
    ],
)
def test_a_node_that_cannot_be_asked_is_replaced_all_the_same(world, trouble, note):
    instance = at_work(world)
    left(world, instance)
    trouble(world)
    item = over(world, world.start("Failover", spot_warning(instance)), "replaced")
    assert note in notes(item)["drain"]
    assert world.instance_state(instance) == "terminated"


def test_a_node_that_is_gone_is_neither_asked_nor_waited_for(world):
    instance = at_work(world)
    arn = world.start("Failover", state_change(instance, "terminated"))
    item = over(world, arn, "replaced")
    assert notes(item) == {}
    assert "Ask the node to leave" not in world.path(arn)
    assert "Wait for the commit" not in world.path(arn)


def test_the_run_is_waited_for_until_another_node_has_the_slot(world):
    instance = at_work(world)
    world.change("RUN#one", "SLOT#00", node="i-another")
    item = over(world, world.start("Failover", spot_warning(instance)), "replaced")
    assert "commit" not in notes(item)


def test_a_node_that_dies_without_a_word_is_not_waited_for_for_ever(world):
    instance = at_work(world)
    item = over(world, world.start("Failover", spot_warning(instance)), "replaced")
    assert "never said" in notes(item)["commit"]


def test_an_instance_that_cannot_be_detached_is_noted_and_its_group_replaces_it(world):
    instance = at_work(world)
    left(world, instance)
    world.fault("autoscaling", "DetachInstances", "ValidationError")
    item = over(world, world.start("Failover", spot_warning(instance)), "moved")
    assert "group" in notes(item)["detach"]
    assert world.instance_state(instance) == "terminated"
    assert world.item("RUN#one", "SLOT#00")["fleet"] == "a10"


def test_without_spot_capacity_the_slot_goes_to_the_on_demand_floor(world):
    instance = at_work(world)
    left(world, instance)
    world.none_left("l4", "a10")
    over(world, world.start("Failover", spot_warning(instance)), "on-demand")
    assert world.item("RUN#one", "SLOT#00")["fleet"] == "floor"
    assert world.claims("one") == {"floor": (1, 1)}


@pytest.mark.parametrize(("slots", "cancelled"), [(1, True), (2, False)])
def test_without_any_capacity_another_region_is_asked(world, slots, cancelled):
    instance = at_work(world, slots=slots)
    left(world, instance)
    world.none_left("l4", "a10", "floor", "block")
    over(world, world.start("Failover", spot_warning(instance)), "other-region")
    assert world.run("one")["cancel"] is cancelled
    [event] = world.requests()
    assert event["detail"]["run"] == "one"
    assert event["detail"]["event-id"] == "e1"


def test_without_another_region_the_place_waits_and_people_are_told(world):
    instance = at_work(world)
    left(world, instance)
    world.none_left("l4", "a10", "floor", "block")
    world.fault("events", "PutEvents", "InternalException")
    over(world, world.start("Failover", spot_warning(instance)), "no-capacity")
    assert world.claims("one") == {"floor": (1, 1)}


def test_a_machine_without_floor_regions_and_topic_ends_too(world):
    instance = at_work(world)
    left(world, instance)
    world.none_left("l4", "a10")
    over(world, world.start("Alone", spot_warning(instance)), "no-capacity")


@pytest.mark.parametrize("capacity", [True, False])
def test_a_lost_host_is_replaced_and_never_moved(world, capacity):
    world.prepare("one", state="running")
    instance = place(world, "one", "coordinator")
    left(world, instance)
    if not capacity:
        world.none_left("coordinator")
    path = "replaced" if capacity else "other-region"
    over(world, world.start("Failover", spot_warning(instance)), path)
    assert world.item("RUN#one", "HOST#coordinator")["fleet"] == "coordinator"


def test_a_lost_host_without_capacity_waits_where_there_is_no_other_region(world):
    world.prepare("one", state="running")
    instance = place(world, "one", "coordinator")
    left(world, instance)
    world.none_left("coordinator")
    over(world, world.start("Alone", spot_warning(instance)), "no-capacity")
    assert world.item("RUN#one", "HOST#coordinator")["fleet"] == "coordinator"


def test_a_place_that_moved_to_a_node_outside_ec2_needs_no_group(world):
    instance = at_work(world)
    left(world, instance)
    world.change("RUN#one", "SLOT#00", fleet="lab", queue=world.out["Queuelab"], asg="")
    over(world, world.start("Failover", spot_warning(instance)), "moved")


def test_what_helps_people_may_fail(world):
    instance = at_work(world)
    left(world, instance)
    world.none_left("l4")
    world.fault("autoscaling", "DescribeScalingActivities", "ValidationError")
    world.fault("ec2", "TerminateInstances", "UnauthorizedOperation")
    world.fault("sns", "Publish", "InternalError")
    item = over(world, world.start("Failover", spot_warning(instance)), "moved")
    found = notes(item)
    assert found["capacity"] == "no capacity came in time"
    assert "terminated" in found["instance"]
    assert "notification" in found["topic"]


@pytest.mark.parametrize("told", [True, False])
def test_a_failover_that_cannot_be_finished_is_red_and_can_be_started_again(world, told):
    instance = at_work(world)
    left(world, instance)
    world.fault("dynamodb", "TransactGetItems", "AccessDeniedException")
    if not told:
        world.fault("sns", "Publish", "InternalError")
    failed = world.start("Failover", spot_warning(instance))
    assert world.end(failed)["error"] == "Luma.FailoverFailed"
    assert world.item("EVENT#e1", "EVENT")["status"] == "started"
    world.server.lift_faults()
    over(world, world.start("Failover", spot_warning(instance)), "replaced")


def test_all_nodes_of_a_capacity_block_are_failed_over_before_it_ends(world):
    world.prepare("one", state="running", slots=2, fleets=["block", "a10"])
    instances = [place(world, "one", "block", slot) for slot in (0, 1)]
    for instance in instances:
        left(world, instance)
    world.none_left("block")
    arn = world.start("Failover", block_expiry(BLOCK))
    assert world.end(arn)["status"] == "SUCCEEDED"
    for instance in instances:
        assert world.item(f"EVENT#e1.{instance}", "EVENT")["path"] == "moved"
    assert world.claims("one") == {"a10": (2, 2)}


@pytest.mark.parametrize("block", [BLOCK, "cr-ffffffffffffffff0"])
def test_the_end_of_a_block_without_nodes_is_not_about_us(world, block):
    arn = world.start("Failover", block_expiry(block))
    assert world.end(arn)["status"] == "SUCCEEDED"
    assert world.path(arn)[-1] == "Not about us"


def test_a_request_of_another_region_resumes_a_run_that_is_here_once(world):
    world.prepare("one", state="terminated", slots=1)
    arn = world.start("Failover", request("one"))
    over(world, arn, "resumed", "r1")
    [job] = world.executions("Jobs")
    world.reached(job, "Train an island")
    again = world.start("Failover", request("one"))
    assert world.end(again)["status"] == "SUCCEEDED"
    assert world.path(again)[-1] == "Answered before"
    # Half a failover that had started the job already: the job is not started again.
    world.change("RUN#one", "RUN", state="terminated")
    world.change("EVENT#r1", "EVENT", status="started")
    over(world, world.start("Failover", request("one")), "resumed", "r1")
    assert world.executions("Jobs") == [job]


@pytest.mark.parametrize(("state", "path"), [(None, "not-here"), ("running", "still-running")])
def test_a_request_for_a_run_that_cannot_be_resumed_here_is_answered(world, state, path):
    if state:
        world.prepare("one", state=state)
    over(world, world.start("Failover", request("one")), path, "r1")
    assert world.executions("Jobs") == []


def test_the_rules_start_a_failover_for_each_kind_of_event(world):
    instance = at_work(world)
    left(world, instance)
    for event, kind, detail in (
        ("w", "EC2 Spot Instance Interruption Warning", {"instance-action": "terminate"}),
        ("b", "EC2 Instance Rebalance Recommendation", {}),
        ("s", "EC2 Instance State-change Notification", {"state": "stopping"}),
        ("r", "EC2 Instance State-change Notification", {"state": "running"}),
    ):
        world.emit(event, kind, {"instance-id": instance, **detail})
    found = world.awaited("Failover", 3)
    assert {world.end(arn)["status"] for arn in found} == {"SUCCEEDED"}
    assert world.item("EVENT#r", "EVENT") == {}
    paths = {world.item(f"EVENT#{event}", "EVENT")["path"] for event in "wbs"}
    assert paths <= {"replaced", "handled"}
    assert world.claims("one") == {"l4": (1, 1)}

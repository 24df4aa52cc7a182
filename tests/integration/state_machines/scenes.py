"""Scenes that the tests of the machines begin with, and how they end."""

import json

DONE = {"phase": "done", "state_hash": "abc", "steps": 3, "cost_usd": 0.1, "reason": ""}
STOPPED = {"phase": "stopped", "state_hash": "", "steps": 1, "cost_usd": 0.1, "reason": "budget"}


def finish(world, coordinate, *islands):
    """Play a run to its end, from a coordinator and islands that work."""
    world.succeed(coordinate, **DONE)
    for work in islands:
        world.succeed(work, ended="done")
    export = world.take("coordinator", "export")
    world.succeed(export, state_hash="abc", certificate="c", export="e")


def ended(world, arn, run, state):
    """Check how an execution and its run ended, and that nothing is held or rented."""
    expected = "FAILED" if state == "failed" else "SUCCEEDED"
    assert world.end(arn)["status"] == expected
    assert world.run(run)["state"] == state
    assert world.claims(run) == {}
    assert [world.size(fleet) for fleet in ("l4", "a10", "coordinator", "compiler")] == [0] * 4
    return world.run(run)


FOREIGN = "i-0123456789abcdef0"


def spot_warning(instance, event="e1"):
    """EC2's warning, as EventBridge delivers it."""
    return {
        "version": "0",
        "id": event,
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "source": "aws.ec2",
        "account": "123456789012",
        "time": "2026-11-30T20:00:00Z",
        "region": "us-east-1",
        "resources": [f"arn:aws:ec2:us-east-1a:instance/{instance}"],
        "detail": {"instance-id": instance, "instance-action": "terminate"},
    }


def state_change(instance, state, event="e1"):
    """EC2's report that an instance has changed its state."""
    return spot_warning(instance, event) | {
        "detail-type": "EC2 Instance State-change Notification",
        "detail": {"instance-id": instance, "state": state},
    }


def block_expiry(block, event="e1"):
    """EC2's warning that a capacity block ends."""
    return spot_warning(FOREIGN, event) | {
        "detail-type": "Capacity Block Expiration Warning",
        "detail": {"capacity-reservation-id": block, "end-date": "2026-11-30T21:00:00Z"},
    }


def request(run, event="r1"):
    """Another region's request."""
    return spot_warning(FOREIGN, "outer") | {
        "detail-type": "Luma Failover Requested",
        "source": "luma",
        "detail": {"event-id": event, "to-region": "us-east-1", "run": run, "place": "SLOT#00"},
    }


def place(world, run, fleet="l4", slot=0, *, asg=None):
    """Write a slot of a run, with its claim, and give its fleet one more instance: that instance."""
    key = f"SLOT#{slot:02d}" if fleet not in ("coordinator", "compiler") else f"HOST#{fleet}"
    before = set(world.instances(fleet))
    world.put(
        f"RUN#{run}",
        key,
        fleet=fleet,
        queue=world.out[f"Queue{fleet}"],
        asg=world.group_name(fleet) if asg is None else asg,
        moved=0,
        claimed="an execution",
    )
    claimed = world.item(f"FLEET#{fleet}", "FLEET").get("desired", 0) + 1
    world.put(f"FLEET#{fleet}", "FLEET", desired=claimed)
    mine = world.item(f"FLEET#{fleet}", f"RUN#{run}").get("count", 0) + 1
    world.put(f"FLEET#{fleet}", f"RUN#{run}", count=mine)
    world.resize(fleet, claimed)
    [instance] = set(world.instances(fleet)) - before
    world.put(f"NODE#{instance}", "NODE", fleet=fleet, run=run, slot=slot, state="working")
    return instance


def at_work(world, run="one", fleet="l4", **values):
    """A running run of one island, and the instance that it is on."""
    world.prepare(run, **{"state": "running", "slots": 1, "fleets": ["l4", "a10"], **values})
    return place(world, run, fleet)


def left(world, instance):
    """The node says that it has left."""
    world.change(f"NODE#{instance}", "NODE", state="left")


def over(world, arn, path, event="e1"):
    """Check that a failover was finished by one path, and give its event's item."""
    assert world.end(arn)["status"] == "SUCCEEDED"
    item = world.item(f"EVENT#{event}", "EVENT")
    assert (item["status"], item["path"]) == ("done", path)
    return item


def notes(item):
    """What did not go as it should."""
    return json.loads(item["notes"])

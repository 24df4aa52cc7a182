"""Everything that costs money is found, whoever left it, and `down` gives it back."""

from __future__ import annotations

import pytest

from runtime.run.account.costs import cost_rows, rate_text
from runtime.run.account.runs import cancel_run, end_run, list_runs, release_claims, run_status
from runtime.spec.account import fleet_key, node_key, run_key
from runtime.spec.errors import RunError


def put_run(stack, run: str, state: str, **more) -> None:
    item = {
        "pk": run_key(run),
        "sk": "RUN",
        "state": state,
        "slots": 1,
        "fleets": ["a"],
        "execution": "",
        "cancel": False,
        "reason": "",
        "cost_usd": 0,
        "total_steps": 10,
        "created_at": "2026-11-30T10:00:00Z",
        "updated_at": "2026-11-30T10:00:00Z",
    }
    stack.table.put(item | more)


def claim(stack, run: str, count: int, desired: int) -> None:
    stack.table.put({"pk": fleet_key("a"), "sk": f"RUN#{run}", "count": count})
    stack.table.put({"pk": fleet_key("a"), "sk": "FLEET", "desired": desired})


def test_an_empty_stack_costs_nothing(cloud):
    assert cost_rows(cloud.stack()) == []
    assert rate_text([]) == "0 $/h"


def test_what_a_crash_left_is_found_and_marked(cloud):
    stack = cloud.stack()
    put_run(stack, "crashed", "running", execution="")
    claim(stack, "crashed", 2, 2)
    cloud.client("autoscaling").set_desired_capacity(
        AutoScalingGroupName=cloud.group, DesiredCapacity=2
    )
    loose = cloud.instance(**{"luma:deployment": "Luma", "luma:fleet": "gone"})
    cloud.instance(**{"luma:deployment": "Other"})
    stack.table.put({"pk": node_key(loose), "sk": "NODE", "state": "working", "run": "crashed"})

    rows = cost_rows(stack)
    instances = {row.name: row for row in rows if row.kind == "instance"}
    assert len(instances) == 3
    assert instances[loose].run == "crashed"
    assert all(row.left for row in rows)
    prices = sorted(row.usd_per_hour or 0.0 for row in instances.values())
    assert prices[1:] == [0.5, 0.5]
    (group,) = [row for row in rows if row.kind == "group"]
    assert "wants 2, has 2" in group.detail
    (held,) = [row for row in rows if row.kind == "claim"]
    assert (held.run, held.name) == ("crashed", "a/crashed")


def test_claims_are_released_once_and_the_group_follows(cloud):
    stack = cloud.stack()
    claim(stack, "one", 2, 3)
    cloud.client("autoscaling").set_desired_capacity(
        AutoScalingGroupName=cloud.group, DesiredCapacity=3
    )
    assert release_claims(stack, "one") == 1
    assert stack.table.get(fleet_key("a"), "FLEET")["desired"] == 1
    assert cloud.desired() == 1
    assert release_claims(stack, "one") == 0
    assert stack.table.get(fleet_key("a"), "FLEET")["desired"] == 1


def test_a_run_whose_execution_is_gone_is_ended_and_can_go_on(cloud):
    stack = cloud.stack()
    gone = "arn:aws:states:us-east-1:123456789012:execution:jobs:gone"
    put_run(stack, "lost", "running", execution=gone)
    claim(stack, "lost", 1, 1)
    assert run_status(stack, "lost")["live"] is False
    ended = end_run(stack, "lost", wait_s=0)
    assert (ended.state, ended.aborted, ended.released) == ("terminated", False, 1)
    assert cloud.desired() == 0
    with pytest.raises(RunError, match="has ended already: it is terminated"):
        cancel_run(stack, "lost")


def test_runs_are_listed_newest_first(cloud):
    stack = cloud.stack()
    put_run(stack, "old", "done", created_at="2026-11-01T00:00:00Z", cost_usd=1.5)
    put_run(stack, "new", "failed", created_at="2026-11-02T00:00:00Z", reason="why")
    assert [(run["run"], run["state"], run["cost_usd"]) for run in list_runs(stack)] == [
        ("new", "failed", 0.0),
        ("old", "done", 1.5),
    ]


def test_a_balancer_of_the_stack_is_found(cloud):
    ec2, balancers = cloud.client("ec2"), cloud.client("elbv2")
    subnets = [subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"][:2]]
    for name, deployment in (("ours", "Luma"), ("theirs", "Other")):
        balancers.create_load_balancer(
            Name=name, Subnets=subnets, Tags=[{"Key": "luma:deployment", "Value": deployment}]
        )
    (row,) = cost_rows(cloud.stack())
    assert (row.kind, row.name, row.left) == ("load balancer", "ours", False)
    assert rate_text([row]) == "0.0225 $/h"

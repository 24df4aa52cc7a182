"""Look at the runs of an account, and end them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from runtime.run.account.follow import read_item
from runtime.run.account.stack import Stack
from runtime.run.account.start import is_live
from runtime.spec.account import (
    LIVE_STATES,
    LOGS_PREFIX,
    RUN_ITEM,
    fleet_key,
    key_parameter,
    run_key,
    run_object,
)
from runtime.spec.aws import aws_client, aws_errors
from runtime.spec.errors import RunError

__all__ = ["cancel_run", "end_run", "list_runs", "run_cost", "run_logs", "run_status"]

_SHOWN: Final = (
    "state",
    "reason",
    "slots",
    "fleets",
    "cost_usd",
    "max_cost_usd",
    "state_hash",
    "artifact",
    "cancel",
    "created_at",
    "updated_at",
)
_END_WAIT_S: Final = 300.0
_POLL_S: Final = 2.0


def list_runs(stack: Stack) -> list[dict[str, Any]]:
    """Give every run of a stack, the newest first.

    Raises:
        AwsError: the table cannot be read.
    """
    items = sorted(stack.table.scan(RUN_ITEM), key=lambda item: item["created_at"], reverse=True)
    return [
        {
            "run": item["pk"].removeprefix("RUN#"),
            "state": item["state"],
            "slots": item.get("slots", 0),
            "cost_usd": float(item.get("cost_usd", 0.0)),
            "created_at": item["created_at"],
            "reason": item.get("reason", ""),
        }
        for item in items
    ]


def run_status(stack: Stack, run: str) -> dict[str, Any]:
    """Give the state of a run.

    Returns:
        `run`, `step`, `total_steps`, `last_checkpoint`, `islands` ([{slot, fleet, node, island,
        usd_per_hour}]) and the attributes of its item.

    Raises:
        RunError: there is no such run.
        AwsError: the table cannot be read.
    """
    item = read_item(stack, run)
    commit = stack.table.newest(run_key(run), "COMMIT#")
    checkpoint = stack.table.newest(run_key(run), "CHECKPOINT#")
    slots = stack.table.query(run_key(run), "SLOT#")
    return {
        "run": run,
        "step": 0 if commit is None else int(commit["step"]) + 1,
        "total_steps": item.get("total_steps"),
        "last_checkpoint": -1 if checkpoint is None else int(checkpoint["step"]),
        "live": is_live(stack, item),
        "islands": [
            {
                "slot": int(slot["sk"].removeprefix("SLOT#")),
                "fleet": slot["fleet"],
                "node": slot.get("node"),
                "island": slot.get("island"),
                "usd_per_hour": slot.get("usd_per_hour"),
            }
            for slot in slots
        ],
        **{name: item[name] for name in _SHOWN if name in item},
    }


def run_cost(stack: Stack, run: str) -> dict[str, Any]:
    """Give what a run has cost, as its coordinator added it up: an estimate, and no bill.

    Raises:
        RunError: there is no such run.
        AwsError: the table cannot be read.
    """
    status = run_status(stack, run)
    rates = [island["usd_per_hour"] or 0.0 for island in status["islands"] if island["node"]]
    return {
        "run": run,
        "state": status["state"],
        "cost_usd": float(status.get("cost_usd", 0.0)),
        "max_cost_usd": status.get("max_cost_usd"),
        "islands_usd_per_hour": sum(rates),
        "steps": status["step"],
    }


def run_logs(stack: Stack, run: str, name: str | None) -> Iterator[str]:
    """Give the lines of the logs of a run's processes, as far as their nodes have uploaded them.

    Args:
        stack: where.
        run: the run's name.
        name: one process; None for all, each line with the process's name in front.

    Raises:
        RunError: there is no such run, or no process of that name has a log.
        AwsError: the bucket cannot be read.
    """
    read_item(stack, run)
    prefix = run_object(run, LOGS_PREFIX)
    found = {
        item.key.removeprefix(prefix).removesuffix(".log"): item.key
        for item in stack.bucket.list(prefix)
    }
    if name is not None and name not in found:
        known = ", ".join(sorted(found)) or "none yet"
        raise RunError(f"'{name}' has no log in run '{run}'; there are: {known}")
    for process in [name] if name is not None else sorted(found):
        data = stack.bucket.read(found[process]) or b""
        for line in data.decode(errors="replace").splitlines():
            yield line if name is not None else f"{process}: {line}"


def cancel_run(stack: Stack, run: str) -> dict[str, Any]:
    """Ask a run to end resumably: after the step in flight, with a checkpoint.

    Raises:
        RunError: there is no such run, or it has ended already.
        AwsError: AWS refuses.
    """
    item = read_item(stack, run)
    if item["state"] not in LIVE_STATES:
        raise RunError(f"run '{run}' has ended already: it is {item['state']}")
    values = {"cancel": True, "reason": "cancelled", "updated_at": _now()}
    stack.table.update(run_key(run), RUN_ITEM, values)
    return {"run": run, "stopping": True}


@dataclass(frozen=True, slots=True)
class Ended:
    """What `luma down` did.

    Attributes:
        state: the run's state after it.
        aborted: whether its execution had to be stopped.
        released: claims that were given back.
    """

    state: str
    aborted: bool
    released: int


def end_run(
    stack: Stack, run: str, *, wait_s: float = _END_WAIT_S, poll_s: float = _POLL_S
) -> Ended:
    """End a run and give back everything that it holds; its results stay.

    First it is asked to stop resumably. Where its execution has not ended in time it is stopped. What
    it still claims is released, and the groups are scaled to the claims that remain.

    Args:
        stack: where.
        run: the run's name.
        wait_s: time for the orderly stop; 0 stops at once.
        poll_s: seconds between two looks.

    Raises:
        RunError: there is no such run.
        AwsError: AWS refuses.
    """
    item = read_item(stack, run)
    aborted = False
    if is_live(stack, item):
        if item["state"] in LIVE_STATES:
            cancel_run(stack, run)
        aborted = _wait_or_abort(stack, run, wait_s, poll_s)
    released = release_claims(stack, run)
    item = read_item(stack, run)
    if item["state"] in LIVE_STATES:
        item = stack.table.update(
            run_key(run),
            RUN_ITEM,
            {"state": "terminated", "reason": "ended by luma down", "updated_at": _now()},
        )
    if item["state"] == "done":
        _delete_key(stack, run)  # any other run may be gone on with, and needs it then
    return Ended(str(item["state"]), aborted, released)


def _wait_or_abort(stack: Stack, run: str, wait_s: float, poll_s: float) -> bool:
    """Wait for the execution's end, and stop it when time is up; say whether that was needed."""
    deadline = time.monotonic() + wait_s
    while is_live(stack, item := read_item(stack, run)):
        if time.monotonic() >= deadline:
            with aws_errors(f"stop the execution of run '{run}'"):
                aws_client("stepfunctions", region=stack.region).stop_execution(
                    executionArn=item["execution"], error="Luma.Down", cause="ended by luma down"
                )
            return True
        time.sleep(poll_s)
    return False


def release_claims(stack: Stack, run: str) -> int:
    """Give back a run's claims on fleets, and scale each group to the claims that remain.

    Each claim goes in one transaction with the fleet's sum, so that whoever does it at the same time
    (the machine, its clean-up) does it once.

    Raises:
        AwsError: AWS refuses.
    """
    released = 0
    for fleet in stack.fleets.values():
        claim = stack.table.get(fleet_key(fleet.name), f"RUN#{run}")
        if claim is None:
            continue
        if _release(stack, fleet.name, run, int(claim["count"])):
            released += 1
        if fleet.asg is not None:
            _scale(stack, fleet.name, fleet.asg)
    return released


def _release(stack: Stack, fleet: str, run: str, count: int) -> bool:
    """Take one claim away; False where somebody else has done it in this moment."""
    from runtime.spec.table import to_item

    table = stack.table
    client = table.client
    key = to_item({"pk": fleet_key(fleet), "sk": f"RUN#{run}"})
    sum_key = to_item({"pk": fleet_key(fleet), "sk": "FLEET"})
    count_value = to_item({":count": count})
    with aws_errors(f"release the claim of run '{run}' on fleet '{fleet}'"):
        try:
            client.transact_write_items(
                TransactItems=[
                    {
                        "Delete": {
                            "TableName": table.name,
                            "Key": key,
                            "ConditionExpression": "#count = :count",
                            "ExpressionAttributeNames": {"#count": "count"},
                            "ExpressionAttributeValues": count_value,
                        }
                    },
                    {
                        "Update": {
                            "TableName": table.name,
                            "Key": sum_key,
                            "UpdateExpression": "ADD desired :minus",
                            "ExpressionAttributeValues": to_item({":minus": -count}),
                        }
                    },
                ]
            )
        except client.exceptions.TransactionCanceledException:
            return False
    return True


def _scale(stack: Stack, fleet: str, asg: str) -> None:
    """Set a group's size to the sum of claims on its fleet."""
    item = stack.table.get(fleet_key(fleet), "FLEET") or {}
    with aws_errors(f"scale fleet '{fleet}'"):
        aws_client("autoscaling", region=stack.region).set_desired_capacity(
            AutoScalingGroupName=asg,
            DesiredCapacity=max(0, int(item.get("desired", 0))),
            HonorCooldown=False,
        )


def _delete_key(stack: Stack, run: str) -> None:
    """Delete the data key that the run's nodes had."""
    client = aws_client("ssm", region=stack.region)
    with aws_errors(f"delete the data key of run '{run}'"):
        try:
            client.delete_parameter(Name=key_parameter(stack.name, run))
        except client.exceptions.ParameterNotFound:
            return


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""A prepared run becomes a running one: its items in the table, then an execution of the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runtime.artifact import load_data_key
from runtime.run.account.stack import Stack
from runtime.spec.account import (
    ARTIFACT_OBJECT,
    RUN_ITEM,
    key_parameter,
    run_key,
    run_object,
    slot_item,
)
from runtime.spec.aws import aws_client, aws_errors
from runtime.spec.errors import RunError
from runtime.spec.table import ConditionFailed, Item

__all__ = ["execution_status", "is_live", "start_again", "start_run", "write_items"]


def start_run(
    stack: Stack, run: str, record: Mapping[str, Any], *, total_steps: int, key_file: Path | None
) -> str:
    """Write a run's items and start the machine.

    Args:
        stack: where.
        run: the run's name.
        record: what `run.json` says.
        total_steps: steps of the job.
        key_file: the data key file of a run that is sealed with one.

    Returns:
        The execution's ARN.

    Raises:
        RunError: the run is running already, or is done.
        AwsError: AWS refuses.
    """
    if not write_items(stack, run, record, total_steps=total_steps, key_file=key_file):
        return start_again(stack, run)
    return _start_machine(stack, run)


def write_items(
    stack: Stack, run: str, record: Mapping[str, Any], *, total_steps: int, key_file: Path | None
) -> bool:
    """Write the items that the machine reads, and the key that the nodes need.

    Args:
        stack: where.
        run: the run's name.
        record: what `run.json` says.
        total_steps: steps of the job.
        key_file: the data key file of a run that is sealed with one.

    Returns:
        Whether the run is new; one that has items already keeps them.

    Raises:
        AwsError: AWS refuses.
    """
    if key_file is not None:
        _put_key(stack, run, key_file)
    slots: Sequence[str] = record["slot_fleets"]
    for number, fleet in enumerate(slots):
        item = {
            "pk": run_key(run),
            "sk": slot_item(number),
            "fleet": fleet,
            "queue": stack.fleets[fleet].queue,
            "moved": 0,
        }
        _put_new(stack, item)
    item = {
        "pk": run_key(run),
        "sk": RUN_ITEM,
        "state": "pending",
        "job": record["name"],
        "slots": len(slots),
        "fleets": list(record["fleets"]),
        "targets": list(record["targets"]),
        "total_steps": total_steps,
        "execution": "",
        "cancel": False,
        "reason": "",
        "state_hash": "",
        "cost_usd": 0,
        "prices": dict(record["prices"]),
        "created_at": _now(),
        "updated_at": _now(),
    }
    if record.get("max_cost_usd") is not None:
        item["max_cost_usd"] = record["max_cost_usd"]
    if record["artifact"]:
        item["artifact"] = run_object(run, ARTIFACT_OBJECT)
    return _put_new(stack, item)


def start_again(stack: Stack, run: str, *, max_cost_usd: float | None = None) -> str:
    """Start the machine for a run that stopped, failed, or was never started.

    Args:
        stack: where.
        run: the run's name.
        max_cost_usd: a new limit; None keeps the old one.

    Returns:
        The execution's ARN.

    Raises:
        RunError: there is no such run, it is running, or it is done.
        AwsError: AWS refuses.
    """
    item = stack.table.get(run_key(run), RUN_ITEM)
    if item is None:
        raise RunError(
            f"there is no run '{run}' in stack '{stack.name}'",
            remedy=f"`luma status {stack.options}` lists them",
        )
    if item["state"] == "done":
        raise RunError(f"run '{run}' is done already", remedy=f"luma status {run} {stack.options}")
    if is_live(stack, item):
        raise RunError(
            f"run '{run}' is {item['state']} already",
            remedy=f"follow it with `luma events {run} {stack.options} --follow`",
        )
    values: dict[str, Any] = {
        "cancel": False,
        "reason": "",
        "state": "terminated",
        "updated_at": _now(),
    }
    if max_cost_usd is not None:
        values["max_cost_usd"] = max_cost_usd
    stack.table.update(run_key(run), RUN_ITEM, values)
    return _start_machine(stack, run)


def is_live(stack: Stack, item: Item) -> bool:
    """Say whether an execution of the machine works on a run.

    Raises:
        AwsError: the machine cannot be asked.
    """
    execution = item.get("execution")
    if not execution or item["state"] in {"done", "failed", "terminated"}:
        return False
    return execution_status(stack, str(execution)) == "RUNNING"


def execution_status(stack: Stack, execution: str) -> str | None:
    """Give the status of an execution, None where it is gone with its machine.

    Raises:
        AwsError: the machine cannot be asked.
    """
    client = aws_client("stepfunctions", region=stack.region)
    with aws_errors("look at the execution"):
        try:
            return str(client.describe_execution(executionArn=execution)["status"])
        except client.exceptions.ExecutionDoesNotExist:
            return None


def _start_machine(stack: Stack, run: str) -> str:
    with aws_errors(f"start run '{run}'"):
        answer = aws_client("stepfunctions", region=stack.region).start_execution(
            stateMachineArn=stack.config.jobs_machine, input=json.dumps({"run": run})
        )
    return str(answer["executionArn"])


def _put_new(stack: Stack, item: Mapping[str, Any]) -> bool:
    """Write an item unless there is one; say whether it was written."""
    try:
        stack.table.put(item, new=True)
    except ConditionFailed:
        return False
    return True


def _put_key(stack: Stack, run: str, key_file: Path) -> None:
    """Keep the data key file where the run's nodes may read it, encrypted by the account.

    Raises:
        ArtifactError: it is no data key file.
        AwsError: AWS refuses.
    """
    load_data_key(key_file)
    name = key_parameter(stack.name, run)
    with aws_errors(f"write the parameter {name}"):
        aws_client("ssm", region=stack.region).put_parameter(
            Name=name, Value=key_file.read_text(), Type="SecureString", Overwrite=True
        )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""Two small state machines that give work as the deployed one does, and wait for its answers.

`give_work` is one task. `jobs` is a job without failovers: compile, coordinate beside two islands,
export, and the run's end in the table. The deployed machine is tested with its construct.
"""

from __future__ import annotations

from typing import Any

TABLE = "luma-runs"


def _give(queue: str, kind: str, slot: str | int, next_state: str | None) -> dict[str, Any]:
    number = {"slot.$": slot} if isinstance(slot, str) else {"slot": slot}
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::sqs:sendMessage.waitForTaskToken",
        "HeartbeatSeconds": 240,
        "Parameters": {
            "QueueUrl": queue,
            "MessageBody": {
                "schema": "luma/work/1",
                "kind": kind,
                "run.$": "$.run",
                **number,
                "attempt": 0,
                "heartbeat_s": 60,
                "token.$": "$$.Task.Token",
            },
        },
        "ResultPath": f"$.{kind}",
        **({"End": True} if next_state is None else {"Next": next_state}),
    }


def give_work() -> dict[str, Any]:
    """Give the machine of one task; its input says what and to whom.

    As the deployed machine, it gives the work anew where a node says that another may do it.
    """
    task = _give("", "", "$.slot", None)
    del task["HeartbeatSeconds"], task["ResultPath"]
    again = {"ErrorEquals": ["Luma.Retryable"], "IntervalSeconds": 1, "MaxAttempts": 3}
    task |= {"HeartbeatSecondsPath": "$.patience_s", "Retry": [again]}
    body = task["Parameters"].pop("MessageBody")
    del body["kind"], body["heartbeat_s"]
    body |= {"kind.$": "$.kind", "heartbeat_s.$": "$.heartbeat_s"}
    task["Parameters"] = {"QueueUrl.$": "$.queue", "MessageBody": body}
    return {"StartAt": "Give work", "States": {"Give work": task}}


def _set_state(text: str, next_state: str | None, **more: str) -> dict[str, Any]:
    """Write the run's state, and further attributes from paths of the state's data."""
    values: dict[str, Any] = {":state": {"S": text}, ":me": {"S.$": "$$.Execution.Id"}}
    sets = ["#state = :state", "execution = :me"]
    for name, path in more.items():
        values[f":{name}"] = {"S.$": path}
        sets.append(f"{name} = :{name}")
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::dynamodb:updateItem",
        "Parameters": {
            "TableName": TABLE,
            "Key": {"pk": {"S.$": "States.Format('RUN#{}', $.run)"}, "sk": {"S": "RUN"}},
            "UpdateExpression": "SET " + ", ".join(sets),
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": values,
        },
        "ResultPath": None,
        **({"End": True} if next_state is None else {"Next": next_state}),
    }


def jobs(queues: dict[str, str]) -> dict[str, Any]:
    """Give the machine of a job with two islands."""

    def branch(name: str, task: dict[str, Any]) -> dict[str, Any]:
        return {"StartAt": name, "States": {name: task}}

    return {
        "StartAt": "Begin",
        "States": {
            "Begin": _set_state("running", "Compile"),
            "Compile": _give(queues["compiler"], "compile", 0, "Train"),
            "Train": {
                "Type": "Parallel",
                "Branches": [
                    branch("Coordinate", _give(queues["coordinator"], "coordinate", 0, None)),
                    branch("Island 0", _give(queues["cpu-a"], "island", 0, None)),
                    branch("Island 1", _give(queues["cpu-b"], "island", 1, None)),
                ],
                "ResultPath": "$.trained",
                "Next": "Export",
            },
            "Export": _give(queues["coordinator"], "export", 0, "End"),
            "End": _set_state("done", None, state_hash="$.export.state_hash"),
        },
    }

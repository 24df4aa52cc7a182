"""State machines of a template: their definitions as JSON, and what is wrong with them.

CloudFormation takes any string as a definition, and so do cfn-lint and the emulator: a `Next` that
leads nowhere is first seen when an execution gets there. Three readers judge a definition here: the
graph rules below, the schema of the Amazon States Language that cfn-lint carries, and, where it is
installed, asl-validator.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.synth.findings import Finding
from tests.e2e.synth.intrinsics import text

MACHINE = "AWS::StepFunctions::StateMachine"
ENDS = {"Succeed", "Fail"}
CHECK = "states"

_ACCOUNT = {
    "<AWS::Partition>": "aws",
    "<AWS::Region>": "us-east-1",
    "<AWS::AccountId>": "123456789012",
}
"""What an ARN must have to be one; every other reference stays a placeholder."""


def definitions(template: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The definition of each state machine, by logical id; references are placeholders.

    Raises:
        ValueError: a definition that is not in the template itself, or is no JSON.
    """
    found = {}
    for name, resource in template["Resources"].items():
        if resource["Type"] != MACHINE:
            continue
        properties = resource["Properties"]
        if "DefinitionString" not in properties:
            raise ValueError(f"{name}: the definition is not in the template: {sorted(properties)}")
        source = text(properties["DefinitionString"])
        for pseudo, value in _ACCOUNT.items():
            source = source.replace(pseudo, value)
        found[name] = json.loads(source)
    return found


def scopes(definition: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each graph of states: the machine's own, and those inside Parallel and Map states."""
    yield path, dict(definition)
    for name, state in definition.get("States", {}).items():
        inner = [*state.get("Branches", [])]
        inner += [state[key] for key in ("ItemProcessor", "Iterator") if key in state]
        for index, scope in enumerate(inner):
            yield from scopes(scope, f"{path}/{name}[{index}]")


def targets(state: Mapping[str, Any]) -> set[str]:
    """The states that may follow one."""
    found = {state[key] for key in ("Next", "Default") if key in state}
    for listed in ("Choices", "Catch"):
        found |= {entry["Next"] for entry in state.get(listed, []) if "Next" in entry}
    return found


def graph_findings(machine: str, definition: Mapping[str, Any]) -> list[Finding]:
    """What is wrong with the graph: lost targets, states never reached, states that never end."""
    found = []
    for path, scope in scopes(definition):
        states, where = scope["States"], f"{machine}{path}"
        for name, state in states.items():
            found += [
                Finding(CHECK, f"{where}/{name}", f"goes to {lost!r}, which is no state here",
                        "name a state of the same graph")
                for lost in sorted(targets(state) - set(states))
            ]  # fmt: skip
        if scope["StartAt"] not in states:
            found.append(Finding(CHECK, where, f"starts at {scope['StartAt']!r}: no such state",
                                 "name a state"))  # fmt: skip
            continue
        reached = _reached(states, scope["StartAt"])
        found += [
            Finding(CHECK, f"{where}/{name}", "is never reached", "remove it or lead to it")
            for name in sorted(set(states) - reached)
        ]
        found += [
            Finding(CHECK, f"{where}/{name}", "leads to no end", "give it a way to an end")
            for name in sorted(reached - _ending(states))
        ]
    return found


def _reached(states: Mapping[str, Any], start: str) -> set[str]:
    reached: set[str] = set()
    ahead = {start}
    while ahead:
        name = ahead.pop()
        reached.add(name)
        ahead |= (targets(states[name]) & set(states)) - reached
    return reached


def _ending(states: Mapping[str, Any]) -> set[str]:
    """The states from which an end can be reached."""
    ending = {name for name, state in states.items() if state.get("End") or state["Type"] in ENDS}
    while True:
        more = {name for name, state in states.items() if targets(state) & ending} - ending
        if not more:
            return ending
        ending |= more


def task_findings(machine: str, definition: Mapping[str, Any]) -> list[Finding]:
    """Tasks that wait for a token without a limit: a node that dies would hang the machine."""
    limits = ("HeartbeatSeconds", "TimeoutSeconds", "HeartbeatSecondsPath", "TimeoutSecondsPath")
    return [
        Finding(CHECK, f"{machine}{path}/{name}", "waits for a task token without any limit",
                "set HeartbeatSeconds or TimeoutSeconds")
        for path, scope in scopes(definition)
        for name, state in scope["States"].items()
        if state.get("Resource", "").endswith(".waitForTaskToken")
        and not any(limit in state for limit in limits)
    ]  # fmt: skip


def validator_findings(
    machine: str, definition: Mapping[str, Any], command: Callable[..., list[str]]
) -> list[Finding]:
    """What asl-validator says of a definition.

    Args:
        machine: its logical id.
        definition: the definition, with placeholders for what is only known at deployment.
        command: gives the command line of asl-validator with these arguments.
    """
    with tempfile.TemporaryDirectory(prefix="luma-asl-") as folder:
        path = Path(folder) / f"{machine}.json"
        path.write_text(json.dumps(definition), encoding="utf-8")
        done = subprocess.run(
            command("--json-path", str(path)),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if done.returncode == 0:
        return []
    said = " ".join((done.stdout + done.stderr).replace(str(path), machine).split())
    return [Finding("asl-validator", machine, said or f"exit code {done.returncode}",
                    "mend the definition")]  # fmt: skip

"""Definitions of state machines, read from a template as Step Functions would get them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.cdk import Assembly

PSEUDO = {"AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": "123456789012"}


def definitions(assembly: Assembly) -> dict[str, dict[str, Any]]:
    """The definitions of a stack's machines, by the path of their construct below the stack."""
    ids = assembly.logical_ids()
    return {
        ids[name].partition("/")[2].removesuffix("/Resource/Resource"): definition_of(machine)
        for name, machine in assembly.of_type("AWS::StepFunctions::StateMachine").items()
    }


def definition_of(machine: dict[str, Any]) -> dict[str, Any]:
    """A machine's definition; references stand as their logical ids."""
    return json.loads(resolved(machine["Properties"]["DefinitionString"]))


def resolved(value: Any) -> str:
    """A text with `Fn::Join`, `Ref` and `Fn::GetAtt` replaced by what they could be."""
    match value:
        case str():
            return value
        case {"Fn::Join": [separator, parts]}:
            return separator.join(resolved(part) for part in parts)
        case {"Ref": name}:
            return PSEUDO.get(name, name)
        case {"Fn::GetAtt": [name, attribute]}:
            return f"{name}.{attribute}"
    raise AssertionError(f"unknown in a definition: {value}")


def states(definition: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All states by name, those of branches and iterations too."""
    for name, state in definition["States"].items():
        yield name, state
        for inner in (*state.get("Branches", ()), state.get("ItemProcessor")):
            if inner is not None:
                yield from states(inner)


def tasks(definition: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The Task states, by name."""
    return {name: state for name, state in states(definition) if state["Type"] == "Task"}


def resource_of(task: dict[str, Any]) -> str:
    """A task's integration and action, such as "aws-sdk:ssm:sendCommand"."""
    return task["Resource"].removeprefix("arn:aws:states:::")


def texts(value: Any) -> Iterator[tuple[str, str]]:
    """Every text in some JSON with the key it stands under."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str):
                yield key, inner
            else:
                yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)

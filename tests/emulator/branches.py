"""Which branches of state machines were executed, out of all that their definitions have.

A branch is an edge from one state to the next: `Next`, `Default`, a choice's or a catcher's `Next`,
inside Parallel and Map states too. What ran is read from execution histories. The same machine in
another stack is recognised by its branches: the two have more in common than any other pair.
"""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.emulator.server import EmulatedServer

Edge = tuple[str, str]
FOLDER_VARIABLE = "LUMA_BRANCHES"


def edges_of(definition: dict[str, Any]) -> set[Edge]:
    """All branches of a definition."""
    return set(_edges(definition))


def _edges(definition: dict[str, Any]) -> Iterator[Edge]:
    for name, state in definition["States"].items():
        ways = [state, *state.get("Choices", ()), *state.get("Catch", ())]
        yield from ((name, way["Next"]) for way in ways if "Next" in way)
        if "Default" in state:
            yield name, state["Default"]
        nested = [*state.get("Branches", ())]
        nested += [state[key] for key in ("ItemProcessor", "Iterator") if key in state]
        for inner in nested:
            yield from _edges(inner)


def executed_edges(history: list[dict[str, Any]], among: set[Edge]) -> set[Edge]:
    """The branches that a history took: each state that was entered, from the one left before it.

    Args:
        history: events of `GetExecutionHistory`, whole.
        among: the definition's branches. Events of parallel branches name the state before by
            `previousEventId`; where moto's number leads to another branch, the pair is no edge.
    """
    by_id = {event["id"]: event for event in history}
    found = set()
    for event in history:
        entered = event.get("stateEnteredEventDetails")
        if entered is None:
            continue
        left = _state_left_before(event, by_id)
        if left is not None and (left, entered["name"]) in among:
            found.add((left, entered["name"]))
    return found


def _state_left_before(event: dict[str, Any], by_id: dict[int, dict[str, Any]]) -> str | None:
    before = by_id.get(event.get("previousEventId", 0))
    while before is not None:
        if "stateExitedEventDetails" in before:
            return before["stateExitedEventDetails"]["name"]
        before = by_id.get(before.get("previousEventId", 0))
    return None


class BranchRecord:
    """Branches there are, and branches that ran, for several machines."""

    def __init__(self):
        self._all: dict[str, set[Edge]] = {}
        self._ran: dict[str, set[Edge]] = {}

    def add_machine(self, client: Any, arn: str) -> None:
        """Add a machine and every execution of it."""
        described = client.describe_state_machine(stateMachineArn=arn)
        edges = edges_of(json.loads(described["definition"]))
        key = described["name"]
        self._all[key] = edges
        pages = client.get_paginator("list_executions").paginate(stateMachineArn=arn)
        for execution in (e for page in pages for e in page["executions"]):
            history = client.get_execution_history(executionArn=execution["executionArn"])
            ran = executed_edges(history["events"], edges)
            self._ran.setdefault(key, set()).update(ran)

    def write(self, path: Path) -> None:
        """Keep it for `merge`."""
        document = {
            key: {"all": sorted(edges), "ran": sorted(self._ran.get(key, ()))}
            for key, edges in self._all.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1))

    def merge(self, path: Path) -> None:
        """Add what another record saw of the machines that this one has."""
        for part in json.loads(path.read_text()).values():
            theirs = {(a, b) for a, b in part["all"]}
            key = max(self._all, key=lambda known: _likeness(self._all[known], theirs))
            ran = {(a, b) for a, b in part["ran"]}
            self._ran.setdefault(key, set()).update(ran & self._all[key])

    @property
    def total(self) -> int:
        """How many branches there are."""
        return sum(len(edges) for edges in self._all.values())

    @property
    def executed(self) -> int:
        """How many of them ran."""
        return sum(len(self._ran.get(key, set()) & edges) for key, edges in self._all.items())

    def missing(self) -> list[Edge]:
        """Those that did not run."""
        return sorted(
            edge for key, edges in self._all.items() for edge in edges - self._ran.get(key, set())
        )


def _likeness(ours: set[Edge], theirs: set[Edge]) -> float:
    """Share of common branches; one machine may hold all of another's and be a different one."""
    return len(ours & theirs) / max(1, len(ours | theirs))


def record_all(server: EmulatedServer) -> None:
    """Record every machine and execution of a server, where `LUMA_BRANCHES` names a folder."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    client = server.client("stepfunctions")
    record = BranchRecord()
    for machine in client.list_state_machines()["stateMachines"]:
        record.add_machine(client, machine["stateMachineArn"])
    record.write(Path(folder) / f"{uuid.uuid4().hex}.json")

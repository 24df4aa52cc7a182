"""What other processes ask of a run's coordinator, and how they find it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.coordinator.events import read_events
from runtime.coordinator.plan import RunPlan
from runtime.coordinator.tls import run_tls
from runtime.coordinator.wire import Message, exchange
from runtime.spec.errors import CoordinationError

ADDRESS_FILE = "coordinator.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorAddress:
    """Where a coordinator listens.

    Attributes:
        host: address to connect to.
        port: TCP port.
        pid: the coordinator's process id, on its own machine.
        token: the run's secret, which every connection must show.
    """

    host: str
    port: int
    pid: int
    token: str

    def write(self, run_dir: Path) -> None:
        """Publish the address in the run folder, readable by the owner only."""
        temporary = run_dir / f".{ADDRESS_FILE}.{self.pid}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(
                {"host": self.host, "port": self.port, "pid": self.pid, "token": self.token}, file
            )
        temporary.rename(run_dir / ADDRESS_FILE)

    @classmethod
    def read(cls, run_dir: Path) -> CoordinatorAddress | None:
        """Give the published address, or None where there is none yet."""
        try:
            return cls(**json.loads((run_dir / ADDRESS_FILE).read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None


def _ask(run_dir: Path, message: Message) -> Message | None:
    """Ask the live coordinator; None when there is none."""
    address = CoordinatorAddress.read(run_dir)
    if address is None:
        return None
    try:
        tls = run_tls(run_dir, address.host)
        words = {**message, "token": address.token}
        return exchange((address.host, address.port), words, tls=tls)
    except (OSError, CoordinationError):
        return None  # nobody listens there any more, or a stranger who took the port over


def read_status(run_dir: Path) -> dict[str, Any]:
    """Give the state of a run: from its coordinator, or from its files when none runs.

    Returns:
        `state`, `step` (applied steps), `total_steps`, `coordinator` ({`pid`} or None),
        `islands` ([{`name`, `pid`, `state`, `shards_per_s`}]), `last_checkpoint`.

    Raises:
        RunError: `run_dir` is not a run folder.
    """
    answer = _ask(run_dir, {"type": "status"})
    if answer is not None and answer["type"] == "status":
        return {key: value for key, value in answer.items() if key != "type"}
    return _status_from_files(run_dir)


def _status_from_files(run_dir: Path) -> dict[str, Any]:
    plan = RunPlan.read(run_dir)
    state, step, checkpoint, error = "terminated", 0, -1, None
    for event in read_events(run_dir):
        match event["kind"]:
            case "commit":
                step = max(step, event["step"] + 1)
            case "checkpoint":
                checkpoint = max(checkpoint, event["step"])
            case "done":
                state = "done"
            case "failed":
                state, error = "failed", event["error"]
            case "coordinator_started":
                state, error = "terminated", None
    return {
        "state": state,
        "step": step,
        "total_steps": plan.total_steps,
        "coordinator": None,
        "islands": [],
        "last_checkpoint": checkpoint,
        "error": error,
    }


def request_stop(run_dir: Path) -> None:
    """Ask a run to end resumably: after the step in flight, with a checkpoint.

    Raises:
        CoordinationError: no coordinator runs for this folder.
    """
    if _ask(run_dir, {"type": "stop"}) is None:
        raise CoordinationError(
            f"no coordinator runs for '{run_dir}'",
            remedy="the run has ended already; see `luma status`",
        )

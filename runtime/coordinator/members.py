"""What the coordinator knows of each island that is connected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

IslandState = Literal["empty", "loading", "syncing", "active"]
"""`empty`: holds no state that counts; `loading`: reads a checkpoint; `syncing`: is handed the
state of the step in flight; `active`: holds it, and takes part in the step."""


@dataclass(slots=True)
class Island:
    """One connected island.

    Attributes:
        name: unique in the run.
        pid: its process.
        host: address of its listener for other islands.
        port: port of that listener.
        last_seen: when its last message came, seconds on the coordinator's clock.
        state: what it can do for the step in flight.
        step: applied steps of the state that it holds, -1 without one.
        leaving: it has notice and takes no more shards.
        donor: the island that hands it the state while `syncing`.
        request: number of the newest load or hand-over that was asked of it.
        sync_started: when the hand-over was asked for.
        shards_done: micro-shards that it has finished.
    """

    name: str
    pid: int
    host: str
    port: int
    last_seen: float
    state: IslandState = "empty"
    step: int = -1
    leaving: bool = False
    donor: str | None = None
    request: int = 0
    sync_started: float = 0.0
    shards_done: int = 0


def island_order(name: str) -> tuple[int, str]:
    """Give a sort key that puts island-2 before island-10."""
    tail = name.rsplit("-", 1)[-1]
    return (int(tail) if tail.isdigit() else 1 << 30, name)

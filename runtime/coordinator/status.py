"""The run's state as `luma status --json` shows it."""

from __future__ import annotations

from typing import Any

from runtime.coordinator.core import Coordinator
from runtime.coordinator.shards import Speed


def status(core: Coordinator) -> dict[str, Any]:
    """Give the run's state as `luma status --json` shows it, less the coordinator's own pid."""
    return {
        "state": _RUN_STATES[core.phase],
        "step": core.step,
        "total_steps": core.plan.total_steps,
        "epoch": core.epoch,
        "islands": [
            {
                "name": island.name,
                "pid": island.pid,
                "state": island.state,
                "shards_per_s": _rate(core.speeds.get(island.name)),
            }
            for island in core.islands.values()
        ],
        "last_checkpoint": core.checkpoints.last,
        "error": core.error,
    }


_RUN_STATES = {
    "gather": "provisioning",
    "load": "provisioning",
    "run": "running",
    "finish": "terminating",
    "done": "done",
    "stopped": "terminated",
    "failed": "failed",
}


def _rate(speed: Speed | None) -> float | None:
    if speed is None or not speed.seconds_per_shard:
        return None
    return round(1.0 / speed.seconds_per_shard, 3)

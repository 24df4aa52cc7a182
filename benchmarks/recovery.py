"""Time from SIGKILL of one island of three to the next commit, heartbeat included.

The kill comes in mid-step: a part of the usual time after a commit. Each time a replacement joins
before the next kill. The baseline is the time between two commits of the undisturbed fleet, which
is what a kill costs at the least.
"""

from __future__ import annotations

import itertools
import statistics
import time

from benchmarks.context import Context
from benchmarks.fleet import Fleet
from benchmarks.result import Goal, Result
from benchmarks.runs import BenchJob, copied, prepared

_ISLANDS = 3
_JOB = BenchJob(name="tiny", builder="qwen3_128x4", micro_shards=8, micro_batch=2, seq_len=128)
_PHASES = (0.2, 0.5, 0.8)


def measure(context: Context) -> list[Result]:
    """Kill, wait for the next commit, replace; several times."""
    template = prepared(context, _JOB)
    kills = context.pick(6, 2)
    folder = copied(template, context.work / "recovery", islands=_ISLANDS)
    with Fleet(folder, _ISLANDS) as fleet:
        usual = _usual_seconds(fleet)
        recoveries: list[float] = []
        for number in range(kills):
            context.say(f"recovery: kill {number + 1} of {kills}")
            phase = _PHASES[number % len(_PHASES)]
            recoveries.append(_kill_once(fleet, phase * statistics.median(usual)))
            _wait_for_members(fleet, fleet.add_island())
    return [
        Result(
            name="recovery/tiny",
            unit="s",
            luma=recoveries,
            baselines={"undisturbed_step": usual},
            goal=Goal(limit=3.0, measure="luma_max"),
            notes={"islands": _ISLANDS, "signal": "SIGKILL", "heartbeat_s": 1.0, **_JOB.notes()},
        )
    ]


def _usual_seconds(fleet: Fleet) -> list[float]:
    times = [event["time"] for event in fleet.wait_for_commits(9)][-7:]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _kill_once(fleet: Fleet, delay_s: float) -> float:
    before = len(fleet.events("commit"))
    fleet.wait_for_commits(before + 1)
    time.sleep(delay_s)
    killed = time.time()
    fleet.kill_island()

    def next_commit() -> float | None:
        later = [e["time"] for e in fleet.events("commit") if e["time"] > killed]
        return later[0] if later else None

    return fleet.wait(next_commit, "a commit after the kill") - killed


def _wait_for_members(fleet: Fleet, newcomer: str) -> None:
    def joined() -> bool:
        return newcomer in fleet.events("epoch")[-1]["members"]

    fleet.wait(joined, f"{newcomer} in an epoch")
    fleet.wait_for_commits(len(fleet.events("commit")) + 2)

"""Throughput of two one-thread islands against one: the cost of leases, ring and waiting.

Both fleets compute the same job; on two free cores two islands could at most be twice as fast.
"""

from __future__ import annotations

import os

from benchmarks.context import Context
from benchmarks.fleet import Fleet, step_seconds
from benchmarks.result import Goal, Result
from benchmarks.runs import BenchJob, copied, prepared

_LARGE = BenchJob(
    name="qwen3-512x6-short", builder="qwen3_512x6", micro_shards=32, micro_batch=1, seq_len=128
)
_SMALL = BenchJob(
    name="qwen3-128x4-short", builder="qwen3_128x4", micro_shards=32, micro_batch=1, seq_len=128
)
_GOAL = Goal(limit=1.7, at_most=False)


def measure(context: Context) -> list[Result]:
    """Measure shards a second of one and of two islands, in turns."""
    job = context.pick(_LARGE, _SMALL)
    template = prepared(context, job)
    repetitions, steps = context.pick((3, 3), (1, 4))
    rates: dict[int, list[float]] = {1: [], 2: []}
    for number in range(repetitions):
        context.say(f"scaling: repetition {number + 1} of {repetitions}")
        for islands, runs in rates.items():
            folder = copied(
                template,
                context.work / "scaling",
                islands=islands,
                min_islands=islands,
                heartbeat_timeout_s=30.0,
            )
            with Fleet(folder, islands) as fleet:
                runs += [job.micro_shards / s for s in step_seconds(fleet, steps)]
    return [
        Result(
            name=f"scaling/{job.name}",
            unit="shards/s",
            luma=rates[2],
            baselines={"one_island": rates[1]},
            smaller_is_better=False,
            goal=_GOAL,
            notes={
                "islands": 2,
                "threads_per_island": 1,
                "cores": len(os.sched_getaffinity(0)),
                **job.notes(),
            },
        )
    ]

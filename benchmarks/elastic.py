"""What the elastic layer costs: one real island and coordinator against the bare executables.

The island leases shards, sums them, hashes the sum, waits for the commit in the log, and applies;
the bare loop runs the same executables on the same batches. A step is timed from commit to commit.
The bare process sleeps while the fleet works and the fleet is gone while the bare loop works.
"""

from __future__ import annotations

from benchmarks.context import Context
from benchmarks.fleet import Fleet, step_seconds
from benchmarks.result import Goal, Result
from benchmarks.runs import BenchJob, copied, prepared
from runtime.agent.threads import ALLOCATOR, island_environment

LARGE = BenchJob(
    name="smollm2-135m", builder="smollm2_135m", micro_shards=16, micro_batch=1, seq_len=256
)
SMALL = BenchJob(
    name="qwen3-128x4", builder="qwen3_128x4", micro_shards=16, micro_batch=4, seq_len=128
)


def measure(context: Context) -> list[Result]:
    """Measure the layer's cost on the 135M shape, 16 shards of 1x256 a step."""
    job = context.pick(LARGE, SMALL)
    template = prepared(context, job)
    repetitions, steps = context.pick((2, 2), (2, 4))
    luma: list[float] = []
    bare: list[float] = []
    environment = island_environment(context.threads) | ALLOCATOR
    with context.child("benchmarks.bare_loop", environment=environment) as child:
        about = child.ask("load", run=str(template.path))
        child.ask("run", steps=1)
        for number in range(repetitions):
            context.say(f"elastic: repetition {number + 1} of {repetitions}")
            bare += child.ask("run", steps=steps)
            folder = copied(
                template,
                context.work / "elastic",
                threads_per_island=context.threads,
                heartbeat_timeout_s=30.0,
            )
            with Fleet(folder, 1) as fleet:
                luma += step_seconds(fleet, steps)
    return [
        Result(
            name=f"elastic-layer/{job.name}",
            unit="s a step",
            luma=luma,
            baselines={"bare_executables": bare},
            goal=Goal(limit=1.10),
            notes={"threads": context.threads, **about, **job.notes()},
        )
    ]

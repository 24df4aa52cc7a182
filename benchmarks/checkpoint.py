"""The trainer's stall for a checkpoint against a plain blocking safetensors save of the same state.

The stall is what the island itself measures and writes into its events. The first checkpoint of an
island makes its buffers; it is reported apart from the later ones.
"""

from __future__ import annotations

from typing import Any

from benchmarks.context import Context
from benchmarks.fleet import Fleet
from benchmarks.result import Goal, Result
from benchmarks.runs import BenchJob, copied, prepared

_LARGE = BenchJob(
    name="smollm2-135m-small-steps",
    builder="smollm2_135m",
    micro_shards=1,
    micro_batch=1,
    seq_len=32,
)
_SMALL = BenchJob(
    name="qwen3-128x4-small-steps", builder="qwen3_128x4", micro_shards=1, micro_batch=1, seq_len=32
)


def measure(context: Context) -> list[Result]:
    """Let an island write checkpoints while it trains, and save the same arrays plainly, in turns.

    The steps are as small as they can be, so that a checkpoint comes every few seconds.
    """
    job = context.pick(_LARGE, _SMALL)
    template = prepared(context, job)
    later: list[float] = []
    first: list[float] = []
    written: list[float] = []
    plain: list[float] = []
    with context.child("benchmarks.plain_save") as child:
        size = child.ask("load", run=str(template.path))
        for number in range(context.pick(2, 1)):
            context.say(f"checkpoint: repetition {number + 1}")
            plain += child.ask("run", count=3, folder=str(context.work))
            folder = copied(
                template,
                context.work / "checkpoint",
                checkpoint_every=2,
                threads_per_island=context.threads,
                heartbeat_timeout_s=60.0,
            )
            with Fleet(folder, 1) as fleet:
                events = _checkpoints(fleet, 4)
            first.append(events[0]["stall_s"])
            later += [event["stall_s"] for event in events[1:]]
            written += [event["seconds"] for event in events]
    return [
        Result(
            name=f"checkpoint-stall/{job.name}",
            unit="s",
            luma=later,
            baselines={"blocking_safetensors_save": plain},
            goal=Goal(limit=1.0),
            notes={
                "state_bytes": size["bytes"],
                "first_stall_s": first,
                "durable_after_s": written,
                "threads": context.threads,
                "model": job.builder,
            },
        )
    ]


def _checkpoints(fleet: Fleet, count: int) -> list[dict[str, Any]]:
    def enough() -> list[dict[str, Any]] | None:
        events = fleet.events("checkpoint")
        return events if len(events) >= count else None

    return fleet.wait(enough, f"checkpoint {count}")

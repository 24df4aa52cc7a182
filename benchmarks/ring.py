"""Our int32 all-reduce against torch.distributed's gloo: the same ranks, the same bytes, in turns.

Ours makes a new ring for each reduction, as each training step does, and that is in its time;
gloo keeps its connections. A repetition takes as long as its slowest rank.
"""

from __future__ import annotations

import contextlib

from benchmarks.children import Child
from benchmarks.context import Context
from benchmarks.result import Goal, Result

_SIZES = (2, 3)


def measure(context: Context) -> list[Result]:
    """Measure each number of islands."""
    return [_measure_size(context, size) for size in _SIZES]


def _measure_size(context: Context, size: int) -> Result:
    count_bytes = context.pick(96, 8) << 20
    repetitions = context.pick(7, 3)
    context.say(f"ring: {size} islands, {count_bytes >> 20} MiB")
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(context.child("benchmarks.ring_rank", threads=1))
            for _ in range(size)
        ]
        meeting = context.work / f"gloo-{size}"
        meeting.unlink(missing_ok=True)
        for rank, child in enumerate(ranks):
            child.tell("open", rank=rank, size=size, meeting=str(meeting), size_bytes=count_bytes)
        ports = [child.answer() for child in ranks]
        runs: dict[str, list[float]] = {"luma": [], "gloo": []}
        for number in range(repetitions + 1):
            for side, times in runs.items():
                seconds = _reduce(ranks, side, ports, number)
                if number:  # the first one touches fresh memory
                    times.append(seconds)
    return Result(
        name=f"ring/{size}-islands",
        unit="s",
        luma=runs["luma"],
        baselines={"gloo": runs["gloo"]},
        goal=Goal(limit=1.0),
        notes={"bytes": count_bytes, "dtype": "int32", "operation": "sum"},
    )


def _reduce(ranks: list[Child], side: str, ports: list[int], number: int) -> float:
    for child in ranks:
        child.tell("reduce", side=side, ports=ports, number=number)
    return max(child.answer() for child in ranks)

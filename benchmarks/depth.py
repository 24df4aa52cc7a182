"""Capture and compile as layers grow: seconds, and the compiler's peak memory, for 6 to 48 layers.

The ratio is that of the deepest model to the shallowest, over the ratio of their layers: 1.0 is
linear growth, below it a fixed part weighs less and less.
"""

from __future__ import annotations

import tempfile
from typing import Any

from benchmarks.context import Context
from benchmarks.result import Goal, Result
from benchmarks.shapes import LAYERS

_GOAL = Goal(limit=1.2)
_WHAT = ("capture", "compile", "compile_peak_bytes")


def measure(context: Context) -> list[Result]:
    """Measure each depth once, cold."""
    layers = context.pick(LAYERS, LAYERS[:2])
    found = {count: _measure_depth(context, f"qwen3-256x{count}") for count in layers}
    return [_growth(what, found) for what in _WHAT]


def _measure_depth(context: Context, name: str) -> dict[str, float]:
    context.say(f"depth: {name}, cold")
    folder = context.work / f"depth-{name}"
    folder.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=context.work) as cache,
        context.child("benchmarks.build_program") as child,
    ):
        return child.ask("build", shape_name=name, folder=str(folder), cache_dir=cache)


def _growth(what: str, found: dict[int, dict[str, float]]) -> Result:
    first, last = min(found), max(found)
    linear = found[first][what] * last / first
    notes: dict[str, Any] = {
        f"{count} layers": float(f"{parts[what]:.4g}") for count, parts in found.items()
    }
    return Result(
        name=f"depth/{what}",
        unit="bytes" if what.endswith("bytes") else "s",
        luma=[found[last][what]],
        baselines={"linear": [linear]},
        goal=_GOAL,
        notes=notes,
    )

"""Step time over three sizes of model and two lengths of sequence, each as in `step`.

A last entry holds the geometric mean of the ratios. Every entry also says how far the compiled step
is from the time that its matrix products alone would take at this machine's own matmul rate.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from benchmarks.context import Context
from benchmarks.result import Goal, Result
from benchmarks.shapes import SIZES_AND_LENGTHS
from benchmarks.step import measure_shape

_MEAN_GOAL = Goal(limit=0.95)


def measure(context: Context) -> list[Result]:
    """Measure each pair, and the mean over them."""
    everything = tuple(SIZES_AND_LENGTHS)
    names = context.pick(everything, tuple(n for n in everything if n.startswith("qwen3-128x4")))
    with context.child("benchmarks.matmul_rate") as child:
        flops_per_s = child.ask("measure", threads=context.threads)
    results = [_with_bound(measure_shape(context, name), flops_per_s) for name in names]
    return [*results, _mean(results)]


def _with_bound(result: Result, flops_per_s: float) -> Result:
    """Note the time that the products alone would take, and the step's ratio to it."""
    bound = float(result.notes["matmul_flops"]) / flops_per_s
    found = {
        "matmul_gflops_per_s": round(flops_per_s / 1e9, 1),
        "matmul_bound_s": float(f"{bound:.4g}"),
        "ratio_to_matmul_bound": round(statistics.median(result.luma) / bound, 3),
    }
    return replace(result, notes={**result.notes, **found})


def _mean(results: list[Result]) -> Result:
    """Give the geometric mean of the ratios; each pair's ratio is one run."""
    ratios = [ratio for result in results if (ratio := result.ratio()) is not None]
    missing = {r.name: "no baseline could be measured" for r in results if r.ratio() is None}
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios)) if ratios else math.nan
    return Result(
        name="step/geometric-mean",
        unit="of the better of eager and torch.compile",
        luma=[mean],
        baselines={"better_of_torch": [1.0]},
        goal=_MEAN_GOAL,
        missing=missing,
        notes={"ratios": {r.name: round(v, 3) for r, v in zip(results, ratios, strict=False)}},
    )

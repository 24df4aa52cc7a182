"""Cold and warm compile for every target whose compiler is here.

A shape is captured once. Each target then compiles it with an empty cache, by the service that
`luma compile` uses, and a second process makes the same call again, which must be a look-up: the
ratio is warm over cold. Nothing runs on the targets' chips; peak memory and step time are stated
and predicted. A target without its compiler here stands under `missing` of the last entry, as one
whose compile failed does, with the reason.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.children import ChildError
from benchmarks.context import Context
from benchmarks.result import Goal, Result
from benchmarks.shapes import SHAPES
from runtime.compiler.targets import target_names

_WARM = Goal(limit=0.01)
_QUICK = ("cpu", "cuda-sm90", "tpu-v5e", "rocm-gfx942", "trn2")  # one of each family


def measure(context: Context) -> list[Result]:
    """Measure each target once, cold and warm; the last entry sums them up."""
    name = context.pick("smollm2-135m", "qwen3-128x4")
    targets = context.pick(target_names(), _QUICK)
    package = context.work / f"targets-{name}.package"
    context.say(f"targets: capture {name}")
    with context.child("benchmarks.build_target") as child:
        capture_s = child.ask("capture", shape_name=name, package_file=str(package))
        reasons = {target: child.ask("missing", target=target) for target in targets}
    missing = {target: reason for target, reason in reasons.items() if reason}
    results = []
    for target in targets:
        if target in missing:
            continue
        try:
            results.append(_measure_target(context, name, target, package, capture_s))
        except ChildError as error:
            context.say(str(error))
            missing[target] = str(error)
    return [*results, _summary(name, results, missing, capture_s)]


def _measure_target(
    context: Context, name: str, target: str, package: Path, capture_s: float
) -> Result:
    """Compile for a target with an empty cache, then again in a new process."""
    context.say(f"targets: {name} for {target}, cold")
    with tempfile.TemporaryDirectory(dir=context.work) as cache:
        cold, warm = (_compile(context, package, target, cache) for _ in range(2))
    if cold["cached"] or not warm["cached"]:
        raise ChildError(
            f"target {target}: the second compile was no look-up; an edit of the compiler's source "
            "while it is measured does that"
        )
    cold_s = cold.pop("seconds")
    stated = {key: value for key, value in cold.items() if key != "cached"}
    return Result(
        name=f"targets/{name}/{target}",
        unit="s, warm",
        luma=[warm["seconds"]],
        baselines={"cold": [cold_s]},
        goal=_WARM,
        notes={
            "cold_s": round(cold_s, 2),
            "cold_with_capture_s": round(cold_s + capture_s, 2),
            "seq_len": SHAPES[name].seq_len,
            "micro_batch": SHAPES[name].micro_batch,
            **stated,
        },
    )


def _compile(context: Context, package: Path, target: str, cache: str) -> dict[str, Any]:
    """Make one call in a process of its own."""
    with context.child("benchmarks.build_target") as child:
        return child.ask("compile", package_file=str(package), target=target, cache_dir=cache)


def _summary(name: str, results: list[Result], missing: dict[str, str], capture_s: float) -> Result:
    """Give the cold seconds of all targets together, each target's in the notes."""
    cold = {result.name.rpartition("/")[2]: result.notes["cold_s"] for result in results}
    return Result(
        name=f"targets/{name}",
        unit="s, cold, all targets",
        luma=[capture_s + sum(cold.values())],
        baselines={},
        missing=missing,
        notes={"capture_s": round(capture_s, 2), "cold_s": cold},
    )

"""Cold compile: capture and compile with an empty cache, against `torch.compile`'s first call.

`step` measures both on its way; alone, this module has them measured. One run a side: a cold
compile of torch takes minutes.
"""

from __future__ import annotations

import tempfile

from benchmarks.children import ChildError
from benchmarks.context import Context
from benchmarks.result import Goal, Result
from benchmarks.step import build_cold, open_torch


def measure(context: Context) -> list[Result]:
    """Measure, or take what `step` measured."""
    names = context.pick(("qwen3-512x6", "smollm2-135m"), ("qwen3-128x4",))
    return [_measure_shape(context, name) for name in names]


def _measure_shape(context: Context, name: str) -> Result:
    if f"cold/luma/{name}" not in context.memo:
        folder = context.work / f"step-{name}"
        folder.mkdir(exist_ok=True)
        build_cold(context, name, folder)
    parts: dict[str, float] = context.memo[f"cold/luma/{name}"]
    torch = _torch_seconds(context, name)
    return Result(
        name=f"cold-compile/{name}",
        unit="s",
        luma=[parts["capture"] + parts["compile"]],
        baselines={} if torch is None else {"torch_compile": [torch]},
        goal=Goal(limit=1.0),
        notes={
            "capture_s": round(parts["capture"], 2),
            "compile_s": round(parts["compile"], 2),
            "programs": "grad, apply, forward",
        },
    )


def _torch_seconds(context: Context, name: str) -> float | None:
    if f"cold/torch/{name}" not in context.memo:
        try:
            with tempfile.TemporaryDirectory(dir=context.work) as cache:
                open_torch(context, name, cache, compiled=True)[0].close()
        except ChildError as error:
            context.say(str(error))
    return context.memo.get(f"cold/torch/{name}")

"""Step time: the compiled `grad` program against Hugging Face eager and `torch.compile`.

Loss and gradients of the same model, weights, batch and threads; Luma's side also encodes the
gradients to fixed point and adds them to the step's sums. The sides take turns.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.children import Child, ChildError
from benchmarks.context import Context
from benchmarks.result import Goal, Result
from runtime.agent.threads import ALLOCATOR, island_environment

_GOAL = Goal(limit=1.0)
_LOSS_TOLERANCE = 1e-4


def measure(context: Context) -> list[Result]:
    """Measure each shape."""
    names = context.pick(("qwen3-512x6", "smollm2-135m"), ("qwen3-128x4",))
    return [measure_shape(context, name) for name in names]


def measure_shape(context: Context, name: str) -> Result:
    """Measure one shape of `SHAPES` against eager and compiled torch."""
    folder = context.work / f"step-{name}"
    folder.mkdir(exist_ok=True)
    cold = build_cold(context, name, folder)
    with contextlib.ExitStack() as stack:
        sides, losses, notes, missing = _open_sides(context, stack, name, folder)
        _check_losses(name, losses)
        runs, processor = _take_turns(context, sides, name)
    return Result(
        name=f"step/{name}",
        unit="s",
        luma=runs.pop("luma"),
        baselines=runs,
        goal=_GOAL,
        missing=missing,
        notes={
            "threads": context.threads,
            "loss": losses,
            "processor_s_a_step": processor,
            "matmul_flops": cold["matmul_flops"],
            **notes,
        },
    )


def build_cold(context: Context, name: str, folder: Path) -> dict[str, float]:
    """Capture and compile a shape with an empty cache; remember what `build` says of it."""
    context.say(f"step/{name}: capture and compile, cold")
    with (
        tempfile.TemporaryDirectory(dir=context.work) as cache,
        context.child("benchmarks.build_program") as child,
    ):
        cold = child.ask("build", shape_name=name, folder=str(folder), cache_dir=cache)
    context.memo[f"cold/luma/{name}"] = cold
    return cold


def open_torch(context: Context, name: str, cache: str, *, compiled: bool) -> tuple[Child, Any]:
    """Start a torch side and have it run once; with `compiled`, remember the cold seconds.

    Raises:
        ChildError: torch could not compile here.
    """
    context.say(f"step/{name}: torch {'compiled, cold' if compiled else 'eager'}")
    environment = {"TORCHINDUCTOR_CACHE_DIR": cache}
    child = context.child("benchmarks.torch_step", environment=environment)
    try:
        first = child.ask("load", shape_name=name, threads=context.threads, compiled=compiled)
    except ChildError:
        child.close()
        raise
    if compiled:
        context.memo[f"cold/torch/{name}"] = first["seconds"]
    return child, first


def _open_sides(
    context: Context, stack: contextlib.ExitStack, name: str, folder: Path
) -> tuple[dict[str, Child], dict[str, float], dict[str, Any], dict[str, str]]:
    environment = island_environment(context.threads) | ALLOCATOR
    luma = stack.enter_context(context.child("benchmarks.compiled_step", environment=environment))
    loaded = luma.ask("load", shape_name=name, folder=str(folder))
    sides, losses = {"luma": luma}, {"luma": loaded["loss"]}
    notes: dict[str, Any] = {"load_s": round(loaded["seconds"], 3)}
    missing: dict[str, str] = {}
    cache = stack.enter_context(tempfile.TemporaryDirectory(dir=context.work))
    for side, compiled in (("hf_eager", False), ("torch_compile", True)):
        try:
            child, first = open_torch(context, name, cache, compiled=compiled)
        except ChildError as error:
            missing[side] = str(error)[:300]
            continue
        stack.callback(child.close)
        sides[side], losses[side] = child, first["loss"]
        if compiled:
            notes["torch_compile_cold_s"] = round(first["seconds"], 1)
    return sides, losses, notes, missing


def _check_losses(name: str, losses: dict[str, float]) -> None:
    """Refuse to compare sides that compute different things."""
    for side, loss in losses.items():
        if not math.isclose(loss, losses["luma"], rel_tol=_LOSS_TOLERANCE):
            raise ChildError(f"step/{name}: {side} has loss {loss}, luma {losses['luma']}")


def _take_turns(
    context: Context, sides: dict[str, Child], name: str
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Give each side's runs, and its processor seconds a step, spinning of idle threads included."""
    rounds, burst = context.pick((6, 3), (3, 4))
    for child in sides.values():
        child.ask("run", count=2)  # fresh memory, first touches
    before = {side: child.ask("processor_s") for side, child in sides.items()}
    runs: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        context.say(f"step/{name}: round {number + 1} of {rounds}")
        for side, child in sides.items():
            runs[side] += child.ask("run", count=burst)
    processor = {
        side: round((child.ask("processor_s") - before[side]) / (rounds * burst), 3)
        for side, child in sides.items()
    }
    return runs, processor

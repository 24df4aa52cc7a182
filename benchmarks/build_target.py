"""A child that captures a shape, or compiles a captured one for a target as `luma compile` does."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.build_program import MICRO_SHARDS, shape_model
from benchmarks.children import serve
from benchmarks.shapes import SHAPES


def capture(shape_name: str, package_file: str) -> float:
    """Capture a shape's model with random weights into a file; give the seconds.

    Args:
        shape_name: one of `SHAPES`.
        package_file: gets the graph package.
    """
    model, shape = shape_model(shape_name), SHAPES[shape_name]
    from runtime.compiler.capture import capture

    started = time.perf_counter()
    captured = capture(model, micro_batch=shape.micro_batch, seq_len=shape.seq_len)
    seconds = time.perf_counter() - started
    Path(package_file).write_bytes(captured.package.to_bytes())
    return seconds


def missing(target: str) -> str:
    """Say what a target's compiler lacks here, "" where nothing is missing."""
    from runtime.compiler.targets import back_end, find_target

    chosen = find_target(target)
    lacking = back_end(chosen).missing(chosen)
    return "" if lacking is None else f"{lacking.package} is not installed"


def compile_target(package_file: str, target: str, cache_dir: str) -> dict[str, Any]:
    """Compile a captured package, or take it from the cache.

    Args:
        package_file: holds the graph package.
        target: the target's name.
        cache_dir: the compile cache; an empty one makes the compile a cold one.

    Returns:
        `seconds` of the call, which has the compiler's process in it and reading the package not;
        whether it was `cached`; `programs`, the compiler's own seconds by program;
        `compiler_peak_bytes`, resident; what the payload states of itself, and the step that is
        predicted from it.
    """
    from runtime.compiler import GraphPackage, compile_package

    package = GraphPackage.from_bytes(Path(package_file).read_bytes())
    programs: dict[str, float] = {}

    def note(event: Mapping[str, Any]) -> None:
        if event.get("stage") in ("lower", "compile"):
            name = str(event["program"])
            programs[name] = programs.get(name, 0.0) + float(event["seconds"])

    result = compile_package(
        package,
        target=target,
        micro_shards=MICRO_SHARDS,
        cache_dir=Path(cache_dir),
        progress=note,
    )
    return {
        "seconds": result.seconds,
        "cached": result.cached,
        "programs": {name: round(seconds, 2) for name, seconds in programs.items()},
        "compiler_peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        **_costs(result.payload),
    }


def _costs(payload: Any) -> dict[str, Any]:
    """Give what the payload takes on one chip of its target, the slowest kind."""
    from runtime.plan import chips_of, estimate, machine_chip, measure_machine

    family_is_cpu = payload.target == "cpu"
    chips = (machine_chip(measure_machine()),) if family_is_cpu else chips_of(payload.target)
    costs = estimate(payload, chips[0] if chips else None, micro_shards=MICRO_SHARDS)
    return {
        "payload_bytes": len(payload.to_bytes()),
        "peak_memory_bytes": costs.memory.peak,
        "predicted_step_s": costs.predicted_step_s,
        "predicted_for": costs.chip,
        "scrubbed": payload.scrubbed,
    }


if __name__ == "__main__":
    serve({"capture": capture, "missing": missing, "compile": compile_target})

"""A compile's events as lines of progress, whoever compiles."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.run.progress import Reporter

__all__ = ["tell_compile_event"]

_TOLD_FROM_S = 3.0
"""A stage of a compile that took so long gets a line of its own."""


def tell_compile_event(reporter: Reporter, event: Mapping[str, object]) -> None:
    """Turn an event of a compile into a line of progress, where it is worth one.

    Args:
        reporter: gets the line.
        event: as `runtime.compiler.compile_targets` tells them, with its "target".
    """
    target, stage, seconds = event["target"], event["stage"], event.get("seconds")
    took = f"{seconds:.1f} s" if isinstance(seconds, float) else "?"
    long = isinstance(seconds, float) and seconds >= _TOLD_FROM_S
    if stage == "done" and event["cached"]:
        reporter.stage(f"{target}: from the cache, nothing was compiled")
    elif stage == "done":
        reporter.stage(f"{target}: compiled in {took}")
    elif stage == "failed":
        reporter.stage(f"{target}: failed: {str(event['message']).splitlines()[0]}")
    elif stage == "waiting":
        reporter.stage(f"{target}: another process compiles the same; waiting for it")
    elif stage == "note":
        reporter.stage(f"{target}: {event['message']}")
    elif stage in {"lower", "compile"} and long:
        done = "lowered" if stage == "lower" else "compiled"
        reporter.stage(f"{target}: program {event['program']} {done} in {took}")

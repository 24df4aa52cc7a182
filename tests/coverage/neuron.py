"""What Neuron's compiler could not compile of each captured architecture, after decomposition.

The pre-flight needs no compiler of the vendor's and no chip: it holds each lowered op, and each whole
program, against the rules in `runtime/compiler/neuron/rules.py`, which know of no difference between
the chips of the family. It runs for all architectures in one process, since most of their nodes are
equal, and each row is written when it is done.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.coverage.row import Limits, Row, graph_path, read_row

if TYPE_CHECKING:
    from runtime.compiler.graph import GraphPackage
    from runtime.compiler.preflight import Judgements

TARGET = "trn2"


def judge(model_types: Sequence[str], folder: Path, limits: Limits, *, again: bool = False) -> None:
    """Judge the architectures that are captured, and write what was found into their rows.

    Args:
        model_types: their names.
        folder: where the rows and the graphs lie.
        limits: the size of the batch, for a graph that is captured here.
        again: judge those as well that have been judged, after a rule or a decomposition changed.
    """
    rows = [read_row(folder, name) for name in model_types]
    open_ = ("", "not judged")
    wanted = [r for r in rows if r and r.reached("captured") and (again or r.neuron in open_)]
    if not wanted:
        return
    # Of its own, since the process that forks the coverage's children must compute nothing.
    process = multiprocessing.get_context("fork").Process(
        target=_judge_all, args=(wanted, folder, limits)
    )
    process.start()
    try:
        process.join()
    finally:
        process.kill()
        process.join()


def _judge_all(rows: Sequence[Row], folder: Path, limits: Limits) -> None:
    """Judge one row after the other; equal nodes are lowered once."""
    from runtime.compiler.preflight import Judgements

    known = Judgements()
    for place, row in enumerate(rows, 1):
        started = time.monotonic()
        try:
            row.neuron_left = _left(row.model_type, folder, limits, known)
            row.neuron = "left" if row.neuron_left else "none left"
        except Exception as error:
            row.neuron = "not judged"
            row.neuron_left = {"": [f"{type(error).__name__}: {error}"[:600]]}
        row.write(folder)
        took = time.monotonic() - started
        more = "".join(f"; {op}: {', '.join(why)}" for op, why in row.neuron_left.items())
        sys.stderr.write(
            f"[{place}/{len(rows)}] {row.model_type} for {TARGET}: {row.neuron} {took:.1f} s{more}\n"
        )


def _left(model_type: str, folder: Path, limits: Limits, known: Judgements) -> dict[str, list[str]]:
    """Give the ops that cannot be compiled, with the reasons."""
    from runtime.compiler.preflight import preflight
    from runtime.compiler.targets import find_target

    package = _package(model_type, folder, limits)
    found = preflight(package, find_target(TARGET), micro_shards=1, known=known)
    return {item.op: list(item.reasons) for item in found.unsupported}


def _package(model_type: str, folder: Path, limits: Limits) -> GraphPackage:
    """Read the graphs that the coverage kept, or capture them."""
    from runtime.compiler.capture import capture
    from runtime.compiler.graph import GraphPackage
    from tests.coverage.one import build, random_batch, run_eager

    path = graph_path(folder, model_type)
    if not path.exists():
        sizes = {"micro_batch": limits.micro_batch, "seq_len": limits.seq_len}
        model = build(model_type)
        run_eager(model, random_batch(**sizes, seed=1))  # as when its row was made
        path.write_bytes(capture(model, **sizes).package.to_bytes())
    return GraphPackage.from_bytes(path.read_bytes())

"""The report: rows into `docs/coverage.json` and `docs/coverage.md`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.coverage.row import LEVELS, Row

_CELL = 160
_INTRODUCTION = """# Coverage

Every architecture of transformers' causal-LM mapping, as a tiny random model (hidden 64, one layer
of each kind and at least two, 4 heads, vocabulary 512, 4 experts of which 2 count, float32), taken
as far as it goes:

1. *built* from a small configuration;
2. it trains from token ids in eager torch, else *not trainable*: a property of the model;
3. *captured*: loss and every gradient of the captured step, run in torch, equal eager's, on a batch
   that it was captured with and on another;
4. *compiled* for CPU, as a job is;
5. *correct*: one step of the compiled program gives eager's loss and gradients on that other batch.

Equal means: the loss within 1e-4 of itself; each element of each gradient within 1e-4 of the
model's largest gradient element, and within 1 % of its parameter's largest. `make coverage` writes
this page and `coverage.json` again.

*Neuron* says what the compiler of Trainium and Inferentia2 would lack of the captured graphs (training
step and forward), by `luma check`'s pre-flight for trn2, after decomposition: every node lowered
alone, then every whole program, each held against the vendor's documented operators and limits. The
rules are the same for trn1, trn3 and inf2. Nothing of it has run through that compiler.
"""


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Give what `docs/coverage.json` holds.

    `built` and so on count the architectures that came at least that far; `trainable` those whose
    model trains from token ids in eager torch; `neuron` those whose every op has a form there.
    """
    levels = ("built", "captured", "compiled", "correct")
    counts = {level: sum(row.reached(level) for row in rows) for level in levels}
    trainable = counts["built"]
    counts["built"] += sum(row.status == "not trainable" for row in rows)
    counts["neuron"] = sum(row.neuron == "none left" for row in rows)
    shown = [{**asdict(row), "seconds": round(sum(row.seconds.values()), 1)} for row in rows]
    return {"architectures": len(rows), "trainable": trainable, **counts, "rows": shown}


def write_report(found: Mapping[str, Row | None], folder: Path) -> None:
    """Write both files into a folder.

    Args:
        found: every architecture's row, None for one that was not run.
        folder: where to.
    """
    rows = [row for row in found.values() if row is not None]
    not_run = [name for name, row in found.items() if row is None]
    data = summary(rows) | {"not_run": not_run}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coverage.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / "coverage.md").write_text(markdown(rows, not_run))


def markdown(rows: Sequence[Row], not_run: Sequence[str] = ()) -> str:
    """Give the page: counts, then the failures with their causes, then every architecture."""
    data = summary(rows)
    names = ("architectures", "built", "trainable", "captured", "compiled", "correct")
    counts = "\n".join(f"| {name} | {data[name]} |" for name in names)
    counts += f"\n| nothing left for Neuron | {data['neuron']} |"
    if not_run:
        counts += f"\n| not run | {len(not_run)}: {', '.join(not_run)} |"
    failed = [row for row in rows if row.status != LEVELS[-1]]
    parts = [_INTRODUCTION, f"| | |\n|---|---|\n{counts}\n"]
    if failed:
        parts += ["## Not covered\n", _failures(failed)]
    left = [row for row in rows if row.neuron_left]
    if left:
        parts += ["## Left for Neuron\n", _left(left)]
    parts += ["## All\n", _table(rows)]
    return "\n".join(parts)


def _failures(rows: Sequence[Row]) -> str:
    """Give one line for each failure."""
    head = "| architecture | status | fails at | error | missing ops | reason |\n|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row.model_type} | {row.status} | {row.stage} | {_cell(row.error)} | "
        f"{', '.join(row.missing_ops)} | {_cell(row.reason)} |\n"
        for row in rows
    )


def _left(rows: Sequence[Row]) -> str:
    """Give one line for each op that Neuron's compiler would lack."""
    head = "| architecture | op | why |\n|---|---|---|\n"
    return head + "".join(
        f"| {row.model_type} | {op} | {_cell('; '.join(reasons))} |\n"
        for row in rows
        for op, reasons in row.neuron_left.items()
    )


def _table(rows: Sequence[Row]) -> str:
    """Give one line for each architecture."""
    head = (
        "| architecture | status | nodes | attention | gradient error | seconds | Neuron |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {row.model_type} | {row.status} | {row.nodes or ''} | {_attention(row)} | "
        f"{'' if row.gradient_error is None else f'{row.gradient_error:.1e}'} | "
        f"{sum(row.seconds.values()):.0f} | {row.neuron} |\n"
        for row in rows
    )


def _attention(row: Row) -> str:
    """Give how attention was captured, without the reason."""
    return row.attention.partition(":")[0]


def _cell(text: str) -> str:
    """Give a text that fits a table's cell."""
    short = text if len(text) <= _CELL else text[: _CELL - 1] + "…"
    return short.replace("|", "\\|")

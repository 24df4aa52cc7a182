"""Run the coverage: `python -m tests.coverage [--only A,B] [--fresh] [--fast] [--report FOLDER]`.

Each architecture's result is a file in the results folder, so a run that stops goes on where it
was. `--retry` runs those again that did not come through. Then Neuron's pre-flight judges what was
captured (`neuron.py`); `--judge` judges again what has been judged.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from pathlib import Path

from runtime.compiler.targets import find_target
from tests.coverage.architectures import FAST
from tests.coverage.child import run_one
from tests.coverage.neuron import judge
from tests.coverage.report import write_report
from tests.coverage.row import Limits, Row, read_row

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Cover the architectures that were asked for; exit code 1 where one of them fails."""
    options = _options(arguments)
    # As an interrupt from the keyboard: the child under way is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _prepare()
    from tests.coverage.architectures import model_types

    every = model_types()
    wanted = list(FAST) if options.fast else (options.only.split(",") if options.only else every)
    unknown = sorted(set(wanted) - set(every))
    if unknown:
        sys.stderr.write(f"--only: {', '.join(unknown)}: no causal-LM model_type\n")
        return 2
    options.results.mkdir(parents=True, exist_ok=True)
    limits = Limits(
        seconds=options.time_limit,
        micro_batch=options.micro_batch,
        seq_len=options.seq_len,
        capture_only=options.capture_only,
    )
    for place, name in enumerate(wanted, 1):
        _run(name, place, len(wanted), options, limits)
    judge(wanted, options.results, limits, again=options.judge)
    if options.report:
        write_report({name: read_row(options.results, name) for name in every}, options.report)
    return int(any(_failed(read_row(options.results, name)) for name in wanted))


def _failed(row: Row | None) -> bool:
    """Say whether the compiler falls short of a model; what a model itself cannot do is not that."""
    if row is None or row.status not in {"correct", "not trainable"}:
        return True
    return row.status == "correct" and row.neuron != "none left"


def _run(name: str, place: int, count: int, options: argparse.Namespace, limits: Limits) -> None:
    """Cover one architecture, or leave the result that is there."""
    known = None if options.fresh else read_row(options.results, name)
    if known is not None and known.is_final and not (options.retry and known.error):
        return
    started = time.monotonic()
    row = run_one(name, options.results, limits)
    took = time.monotonic() - started
    more = f": {row.stage}: {row.error}" if row.error else ""
    sys.stderr.write(f"[{place}/{count}] {name} {row.status} {took:.1f} s{more}\n")


def _prepare() -> None:
    """Set what the libraries read when they are imported, then import them, before any fork."""
    os.environ.update(find_target("cpu").environment)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import torch

    for module in (
        "runtime.agent.executable",
        "runtime.compiler.preflight",
        "runtime.compiler.programs",
        "tests.coverage.one",
    ):
        importlib.import_module(module)

    torch.set_num_threads(1)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("--only", help="model_types, separated by commas")
    parser.add_argument("--fast", action="store_true", help="the dozen of the fast test")
    parser.add_argument("--fresh", action="store_true", help="run again what has a result")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--judge", action="store_true", help="judge again for Neuron")
    parser.add_argument("--results", type=Path, default=ROOT / "build/coverage")
    parser.add_argument("--report", type=Path, help="write coverage.json and .md into this folder")
    parser.add_argument("--time-limit", type=float, default=900.0, help="seconds for one")
    parser.add_argument("--capture-only", action="store_true", help="stop before compilation")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=32)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())

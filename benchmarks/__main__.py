"""`python -m benchmarks`: measure, print, and write the results."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.children import ChildError
from benchmarks.context import Context
from benchmarks.machine import describe
from benchmarks.result import Result, table_row
from runtime.run.files import write_json
from runtime.spec import LumaError

SUBJECTS = (
    "step",
    "cold_compile",
    "sizes",
    "depth",
    "targets",
    "elastic",
    "checkpoint",
    "scaling",
    "recovery",
    "ring",
    "attestation",
    "verify",
    "service",
)
RESULTS = Path(__file__).parent / "results"
_EPILOG = "example: python -m benchmarks --only step --only cold_compile --json"


def main(arguments: list[str] | None = None) -> int:
    """Measure what was asked for; 1 when a benchmark could not be made, else 0.

    A goal that is missed is a result, not a failure.
    """
    options = _parser().parse_args(arguments)
    started = time.monotonic()
    with _work_folder(options.work) as work, _own_home(work / "home"):
        context = Context(work=work, quick=options.quick)
        entries, failed = _measure_all(context, options.only or SUBJECTS)
    path = options.out or RESULTS / ("quick.json" if options.quick else "latest.json")
    if options.only and path.exists():
        entries = _merged(json.loads(path.read_text()), entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, entries)
    if options.json:
        print(json.dumps(entries, indent=2))
    context.say(f"{path}, after {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", epilog=_EPILOG, description=__doc__
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=SUBJECTS,
        help="measure this subject; may be given several times; other results in the file stay",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes, to see that everything works; written to results/quick.json",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--out", type=Path, help="the results' file")
    parser.add_argument(
        "--work", type=Path, help="keep programs and prepared runs here for the next time"
    )
    return parser


@contextlib.contextmanager
def _work_folder(kept: Path | None) -> Generator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="luma-bench-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _own_home(home: Path) -> Generator[None]:
    """Keep keys and caches of the block out of the user's home."""
    before = os.environ.get("LUMA_HOME")
    os.environ["LUMA_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LUMA_HOME"]
        else:
            os.environ["LUMA_HOME"] = before


def _measure_all(context: Context, names: tuple[str, ...]) -> tuple[list[dict[str, Any]], bool]:
    about = describe()
    entries: list[dict[str, Any]] = []
    failed = False
    for name in names:
        measure: Callable[[Context], list[Result]] = import_module(f"benchmarks.{name}").measure
        started = time.monotonic()
        try:
            results = measure(context)
        except (ChildError, LumaError, TimeoutError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
            continue
        for result in results:
            entry = {**result.to_json(), "quick": context.quick, **about}
            entries.append(entry)
            print(table_row(result), file=sys.stderr)
        context.say(f"{name}: {time.monotonic() - started:.0f} s")
    return entries, failed


def _merged(before: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace entries of the same name and keep the others, in the old order."""
    fresh = {entry["name"]: entry for entry in new}
    kept = [fresh.pop(entry["name"], entry) for entry in before]
    return kept + list(fresh.values())


if __name__ == "__main__":
    sys.exit(main())

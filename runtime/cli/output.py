"""How commands print: JSON and tables on standard output, and the parameters that many share."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

JsonFlag = Annotated[bool, Parameter(name="--json", negative="", help="print JSON")]
"""`--json` of a command that reads."""

RunPath = Annotated[Path, Parameter(help="the run folder, such as runs/quickstart")]
"""A run folder as an argument."""


class OutputGoneError(Exception):
    """Standard output takes no more data.

    Attributes:
        reason: what the system said.
        by_reader: whether its reader has closed it (`| head`), rather than a disk being full.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.reason = error.strerror or str(error)
        self.by_reader = isinstance(error, BrokenPipeError)


def write(text: str, *, flush: bool = False) -> None:
    """Write a line of data to standard output.

    Raises:
        OutputGoneError: it takes no more.
    """
    with _output():
        sys.stdout.write(text + "\n")
        if flush:
            sys.stdout.flush()


def flush_output() -> None:
    """Make sure that what was written has left.

    Raises:
        OutputGoneError: standard output takes no more.
    """
    with _output():
        sys.stdout.flush()


@contextlib.contextmanager
def _output() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise OutputGoneError(error) from error


def print_json(document: Any) -> None:
    """Print one JSON document on standard output."""
    write(json.dumps(document, indent=2))


def print_json_line(document: Any) -> None:
    """Print one JSON object as a line, at once."""
    write(json.dumps(document), flush=True)


def print_rows(rows: Iterable[tuple[str, str]]) -> None:
    """Print (label, text) rows, labels in one column."""
    listed = list(rows)
    width = max((len(label) for label, _ in listed), default=0)
    for label, text in listed:
        write(f"{_bold(label.ljust(width))}  {text}")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table without a box, as wide as its content."""
    listed = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in listed) for i in range(len(header))]
    for number, row in enumerate(listed):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join(cells).rstrip()
        write(_bold(line) if number == 0 else line)


def note(text: str) -> None:
    """Say something on standard error, which may have gone: that stops nothing."""
    say(text + "\n")


def say(text: str) -> None:
    """Write to standard error as it is, without a line's end."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except (OSError, ValueError):
        from runtime.run.quiet import hush

        hush(sys.stderr)


def _bold(text: str) -> str:
    plain = "NO_COLOR" in os.environ or not sys.stdout.isatty()
    return text if plain else f"\x1b[1m{text}\x1b[0m"

"""The service's log: one JSON object a line, with fields of a fixed list.

In an enclave the lines go to a console that nobody reads outside of debug mode; a local service's
go to standard error. No line holds a name, a key, a text of an error or anything else that came
from a client or a compiler: sizes, counts, seconds and words of this package are all there is.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

__all__ = ["FIELDS", "LOGGER", "log", "log_to"]

LOGGER = logging.getLogger("luma.service")
LOGGER.addHandler(logging.NullHandler())  # silent where nobody called `log_to`

FIELDS = frozenset(
    {
        "address",
        "artifact_bytes",
        "compiles",
        "connection",
        "failed",
        "fault",
        "level",
        "package_bytes",
        "place",
        "queue",
        "reason",
        "seconds",
        "targets",
    }
)
"""All fields that a line may have beside `time`, `severity` and `event`."""


class _JsonLines(logging.Formatter):
    """Formats a record of `log` as JSON, and drops whatever else a record holds."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line."""
        fields = getattr(record, "luma", {})
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": at, "severity": record.levelname.lower(), "event": record.msg, **fields}
        return json.dumps(line)


def log(event: str, *, severity: int = logging.INFO, **fields: float | str) -> None:
    """Write a line.

    Args:
        event: what happened, a word of this package.
        severity: a level of `logging`.
        fields: of `FIELDS`; another one is a mistake in the program.

    Raises:
        ValueError: a field is not of the list.
    """
    if not fields.keys() <= FIELDS:
        raise ValueError(f"log fields {sorted(fields.keys() - FIELDS)} are not allowed")
    LOGGER.log(severity, event, extra={"luma": fields})


def log_to(stream: TextIO | None = None) -> None:
    """Write the log of this process to a stream. Default: standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonLines())
    LOGGER.handlers = [handler]
    LOGGER.propagate = False
    LOGGER.setLevel(logging.INFO)

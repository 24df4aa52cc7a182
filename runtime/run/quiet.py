"""Progress must never end a run: a stream whose reader has gone turns silent.

A terminal that is closed, or `luma launch ... 2>&1 | head`, makes writes to standard error fail
with EIO or EPIPE. The run is worth more than the words about it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from typing import Any, TextIO


class QuietStream:
    """A text stream that drops what can no longer be written; else the same as the stream.

    Args:
        stream: where to write; None (a process without standard error) writes nowhere.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

    def write(self, text: str) -> int:
        """Write, or drop the text."""
        with hushing(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or drop what was buffered."""
        with hushing(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        """Give everything else of the stream."""
        return getattr(self._stream, name)


@contextlib.contextmanager
def hushing(stream: Any) -> Generator[None]:
    """Let the block write to a stream; where that fails, the stream is silent from then on."""
    try:
        yield
    except (OSError, ValueError):  # ValueError: it is closed
        hush(stream)


def hush(stream: Any) -> None:
    """Lead a stream's descriptor nowhere, so that its later writes and its last flush succeed."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def standard_error() -> QuietStream:
    """Give standard error as it is now, so that it may go away."""
    return QuietStream(sys.stderr)

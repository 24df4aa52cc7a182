"""Waiting for a state of the emulated account: looked for often, never assumed after a pause."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NeverHappenedError(AssertionError):
    """A state did not come within its bound."""


def until(
    look: Callable[[], T],
    what: str,
    *,
    seconds: float = 120,
    also: Callable[[], object] = bool,
    every_s: float = 0.1,
) -> T:
    """The first truthy answer of `look`.

    Args:
        look: asked again and again.
        what: the state, for the error.
        seconds: the bound; far beyond what it takes, since only a failure waits so long.
        also: called between two looks; raises where waiting on makes no sense.
        every_s: the pause between two looks.

    Raises:
        NeverHappenedError: it never was truthy.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise NeverHappenedError(f"after {seconds:g} s: {what}; last answer: {found!r}")
        also()
        time.sleep(every_s)

"""How an island's process ends, as its launcher sees it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `python -m runtime.agent`.

    2 is left out: Python's own argument parser uses it.
    """

    DONE = 0
    """The run is done or stopped, or this island left on notice."""

    FAILED = 1
    """The coordinator ended the run as failed, or let this island go for a reason of its own."""

    FATAL = 3
    """An error that no other island would escape, such as an artifact that does not open."""

    CRASHED = 4
    """A bug or a wedged computation of this island, or a store that did not answer it: another one
    may go on."""

    LOST_COORDINATOR = 5
    """No coordinator answered for too long: nothing is wrong with this island."""

    REFUSED = 6
    """This island is of another run, or of another chip class."""

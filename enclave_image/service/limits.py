"""What the service takes, and how it waits: places, turns, and the memory of compiling processes.

A connection with a request takes a *place* before anything of its package is read; without one it
is told to come back. So at most `places` packages are in memory. A compile then waits for its
*turn*: at most `compiles` processes run at once, in the order in which they were asked for.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from enclave_image.service.errors import PeerGoneError, ServiceBusyError
from runtime.compiler.child import Children

__all__ = ["LimitedChildren", "Limits", "Places", "Turns"]

_USERS = 40_000
"""Users of compiling processes, before the first one's turn comes again."""
_FIRST_TO_GO = "1000"  # oom_score_adj(5): the kernel ends such a process before all others


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The service's limits.

    Attributes:
        compiles: compiling processes at once.
        queue: requests that may wait beside those.
        package_bytes: largest package. (That of SmolLM2-135M has 0.9 MB.) The service itself reads
            it, once a place; the reader's limit of items keeps that below 0.6 GB (measured).
        child_bytes: private memory of a compiling process (RLIMIT_DATA: what a process allocates.
            Its address space is several times larger, since a compiler's libraries are mapped).
        child_user: uid of the first request's compiling processes; each request's are of another
            one. None: all run as the service does, which need not be root.
        opening_s: seconds from the connection to the request.
        frame_s: seconds that one frame may take.
        request_s: seconds that a whole request may take, its wait included.
    """

    compiles: int = 1
    queue: int = 8
    package_bytes: int = 16 << 20
    child_bytes: int = 64 << 30
    child_user: int | None = None
    opening_s: float = 30.0
    frame_s: float = 60.0
    request_s: float = 4 * 3600.0

    def user_of(self, number: int) -> int | None:
        """Give the uid of the compiling processes of a request, by its number."""
        return None if self.child_user is None else self.child_user + number % _USERS

    @property
    def places(self) -> int:
        """Requests that are inside at once."""
        return self.compiles + self.queue


class Places:
    """Counts the requests that are inside.

    Args:
        count: how many there may be.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """How many are inside."""
        return self._taken

    @contextlib.contextmanager
    def take(self, retry_after_s: Callable[[], int]) -> Generator[None]:
        """Hold a place.

        Raises:
            ServiceBusyError: there is none.
        """
        with self._lock:
            if self._taken >= self._count:
                raise ServiceBusyError(retry_after_s())
            self._taken += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1


class Turns:
    """Lets a number of compiles run, first come, first served.

    Args:
        count: how many run at once.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def wake(self) -> None:
        """Let all who wait ask again whether they still should."""
        with self._changed:
            self._changed.notify_all()

    @contextlib.contextmanager
    def turn(self, stopped: Callable[[], bool]) -> Generator[None]:
        """Hold a turn.

        Args:
            stopped: whether to give up; asked on each `wake`.

        Raises:
            PeerGoneError: it was given up.
        """
        self._wait(stopped)
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def _wait(self, stopped: Callable[[], bool]) -> None:
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                self._changed.wait_for(
                    lambda: stopped() or (self._free > 0 and self._waiting[0] is me)
                )
                if stopped():
                    raise PeerGoneError("the client left before its turn", reason="gone")
                self._free -= 1
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()


class LimitedChildren(Children):
    """Compiling processes with a memory limit; where memory runs out, they go before the service.

    Args:
        memory_bytes: each one's limit.
        user: see `Children`.
    """

    def __init__(self, memory_bytes: int, user: int | None = None) -> None:
        super().__init__(user)
        self._memory_bytes = memory_bytes

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Take a child in, and limit it before it has read its package."""
        # A child that has ended already has nothing to limit.
        with contextlib.suppress(ProcessLookupError):
            limit = (self._memory_bytes, self._memory_bytes)
            resource.prlimit(child.pid, resource.RLIMIT_DATA, limit)
        with contextlib.suppress(OSError):
            Path(f"/proc/{child.pid}/oom_score_adj").write_text(_FIRST_TO_GO)
        super().add(child)


def total_memory() -> int:
    """Give this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

"""Locks of a run folder that live and die with the processes that work in it.

The coordinator holds the fence of the log alone, so that no second one ever appends to it. Every
island shares the islands' lock, so that a launcher can wait until nothing of an older launch can
write into the folder any more. The kernel lets go of a lock when its process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from runtime.spec.errors import CoordinationError

LOG_FENCE = "log.lock"
ISLANDS_LOCK = "islands.lock"


class Fence:
    """A held lock; keep it referenced, and close it to let go.

    Args:
        path: the lock file; made where it is missing.
        shared: whether others may hold it at the same time, shared as well; waits for it then.

    Raises:
        BlockingIOError: another process holds the lock, and we want it alone.
        CoordinationError: the lock file cannot be made or locked.
    """

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CoordinationError(f"{path}: cannot be made ({error.strerror})") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if isinstance(error, BlockingIOError):
                raise
            raise CoordinationError(
                f"{path}: cannot be locked ({error.strerror})",
                remedy="keep run folders on a file system with advisory locks",
            ) from None

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._fd)


def who_works_in(run_dir: Path) -> str | None:
    """Say which processes still work in a run folder: `a coordinator`, `islands`, or None."""
    for name, who in ((LOG_FENCE, "a coordinator"), (ISLANDS_LOCK, "islands")):
        if (run_dir / name).exists():
            try:
                Fence(run_dir / name).close()
            except BlockingIOError:
                return who
    return None

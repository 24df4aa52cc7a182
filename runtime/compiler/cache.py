"""The compile cache: content-addressed, sealed, whole or nothing.

An entry's name is a keyed BLAKE3 of all that decides a payload, so a name tells nothing to who
does not hold the key, and an entry is never changed once it has its name. Entries are sealed under
the customer's data key (AES-256-GCM with the entry's name as context): one that was cut short,
changed or renamed does not open, and is then compiled again, never trusted.

A writer fills a hidden file, syncs it and renames it; a process killed on the way leaves a hidden
file that nobody reads, which the next writer of that entry removes. One lock file an entry makes a
second process wait for the first; the kernel drops the lock of a process that died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import IO

from blake3 import blake3

from runtime.artifact.sealing import open_blob, seal_blob
from runtime.spec import ArtifactError, CompileError

_SUFFIX = ".sealed"
_POLL_S = 0.05


class CompileCache:
    """Sealed payloads in a folder, by what they were compiled from.

    Args:
        folder: where entries lie; made if it is not there.
        data_key: 32 bytes, the key that entries are sealed under.

    Raises:
        CompileError: the folder cannot be made.
    """

    def __init__(self, folder: Path, data_key: bytes) -> None:
        self._folder = folder
        self._key = data_key
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"compile cache {folder}: cannot be made: {error.strerror}"
            raise CompileError(message, remedy="give another cache folder") from error

    def name(self, parts: Mapping[str, str]) -> str:
        """Give the entry's name for everything that decides a payload."""
        text = json.dumps(dict(parts), sort_keys=True, separators=(",", ":")).encode()
        key = blake3(self._key, derive_key_context="luma 2026 compile cache entry").digest()
        return blake3(text, key=key).hexdigest()

    def path(self, name: str) -> Path:
        """Give the file of an entry."""
        return self._folder / f"{name}{_SUFFIX}"

    def load(self, name: str) -> bytes | None:
        """Give an entry's plain bytes, or None if there is none.

        Raises:
            ArtifactError: an entry is there and does not open.
        """
        try:
            sealed = self.path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ArtifactError(f"compile cache: cannot be read: {error.strerror}") from error
        return open_blob(sealed, self._key, name.encode())

    def store(self, name: str, data: bytes) -> None:
        """Seal and write an entry; the caller holds its lock.

        Raises:
            CompileError: it cannot be written; nothing is left under its name then.
        """
        temporary = self._folder / f".{name}.{os.getpid()}"
        try:
            for stale in self._folder.glob(f".{name}.*"):
                stale.unlink(missing_ok=True)
            with temporary.open("xb") as file:
                temporary.chmod(0o600)
                file.write(seal_blob(data, self._key, name.encode()))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path(name))
        except OSError as error:
            temporary.unlink(missing_ok=True)
            message = f"compile cache {self._folder}: cannot be written: {error.strerror}"
            raise CompileError(
                message, remedy="free space there, or give another folder"
            ) from error

    @contextlib.contextmanager
    def locked(
        self, name: str, waiting: Callable[[], None], *, stopped: Callable[[], bool] = lambda: False
    ) -> Generator[None]:
        """Hold an entry's lock; call `waiting` once if another process holds it first.

        Args:
            name: the entry.
            waiting: told of another holder.
            stopped: asked while waiting; true gives up.

        Raises:
            CompileError: the lock file cannot be opened, or the wait was given up.
        """
        try:
            file = (self._folder / f"{name}.lock").open("ab")
        except OSError as error:
            message = f"compile cache {self._folder}: cannot be locked: {error.strerror}"
            raise CompileError(message, remedy="give another cache folder") from error
        with file:
            if not _try_lock(file):
                waiting()
                # Polled, since a blocked thread could not be told to stop.
                while not _try_lock(file):
                    if stopped():
                        raise CompileError("the wait for another process's compile was given up")
                    time.sleep(_POLL_S)
            yield  # closing the file drops the lock


def _try_lock(file: IO[bytes]) -> bool:
    """Take a file's lock if nobody holds it; say whether it was taken."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

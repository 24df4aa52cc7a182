"""Writing files whole or not at all, and durably."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, BinaryIO

from runtime.spec.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path, what: str, *, mode: int) -> Generator[BinaryIO]:
    """Give a hidden file beside `path` that takes its place when the block ends well.

    The bytes are on disk before the name is, and the name is on disk when this returns. On any
    error the hidden file is removed, and what stood at `path` stays.

    Args:
        path: the file to make or replace.
        what: its name in error messages.
        mode: its permission bits.

    Raises:
        ArtifactError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise ArtifactError(
            f"{what} {path}: cannot be written: {error.strerror or error}"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

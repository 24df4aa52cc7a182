"""Files that are written whole or not at all, and a text of the reason when the disk refuses."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.spec import RunError

_MAKE_SPACE = "free some space, then launch again; a run that has begun: `luma launch --resume RUN`"
_REASONS = {
    errno.ENOSPC: ("no space is left on the disk", _MAKE_SPACE),
    errno.EDQUOT: ("the disk quota is used up", _MAKE_SPACE),
    errno.EROFS: ("the file system is read-only", "name a folder on a writable disk with --run"),
    errno.EACCES: ("permission denied", "name a folder that you may write with --run"),
}


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file under a hidden name, make it durable, and rename it into place.

    Raises:
        RunError: the disk refuses; the old file, if any, is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document as `write_bytes` does, indented, with a final newline.

    Raises:
        RunError: the disk refuses.
    """
    write_bytes(path, (json.dumps(document, indent=2, allow_nan=False) + "\n").encode())


def link_tree(source: Path, target: Path) -> None:
    """Make `target` a copy of the tree `source` whose files are hard links (copies elsewhere).

    Only for files that are never written again: both names show the same bytes.
    """
    import shutil

    def link(src: str, dst: str) -> None:
        try:
            os.link(src, dst)
        except OSError:
            shutil.copy2(src, dst)

    if source.is_dir():
        shutil.copytree(source, target, copy_function=link)
    else:
        link(str(source), str(target))


@contextmanager
def disk_errors(path: Path) -> Generator[None]:
    """Turn an `OSError` of the block into a `RunError` that names the path and the reason.

    Raises:
        RunError: the block raised `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise disk_error(path, error) from error


def disk_error(path: Path, error: OSError) -> RunError:
    """Give the `RunError` for an `OSError` met at `path`."""
    reason, remedy = _REASONS.get(error.errno or 0, (error.strerror or str(error), None))
    return RunError(f"{path}: cannot be written: {reason}", remedy=remedy)

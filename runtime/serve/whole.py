"""Whether a checkpoint folder is whole: every file is there with the bytes that its manifest says.

`luma/manifest.json` is written last and holds the size and BLAKE3 of every other file. The trainer
verifies what it resumes from by the same rule; a server stands apart from the trainer and reads the
manifest itself.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath
from typing import Any

from blake3 import blake3

MANIFEST = "luma/manifest.json"


def why_not_whole(folder: Path) -> str | None:
    """Give the first reason why a checkpoint is not whole, or None where it is.

    Args:
        folder: a checkpoint's folder.
    """
    try:
        files = json.loads((folder / MANIFEST).read_bytes())["files"]
        for name, record in sorted(files.items()):
            reason = _difference(folder, name, record)
            if reason is not None:
                return f"{name}: {reason}"
    except OSError as error:
        return f"{Path(error.filename or MANIFEST).name}: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{MANIFEST}: broken ({error!r})"
    return None


def _difference(folder: Path, name: str, record: dict[str, Any]) -> str | None:
    """Compare a file with its record."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return "is outside the checkpoint"
    file = folder / path
    size = file.stat().st_size
    if size != record["size_bytes"]:
        return f"{size} bytes; its manifest says {record['size_bytes']}"
    hasher = blake3(max_threads=blake3.AUTO)
    if size:
        hasher.update_mmap(file)
    if hasher.hexdigest() != record["blake3"]:
        return "its bytes are not those of its manifest"
    return None

"""Removing old checkpoints without ever removing the last ones that can be used."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from pathlib import Path

from runtime.agent.checkpoint_manifest import (
    CheckpointInfo,
    checkpoint_folders,
    read_manifest,
    verify,
)
from runtime.spec import CheckpointError

MIN_KEEP = 2
_OLD_PREFIX = ".old-"

# Checkpoints that this process wrote or has hashed, by the inode, size and time of their files: to
# hash the kept ones again at each prune would read gigabytes that nobody has touched.
_whole: dict[Path, tuple] = {}


def prune(root: Path, keep: int, *, keep_initial: bool = False) -> list[Path]:
    """Remove all but the newest whole checkpoints.

    Torn folders newer than the oldest kept one are left for a person to look at; they count for
    nothing. If fewer than `keep` are whole, nothing is removed.

    Args:
        root: the run's `checkpoints` folder.
        keep: whole checkpoints to keep, at least 2.
        keep_initial: whether step 0 stays, too.

    Returns:
        The folders that were removed.

    Raises:
        CheckpointError: `keep` is below 2.
    """
    if keep < MIN_KEEP:
        msg = f"keep={keep}; at least {MIN_KEEP} checkpoints are kept, in case the newest is torn"
        raise CheckpointError(msg)
    for stale in root.glob(f"{_OLD_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)
    kept, removed = 0, []
    for step, path in checkpoint_folders(root):
        if kept < keep:
            kept += is_whole(path)
        elif not (keep_initial and step == 0) and _remove(path):
            removed.append(path)
    return removed


def is_whole(path: Path) -> bool:
    """Tell whether a checkpoint is whole; it is hashed unless this process has done so before."""
    with contextlib.suppress(CheckpointError, OSError):
        if _whole.get(path) != _signature(path):
            remember_whole(path, verified=verify(path, None))
        return True
    return False


def remember_whole(path: Path, *, verified: CheckpointInfo | None = None) -> CheckpointInfo:
    """Note that a checkpoint was hashed by this process, and give its description.

    Args:
        path: the checkpoint's folder.
        verified: what `verify` said; None where this process has just written it.

    Raises:
        CheckpointError: the manifest cannot be read.
    """
    _whole[path] = _signature(path)
    if verified is not None:
        return verified
    manifest, digest = read_manifest(path)
    return CheckpointInfo(
        step=manifest.step,
        path=path,
        state_hash=manifest.state_hash,
        manifest_digest=digest,
    )


def _signature(path: Path) -> tuple:
    manifest, digest = read_manifest(path)
    stats = [(path / name).stat() for name in sorted(manifest.files)]
    return digest, tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)


def _remove(path: Path) -> bool:
    # Renamed first: a kill in the midst of the removal must not leave a torn folder of that name.
    old = path.with_name(f"{_OLD_PREFIX}{path.name}-{secrets.token_hex(4)}")
    try:
        path.rename(old)
    except OSError:
        return False  # another island was first, or the disk refuses: it is only room that is lost
    shutil.rmtree(old, ignore_errors=True)
    _whole.pop(path, None)
    return True

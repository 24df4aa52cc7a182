"""A checkpoint's manifest: written last, it says which bytes make the checkpoint whole.

`luma/manifest.json` holds the size and BLAKE3 of every other file, the step, the job's digest and
the state hash. A folder without it, or whose files differ from it, is torn and is never loaded.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from blake3 import blake3

from runtime.agent.checkpoint_files import FileRecord, check_file
from runtime.spec import CheckpointError

FORMAT = 1
MANIFEST = "luma/manifest.json"
MAX_MANIFEST_BYTES = 64 << 20
_NAME = re.compile(r"step-(\d{6,})")
_HEX_256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A whole checkpoint.

    Attributes:
        step: number of applied steps.
        path: its folder.
        state_hash: hash of the state that it holds, see `runtime.agent.state.state_hash`.
        manifest_digest: BLAKE3 of the manifest, hex; it covers every byte of the checkpoint.
    """

    step: int
    path: Path
    state_hash: str
    manifest_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCheckpoint:
    """A folder that looks like a checkpoint and cannot be used.

    Attributes:
        path: the folder.
        reason: what is wrong with it.
    """

    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What `luma/manifest.json` says.

    Attributes:
        step: number of applied steps.
        job_digest: digest of the job that wrote it.
        state_hash: hash of the state.
        files: record of each file by its path in the checkpoint, `/` between folders.
    """

    step: int
    job_digest: str
    state_hash: str
    files: dict[str, FileRecord]

    def to_bytes(self) -> bytes:
        """Encode as JSON with sorted keys, so that equal checkpoints have equal manifests."""
        files = {
            name: {"blake3": record.blake3, "size_bytes": record.size_bytes}
            for name, record in self.files.items()
        }
        content = {
            "format": FORMAT,
            "step": self.step,
            "job_digest": self.job_digest,
            "state_hash": self.state_hash,
            "files": files,
        }
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Decode and check every field.

        Raises:
            CheckpointError: not a manifest of this format.
        """
        try:
            content = json.loads(data)
            _check_format(content["format"])
            files = {_safe(name): _record(entry) for name, entry in content["files"].items()}
            return cls(
                step=_count(content["step"]),
                job_digest=str(content["job_digest"]),
                state_hash=_hash(content["state_hash"]),
                files=files,
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f"{MANIFEST}: broken ({error!r})"
            raise CheckpointError(msg) from error


def folder_name(step: int) -> str:
    """Name the folder of a step's checkpoint."""
    return f"step-{step:06d}"


def checkpoint_folders(root: Path) -> list[tuple[int, Path]]:
    """List the folders that have a checkpoint's name, whole or not, newest first."""
    if not root.is_dir():
        return []
    found = []
    for path in root.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir() and path.name == folder_name(int(match[1])):
            found.append((int(match[1]), path))
    return sorted(found, reverse=True)


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """Read a checkpoint's manifest.

    Args:
        path: the checkpoint's folder.

    Returns:
        The manifest and its digest.

    Raises:
        CheckpointError: it is missing, unreadable or broken.
    """
    file = path / MANIFEST
    try:
        if file.stat().st_size > MAX_MANIFEST_BYTES:
            msg = f"{MANIFEST}: {file.stat().st_size} bytes; at most {MAX_MANIFEST_BYTES}"
            raise CheckpointError(msg)
        data = file.read_bytes()
    except OSError as error:
        msg = f"{MANIFEST}: {error.strerror}"
        raise CheckpointError(msg) from error
    return Manifest.from_bytes(data), blake3(data).hexdigest()


def verify(path: Path, job_digest: str | None) -> CheckpointInfo:
    """Check a checkpoint: its manifest, the job, and every byte of every file.

    Args:
        path: the checkpoint's folder.
        job_digest: the job that it must belong to; None accepts any.

    Raises:
        CheckpointError: with the first reason why it cannot be used.
    """
    manifest, digest = read_manifest(path)
    if path.name != folder_name(manifest.step):
        msg = f"the folder {path.name} holds step {manifest.step}"
        raise CheckpointError(msg)
    if job_digest is not None and manifest.job_digest != job_digest:
        msg = f"it belongs to job {manifest.job_digest}, not to {job_digest}"
        raise CheckpointError(msg)
    for name, record in sorted(manifest.files.items()):
        check_file(path / name, record)
    return CheckpointInfo(
        step=manifest.step,
        path=path,
        state_hash=manifest.state_hash,
        manifest_digest=digest,
    )


def _check_format(value: object) -> None:
    if value != FORMAT:
        msg = f"format {value!r}; this version reads {FORMAT}"
        raise ValueError(msg)


def _safe(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == MANIFEST:
        msg = f"file name {name!r}"
        raise ValueError(msg)
    return name


def _record(entry: dict) -> FileRecord:
    return FileRecord(size_bytes=_count(entry["size_bytes"]), blake3=_hash(entry["blake3"]))


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        msg = f"{value!r} is no count"
        raise ValueError(msg)
    return value


def _hash(value: object) -> str:
    if not isinstance(value, str) or not _HEX_256.fullmatch(value):
        msg = f"{value!r} is no BLAKE3 digest"
        raise ValueError(msg)
    return value

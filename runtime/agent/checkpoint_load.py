"""Reading checkpoints back: the newest whole one, and its state, verified to the last bit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from runtime.agent.checkpoint_files import FileRecord, read_tensors
from runtime.agent.checkpoint_manifest import (
    CheckpointInfo,
    RejectedCheckpoint,
    checkpoint_folders,
    read_manifest,
    verify,
)
from runtime.agent.state import Arrays, TrainState
from runtime.spec import CheckpointError

_STATE = "luma/state.json"


def latest_checkpoint(
    root: Path,
    job_digest: str | None,
    *,
    report: list[RejectedCheckpoint] | None = None,
) -> CheckpointInfo | None:
    """Find the newest whole checkpoint of a job.

    Args:
        root: the run's `checkpoints` folder.
        job_digest: the job that it must belong to; None accepts any.
        report: gets an entry for each newer folder that could not be used, with the reason.

    Returns:
        The checkpoint, every byte of it verified, or None where there is no whole one.
    """
    for _, path in checkpoint_folders(root):
        try:
            return verify(path, job_digest)
        except CheckpointError as error:
            if report is not None:
                report.append(RejectedCheckpoint(path=path, reason=error.message))
    return None


def load_checkpoint(info: CheckpointInfo, *, threads: int = 0) -> TrainState:
    """Read a checkpoint's state.

    Args:
        info: from `latest_checkpoint` or `write_checkpoint`.
        threads: threads of the hash; 0 takes one a core.

    Returns:
        The state in new, writable arrays.

    Raises:
        CheckpointError: a byte differs from what `info` promised.
    """
    manifest, digest = read_manifest(info.path)
    if digest != info.manifest_digest:
        msg = f"{info.path}: its manifest was changed"
        raise CheckpointError(msg)
    content = _read_state_file(info.path, manifest.files)
    weights = _read_set(info.path, manifest.files, ("model", "adapter_model"))
    optimizer = _read_set(info.path, manifest.files, ("luma/optimizer",))
    state = _assemble(info.path, content, weights, optimizer)
    found = state.hash(threads=threads)
    if found != info.state_hash:
        msg = f"{info.path}: its state hashes to {found}, its manifest says {info.state_hash}"
        raise CheckpointError(msg)
    return state


def read_constants(path: Path, digest: str | None = None) -> Arrays:
    """Read the arrays that no step changes.

    Args:
        path: the file that `write_constants` wrote.
        digest: the BLAKE3 that it must have, hex; None reads it unverified.

    Raises:
        CheckpointError: it is missing, unreadable, not well formed, or of another digest.
    """
    try:
        size = path.stat().st_size
        record = None if digest is None else FileRecord(size_bytes=size, blake3=digest)
        return read_tensors(path, record)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise CheckpointError(msg) from error


def _read_state_file(path: Path, files: dict[str, FileRecord]) -> dict:
    try:
        data = (path / _STATE).read_bytes()
        content = json.loads(data)
    except (OSError, ValueError) as error:
        msg = f"{path / _STATE}: cannot be read ({error})"
        raise CheckpointError(msg) from error
    if _STATE not in files or not isinstance(content, dict) or content.get("format") != 1:
        msg = f"{path / _STATE}: not of a format that this version reads"
        raise CheckpointError(msg)
    return content


def _read_set(path: Path, files: dict[str, FileRecord], stems: Iterable[str]) -> Arrays:
    arrays: Arrays = {}
    prefixes = tuple(f"{stem}{end}" for stem in stems for end in (".", "-"))
    for name, record in sorted(files.items()):
        if not (name.startswith(prefixes) and name.endswith(".safetensors")):
            continue
        try:
            arrays |= read_tensors(path / name, record)
        except OSError as error:
            msg = f"{path / name}: cannot be read ({error.strerror})"
            raise CheckpointError(msg) from error
    return arrays


def _assemble(path: Path, content: dict, weights: Arrays, optimizer: Arrays) -> TrainState:
    try:
        keys: dict[str, str] = content["parameters"]
        params = {name: weights[key] for name, key in keys.items()}
        moments = [_moments(group, params, optimizer, content) for group in ("moment1", "moment2")]
        return TrainState(
            step=int(content["step"]),
            params=params,
            moment1=moments[0],
            moment2=moments[1],
            block_exponents=optimizer["block_exponents"],
        )
    except KeyError as error:
        msg = f"{path}: {error.args[0]!r} is missing"
        raise CheckpointError(msg) from error


def _moments(group: str, params: Arrays, optimizer: Arrays, content: dict) -> Arrays:
    if content["zero_moments"]:
        return {name: np.zeros(array.shape, np.float32) for name, array in params.items()}
    return {name: optimizer[f"{group}/{name}"] for name in params}

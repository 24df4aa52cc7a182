"""Checkpoints: written whole or not at all, never overwritten, verified before they are used.

A checkpoint is a folder `step-000012` with the model in Hugging Face format and `luma/` beside it:

    config.json, tokenizer files   copied as the run's model folder has them
    model.safetensors              float32 (or parts with an index; a LoRA job: adapter_model.safetensors)
    luma/optimizer.safetensors     moments and block exponents
    luma/state.json                step, job, names
    luma/manifest.json             size and BLAKE3 of all of these, the state hash; written last

Writing: everything goes into a hidden folder beside it; each file is fsynced, then the folders;
one rename gives the folder its name; the parent is fsynced. A kill at any moment leaves either no
folder of that name or a whole one. A hidden folder is held by a file lock, which the kernel drops
with its writer, so the next writer can tell a dead one's folder from a live one's and removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Generator, Mapping
from pathlib import Path

import numpy as np

from runtime.agent.checkpoint_buffers import CheckpointBuffers, Snapshot
from runtime.agent.checkpoint_files import (
    FileRecord,
    sync_folder,
    write_bytes,
    write_tensor_set,
)
from runtime.agent.checkpoint_layout import file_keys, is_adapter, write_model_files
from runtime.agent.checkpoint_load import (
    latest_checkpoint,
    load_checkpoint,
    read_constants,
)
from runtime.agent.checkpoint_manifest import (
    MANIFEST,
    CheckpointInfo,
    Manifest,
    RejectedCheckpoint,
    folder_name,
    read_manifest,
    verify,
)
from runtime.agent.checkpoint_prune import prune, remember_whole
from runtime.agent.state import TrainState
from runtime.spec import CheckpointError

__all__ = [
    "CheckpointBuffers",
    "CheckpointInfo",
    "RejectedCheckpoint",
    "Snapshot",
    "latest_checkpoint",
    "load_checkpoint",
    "prune",
    "read_constants",
    "write_checkpoint",
    "write_constants",
]

MAX_FILE_BYTES = 2_000_000_000
_TEMP_PREFIX = ".writing-"
_TORN_PREFIX = ".torn-"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_checkpoint(  # noqa: PLR0913 - each is a decision of the caller's, most have defaults
    root: Path,
    state: TrainState,
    *,
    job_digest: str,
    model_files: Path | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
    durable: bool = True,
    state_hash: str | None = None,
    threads: int = 1,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> CheckpointInfo:
    """Write the checkpoint of a state.

    A whole checkpoint of the same step, job and state is left as it is and given back; a torn
    folder of that name is set aside under a hidden name.

    Args:
        root: the run's `checkpoints` folder; made if absent.
        state: what to write; nothing may change it meanwhile (see `CheckpointBuffers`).
        job_digest: the job that it belongs to.
        model_files: folder of config and tokenizer files to copy (weights in it are not copied);
            with an `adapter_config.json` in it, the weights are written as a peft adapter.
        constants: arrays that belong to the model's weight file without being trained: frozen
            parameters and persistent buffers under their Hugging Face names. Not written into an
            adapter.
        durable: whether to fsync; without it a power cut may lose the checkpoint, a kill does not.
        state_hash: the state's hash if the caller has it.
        threads: threads of the hash; 0 takes one a core.
        max_file_bytes: a weight file's limit; above it there are several and an index.

    Raises:
        CheckpointError: the disk is full or failed (nothing is left but what was there before), or
            another state of this step is already there.
    """
    state_hash = state_hash or state.hash(threads=threads)
    final = root / folder_name(state.step)
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_abandoned(root)
        present = _present(final, job_digest, state_hash)
        if present is not None:
            return present
        with temp_folder(root, final.name) as temp:
            records = write_model_files(
                temp,
                state.params,
                constants or {},
                model_files=model_files,
                max_file_bytes=max_file_bytes,
                durable=durable,
            )
            adapter = is_adapter(model_files)
            records |= _write_luma(
                temp / "luma",
                state,
                job_digest=job_digest,
                adapter=adapter,
                max_file_bytes=max_file_bytes,
                durable=durable,
            )
            manifest = Manifest(
                step=state.step, job_digest=job_digest, state_hash=state_hash, files=records
            )
            write_bytes(temp / MANIFEST, manifest.to_bytes(), durable=durable)
            _commit(temp, final, durable=durable)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            # Another process renamed its own folder of this step first.
            present = _present(final, job_digest, state_hash)
            if present is not None:
                return present
        raise _refused(final, error) from error
    return remember_whole(final)


def write_constants(path: Path, arrays: Mapping[str, np.ndarray]) -> FileRecord:
    """Write the arrays that no step changes as one new safetensors file, whole or not at all.

    Args:
        path: the file; it must not exist.
        arrays: frozen parameters and buffers by name.

    Returns:
        The file's size and BLAKE3.

    Raises:
        CheckpointError: the file exists, or the disk refused it.
    """
    if path.exists():
        msg = f"{path}: exists already; a run's constants are written once"
        raise CheckpointError(msg)
    temp = path.with_name(f"{_TEMP_PREFIX}{secrets.token_hex(4)}-{path.name}")
    try:
        records = write_tensor_set(
            path.parent,
            temp.name.removesuffix(".safetensors"),
            arrays,
            max_file_bytes=sum(array.nbytes for array in arrays.values()) + 1,
            durable=True,
        )
        temp.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        temp.unlink(missing_ok=True)
    return records[temp.name]


def remove_abandoned(root: Path) -> None:
    """Remove the hidden folders of writers that have died; those of live ones stay."""
    for path in root.glob(f"{_TEMP_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(path) as mine:
            if mine:
                shutil.rmtree(path, ignore_errors=True)


def _write_luma(
    folder: Path,
    state: TrainState,
    *,
    job_digest: str,
    adapter: bool,
    max_file_bytes: int,
    durable: bool,
) -> dict[str, FileRecord]:
    folder.mkdir()
    moments = {name: array for name, array in state.arrays() if name.startswith("moment")}
    # Zeros need no bytes: the first checkpoint of a job is as cheap as its weights.
    zero = state.step == 0 and not any(array.any() for array in moments.values())
    tensors = {"block_exponents": state.block_exponents, **({} if zero else moments)}
    records = write_tensor_set(
        folder, "optimizer", tensors, max_file_bytes=max_file_bytes, durable=durable
    )
    content = {
        "format": 1,
        "step": state.step,
        "job_digest": job_digest,
        "kind": "adapter" if adapter else "model",
        "zero_moments": zero,
        "parameters": file_keys(state.params, adapter=adapter),
    }
    text = json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
    records["state.json"] = write_bytes(folder / "state.json", text, durable=durable)
    return {f"luma/{name}": record for name, record in records.items()}


def _commit(temp: Path, final: Path, *, durable: bool) -> None:
    if durable:
        for folder, _, _ in os.walk(temp):
            sync_folder(Path(folder))
    # Fails if a folder with something in it has that name: nothing is ever overwritten.
    temp.rename(final)
    if durable:
        sync_folder(final.parent)


def _present(final: Path, job_digest: str, state_hash: str) -> CheckpointInfo | None:
    """Judge a folder that already has the step's name."""
    if not final.exists():
        return None
    try:
        info = verify(final, None)
        manifest, _ = read_manifest(final)
    except CheckpointError:
        final.rename(final.with_name(f"{_TORN_PREFIX}{final.name}-{secrets.token_hex(4)}"))
        return None
    if (manifest.job_digest, info.state_hash) == (job_digest, state_hash):
        return info
    what = "another job's state" if manifest.job_digest != job_digest else "another state"
    msg = (
        f"{final}: holds {what} of step {info.step} ({info.state_hash[:16]}, not "
        f"{state_hash[:16]}); checkpoints are never overwritten"
    )
    raise CheckpointError(msg, remedy="start a new run folder, or move this one aside")


@contextlib.contextmanager
def temp_folder(root: Path, name: str) -> Generator[Path]:
    """Make a hidden, locked folder, and remove it unless it was renamed.

    Args:
        root: where to.
        name: what it is for, as a part of its name.
    """
    while True:
        path = root / f"{_TEMP_PREFIX}{name}-{secrets.token_hex(4)}"
        path.mkdir()
        with contextlib.ExitStack() as lock:
            # Another writer's clean-up may come between mkdir and the lock, or hold it, or be done.
            try:
                mine = lock.enter_context(_locked(path))
            except FileNotFoundError:
                continue
            if mine is False or not path.exists():
                continue
            try:
                yield path
            finally:
                if path.exists():
                    shutil.rmtree(path, ignore_errors=True)
            return


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[bool | None]:
    """Try to lock a folder, and say whether it was free; None where folders cannot be locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = True
        except BlockingIOError:
            mine = False
        except OSError:
            # Some network file systems: then a dead writer's folder stays, which is only untidy.
            mine = None
        yield mine
    finally:
        os.close(descriptor)


def _refused(path: Path, error: OSError) -> CheckpointError:
    text = error.strerror or str(error)
    msg = f"{path}: the checkpoint was not written ({text}); what was there before is untouched"
    if error.errno in _FULL:
        return CheckpointError(
            msg, remedy="free space on that disk (or keep fewer checkpoints), then resume the run"
        )
    return CheckpointError(msg, remedy="check that folder and its disk, then resume the run")

"""Durable files of a checkpoint: safetensors streamed from arrays, hashed while they are written.

Written here rather than through the safetensors package, because that builds the whole file in
memory before it writes; a trainer's host has no room for a third copy of the state. Reading checks
the header against the format's own rules (contiguous, in order, nothing left over) and hashes each
byte as it lands in its array, so a file is read once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np
from blake3 import blake3

from runtime.agent.state import little_endian_bytes
from runtime.spec import CheckpointError

_CHUNK_BYTES = 16 << 20
_MAX_HEADER_BYTES = 100_000_000
_SAFETENSORS_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U8": "|u1",
    "BOOL": "|b1",
}
_DTYPE_NAMES = {np.dtype(text): name for name, text in _SAFETENSORS_DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """What a manifest says of a file.

    Attributes:
        size_bytes: its size.
        blake3: BLAKE3 of its bytes, hex.
    """

    size_bytes: int
    blake3: str


def write_bytes(path: Path, data: bytes, *, durable: bool) -> FileRecord:
    """Write a new file.

    Args:
        path: a name that does not exist yet.
        data: its bytes.
        durable: whether to fsync it.

    Raises:
        OSError: the file exists, or the disk refused it.
    """
    return _write(path, [memoryview(data)], durable=durable)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], *, durable: bool) -> FileRecord:
    """Write a new safetensors file, tensors in name order, without copying them.

    Args:
        path: a name that does not exist yet.
        tensors: arrays by key.
        durable: whether to fsync it.

    Raises:
        CheckpointError: an array has a dtype that the format lacks.
        OSError: the file exists, or the disk refused it.
    """
    names = sorted(tensors)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in names:
        array = tensors[name]
        span = [offset, offset + array.nbytes]
        dtype = _dtype_name(name, array)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": span}
        offset = span[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    parts = (little_endian_bytes(tensors[name]) for name in names)
    return _write(path, _chain(memoryview(head), parts), durable=durable)


def write_tensor_set(
    folder: Path,
    stem: str,
    tensors: Mapping[str, np.ndarray],
    *,
    max_file_bytes: int,
    durable: bool,
) -> dict[str, FileRecord]:
    """Write tensors as one safetensors file, or as several with an index as Hugging Face does.

    Args:
        folder: where to.
        stem: `model` gives `model.safetensors`, or `model-00001-of-00003.safetensors`, ... and
            `model.safetensors.index.json`.
        tensors: arrays by key.
        max_file_bytes: a file's limit; one tensor alone may be larger.
        durable: whether to fsync the files.

    Returns:
        The record of each file by its name.

    Raises:
        CheckpointError: an array has a dtype that the format lacks.
        OSError: a file exists, or the disk refused it.
    """
    groups = _group(tensors, max_file_bytes)
    if len(groups) <= 1:
        name = f"{stem}.safetensors"
        return {name: write_tensors(folder / name, tensors, durable=durable)}
    records, weight_map = {}, {}
    for number, keys in enumerate(groups, start=1):
        name = f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors"
        part = {key: tensors[key] for key in keys}
        records[name] = write_tensors(folder / name, part, durable=durable)
        weight_map.update(dict.fromkeys(keys, name))
    total = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    name = f"{stem}.safetensors.index.json"
    text = json.dumps(index, indent=2, sort_keys=True).encode()
    records[name] = write_bytes(folder / name, text, durable=durable)
    return records


def read_tensors(path: Path, record: FileRecord | None = None) -> dict[str, np.ndarray]:
    """Read a safetensors file into new arrays.

    Args:
        path: the file.
        record: what its manifest says of it; None reads it unverified.

    Returns:
        Writable arrays by key.

    Raises:
        CheckpointError: the file is not well formed, or differs from its record.
        OSError: it cannot be read.
    """
    hasher = blake3(max_threads=blake3.AUTO)
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if record is not None and size != record.size_bytes:
            msg = f"{path}: {size} bytes; its manifest says {record.size_bytes}"
            raise CheckpointError(msg)
        tensors: dict[str, np.ndarray] = {}
        for name, dtype, shape in _read_header(path, file, size, hasher):
            tensors[name] = np.empty(shape, dtype)
            _fill(path, file, tensors[name].reshape(-1).view(np.uint8).data, hasher)
    if record is not None and hasher.hexdigest() != record.blake3:
        msg = f"{path}: its bytes differ from the manifest's BLAKE3"
        raise CheckpointError(msg)
    return tensors


def check_file(path: Path, record: FileRecord) -> None:
    """Compare a file with its record.

    Raises:
        CheckpointError: it is missing, unreadable, of another size, or of other bytes.
    """
    try:
        size = path.stat().st_size
        if size != record.size_bytes:
            msg = f"{path.name}: {size} bytes; its manifest says {record.size_bytes}"
            raise CheckpointError(msg)
        found = blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
    except OSError as error:
        msg = f"{path.name}: {error.strerror}"
        raise CheckpointError(msg) from error
    if found != record.blake3:
        msg = f"{path.name}: its bytes differ from the manifest's BLAKE3"
        raise CheckpointError(msg)


def sync_folder(path: Path) -> None:
    """Make a folder's entries durable; without it a file may be whole and yet have no name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, parts: Iterable[memoryview], *, durable: bool) -> FileRecord:
    hasher, size = blake3(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for part in parts:
            for start in range(0, len(part), _CHUNK_BYTES):
                chunk = part[start : start + _CHUNK_BYTES]
                hasher.update(chunk)
                _write_all(descriptor, chunk)
                size += len(chunk)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(size_bytes=size, blake3=hasher.hexdigest())


def _write_all(descriptor: int, chunk: memoryview) -> None:
    # A write near the end of the disk is short first; only the next one says ENOSPC.
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


def _chain(first: memoryview, rest: Iterable[memoryview]) -> Iterable[memoryview]:
    yield first
    yield from rest


def _group(tensors: Mapping[str, np.ndarray], max_file_bytes: int) -> list[list[str]]:
    groups: list[list[str]] = []
    filled = 0
    for name in sorted(tensors):
        size = tensors[name].nbytes
        if not groups or filled + size > max_file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    return groups


def _dtype_name(name: str, array: np.ndarray) -> str:
    if array.dtype.name == "bfloat16":
        return "BF16"
    try:
        return _DTYPE_NAMES[array.dtype.newbyteorder("<")]
    except KeyError:
        msg = f"{name}: dtype {array.dtype} cannot be stored; allowed: {_allowed_dtypes()}"
        raise CheckpointError(msg) from None


def _allowed_dtypes() -> str:
    return ", ".join([*sorted(dtype.name for dtype in _DTYPE_NAMES), "bfloat16"])


def _numpy_dtype(name: object) -> np.dtype | None:
    if name == "BF16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    text = _SAFETENSORS_DTYPES.get(name) if isinstance(name, str) else None
    return None if text is None else np.dtype(text)


def _read_header(
    path: Path, file: FileIO, size: int, hasher: blake3
) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    length_bytes = bytearray(8)
    _fill(path, file, memoryview(length_bytes), hasher)
    length = int.from_bytes(length_bytes, "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
        msg = f"{path}: not a safetensors file (header of {length} bytes in {size})"
        raise CheckpointError(msg)
    text = bytearray(length)
    _fill(path, file, memoryview(text), hasher)
    try:
        header = json.loads(bytes(text))
        return _check_header(header, size - 8 - length)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        msg = f"{path}: broken safetensors header ({error})"
        raise CheckpointError(msg) from error


def _check_header(header: dict, body_bytes: int) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    entries.sort(key=lambda item: item[1]["data_offsets"])
    tensors, offset = [], 0
    for name, entry in entries:
        dtype, shape = _numpy_dtype(entry["dtype"]), _shape(entry["shape"])
        if dtype is None:
            msg = f"{name}: dtype {entry['dtype']!r}"
            raise ValueError(msg)
        end = offset + math.prod(shape) * dtype.itemsize
        if entry["data_offsets"] != [offset, end]:
            msg = f"{name}: offsets {entry['data_offsets']}, expected {[offset, end]}"
            raise ValueError(msg)
        tensors.append((name, dtype, shape))
        offset = end
    if offset != body_bytes:
        msg = f"{body_bytes} bytes of data, expected {offset}"
        raise ValueError(msg)
    return tensors


def _shape(value: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(value)
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        msg = f"shape {value!r}"
        raise ValueError(msg)
    return shape


def _fill(path: Path, file: FileIO, view: memoryview, hasher: blake3) -> None:
    done = 0
    while done < len(view):
        part = view[done : done + _CHUNK_BYTES]
        count = file.readinto(part)
        if not count:
            msg = f"{path}: ends after {done} of {len(view)} bytes"
            raise CheckpointError(msg)
        hasher.update(part[:count])
        done += count

"""The sample file: a job's tokenised data as fixed rows, memory-mapped and verified.

A folder with `samples.json` and three raw little-endian int32 files, C order, [count, seq_len]:

- `input_ids.i32`;
- `labels.i32`: the token that each position predicts (already shifted), or -100 for none;
- `segment_ids.i32`: 0 for padding, else 1, 2, ... for the documents of a row.

Positions follow from the segments: they count from 0 in each. The folder's digest covers the shape
and every byte of the three files, and nothing else: the same samples have the same digest wherever
and from whatever they were prepared. `open` reads and hashes all of it before it gives a sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from runtime.spec import DataError

FORMAT = 1
INDEX = "samples.json"
KEYS = ("input_ids", "labels", "segment_ids")
IGNORE = -100
_ITEM_BYTES = 4
_REMEDY = "prepare the data again: remove that folder and launch once more"


def file_name(key: str) -> str:
    """Name the file that holds one of `KEYS`."""
    return f"{key}.i32"


def samples_digest(count: int, seq_len: int, hashes: Mapping[str, str]) -> str:
    """Give the digest of a sample file.

    Args:
        count: rows.
        seq_len: tokens in a row.
        hashes: BLAKE3 of each file's bytes, hex, by key.

    Returns:
        BLAKE3, hex, of the canonical JSON of the shape and the files' hashes.
    """
    content = {"count": count, "files": {key: hashes[key] for key in KEYS}, "seq_len": seq_len}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return blake3(b"luma samples v1\0" + text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFile:
    """Rows of tokens on disk.

    Attributes:
        path: the folder.
        count: rows.
        seq_len: tokens in a row.
        digest: see `samples_digest`.
        supervised_tokens: labels that are not -100, in all rows.
        columns: int32 [count, seq_len] memory maps by key.
    """

    path: Path
    count: int
    seq_len: int
    digest: str
    supervised_tokens: int
    columns: Mapping[str, NDArray[np.int32]]

    @classmethod
    def open(cls, path: Path | str, *, threads: int = 0) -> SampleFile:
        """Open a folder and verify every byte of it.

        Args:
            path: the folder that `prepare_data` wrote.
            threads: threads of the hash; 0 takes one a core.

        Raises:
            DataError: a file is missing, has another size, or its bytes differ from the digest.
        """
        folder = Path(path)
        index = _read_index(folder)
        count, seq_len = _positive(index, folder, "count"), _positive(index, folder, "seq_len")
        hashes = {key: _hash_column(folder, key, count * seq_len, threads) for key in KEYS}
        digest = samples_digest(count, seq_len, hashes)
        if digest != index.get("digest"):
            changed = [key for key in KEYS if hashes[key] != index.get("files", {}).get(key)]
            where = ", ".join(file_name(key) for key in changed) or INDEX
            msg = f"{folder}: the samples differ from their digest ({where} was changed)"
            raise DataError(msg, remedy=_REMEDY)
        columns = {
            key: np.memmap(folder / file_name(key), "<i4", "r", shape=(count, seq_len))
            for key in KEYS
        }
        return cls(
            path=folder,
            count=count,
            seq_len=seq_len,
            digest=digest,
            supervised_tokens=int(index.get("supervised_tokens", 0)),
            columns=columns,
        )

    def batch(self, indices: NDArray[np.int64]) -> dict[str, NDArray[np.int32]]:
        """Read rows.

        Args:
            indices: row numbers, int64 [n].

        Returns:
            `input_ids`, `labels`, `position_ids`, `segment_ids`, each int32 [n, seq_len],
            contiguous and owned by the caller.

        Raises:
            IndexError: a row number outside [0, count).
        """
        rows = np.asarray(indices, np.int64)
        if rows.size and not (rows.min() >= 0 and rows.max() < self.count):
            msg = f"sample outside [0, {self.count}): {rows.tolist()}"
            raise IndexError(msg)
        batch = {key: np.array(self.columns[key][rows], np.int32) for key in KEYS}
        batch["position_ids"] = position_ids(batch["segment_ids"])
        return batch


def position_ids(segment_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Count positions from 0 in each run of equal segment ids.

    Args:
        segment_ids: int32 [n, seq_len].

    Returns:
        int32 [n, seq_len].
    """
    places = np.arange(segment_ids.shape[1], dtype=np.int32)[None, :]
    starts = np.zeros_like(segment_ids)
    starts[:, 1:] = np.where(segment_ids[:, 1:] != segment_ids[:, :-1], places[:, 1:], 0)
    return (places - np.maximum.accumulate(starts, axis=1)).astype(np.int32)


def _read_index(folder: Path) -> dict:
    path = folder / INDEX
    try:
        index = json.loads(path.read_bytes())
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise DataError(msg, remedy=_REMEDY) from error
    except ValueError as error:
        msg = f"{path}: not JSON ({error})"
        raise DataError(msg, remedy=_REMEDY) from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        found = index.get("format") if isinstance(index, dict) else type(index).__name__
        msg = f"{path}: format {found!r} is not known; this version reads format {FORMAT}"
        raise DataError(msg, remedy=_REMEDY)
    return index


def _positive(index: dict, folder: Path, field: str) -> int:
    value = index.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"{folder / INDEX}: {field} is {value!r}; expected a positive integer"
        raise DataError(msg, remedy=_REMEDY)
    return value


def _hash_column(folder: Path, key: str, items: int, threads: int) -> str:
    path = folder / file_name(key)
    try:
        size = path.stat().st_size
        if size != items * _ITEM_BYTES:
            msg = f"{path}: {size} bytes; expected {items * _ITEM_BYTES}"
            raise DataError(msg, remedy=_REMEDY)
        return blake3(max_threads=threads or blake3.AUTO).update_mmap(path).hexdigest()
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise DataError(msg, remedy=_REMEDY) from error

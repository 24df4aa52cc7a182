"""The spool of all documents' pairs, and the rows that are composed from it.

Between tokenising and writing, tokens lie on disk: only the lengths of the pieces are in memory, so
the size of a data set is bounded by the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from runtime.agent.samples import IGNORE, KEYS, file_name
from runtime.agent.state import little_endian_bytes
from runtime.run.data.packing import Layout

_CHUNK_TOKENS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """What was written.

    Attributes:
        supervised_tokens: labels that the loss counts.
        largest_token: the largest token id, of inputs and labels.
        hashes: BLAKE3 of each file, hex, by key.
    """

    supervised_tokens: int
    largest_token: int
    hashes: dict[str, str]


class Spool:
    """The pairs of all documents in two files, cut into pieces.

    Args:
        folder: where the files go.
        seq_len: a piece's limit.
    """

    def __init__(self, folder: Path, seq_len: int) -> None:
        self.seq_len = seq_len
        self.lengths: list[int] = []
        self.documents = self.unused_documents = self.pairs = 0
        self._paths = (folder / "tokens.spool", folder / "labels.spool")
        self._files: tuple[IO[bytes], ...] = ()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Open the files."""
        self._files = tuple(self._stack.enter_context(path.open("xb")) for path in self._paths)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._stack.close()

    def add(self, ids: NDArray[np.int32], supervised: NDArray[np.bool_]) -> None:
        """Add a document.

        Args:
            ids: int32 [n], its tokens.
            supervised: bool [n], whether the prediction of a token counts.
        """
        self.documents += 1
        labels = np.where(supervised[1:], ids[1:], IGNORE).astype("<i4")
        tokens = ids[:-1].astype("<i4")
        used = False
        for start in range(0, labels.size, self.seq_len):
            piece = slice(start, start + self.seq_len)
            if not (labels[piece] != IGNORE).any():
                continue  # a window without a label would be computed for nothing
            used = True
            self.lengths.append(labels[piece].size)
            self.pairs += labels[piece].size
            for file, array in zip(self._files, (tokens, labels), strict=True):
                file.write(array[piece].data)
        self.unused_documents += not used

    def read(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Map the tokens and labels of all pieces, int32 [pairs] each."""
        tokens, labels = (np.memmap(path, "<i4", "r") for path in self._paths)
        return tokens, labels

    def remove(self) -> None:
        """Remove the files."""
        for path in self._paths:
            path.unlink()


def write_rows(folder: Path, spool: Spool, layout: Layout, count: int) -> WrittenRows:
    """Compose rows from the spool and write the sample file's columns.

    Args:
        folder: where the files go.
        spool: the pieces, closed for writing.
        layout: the place of each piece.
        count: rows to write; later ones are left out.

    Raises:
        OSError: the disk refused.
    """
    hashers = {key: blake3() for key in KEYS}
    supervised, largest = 0, 0
    with ExitStack() as stack:
        files = {key: stack.enter_context((folder / file_name(key)).open("xb")) for key in KEYS}
        for chunk in _compose(spool, layout, count):
            supervised += int((chunk["labels"] != IGNORE).sum())
            largest = max(largest, *(int(chunk[key].max()) for key in ("input_ids", "labels")))
            for key, array in chunk.items():
                data = little_endian_bytes(array)
                hashers[key].update(data)
                files[key].write(data)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    hashes = {key: hasher.hexdigest() for key, hasher in hashers.items()}
    return WrittenRows(supervised_tokens=supervised, largest_token=largest, hashes=hashes)


def _compose(spool: Spool, layout: Layout, count: int) -> Iterator[dict[str, NDArray[np.int32]]]:
    """Give rows from the first to the last, a chunk at a time."""
    tokens, labels = spool.read()
    lengths = np.array(spool.lengths, np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    order = np.argsort(layout.rows, kind="stable")
    rows_in_order = layout.rows[order]
    chunk_rows = max(1, _CHUNK_TOKENS // spool.seq_len)
    for first in range(0, count, chunk_rows):
        last = min(first + chunk_rows, count)
        chunk = _empty_rows(last - first, spool.seq_len)
        begin, end = np.searchsorted(rows_in_order, [first, last])
        for piece in order[begin:end]:
            row, column = layout.rows[piece] - first, layout.offsets[piece]
            target = slice(column, column + lengths[piece])
            source = slice(starts[piece], starts[piece + 1])
            chunk["input_ids"][row, target] = tokens[source]
            chunk["labels"][row, target] = labels[source]
            chunk["segment_ids"][row, target] = layout.segments[piece]
        yield chunk


def _empty_rows(count: int, seq_len: int) -> dict[str, NDArray[np.int32]]:
    fills = {"input_ids": 0, "labels": IGNORE, "segment_ids": 0}
    return {key: np.full((count, seq_len), fill, "<i4") for key, fill in fills.items()}

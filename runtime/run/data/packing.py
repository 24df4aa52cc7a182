"""Where each piece of a document goes in the rows of the sample file.

A document of n tokens is n - 1 pairs (token, the token it predicts). Pairs are cut into pieces of
at most a row, so each supervised token is a label exactly once. Without packing a piece is a row.
With packing, pieces share rows by best fit, longest first (Ding et al., "Fewer Truncations Improve
Language Modeling", 2024): no document is cut that fits in a row, and rows are nearly full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Layout:
    """A place for each piece.

    Attributes:
        rows: int64 [pieces], the row.
        offsets: int64 [pieces], the first column.
        segments: int64 [pieces], 1, 2, ... in a row from left to right.
        count: rows in all.
    """

    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    segments: NDArray[np.int64]
    count: int


def one_per_row(lengths: NDArray[np.int64]) -> Layout:
    """Give each piece its own row.

    Args:
        lengths: int64 [pieces].
    """
    pieces = lengths.size
    return Layout(np.arange(pieces), np.zeros(pieces, np.int64), np.ones(pieces, np.int64), pieces)


def best_fit(lengths: NDArray[np.int64], seq_len: int) -> Layout:
    """Pack pieces into rows.

    Rows come in the order of their first piece, and pieces in a row in their own order, so that
    the first rows are from the first documents.

    Args:
        lengths: int64 [pieces], each from 1 to seq_len.
        seq_len: columns of a row.
    """
    packed = _assign(lengths, seq_len)
    order = np.lexsort((np.arange(lengths.size), packed))
    firsts = np.full(int(packed.max(initial=-1)) + 1, lengths.size)
    np.minimum.at(firsts, packed, np.arange(lengths.size))
    rank = np.empty_like(firsts)
    rank[np.argsort(firsts, kind="stable")] = np.arange(firsts.size)
    offsets, segments = np.zeros(lengths.size, np.int64), np.zeros(lengths.size, np.int64)
    row, column, segment = -1, 0, 0
    for piece in order:
        if packed[piece] != row:
            row, column, segment = packed[piece], 0, 0
        segment += 1
        offsets[piece], segments[piece] = column, segment
        column += lengths[piece]
    return Layout(rank[packed], offsets, segments, firsts.size)


def _assign(lengths: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
    """Give each piece a row, in the order in which rows are opened."""
    rows = np.empty(lengths.size, np.int64)
    # open_rows[c]: rows with c columns left; bit c of `present` says that there is one.
    open_rows: dict[int, list[int]] = {}
    present, opened = 0, 0
    for piece in np.argsort(-lengths, kind="stable"):
        length = int(lengths[piece])
        fitting = present >> length
        if fitting:
            left = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[left].pop()
            if not open_rows[left]:
                present &= ~(1 << left)
        else:
            left, row = seq_len, opened
            opened += 1
        rows[piece] = row
        if left > length:
            open_rows.setdefault(left - length, []).append(row)
            present |= 1 << (left - length)
    return rows

"""Packing: every piece has one place, inside a row, beside others and never on them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.run.data.packing import best_fit, one_per_row

LENGTHS = st.integers(1, 40).flatmap(
    lambda width: st.tuples(
        st.just(width), st.lists(st.integers(1, width), min_size=0, max_size=60)
    )
)


@given(LENGTHS)
@settings(max_examples=100, deadline=None)
def test_pieces_fill_rows_without_overlap(case: tuple[int, list[int]]) -> None:
    width, pieces = case
    lengths = np.array(pieces, np.int64)
    layout = best_fit(lengths, width)
    used = np.zeros((layout.count, width), int)
    for row, offset, length in zip(layout.rows, layout.offsets, lengths, strict=True):
        used[row, offset : offset + length] += 1
        assert offset + length <= width
    assert used.max(initial=0) <= 1
    assert used.sum() == lengths.sum()
    for row in range(layout.count):
        inside = np.flatnonzero(layout.rows == row)
        by_place = inside[np.argsort(layout.offsets[inside])]
        assert layout.segments[by_place].tolist() == list(range(1, len(inside) + 1))
        assert (np.diff(by_place) > 0).all()
        # No gap between pieces: padding is at the end only.
        assert used[row].tolist() == sorted(used[row].tolist(), reverse=True)


@given(LENGTHS)
@settings(max_examples=60, deadline=None)
def test_rows_are_in_the_order_of_their_first_piece(case: tuple[int, list[int]]) -> None:
    width, pieces = case
    layout = best_fit(np.array(pieces, np.int64), width)
    firsts = [int(np.flatnonzero(layout.rows == row)[0]) for row in range(layout.count)]
    assert firsts == sorted(firsts)


@given(LENGTHS)
@settings(max_examples=60, deadline=None)
def test_packing_needs_fewer_than_twice_the_least_rows(case: tuple[int, list[int]]) -> None:
    width, pieces = case
    least = -(-sum(pieces) // width)
    assert best_fit(np.array(pieces, np.int64), width).count <= max(2 * least, 0)


def test_best_fit_takes_the_tightest_row() -> None:
    layout = best_fit(np.array([6, 5, 4, 5]), 10)
    assert layout.rows.tolist() == [0, 1, 0, 1]
    assert layout.offsets.tolist() == [0, 0, 6, 5]
    assert layout.segments.tolist() == [1, 1, 2, 2]


def test_without_packing_each_piece_has_a_row() -> None:
    layout = one_per_row(np.array([3, 1, 2]))
    assert layout.rows.tolist() == [0, 1, 2]
    assert layout.offsets.tolist() == [0, 0, 0]
    assert layout.segments.tolist() == [1, 1, 1]
    assert layout.count == 3

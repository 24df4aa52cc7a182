"""The scale of the integer sums: nothing overflows that was seen, and every island agrees on it."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runtime.agent.scaling import advance, first_exponents, raise_to, unit_exponents
from runtime.artifact.program import EMPTY

exponents = st.lists(st.integers(-149, 127), min_size=1, max_size=8).map(
    lambda values: np.array(values, np.int32)
)
shard_counts = st.integers(1, 4096)
headrooms = st.integers(0, 8)
ALMOST_TWO = 2 - 2**-18
"""The largest mantissa that does not round up to 2 where only 19 bits are left (M = 4096)."""

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _bits(micro_shards: int) -> int:
    return math.ceil(math.log2(micro_shards))


def _encode(value: float, exponent: int) -> int:
    """Round half to even in exact arithmetic: `r = g * 2^-e`."""
    return round(Fraction(value) / Fraction(2) ** exponent)


def _exponent_of(value: float) -> int:
    """E = floor(log2 |g|), exactly."""
    return EMPTY if value == 0 else math.frexp(value)[1] - 1


@given(st.lists(finite, min_size=1, max_size=6), shard_counts, headrooms)
def test_what_the_maxima_bound_is_accepted_and_no_partial_sum_overflows(
    shards: list[float], micro_shards: int, headroom: int
) -> None:
    """Every |r| < 2^(31-m), tested after rounding, so the sum of all M shards fits int32."""
    largest = np.array([max(_exponent_of(g) for g in shards)], np.int32)
    e = int(unit_exponents(largest, micro_shards=micro_shards, headroom=headroom)[0])
    limit = 2 ** (31 - _bits(micro_shards))
    worst = max(abs(_encode(g, e)) for g in shards)
    assert worst < limit
    assert worst * micro_shards < 2**31


@given(finite, shard_counts, headrooms)
def test_growth_by_the_headroom_is_accepted_and_twice_as_much_is_not(
    value: float, micro_shards: int, headroom: int
) -> None:
    E = _exponent_of(value)
    assume(-110 <= E <= 100)
    largest = np.array([E], np.int32)
    e = int(unit_exponents(largest, micro_shards=micro_shards, headroom=headroom)[0])
    limit = 2 ** (31 - _bits(micro_shards))
    assert abs(_encode(math.ldexp(ALMOST_TWO, E + headroom), e)) < limit
    if headroom and e > -124:  # there the unit no longer follows what was seen
        assert abs(_encode(math.ldexp(1.0, E + headroom + 1), e)) >= limit


@given(exponents, exponents, shard_counts, headrooms)
def test_a_redo_with_the_raised_scale_cannot_overflow_again(
    before: np.ndarray, shown: np.ndarray, micro_shards: int, headroom: int
) -> None:
    """`raise_to` covers the step's own maxima; float32's largest mantissa is the worst element.

    With a headroom of 0 and M > 128 that element rounds up to the limit: found here, and mended.
    """
    size = min(len(before), len(shown))
    raised = raise_to(before[:size], shown[:size])
    units = unit_exponents(raised, micro_shards=micro_shards, headroom=headroom)
    limit = 2 ** (31 - _bits(micro_shards))
    for E, e in zip(shown[:size], units, strict=True):
        assert abs(_encode(math.ldexp(2 - 2**-23, int(E)), int(e))) < limit
    assert (raised >= before[:size]).all()


@given(st.lists(st.integers(-2000, 2000), min_size=1, max_size=8), shard_counts, headrooms)
def test_units_and_their_inverses_are_normal_numbers(
    largest: list[int], micro_shards: int, headroom: int
) -> None:
    """Facts, section 3: -124 <= e <= 126, a block that never showed anything (EMPTY) included."""
    units = unit_exponents(
        np.array([*largest, EMPTY], np.int32), micro_shards=micro_shards, headroom=headroom
    )
    assert units.dtype == np.int32
    for e in units:
        for scale in (np.float32(2.0) ** int(e), np.float32(2.0) ** -int(e)):
            assert np.finfo(np.float32).tiny <= scale <= np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("E", "micro_shards", "headroom", "e"),
    [
        (0, 64, 2, -22),
        (0, 64, 3, -21),
        (0, 512, 3, -18),
        (-5, 1, 1, -34),
        (-140, 64, 3, -124),
        (127, 4096, 30, 126),
    ],
)
def test_the_formula_on_hand_made_values(E: int, micro_shards: int, headroom: int, e: int) -> None:
    """e = E + 1 + h + m - 31."""
    largest = np.array([E], np.int32)
    assert unit_exponents(largest, micro_shards=micro_shards, headroom=headroom).tolist() == [e]


def test_a_micro_shard_count_between_powers_of_two_takes_the_larger() -> None:
    largest = np.zeros(1, np.int32)
    at = {m: int(unit_exponents(largest, micro_shards=m, headroom=2)[0]) for m in (4, 5, 8, 9)}
    assert at[5] == at[8] == at[4] + 1
    assert at[9] == at[8] + 1


ROWS = (("a", 0, 3), ("b", 3, 2))
five_maxima = st.lists(st.one_of(st.just(EMPTY), st.integers(-60, 20)), min_size=5, max_size=5)


@given(
    largest=st.lists(st.integers(-149, 127), min_size=5, max_size=5),
    shards=st.lists(five_maxima, min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
    step=st.integers(0, 40),
)
def test_the_next_scale_does_not_depend_on_who_computed_what(
    largest: list[int], shards: list[list[int]], order: random.Random, step: int
) -> None:
    """Maxima over shards in any order and any grouping give one next scale."""
    now = np.array(largest, np.int32)
    rows = [np.array(row, np.int32) for row in shards]
    expected = advance(now, np.maximum.reduce(rows), ROWS, step=step)
    order.shuffle(rows)
    nothing = np.full(5, EMPTY, np.int32)
    middle = len(rows) // 2
    groups = [np.maximum.reduce([*g, nothing]) for g in (rows[:middle], rows[middle:])]
    again = advance(now, np.maximum(groups[1], groups[0]), ROWS, step=step)
    np.testing.assert_array_equal(again, expected)
    assert again.dtype == np.int32
    assert now.tolist() == largest, "the scale in force is not changed under other readers"


@given(largest=st.lists(st.integers(-100, 100), min_size=5, max_size=5), step=st.integers(1, 100))
def test_the_scale_follows_growth_at_once_and_shrinks_by_one_bit_at_most(
    largest: list[int], step: int
) -> None:
    now = np.array(largest, np.int32)
    np.testing.assert_array_equal(advance(now, now + 5, ROWS, step=step), now + 5)
    shrunk = advance(now, now - 20, ROWS, step=step)
    assert set((now - shrunk).tolist()) <= {0, 1}


def test_a_block_that_shrank_comes_down_slowly() -> None:
    largest = np.zeros(5, np.int32)
    for step in range(1, 25):
        largest = advance(largest, np.full(5, -9, np.int32), ROWS, step=step)
    assert largest.tolist() == [-3] * 5


def test_a_block_of_zeros_keeps_its_scale() -> None:
    largest = np.array([-7, 3, 0, 0, 1], np.int32)
    kept = largest
    for step in range(1, 64):
        kept = advance(kept, np.full(5, EMPTY, np.int32), ROWS, step=step)
    assert kept.tolist() == largest.tolist()


@given(maxima=five_maxima, headroom=headrooms, micro_shards=st.integers(1, 512))
def test_the_first_scale_holds_the_parameter_s_largest_in_every_of_its_blocks(
    maxima: list[int], headroom: int, micro_shards: int
) -> None:
    """Another shard may touch rows that shard 0 did not; they are taken to be no larger."""
    first = first_exponents(np.array(maxima, np.int32), ROWS)
    units = unit_exponents(first, micro_shards=micro_shards, headroom=headroom)
    limit = 2 ** (31 - _bits(micro_shards))
    for _, begin, count in ROWS:
        top = max(maxima[begin : begin + count])
        if top == EMPTY:
            continue
        for block in range(begin, begin + count):
            assert first[block] >= maxima[block]
            assert abs(_encode(math.ldexp(ALMOST_TWO, top), int(units[block]))) < limit


@given(maxima=five_maxima, guess=five_maxima)
def test_after_the_first_step_its_guess_is_forgotten(maxima: list[int], guess: list[int]) -> None:
    """The second step's scale is a function of what the first one showed, all shards counted."""
    shown = np.array(maxima, np.int32)
    after = advance(np.array(guess, np.int32), shown, ROWS, step=0)
    np.testing.assert_array_equal(after, advance(np.zeros(5, np.int32), shown, ROWS, step=0))
    assert (after >= shown).all()
    assert (after > EMPTY).all(), "no block is left without a scale"


def test_a_parameter_that_the_first_shard_did_not_touch_goes_by_the_largest_of_all() -> None:
    maxima = np.array([EMPTY, EMPTY, EMPTY, -4, -9], np.int32)
    first = first_exponents(maxima, ROWS)
    assert first.tolist() == [-4, -4, -4, -1, -4]


def test_a_job_whose_first_shard_has_no_gradient_at_all_starts_somewhere_finite() -> None:
    first = first_exponents(np.full(5, EMPTY, np.int32), ROWS)
    assert (np.abs(first) < 10).all()

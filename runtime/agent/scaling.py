"""The scale of the integer gradient sums, on the host: small, exact, and the same everywhere.

The compiled `grad` program rounds each gradient block to multiples of a unit 2^e. Here is where e
comes from: the largest exponent that the block showed in the last committed step, plus headroom.
All functions are pure functions of committed values, so every island computes the same scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from runtime.artifact.program import EMPTY, MAX_EXPONENT, MIN_EXPONENT

_DECAY_STEPS = 8
"""Steps after which a block's scale may come down by one bit. A block that is touched only now and
then (a rare token's row) keeps its scale in between; with one bit a step it overflowed whenever it
was touched (2 redone steps in 30 of the tiny example, against none)."""

_FIRST_BITS = 3
"""Extra room for the first step. Without it SmolLM2-135M with one sequence a shard redid that step
for overflow, at the cost of the whole step; bits that are not used cost the step some rounding."""

_SPREAD_BITS = 3

Exponents = NDArray[np.int32]
Rows = tuple[tuple[str, int, int], ...]


def unit_exponents(largest: Exponents, *, micro_shards: int, headroom: int) -> Exponents:
    """Give the unit exponent e of each block: e = E + 1 + h + m - 31, m = ceil(log2 M).

    A shard's element may then grow 2^h above the block's last maximum, and the sum of M shards
    still fits int32. e is kept in [-124, 126] so that 2^e and 2^-e are normal numbers.

    Args:
        largest: int32 [n_blocks], E of each block.
        micro_shards: M.
        headroom: h, in bits. 0 counts as 1: an element just below 2^(E + 1) may round up to it,
            and a redo at the same scale would then overflow for ever.
    """
    bits = (micro_shards - 1).bit_length()
    raised = largest.astype(np.int64) + (1 + max(headroom, 1) + bits - 31)
    return np.clip(raised, MIN_EXPONENT, MAX_EXPONENT).astype(np.int32)


def advance(largest: Exponents, maxima: Exponents, rows: Rows, *, step: int) -> Exponents:
    """Give the next E of each block from a committed step's maxima.

    E follows a block that grows at once and one that shrinks slowly, by one bit each
    `_DECAY_STEPS` steps; a block of zeros keeps E. The first step's guess is replaced by what the
    step showed.

    Args:
        largest: int32 [n_blocks], E in force for the committed step.
        maxima: int32 [n_blocks], the step's own maxima over all shards.
        rows: (parameter, first block, number of blocks) of each parameter.
        step: the committed step, from 0.
    """
    if step == 0:
        return _spread(maxima, rows)
    floor = largest - int((step + 1) % _DECAY_STEPS == 0)
    return np.where(maxima == EMPTY, largest, np.maximum(maxima, floor)).astype(np.int32)


def raise_to(largest: Exponents, maxima: Exponents) -> Exponents:
    """Give the E with which an overflowed step is redone: at least what the step itself showed."""
    return np.maximum(largest, maxima).astype(np.int32)


def first_exponents(maxima: Exponents, rows: Rows) -> Exponents:
    """Give E for a job's first step from the maxima of its first micro-shard.

    One micro-shard is a small sample, so this step alone gets `_FIRST_BITS` of extra room.

    Args:
        maxima: int32 [n_blocks] of shard 0 of step 0.
        rows: (parameter, first block, number of blocks) of each parameter.
    """
    return _spread(maxima, rows) + np.int32(_FIRST_BITS)


def _spread(maxima: Exponents, rows: Rows) -> Exponents:
    """Raise blocks that a step hardly touched to near their parameter's largest.

    The next shards touch other rows; an element 2^-`_SPREAD_BITS` as large as the parameter's
    largest then fits every block before any headroom is used.
    """
    overall = int(maxima.max(initial=EMPTY))
    if overall == EMPTY:
        return np.zeros_like(maxima)
    spread = maxima.copy()
    for _, first, count in rows:
        block = spread[first : first + count]
        top = int(block.max(initial=EMPTY))
        np.maximum(block, (overall if top == EMPTY else top) - _SPREAD_BITS, out=block)
    return spread

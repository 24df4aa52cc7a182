"""Block fixed point inside the compiled programs: gradients become integers, once and exactly.

A parameter's gradient is cut into blocks of `BLOCK_SIZE` elements (the last one padded with
zeros). Block b has a unit u = 2^e, e an argument of the program. An element g of one micro-shard
becomes r = round_half_even(g / u), and only these integers are ever added, so any order and any
number of islands give the same bits (design, section 4.4).

What makes it exact, and what each line below guards:

- Dividing by a power of two is exact while 2^-e is a normal number, so -124 <= e <= 126; the only
  rounding is the one to an integer.
- An element is accepted iff |r| < 2^(31-m), m = ceil(log2 M), strictly and **after** rounding:
  then every partial sum over any subset of M micro-shards is below 2^31. The bound is compared
  against the power of two itself, because float32 cannot hold 2^(31-m) - 1.
- NaN, infinities and refused elements are written as 0 and counted; casting them would give
  what the chip likes (-2^31 on x86).
- The largest magnitude and the zero test look at exponent bits, and a subnormal counts as zero, so
  that they do not depend on whether a chip flushes subnormal numbers.

Speed: what is done for each parameter is one generated loop (round, accept, add) and two plain
reductions over the gradient itself, which XLA's CPU compiler takes from a library. Anything else
over all elements costs several passes and a compiled loop for each parameter: so overflow and
non-finite values are counted in blocks, from the blocks' largest element and sum, and vanished
elements are counted in a fixed sample of blocks where a model is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from runtime.artifact.program import EMPTY, MAX_EXPONENT, MIN_EXPONENT
from runtime.compiler.blocks import BLOCK_SIZE, n_blocks, shard_bits
from runtime.spec import CompileError

VANISHED_SAMPLE = 64
"""Blocks in which vanished elements are counted, at least, where a model has more. Counting is a
pass over copies: at 4,096 it was a pass over all of a model of 17 million parameters."""

_SMALLEST_NORMAL = 0x00800000
_MAGNITUDE_MASK = 0x7FFFFFFF
_MANTISSA_BITS = 23
_BIAS = 127


class Encoded(NamedTuple):
    """One parameter's gradient of one micro-shard in fixed point.

    Attributes:
        values: int32 [n_blocks, BLOCK_SIZE], refused elements 0.
        largest: float32 [n_blocks], the largest |g|; means nothing if the block holds NaN.
        total: float32 [n_blocks], the sum, not finite if any element is not.
        sample: float32 [n, BLOCK_SIZE], the blocks in which vanished elements are counted.
    """

    values: jax.Array
    largest: jax.Array
    total: jax.Array
    sample: jax.Array


class Statistics(NamedTuple):
    """What a micro-shard's gradients tell about their units.

    Attributes:
        maxima: int32 [n_blocks], floor(log2 max|g|), or `EMPTY` where all elements are 0 or one is
            not finite.
        overflow: int32 [], finite blocks that hold an element too large for their unit.
        nonfinite: int32 [], blocks that hold NaN or infinity (or whose float32 sum overflows).
        vanished: int32 [], elements that are not zero (nor subnormal) and became 0; an estimate
            from a sample if there are more than 2 `VANISHED_SAMPLE` blocks.
    """

    maxima: jax.Array
    overflow: jax.Array
    nonfinite: jax.Array
    vanished: jax.Array


def power_of_two(exponent: jax.Array) -> jax.Array:
    """Give 2^exponent as float32, exactly; exponent: int32, from -126 to 127."""
    return lax.bitcast_convert_type((exponent + _BIAS) << _MANTISSA_BITS, jnp.float32)


def encode(
    grad: jax.Array, exponents: jax.Array, micro_shards: int, sample_every: int = 1
) -> Encoded:
    """Round one micro-shard's gradient to block fixed point.

    Args:
        grad: float32, of any shape.
        exponents: int32 [n_blocks], the unit exponents of this parameter's blocks.
        micro_shards: M, the number of micro-shards that will be added.
        sample_every: one of so many blocks counts vanished elements, see `sample_every`.

    Raises:
        CompileError: `grad` is not float32, or M is out of range.
    """
    if grad.dtype != jnp.float32:
        raise CompileError(f"fixed point: a gradient has dtype {grad.dtype}; expected float32")
    blocks = _to_blocks(grad)
    rounded = _round(blocks, exponents)
    accepted = jnp.abs(rounded) < _limit(micro_shards)  # false for NaN
    return Encoded(
        values=jnp.where(accepted, rounded, 0.0).astype(jnp.int32),
        largest=jnp.max(jnp.abs(blocks), axis=1),
        total=jnp.sum(blocks, axis=1),
        sample=blocks[: -(-blocks.shape[0] // sample_every)],
    )


def sample_every(all_blocks: int) -> int:
    """Give k: vanished elements are counted in the first 1/k of each parameter's blocks."""
    return max(1, all_blocks // VANISHED_SAMPLE)


def summarise(encoded: Sequence[Encoded], exponents: jax.Array, micro_shards: int) -> Statistics:
    """Finish the statistics of all parameters together.

    Args:
        encoded: every parameter's encoded gradient, in order.
        exponents: int32 [n_blocks], what all of them were encoded with.
        micro_shards: M, as for `encode`.
    """
    largest = jnp.concatenate([item.largest for item in encoded])
    finite = jnp.isfinite(jnp.concatenate([item.total for item in encoded])) & jnp.isfinite(largest)
    bits = lax.bitcast_convert_type(largest, jnp.int32)
    top = jnp.where(finite & (bits >= _SMALLEST_NORMAL), (bits >> _MANTISSA_BITS) - _BIAS, EMPTY)
    refused = ~(_round(largest, exponents) < _limit(micro_shards))
    return Statistics(
        maxima=top,
        overflow=jnp.sum(finite & refused, dtype=jnp.int32),
        nonfinite=jnp.sum(~finite, dtype=jnp.int32),
        vanished=_vanished(encoded, exponents),
    )


def decode(sums: jax.Array, exponents: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Give the float32 of a sum of encoded gradients: one rounding, then an exact product.

    Args:
        sums: int32 [n_blocks, BLOCK_SIZE].
        exponents: int32 [n_blocks], the unit exponents it was encoded with.
        shape: the parameter's shape.
    """
    values = decode_blocks(sums, exponents)
    size = 1
    for length in shape:
        size *= length
    return values.reshape(-1)[:size].reshape(shape)


def decode_blocks(sums: jax.Array, exponents: jax.Array) -> jax.Array:
    """Give the float32 [n_blocks, BLOCK_SIZE] of a sum, its padding included (zeros)."""
    unit = jnp.clip(exponents, MIN_EXPONENT, MAX_EXPONENT)
    return sums.astype(jnp.float32) * power_of_two(unit)[:, None]


def _to_blocks(grad: jax.Array) -> jax.Array:
    """Cut into [n_blocks, BLOCK_SIZE], padding the last block with zeros."""
    flat = grad.reshape(-1)
    padding = n_blocks(flat.size) * BLOCK_SIZE - flat.size
    if padding:
        flat = jnp.concatenate([flat, jnp.zeros(padding, flat.dtype)])
    return flat.reshape(-1, BLOCK_SIZE)


def _round(values: jax.Array, exponents: jax.Array) -> jax.Array:
    """Give the values in units, rounded half to even; exponents belong to the first axis."""
    scale = power_of_two(-jnp.clip(exponents, MIN_EXPONENT, MAX_EXPONENT))
    scale = scale.reshape(scale.shape + (1,) * (values.ndim - 1))
    return lax.round(values * scale, lax.RoundingMethod.TO_NEAREST_EVEN)


def _limit(micro_shards: int) -> jax.Array:
    """Give 2^(31-m), which float32 holds exactly."""
    return jnp.float32(2.0 ** (31 - shard_bits(micro_shards)))


def _vanished(encoded: Sequence[Encoded], exponents: jax.Array) -> jax.Array:
    """Count the sample's vanished elements, scaled to all blocks."""
    sample = jnp.concatenate([item.sample for item in encoded])
    magnitude = lax.bitcast_convert_type(sample, jnp.int32) & _MAGNITUDE_MASK
    units = exponents[_sample_rows(encoded)]
    lost = (_round(sample, units) == 0.0) & (magnitude >= _SMALLEST_NORMAL)
    count = jnp.sum(lost, dtype=jnp.int32)
    n_all, n_sample = len(exponents), len(sample)
    if n_all == n_sample:
        return count
    return jnp.round(count * jnp.float32(n_all / n_sample)).astype(jnp.int32)


def _sample_rows(encoded: Sequence[Encoded]) -> np.ndarray:
    """Give the sampled blocks' places in the list of all blocks: one gather, not one a parameter."""
    rows, first = [], 0
    for item in encoded:
        rows.append(np.arange(first, first + item.sample.shape[0], dtype=np.int32))
        first += item.values.shape[0]
    return np.concatenate(rows)

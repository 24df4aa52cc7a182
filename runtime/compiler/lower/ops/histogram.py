"""Counting elements by range: how a mixture's router tells how many tokens each expert got."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.registry import op


@op("aten.histc.default")
def histc(x: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    """Count the elements in each of `bins` equal ranges from `min` to `max`; others are left out.

    The last range holds its upper end. With `min` equal to `max` the data's own range is taken. Every
    element is compared with every range, which has one order of additions on every target.

    Args:
        x: any shape, a float dtype.
        bins: number of ranges.
        min: where the first range begins.
        max: where the last one ends.

    Returns:
        [bins], in x's dtype.
    """
    flat = x.reshape(-1)
    low, high = jnp.asarray(min, x.dtype), jnp.asarray(max, x.dtype)
    if min == max and flat.size:
        low, high = jnp.min(flat), jnp.max(flat)
    alone = low == high
    low, high = jnp.where(alone, low - 1, low), jnp.where(alone, high + 1, high)
    place = jnp.floor((flat - low) * bins / (high - low))
    place = jnp.minimum(place, bins - 1).astype(jnp.int32)
    inside = (flat >= low) & (flat <= high)
    hits = (place[:, None] == lax.iota(jnp.int32, bins)) & inside[:, None]
    return jnp.sum(hits, axis=0, dtype=jnp.int32).astype(x.dtype)

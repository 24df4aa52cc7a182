"""Sorting by counting, on AMD: IREE's sort is not stable, and takes n^2 steps one after the other.

It exchanges neighbours, in one thread a row, and equal elements may change places (seen with IREE
3.13.0), which puts a token-expert pair into another pair's place. Counting for each element those
that come before it takes n^2 comparisons as well, but none waits for another. NaN counts as the
largest, and equal elements keep their order, as in `runtime.compiler.lower.ops.order`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.registry import op

_FAMILY = "rocm"


@op("aten.sort.default", target=_FAMILY)
def sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """Give the sorted elements, and the places they had."""
    return sort_stable(x, stable=True, dim=dim, descending=descending)


@op("aten.sort.stable", target=_FAMILY)
def sort_stable(
    x: Array, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    """Give the sorted elements, and the places they had."""
    return _first(x, x.shape[dim] if x.ndim else 1, dim, descending)


@op("aten.argsort.default", target=_FAMILY)
def argsort(x: Array, dim: int = -1, descending: bool = False) -> Array:
    """Give the places that sort the elements."""
    return sort(x, dim, descending)[1]


@op("aten.topk.default", target=_FAMILY)
def topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """Give the k largest (or smallest) elements in order, and their places."""
    return _first(x, k, dim, largest)


def _first(x: Array, count: int, dim: int, descending: bool) -> tuple[Array, Array]:
    """Give the first elements in order along a dimension, and their places."""
    if not x.ndim:
        return x, jnp.zeros((), jnp.int32)
    rows = jnp.moveaxis(x, dim, -1)
    ranks = _ranks(rows, descending)
    index = lax.iota(jnp.int32, rows.shape[-1])
    wanted = lax.iota(jnp.int32, count)[:, None]
    # Exactly one element of a row has each rank, so the sum picks its place.
    places = jnp.sum(jnp.where(ranks[..., None, :] == wanted, index, 0), -1, dtype=jnp.int32)
    places = jnp.moveaxis(places, -1, dim)
    return jnp.take_along_axis(x, places, dim), places


def _ranks(rows: Array, descending: bool) -> Array:
    """Count for each element of [..., n] those of its row that come before it."""
    index = lax.iota(jnp.int32, rows.shape[-1])
    one, other = rows[..., :, None], rows[..., None, :]
    before = _comes_before(other, one, descending)
    equal = ~before & ~_comes_before(one, other, descending)
    earlier = index[None, :] < index[:, None]
    return jnp.sum(before | (equal & earlier), -1, dtype=jnp.int32)


def _comes_before(a: Array, b: Array, descending: bool) -> Array:
    """Say whether the value a stands before b; NaN is larger than all else."""
    larger, smaller = (a, b) if descending else (b, a)
    known = jnp.zeros((), bool)
    if jnp.issubdtype(a.dtype, jnp.floating):
        known = jnp.isnan(larger) & ~jnp.isnan(smaller)
    return (larger > smaller) | known

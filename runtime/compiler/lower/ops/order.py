"""Sorting and the largest elements; NaN counts as the largest, equal elements keep their order."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from runtime.compiler.lower.registry import op


@op("aten.sort.default")
def sort(x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """Give the sorted elements, and the places they had."""
    return sort_stable(x, stable=False, dim=dim, descending=descending)


@op("aten.sort.stable")
def sort_stable(
    x: Array, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    """Give the sorted elements, and the places they had."""
    if not x.ndim:
        return x, jnp.zeros((), jnp.int32)
    places = argsort(x, dim, descending)
    return jnp.take_along_axis(x, places, dim), places


@op("aten.argsort.default")
def argsort(x: Array, dim: int = -1, descending: bool = False) -> Array:
    """Give the places that sort the elements."""
    if not x.ndim:
        return jnp.zeros((), jnp.int32)
    return jnp.argsort(x, dim, stable=True, descending=descending)


@op("aten.topk.default")
def topk(
    x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    """Give the k largest (or smallest) elements in order, and their places."""
    if not x.ndim:
        return x, jnp.zeros((), jnp.int32)
    values, places = sort(x, dim, largest)
    first = (slice(None),) * (dim % x.ndim) + (slice(k),)
    return values[first], places[first]

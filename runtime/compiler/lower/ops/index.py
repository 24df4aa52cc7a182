"""Reading elements by place: slices, gathers, table look-ups."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.registry import op
from runtime.spec import LoweringError


@op("aten.slice.Tensor")
def slice_(
    x: Array, dim: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Array:
    """Give part of a dimension; bounds count from the end where negative, and are clipped."""
    return x[axis_slice(x, dim, start, stop, step)]


def axis_slice(
    x: Array, dim: int, start: int | None, stop: int | None, step: int
) -> tuple[slice, ...]:
    """Give the index that slices one dimension: torch's rule for bounds is Python's."""
    return (slice(None),) * (dim % x.ndim) + (slice(start, stop, step),)


@op("aten.select.int")
def select(x: Array, dim: int, index: int) -> Array:
    """Take one place of a dimension, and remove it."""
    return lax.index_in_dim(x, index, dim % x.ndim, keepdims=False)


@op("aten.index_select.default")
def index_select(x: Array, dim: int, index: Array) -> Array:
    """Take places of a dimension; an index out of range gives NaN, which the trainer reports."""
    if not x.ndim:
        return jnp.broadcast_to(x, index.shape).reshape(())
    return jnp.take(x, jnp.atleast_1d(index), axis=dim, mode="fill")


@op("aten.embedding.default")
def embedding(
    table: Array,
    indices: Array,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Array:
    """Look rows up: [rows, width] and [...] give [..., width]; out of range gives NaN."""
    return jnp.take(table, indices, axis=0, mode="fill")


@op("aten.gather.default")
def gather(x: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """Give x[..., index[i, j, k], ...] along one dimension; the result has the index's shape."""
    if not x.ndim or not index.ndim:
        return jnp.broadcast_to(x.reshape(()), index.shape) if x.size == 1 else x[index.reshape(())]
    axis = dim % x.ndim
    limits = [
        n if i == axis else m for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True))
    ]
    return jnp.take_along_axis(x[tuple(slice(limit) for limit in limits)], index, axis, mode="fill")


@op("aten.index.Tensor")
def index_(x: Array, indices: Sequence[Array | None]) -> Array:
    """Index as numpy does, with None for a whole dimension; negative places count from the end.

    Raises:
        LoweringError: an index is a mask, so the result's size would depend on the data.
    """
    return x[full_index(indices)]


def full_index(indices: Sequence[Array | None]) -> tuple[Array | slice, ...]:
    """Give torch's list of index tensors as an index of an array.

    Raises:
        LoweringError: an index is a mask.
    """
    for index in indices:
        if index is not None and index.dtype == jnp.bool_:
            message = "indexing by a mask gives a size that depends on the data"
            raise LoweringError(message, remedy="use torch.where in the model")
    return tuple(slice(None) if index is None else index for index in indices)

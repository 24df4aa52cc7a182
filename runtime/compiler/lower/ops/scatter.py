"""Writing elements by place; every op gives a new tensor, and x stays.

Where places repeat, half precision is added in float32: a token that stands in a batch a thousand
times would else stop counting after the first few hundred, each of its gradients rounded away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import widen
from runtime.compiler.lower.ops.index import axis_slice, full_index
from runtime.compiler.lower.registry import op
from runtime.spec import LoweringError


@op("aten.slice_scatter.default")
def slice_scatter(
    x: Array,
    source: Array,
    dim: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Array:
    """Replace part of a dimension."""
    index = axis_slice(x, dim, start, stop, step)
    first, _, stride = index[-1].indices(x.shape[dim])
    source = source.astype(x.dtype)
    if stride != 1:
        return x.at[index].set(source)
    begin = [0] * x.ndim
    begin[dim % x.ndim] = first
    return lax.dynamic_update_slice(x, source, begin)


@op("aten.select_scatter.default")
def select_scatter(x: Array, source: Array, dim: int, index: int) -> Array:
    """Replace one place of a dimension."""
    start = index % x.shape[dim]
    return slice_scatter(x, jnp.expand_dims(source, dim), dim, start, start + 1)


@op("aten.scatter.src", "aten.scatter.value")
def scatter(x: Array, dim: int, index: Array, source: Any) -> Array:
    """Set x[..., index[i, j, k], ...] = source[i, j, k] along one dimension.

    One place a row (the gradient of cross-entropy: x is [tokens, vocabulary]) is a comparison, which
    XLA joins with what comes before and after instead of writing all of x twice.
    """
    source = _source(x, index, source)
    axis = dim % x.ndim if x.ndim else 0
    if x.ndim and index.shape == (*x.shape[:axis], 1, *x.shape[axis + 1 :]):
        return jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, axis) == index, source, x)
    return _along(x, dim, index).set(source)


@op("aten.scatter_add.default")
def scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    """Add source[i, j, k] to x[..., index[i, j, k], ...]; repeated places add up."""
    x = widen(x)
    return _along(x, dim, index).add(_source(x, index, source))


def _along(x: Array, dim: int, index: Array) -> Any:
    """Give the places of x that an index along one dimension means."""
    if not x.ndim:
        return x.at[()]
    index = jnp.atleast_1d(index)
    places: list[Array] = [
        index if axis == dim % x.ndim else lax.broadcasted_iota(jnp.int32, index.shape, axis)
        for axis in range(x.ndim)
    ]
    return x.at[tuple(places)]


def _source(x: Array, index: Array, source: Any) -> Array:
    """Give the part of the source that the index covers, in x's dtype."""
    source = jnp.asarray(source, x.dtype)
    if source.ndim:
        source = source[tuple(slice(size) for size in index.shape)]
    return source.reshape(()) if not x.ndim else source


@op("aten.index_put.default", "aten._unsafe_index_put.default")
def index_put(
    x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    """Set or add values at places given as numpy would; a mask takes one value only.

    Raises:
        LoweringError: a mask comes with several values or with other indices.
    """
    x = widen(x) if accumulate else x
    values = values.astype(x.dtype)
    first = indices[0]
    if first is not None and first.dtype == jnp.bool_ and len(indices) == 1:
        return _put_by_mask(x, first, values, accumulate)
    place = x.at[full_index(indices)]
    return place.add(values) if accumulate else place.set(values)


def _put_by_mask(x: Array, mask: Array, values: Array, accumulate: bool) -> Array:
    if values.size != 1:
        message = "writing several values under a mask depends on the data"
        raise LoweringError(message, remedy="use torch.where in the model")
    mask = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    value = values.reshape(())
    return jnp.where(mask, x + value if accumulate else value, x)


@op("aten.index_add.default")
def index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1) -> Array:
    """Add slices of the source at places of one dimension; repeated places add up."""
    place = (slice(None),) * (dim % x.ndim) + (jnp.atleast_1d(index),)
    x = widen(x)
    return x.at[place].add(source.astype(x.dtype) * alpha)


@op("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    grad: Array, indices: Array, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Array:
    """Add the gradients of the rows that were looked up: [..., width] gives [num_weights, width].

    The row `padding_idx` gets none. With `scale_grad_by_freq` each row's sum is divided by its
    number of look-ups.
    """
    flat = indices.reshape(-1)
    rows = widen(grad).reshape(flat.shape[0], grad.shape[-1])
    kept = flat != padding_idx
    if scale_grad_by_freq:
        counts = jnp.zeros(num_weights, jnp.int32).at[flat].add(1)
        rows = rows / counts[flat][:, None].astype(rows.dtype)
    rows = jnp.where(kept[:, None], rows, jnp.zeros((), rows.dtype))
    return jnp.zeros((num_weights, grad.shape[-1]), rows.dtype).at[flat].add(rows)

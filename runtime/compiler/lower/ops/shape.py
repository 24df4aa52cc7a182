"""Views and re-arrangements: no arithmetic, only where elements go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.registry import op

Shape: TypeAlias = tuple[int, ...]


@op("getitem")
def getitem(values: Sequence[Any], index: int) -> Any:
    """Take one result of an op that gives several."""
    return values[index]


@op("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
def view(x: Array, shape: Shape) -> Array:
    """Give the elements, in row-major order, another shape; one size may be -1."""
    return jnp.reshape(x, shape)


@op("aten.expand.default")
def expand(x: Array, shape: Shape, *, implicit: bool = False) -> Array:
    """Repeat dimensions of size 1; -1 keeps a size, and new dimensions come first."""
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return jnp.broadcast_to(
        x, [s if want == -1 else want for s, want in zip(own, shape, strict=True)]
    )


@op("aten.permute.default")
def permute(x: Array, dims: Shape) -> Array:
    """Reorder the dimensions."""
    return jnp.transpose(x, [dim % x.ndim for dim in dims])


@op("aten.transpose.int")
def transpose(x: Array, first: int, second: int) -> Array:
    """Swap two dimensions."""
    return jnp.swapaxes(x, first, second) if x.ndim else x


@op("aten.t.default")
def t(x: Array) -> Array:
    """Transpose a matrix; vectors and scalars stay."""
    return jnp.transpose(x)


@op("aten.unsqueeze.default")
def unsqueeze(x: Array, dim: int) -> Array:
    """Add a dimension of size 1."""
    return jnp.expand_dims(x, dim)


@op("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(x: Array, dims: int | Shape | None = None) -> Array:
    """Remove those of the dimensions that have size 1."""
    if dims is None:
        return jnp.squeeze(x)
    dims = (dims,) if isinstance(dims, int) else dims
    axes = {dim % x.ndim for dim in dims} if x.ndim else set()
    return jnp.squeeze(x, tuple(axis for axis in axes if x.shape[axis] == 1))


@op("aten.cat.default")
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Join along a dimension; torch lets empty vectors pass beside tensors of any rank."""
    kept = [x for x in tensors if x.shape != (0,)]
    return jnp.concatenate(kept, dim) if kept else jnp.concatenate(list(tensors))


@op("aten.stack.default")
def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Join along a new dimension."""
    return jnp.stack(tensors, dim)


@op("aten.split_with_sizes.default")
def split_with_sizes(x: Array, sizes: Shape, dim: int = 0) -> tuple[Array, ...]:
    """Cut a dimension into pieces of the given sizes."""
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(
        lax.slice_in_dim(x, stop - size, stop, axis=dim % x.ndim)
        for stop, size in zip(stops, sizes, strict=True)
    )


@op("aten.split.Tensor")
def split(x: Array, size: int, dim: int = 0) -> tuple[Array, ...]:
    """Cut a dimension into pieces of one size; the last may be smaller."""
    length = x.shape[dim]
    if length == 0:
        return (x,)
    sizes = tuple(min(size, length - start) for start in range(0, length, size))
    return split_with_sizes(x, sizes, dim)


@op("aten.unbind.int")
def unbind(x: Array, dim: int = 0) -> tuple[Array, ...]:
    """Cut a dimension into its single places, and remove it."""
    return tuple(lax.index_in_dim(x, i, dim % x.ndim, keepdims=False) for i in range(x.shape[dim]))


@op("aten.constant_pad_nd.default")
def constant_pad_nd(x: Array, pad: Shape, value: float = 0) -> Array:
    """Pad with a value, (before, after) from the last dimension on; negative sizes cut."""
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    config = [(0, 0, 0)] * (x.ndim - len(pairs)) + [(before, after, 0) for before, after in pairs]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


@op("aten.repeat.default")
def repeat(x: Array, repeats: Shape) -> Array:
    """Tile, with new dimensions first."""
    return jnp.tile(x, repeats)


@op("aten.flip.default")
def flip(x: Array, dims: Shape) -> Array:
    """Reverse dimensions."""
    return jnp.flip(x, dims) if x.ndim else x


@op("aten.roll.default")
def roll(x: Array, shifts: Shape, dims: Shape = ()) -> Array:
    """Rotate along dimensions, or the flat elements where none is given."""
    return jnp.roll(x, shifts, dims) if dims else jnp.roll(x, shifts[0])


@op("aten.unfold.default")
def unfold(x: Array, dim: int, size: int, step: int) -> Array:
    """Give windows of a dimension, with the places inside a window as a new last dimension."""
    if not x.ndim:
        return jnp.broadcast_to(x, (size,))
    axis = dim % x.ndim
    starts = jnp.arange(0, x.shape[axis] - size + 1, step)
    windows = jnp.take(x, starts[:, None] + jnp.arange(size)[None, :], axis=axis)
    return jnp.moveaxis(windows, axis + 1, -1)


@op("aten.diagonal.default")
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Give the diagonal of two dimensions as a new last dimension."""
    return jnp.diagonal(x, offset, dim1, dim2)


@op("aten.tril.default")
def tril(x: Array, diagonal: int = 0) -> Array:
    """Keep the lower triangle of the last two dimensions, zero elsewhere."""
    return jnp.tril(x, diagonal)


@op("aten.triu.default")
def triu(x: Array, diagonal: int = 0) -> Array:
    """Keep the upper triangle of the last two dimensions, zero elsewhere."""
    return jnp.triu(x, diagonal)

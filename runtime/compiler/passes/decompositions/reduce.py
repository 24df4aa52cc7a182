"""Reductions beyond sums, products, minima and maxima, and running sums.

The vendor's list of XLA operators gives a reduce those four computations, with one operand; the
lowerings of `any`, `all` and `argmax` reduce by "or" and "and", and two operands together.
"""

# A decomposition has the signature of its op.
# ruff: noqa: FBT001, FBT002

from __future__ import annotations

from collections.abc import Callable

from runtime.compiler.graph import DType
from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.index import from_last, to_last
from runtime.compiler.passes.decompositions.registry import decomposition

_FAMILIES = ("neuron",)
_LOGIC = "a reduce is documented for sum, product, minimum and maximum only"
_PLACES = "a reduce of values and places together is not documented"
_RUNNING = "running sums have open reports (issue 293)"

Dims = int | tuple[int, ...] | None


@decomposition(
    "aten.any.default", "aten.any.dim", "aten.any.dims", families=_FAMILIES, because=_LOGIC
)
def any_(
    b: Builder,
    x: Val,
    dims: Dims = None,
    keepdim: bool = False,
) -> Val | None:
    """Say whether an element is not zero: whether the largest of 0 and 1 is 1."""
    return _logic(b, x, dims, b.largest, keepdim=keepdim)


@decomposition(
    "aten.all.default", "aten.all.dim", "aten.all.dims", families=_FAMILIES, because=_LOGIC
)
def all_(
    b: Builder,
    x: Val,
    dims: Dims = None,
    keepdim: bool = False,
) -> Val | None:
    """Say whether no element is zero: whether the smallest of 0 and 1 is 1."""
    return _logic(b, x, dims, b.smallest, keepdim=keepdim)


def _logic(
    b: Builder, x: Val, dims: Dims, reduce: Callable[..., Val], *, keepdim: bool
) -> Val | None:
    if not x.size:
        return None
    held = x if x.dtype == "bool" else b.compare("ne", x, 0)
    if not x.ndim or dims == ():
        return held
    number = reduce(b.cast(held, "int64"), _axes(x, dims), keepdim=keepdim)
    return b.compare("ne", number, 0)


@decomposition("aten.argmax.default", families=_FAMILIES, because=_PLACES)
def argmax(
    b: Builder,
    x: Val,
    dim: int | None = None,
    keepdim: bool = False,
) -> Val | None:
    """Give the place of the first largest element, or of the first NaN."""
    return _place(b, x, dim, b.largest, keepdim=keepdim)


@decomposition("aten.argmin.default", families=_FAMILIES, because=_PLACES)
def argmin(
    b: Builder,
    x: Val,
    dim: int | None = None,
    keepdim: bool = False,
) -> Val | None:
    """Give the place of the first smallest element, or of the first NaN."""
    return _place(b, x, dim, b.smallest, keepdim=keepdim)


@decomposition("aten.max.dim", families=_FAMILIES, because=_PLACES)
def max_dim(
    b: Builder,
    x: Val,
    dim: int,
    keepdim: bool = False,
) -> tuple[Val, Val] | None:
    """Give the largest along a dimension, and its place."""
    return _with_place(b, x, dim, b.largest, keepdim=keepdim)


@decomposition("aten.min.dim", families=_FAMILIES, because=_PLACES)
def min_dim(
    b: Builder,
    x: Val,
    dim: int,
    keepdim: bool = False,
) -> tuple[Val, Val] | None:
    """Give the smallest along a dimension, and its place."""
    return _with_place(b, x, dim, b.smallest, keepdim=keepdim)


def _with_place(
    b: Builder, x: Val, dim: int, reduce: Callable[..., Val], *, keepdim: bool
) -> tuple[Val, Val] | None:
    place = _place(b, x, dim, reduce, keepdim=keepdim)
    if place is None or not x.ndim:
        return None if place is None else (x, place)
    wide = b.cast(x, "int64") if x.dtype == "bool" else x
    return reduce(wide, _axes(x, dim), keepdim=keepdim), place


def _place(
    b: Builder, x: Val, dim: int | None, reduce: Callable[..., Val], *, keepdim: bool
) -> Val | None:
    """Give the smallest place that holds the extreme value or NaN."""
    if not x.size:
        return None
    if not x.ndim:
        return b.full((), 0, "int64")
    wide = b.cast(x, "int64") if x.dtype == "bool" else x
    flat = b.reshape(wide, (x.size,)) if dim is None else wide
    axis = 0 if dim is None else dim % x.ndim
    hit = b.compare("eq", flat, reduce(flat, (axis,), keepdim=True))
    if x.is_float:
        hit = b.either(hit, b.compare("ne", flat, flat))
    count = flat.shape[axis]
    counter = b.reshape(b.arange(count), (count, *(1,) * (flat.ndim - 1 - axis)))
    place = b.smallest(b.where(hit, counter, count), (axis,), keepdim=keepdim and dim is not None)
    return b.reshape(place, (1,) * x.ndim) if keepdim and dim is None else place


@decomposition("aten.cumsum.default", families=_FAMILIES, because=_RUNNING)
def cumsum(b: Builder, x: Val, dim: int, *, dtype: DType | None = None) -> Val | None:
    """Multiply floats with a triangle of ones; add up integers under the triangle.

    A value that is not finite makes all running sums of its row NaN, also those before it.
    """
    if not x.ndim or not x.size:
        return None
    wide = _accumulating(b, x, dtype)
    if not wide.is_float:
        return _under_triangle(b, wide, dim % x.ndim, 0, b.total)
    axis, count = dim % x.ndim, x.shape[dim]
    moved = b.permute(b.wide(wide), to_last(axis, x.ndim))
    triangle = b.cast(_triangle(b, count), "float32")
    flat = b.reshape(moved, (x.size // count, count))
    sums = b.reshape(b.mm(flat, b.permute(triangle, (1, 0))), moved.shape)
    return b.permute(sums, from_last(axis, x.ndim))


@decomposition("aten.cumprod.default", families=_FAMILIES, because=_RUNNING)
def cumprod(b: Builder, x: Val, dim: int, *, dtype: DType | None = None) -> Val | None:
    """Multiply what lies under a triangle of ones."""
    if not x.ndim or not x.size:
        return None
    wide = _accumulating(b, x, dtype)
    return _under_triangle(b, wide, dim % x.ndim, 1, b.product)


def _under_triangle(
    b: Builder, x: Val, axis: int, neutral: int, reduce: Callable[[Val, int], Val]
) -> Val:
    """Reduce, for each place of a dimension, what lies up to it."""
    moved = b.unsqueeze(b.permute(x, to_last(axis, x.ndim)), x.ndim - 1)
    result = reduce(b.where(_triangle(b, x.shape[axis]), moved, neutral), x.ndim)
    return b.permute(result, from_last(axis, x.ndim))


def _triangle(b: Builder, count: int) -> Val:
    """Give the bool [count, count] that holds where the column is not behind the row."""
    counter = b.arange(count)
    return b.compare("le", counter, b.unsqueeze(counter, 1))


def _accumulating(b: Builder, x: Val, dtype: DType | None) -> Val:
    if dtype is not None:
        return b.cast(x, dtype.name)
    return x if x.is_float else b.cast(x, "int64")


def _axes(x: Val, dims: Dims) -> tuple[int, ...]:
    if dims is None:
        return tuple(range(x.ndim))
    return tuple(dim % x.ndim for dim in ((dims,) if isinstance(dims, int) else dims))

"""Reading by place without a gather: products with rows of zeros and a one, and selections.

Neuron documents gathers with limits, and open reports name look-ups that do not compile or read
wrong values (aws-neuron-sdk issues 872, 937, 698). Two forms replace them. A *one-hot product*
multiplies a matrix that has a single one a row with the table: it runs where the matrix products
run, and its transpose is the way back for gradients. A *selection* compares each place with a
counter and adds up what is left: exact for any value and for integers, which Neuron's products
round above 2^24 (NCC_EVRF035).
"""

# A decomposition has the signature of its op.
# ruff: noqa: FBT001, FBT002, ARG001

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.registry import decomposition

_FAMILIES = ("neuron",)
_LARGEST_ONE_HOT = 1 << 28
"""Elements of a one-hot matrix: 1 GiB in float32, where a tensor may have 4 GB (NCC_EVRF024)."""

_LARGEST_FLOAT = 3.4028234663852886e38
_FINITE, _PLUS, _MINUS, _NAN = range(4)


@decomposition(
    "aten.embedding.default",
    families=_FAMILIES,
    because="a look-up of rows may not compile (issue 872); neuronx-cc knows the one-hot product",
)
def embedding(
    b: Builder,
    table: Val,
    indices: Val,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Val | None:
    """Multiply one-hot rows with the table: [rows, width] and [...] give [..., width].

    A place out of range gives NaN, which the trainer reports, as the look-up does.
    """
    if not (indices.size and table.size):
        return None
    rows, width = table.shape
    flat = b.reshape(indices, (indices.size,))
    found = _or_nan(b, look_up(b, table, flat), flat, rows)
    return b.reshape(found, (*indices.shape, width))


@decomposition(
    "aten.index_select.default",
    families=_FAMILIES,
    because="reads by index may give wrong values (issue 937)",
)
def index_select(b: Builder, x: Val, dim: int, index: Val) -> Val | None:
    """Take places of a dimension, each a row of that dimension's table."""
    if not x.ndim or not (x.size and index.size):
        return None
    axis, places = dim % x.ndim, b.reshape(index, (index.size,))
    table, _ = as_table(b, x, (axis,))
    found = read_rows(b, table, places)
    if x.is_float:
        found = _or_nan(b, found, places, table.shape[0])
    return from_table(b, found, x, (axis,))


@decomposition(
    "aten.gather.default",
    families=_FAMILIES,
    because="reads by index may give wrong values (issue 937)",
)
def gather(b: Builder, x: Val, dim: int, index: Val, sparse_grad: bool = False) -> Val | None:
    """Select x[..., index[i, j, k], ...] along one dimension by comparison with a counter."""
    if not x.ndim or not index.ndim or not (x.size and index.size):
        return None
    axis = dim % x.ndim
    for i in range(x.ndim):
        if i != axis:
            x = b.slice(x, i, 0, index.shape[i])
    last = to_last(axis, x.ndim)
    found = pick(b, b.permute(x, last), b.permute(index, last))
    return b.permute(found, from_last(axis, x.ndim))


@decomposition(
    "aten.index.Tensor",
    families=_FAMILIES,
    because="reads by index may give wrong values (issue 937)",
)
def index_tensor(b: Builder, x: Val, indices: Sequence[Val | None]) -> Val | None:
    """Read rows of the table that the indexed dimensions make; a mask is left as it is."""
    plan = places_of(b, x, indices)
    if plan is None:
        return None
    axes, places, shape = plan
    table, rest = as_table(b, x, axes)
    found = b.reshape(read_rows(b, table, places), (*shape, *rest))
    first = first_of(axes)
    order = [*range(len(shape), len(shape) + first), *range(len(shape))]
    return b.permute(found, [*order, *range(len(shape) + first, found.ndim)])


@decomposition(
    "aten.unfold.default",
    families=_FAMILIES,
    because="windows are read by index (issue 937)",
)
def unfold(b: Builder, x: Val, dim: int, size: int, step: int) -> Val | None:
    """Join strided slices: place s of all windows lies at s, s + step, s + 2 step, ..."""
    if not x.ndim or not (x.size and size):
        return None
    axis = dim % x.ndim
    span = (x.shape[axis] - size) // step * step + 1
    places = [b.slice(x, axis, s, s + span, step) for s in range(size)]
    return b.cat([b.unsqueeze(part, x.ndim) for part in places], x.ndim)


def look_up(b: Builder, table: Val, places: Val) -> Val:
    """Give rows of a table of floats by a one-hot product; a place out of range gives zeros.

    A value that is not finite makes its whole column of the result NaN: this is for weights.

    Args:
        b: makes the nodes.
        table: [rows, width] floats.
        places: [n] integers.
    """
    rows = table.shape[0]
    parts = []
    for first, last in _blocks(places.shape[0], rows):
        part = b.slice(places, 0, first, last)
        parts.append(b.mm(_one_hot(b, part, rows, table.dtype), table))
    return b.cat(parts, 0)


def add_up(b: Builder, rows: Val, places: Val, count: int) -> Val:
    """Add rows of floats at their places: [n, width] gives [count, width].

    Args:
        b: makes the nodes.
        rows: [n, width] floats.
        places: [n] integers; a row whose place is out of range counts for nothing.
        count: rows of the result.
    """
    result: Val | None = None
    for first, last in _blocks(places.shape[0], count):
        chosen = _one_hot(b, b.slice(places, 0, first, last), count, rows.dtype)
        part = b.mm(b.permute(chosen, (1, 0)), b.slice(rows, 0, first, last))
        result = part if result is None else b.add(result, part)
    return b.full((count, rows.shape[1]), 0.0, rows.dtype) if result is None else result


def read_rows(b: Builder, table: Val, places: Val) -> Val:
    """Give rows of any table, exactly for every value; a place out of range gives zeros.

    Floats go through a product that holds no infinity and no NaN; beside each column goes one with
    its kind, which says where they stood. Integers and bools are selected, with n times rows times
    width comparisons.

    Args:
        b: makes the nodes.
        table: [rows, width].
        places: [n] integers.
    """
    if not table.is_float:
        hit = b.compare("eq", b.unsqueeze(places, 1), b.arange(table.shape[0]))
        wide = b.cast(table, "int64") if table.dtype == "bool" else table
        kept = b.where(b.unsqueeze(hit, 2), b.unsqueeze(wide, 0), 0)
        return b.cast(b.total(kept, 1), table.dtype)
    wide = b.wide(table)
    kind = _kinds(b, wide)
    finite = b.where(b.compare("eq", kind, _FINITE), wide, 0.0)
    both = look_up(b, b.cat([finite, kind], 1), places)
    value = b.slice(both, 1, 0, table.shape[1])
    kind = b.slice(both, 1, table.shape[1], 2 * table.shape[1])
    for mark, special in ((_PLUS, math.inf), (_MINUS, -math.inf), (_NAN, math.nan)):
        value = b.where(b.compare("eq", kind, mark), special, value)
    return b.cast(value, table.dtype)


def pick(b: Builder, x: Val, places: Val) -> Val:
    """Give x[..., places[..., j]] over the last dimension: [..., n] and [..., m] give [..., m].

    A place out of range gives NaN for floats, as the lowering of a gather does, and 0 else.
    """
    count = x.shape[-1]
    counter = b.arange(count)
    hit = b.compare("eq", b.unsqueeze(places, places.ndim), counter)
    wide = b.cast(x, "int64") if x.dtype == "bool" else x
    found = b.total(b.where(hit, b.unsqueeze(wide, x.ndim - 1), 0), x.ndim)
    return _or_nan(b, found, places, count, aligned=True) if x.is_float else b.cast(found, x.dtype)


def places_of(
    b: Builder, x: Val, indices: Sequence[Val | None]
) -> tuple[tuple[int, ...], Val, tuple[int, ...]] | None:
    """Join the indices of several dimensions into places of one table.

    Args:
        b: makes the nodes.
        x: what is indexed.
        indices: an index for each leading dimension, None for a whole one; negative places count
            from the end.

    Returns:
        the indexed dimensions, the places [n], and the shape that the n have together; None where
        the index is a mask, holds nothing, or is not there.
    """
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if not given or not x.size or any(index.dtype == "bool" for _, index in given):
        return None
    shape = tuple(int(n) for n in np.broadcast_shapes(*(index.shape for _, index in given)))
    if not math.prod(shape):
        return None
    joined: Val | None = None
    for axis, index in given:
        size = x.shape[axis]
        wide = b.cast(index, "int64")
        place = b.where(b.compare("lt", wide, 0), b.add(wide, size), wide)
        joined = place if joined is None else b.add(b.mul(joined, size), place)
    if joined is None:
        return None
    flat = b.reshape(b.expand(joined, shape), (math.prod(shape),))
    return tuple(axis for axis, _ in given), flat, shape


def as_table(b: Builder, x: Val, axes: tuple[int, ...]) -> tuple[Val, tuple[int, ...]]:
    """Give x as [rows, width] with the chosen dimensions as rows, and the others' shape."""
    others = [axis for axis in range(x.ndim) if axis not in axes]
    rest = tuple(x.shape[axis] for axis in others)
    rows = math.prod(x.shape[axis] for axis in axes)
    return b.reshape(b.permute(x, [*axes, *others]), (rows, math.prod(rest))), rest


def from_table(b: Builder, table: Val, x: Val, axes: tuple[int, ...]) -> Val:
    """Undo `as_table`; with one chosen dimension, that one may have another size than in x."""
    order = [*axes, *(axis for axis in range(x.ndim) if axis not in axes)]
    shape = [x.shape[axis] for axis in order]
    if len(axes) == 1:
        shape[0] = table.shape[0]
    return b.permute(b.reshape(table, shape), [order.index(axis) for axis in range(x.ndim)])


def first_of(axes: tuple[int, ...]) -> int:
    """Give where the result's indexed dimensions begin: torch puts scattered ones first."""
    return axes[0] if axes == tuple(range(axes[0], axes[0] + len(axes))) else 0


def to_last(axis: int, ndim: int) -> list[int]:
    """Give the order of dimensions with one moved to the end."""
    return [*(i for i in range(ndim) if i != axis), axis]


def from_last(axis: int, ndim: int) -> list[int]:
    """Give the order that undoes `to_last`."""
    return [*range(axis), ndim - 1, *range(axis, ndim - 1)]


def _one_hot(b: Builder, places: Val, count: int, dtype: str) -> Val:
    """Give [n, count] with a one at each row's place."""
    return b.cast(b.compare("eq", b.unsqueeze(places, 1), b.arange(count)), dtype)


def _blocks(n: int, count: int) -> list[tuple[int, int]]:
    """Cut n rows so that a one-hot matrix of `count` columns stays small enough."""
    size = max(1, _LARGEST_ONE_HOT // count)
    return [(first, min(first + size, n)) for first in range(0, n, size)]


def _or_nan(b: Builder, found: Val, places: Val, count: int, *, aligned: bool = False) -> Val:
    """Put NaN where a place is out of range; `aligned` says that each element has its own place."""
    inside = b.both(b.compare("ge", places, 0), b.compare("lt", places, count))
    return b.where(inside if aligned else b.unsqueeze(inside, 1), found, math.nan)


def _kinds(b: Builder, x: Val) -> Val:
    """Give each element's kind as a float: finite, plus or minus infinity, or NaN."""
    other = b.where(b.compare("lt", x, 0.0), float(_MINUS), b.full((), float(_NAN), x.dtype))
    other = b.where(b.compare("gt", x, 0.0), float(_PLUS), other)
    finite = b.compare("le", b.unary("abs", x), _LARGEST_FLOAT)
    return b.where(finite, float(_FINITE), other)

"""Writing by place without a scatter: comparisons with a counter, and one-hot products.

Neuron's scatters of integers or bools do not compile (NCC_EVRF016, NCC_EVRF060), and its gradients
of look-ups have open reports (aws-neuron-sdk issues 872, 297). Where several elements are written
to one place, the last wins here; torch leaves that open.
"""

# A decomposition has the signature of its op.
# ruff: noqa: FBT001, FBT002

from __future__ import annotations

from collections.abc import Sequence

from runtime.compiler.passes.decompositions.builder import Builder, Number, Val
from runtime.compiler.passes.decompositions.index import (
    add_up,
    as_table,
    first_of,
    from_last,
    from_table,
    pick,
    places_of,
    read_rows,
    to_last,
)
from runtime.compiler.passes.decompositions.registry import decomposition

_FAMILIES = ("neuron",)
_NOWHERE = -1


@decomposition(
    "aten.scatter.src",
    "aten.scatter.value",
    families=_FAMILIES,
    because="scatters of integers or bools do not compile (NCC_EVRF016)",
)
def scatter(b: Builder, x: Val, dim: int, index: Val, source: Val | Number) -> Val | None:
    """Set x[..., index[i, j, k], ...] = source[i, j, k] along one dimension."""
    lined = _line_up(b, x, dim, index, source if isinstance(source, Val) else None)
    if lined is None:
        return None
    flat, places, values, axis = lined
    if places.shape[-1] == 1:
        # One place a row, as in the gradient of cross-entropy: nothing to reduce over.
        hit = b.compare("eq", places, b.arange(flat.shape[-1]))
        number = source if not isinstance(source, Val) else _required(values)
        return b.permute(b.where(hit, number, flat), from_last(axis, x.ndim))
    hit = b.compare("eq", b.unsqueeze(places, places.ndim), b.arange(flat.shape[-1]))
    if isinstance(source, Val):
        number = b.unsqueeze(b.arange(places.shape[-1]), 1)
        last = b.largest(b.where(hit, number, _NOWHERE), (places.ndim - 1,))
        written = b.compare("ge", last, 0)
        found = pick(b, _required(values), b.where(written, last, 0))
        result = b.where(written, found, flat)
    else:
        counted = b.largest(b.cast(hit, "int64"), (places.ndim - 1,))
        result = b.where(b.compare("gt", counted, 0), source, flat)
    return b.permute(result, from_last(axis, x.ndim))


@decomposition(
    "aten.scatter_add.default",
    families=_FAMILIES,
    because="scatter-add of integers is refused or computed in float32 (NCC_EVRF060)",
)
def scatter_add(b: Builder, x: Val, dim: int, index: Val, source: Val) -> Val | None:
    """Add source[i, j, k] to x[..., index[i, j, k], ...]; repeated places add up."""
    lined = _line_up(b, x, dim, index, source)
    if lined is None:
        return None
    flat, places, values, axis = lined
    hit = b.compare("eq", b.unsqueeze(places, places.ndim), b.arange(flat.shape[-1]))
    added = b.where(hit, b.unsqueeze(_required(values), places.ndim), 0)
    total = b.cast(b.total(added, places.ndim - 1), x.dtype)
    return b.permute(b.add(flat, total), from_last(axis, x.ndim))


@decomposition(
    "aten.index_put.default",
    "aten._unsafe_index_put.default",
    families=_FAMILIES,
    because="writes by index are scatters (issues 293, 297; NCC_EVRF016)",
)
def index_put(
    b: Builder,
    x: Val,
    indices: Sequence[Val | None],
    values: Val,
    accumulate: bool = False,
) -> Val | None:
    """Set or add values at places of the table that the indexed dimensions make.

    A mask is left as it is: its lowering is a selection.
    """
    plan = places_of(b, x, indices)
    if plan is None:
        return None
    axes, places, shape = plan
    table, rest = as_table(b, x, axes)
    first = first_of(axes)
    given = b.expand(b.cast(values, x.dtype), (*rest[:first], *shape, *rest[first:]))
    behind = first + len(shape)
    given = b.permute(given, [*range(first, behind), *range(first), *range(behind, given.ndim)])
    given = b.reshape(given, (places.size, table.shape[1]))
    put = _added if accumulate else _set
    return from_table(b, put(b, table, places, given), x, axes)


@decomposition(
    "aten.index_add.default",
    families=_FAMILIES,
    because="scatter-add by index may not compile (issue 297)",
)
def index_add(
    b: Builder, x: Val, dim: int, index: Val, source: Val, alpha: Number = 1
) -> Val | None:
    """Add slices of the source at places of one dimension; repeated places add up."""
    if not x.ndim or not (x.size and source.size):
        return None
    axes = (dim % x.ndim,)
    table, _ = as_table(b, x, axes)
    flat, _ = as_table(b, source, axes)
    flat = b.cast(flat if alpha == 1 else b.mul(flat, alpha), x.dtype)
    places = b.reshape(index, (index.size,))
    return from_table(b, _added(b, table, places, flat), x, axes)


@decomposition(
    "aten.embedding_dense_backward.default",
    families=_FAMILIES,
    because="the gradient of a look-up is a scatter-add of rows (issue 872)",
)
def embedding_dense_backward(
    b: Builder,
    grad: Val,
    indices: Val,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Val | None:
    """Multiply transposed one-hot rows with the gradients: [..., width] gives [rows, width].

    A gradient that is not finite makes its whole column NaN; the step is refused either way.
    """
    if not grad.size:
        return None
    places = b.reshape(indices, (indices.size,))
    rows = b.reshape(grad, (indices.size, grad.shape[-1]))
    kept = b.where(b.compare("ne", places, padding_idx), places, _NOWHERE)
    total = add_up(b, rows, kept, num_weights)
    if not scale_grad_by_freq:
        return total
    counts = add_up(b, b.full((indices.size, 1), 1.0, grad.dtype), kept, num_weights)
    return b.div(total, b.where(b.compare("gt", counts, 1.0), counts, 1.0))


def _set(b: Builder, table: Val, places: Val, given: Val) -> Val:
    """Give the table with rows replaced; of several for one place the last."""
    hit = b.compare("eq", b.unsqueeze(places, 1), b.arange(table.shape[0]))
    number = b.unsqueeze(b.arange(places.shape[0]), 1)
    last = b.largest(b.where(hit, number, _NOWHERE), (0,))
    found = read_rows(b, given, last)
    return b.where(b.unsqueeze(b.compare("ge", last, 0), 1), found, table)


def _added(b: Builder, table: Val, places: Val, given: Val) -> Val:
    """Give the table with rows added at their places; integers are selected, not multiplied."""
    if table.is_float:
        return b.add(table, add_up(b, given, places, table.shape[0]))
    hit = b.compare("eq", b.unsqueeze(places, 1), b.arange(table.shape[0]))
    kept = b.where(b.unsqueeze(hit, 2), b.unsqueeze(b.cast(given, "int64"), 1), 0)
    return b.add(table, b.cast(b.total(kept, 0), table.dtype))


def _line_up(
    b: Builder, x: Val, dim: int, index: Val, source: Val | None
) -> tuple[Val, Val, Val | None, int] | None:
    """Put the written dimension last, and let index and source cover all others of x.

    Where they are smaller than x, places are filled up with one that is nowhere. None where x has
    no dimensions, or there is nothing to write.
    """
    if not x.ndim or not index.ndim or not (x.size and index.size):
        return None
    axis = dim % x.ndim
    more = [0 if i == axis else n - index.shape[i] for i, n in enumerate(x.shape)]
    places = b.pad(b.cast(index, "int64"), more, _NOWHERE)
    last = to_last(axis, x.ndim)
    values = None
    if source is not None:
        for i, size in enumerate(index.shape):
            source = b.slice(source, i, 0, size)
        values = b.permute(b.pad(b.cast(source, x.dtype), more, 0), last)
    return b.permute(x, last), b.permute(places, last), values, axis


def _required(values: Val | None) -> Val:
    """Give values that are there because a source was given."""
    if values is None:
        raise TypeError("a scatter of a tensor has values")
    return values

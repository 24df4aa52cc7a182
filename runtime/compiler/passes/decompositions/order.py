"""Sorting by rank: an element's place is the number of elements that come before it.

Neuron sorts by its top-k, which takes floats only and at most 16,384 of them (NCC_EVRF013,
NCC_EVRF014; aws-neuron-sdk issues 868, 1339). Ranks need comparisons and sums alone, n^2 of them a
row, which is little for the experts of a router and much for a vocabulary. NaN counts as the
largest, and equal elements keep their order, as in the lowerings of these ops.
"""

# A decomposition has the signature of its op.
# ruff: noqa: FBT001, FBT002, ARG001, A002

from __future__ import annotations

from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.index import from_last, to_last
from runtime.compiler.passes.decompositions.registry import decomposition

_FAMILIES = ("neuron",)
_BECAUSE = "sorts become a top-k of floats, at most 16384 of them (issue 1339, NCC_EVRF013, 014)"


@decomposition("aten.sort.default", families=_FAMILIES, because=_BECAUSE)
def sort(
    b: Builder,
    x: Val,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Val, Val] | None:
    """Give the sorted elements, and the places they had."""
    if not x.ndim or not x.size:
        return None
    return _first(b, x, dim, x.shape[dim], descending=descending)


@decomposition("aten.sort.stable", families=_FAMILIES, because=_BECAUSE)
def sort_stable(
    b: Builder,
    x: Val,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[Val, Val] | None:
    """Give the sorted elements, and the places they had."""
    return sort(b, x, dim, descending)


@decomposition("aten.argsort.default", families=_FAMILIES, because=_BECAUSE)
def argsort(
    b: Builder,
    x: Val,
    dim: int = -1,
    descending: bool = False,
) -> Val | None:
    """Give the places that sort the elements."""
    result = sort(b, x, dim, descending)
    return None if result is None else result[1]


@decomposition("aten.topk.default", families=_FAMILIES, because=_BECAUSE)
def topk(
    b: Builder,
    x: Val,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Val, Val] | None:
    """Give the k largest (or smallest) elements in order, and their places."""
    if not x.ndim or not x.size or not k:
        return None
    return _first(b, x, dim, k, descending=largest)


def _first(b: Builder, x: Val, dim: int, k: int, *, descending: bool) -> tuple[Val, Val]:
    """Give the elements of the k lowest ranks along a dimension, and their places."""
    axis = dim % x.ndim
    flat = b.permute(b.cast(x, "int64") if x.dtype == "bool" else x, to_last(axis, x.ndim))
    ranks = _ranks(b, flat, descending=descending)
    wanted = b.unsqueeze(b.arange(k), 1)
    hit = b.compare("eq", b.unsqueeze(ranks, x.ndim - 1), wanted)
    values = b.total(b.where(hit, b.unsqueeze(flat, x.ndim - 1), 0), x.ndim)
    places = b.total(b.where(hit, b.arange(x.shape[axis]), 0), x.ndim)
    back = from_last(axis, x.ndim)
    return b.permute(values, back), b.permute(places, back)


def _ranks(b: Builder, x: Val, *, descending: bool) -> Val:
    """Give the number of elements of the last dimension that come before each, as int64."""
    own, other = b.unsqueeze(x, x.ndim), b.unsqueeze(x, x.ndim - 1)
    before = b.compare("gt" if descending else "lt", other, own)
    same = b.compare("eq", other, own)
    if x.is_float:
        own_nan, other_nan = b.compare("ne", own, own), b.compare("ne", other, other)
        ahead = (other_nan, own_nan) if descending else (own_nan, other_nan)
        before = b.either(before, b.both(ahead[0], b.negated(ahead[1])))
        same = b.either(same, b.both(own_nan, other_nan))
    counter = b.arange(x.shape[-1])
    earlier = b.compare("lt", counter, b.unsqueeze(counter, 1))
    return b.total(b.either(before, b.both(same, earlier)), x.ndim)

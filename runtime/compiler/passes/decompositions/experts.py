"""Grouped products of a mixture's experts as one matrix product over all groups.

The general lowering loops over tiles whose number depends on the data; Neuron compiles loops of a
fixed length only (the vendor's known issues of JAX). Here each group sees all rows, zeroed outside
it, so the arithmetic is `groups` times that which is needed: the price of the plain form until the
family has a kernel of its own.
"""

# A decomposition has the signature of its op.
# ruff: noqa: FBT001, FBT002

from __future__ import annotations

from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.registry import decomposition

_FAMILIES = ("neuron",)
_BECAUSE = "loops whose length depends on data do not compile (JAX NeuronX known issues)"


@decomposition("luma.grouped_mm.default", families=_FAMILIES, because=_BECAUSE)
def grouped_mm(
    b: Builder,
    rows: Val,
    weights: Val,
    group_sizes: Val,
    transposed: bool = False,
) -> Val | None:
    """Multiply [n, groups * in], a row's values standing at its group, with [groups * in, out]."""
    if not (rows.size and weights.size):
        return None
    groups, (count, inner) = weights.shape[0], rows.shape
    matrices = b.permute(weights, (0, 2, 1)) if transposed else weights
    stacked = b.reshape(b.wide(matrices), (groups * inner, matrices.shape[2]))
    spread = b.where(
        b.unsqueeze(_members(b, group_sizes, count), 2), b.unsqueeze(b.wide(rows), 1), 0.0
    )
    return b.mm(b.reshape(spread, (count, groups * inner)), stacked)


@decomposition("luma.grouped_outer.default", families=_FAMILIES, because=_BECAUSE)
def grouped_outer(b: Builder, left: Val, right: Val, group_sizes: Val) -> Val | None:
    """Multiply [groups * in, n], zero outside each group, with [n, out]."""
    if not (left.size and right.size):
        return None
    (count, inner), groups = left.shape, group_sizes.shape[0]
    members = _members(b, group_sizes, count)
    spread = b.where(b.unsqueeze(members, 2), b.unsqueeze(b.wide(left), 1), 0.0)
    # Rows of no group count for nothing, even if they hold a NaN.
    used = b.compare("gt", b.total(members, 1), 0)
    rights = b.where(b.unsqueeze(used, 1), b.wide(right), 0.0)
    turned = b.permute(b.reshape(spread, (count, groups * inner)), (1, 0))
    return b.reshape(b.mm(turned, rights), (groups, inner, right.shape[1]))


def _members(b: Builder, group_sizes: Val, count: int) -> Val:
    """Give the bool [count, groups] that holds where a row belongs to a group."""
    sizes = b.cast(group_sizes, "int64")
    groups = sizes.shape[0]
    counter = b.arange(groups)
    upto = b.compare("le", counter, b.unsqueeze(counter, 1))
    stops = b.total(b.where(upto, sizes, 0), 1)
    row = b.unsqueeze(b.arange(count), 1)
    return b.both(b.compare("ge", row, b.sub(stops, sizes)), b.compare("lt", row, stops))

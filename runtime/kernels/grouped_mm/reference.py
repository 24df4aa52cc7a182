"""Grouped products in plain torch, a group at a time: the meaning of the ops, not their speed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from runtime.kernels.grouped_mm.contract import sizes_of_outer, sizes_of_product


def grouped_mm(
    rows: Tensor, weights: Tensor, group_sizes: Tensor, transposed: bool = False
) -> Tensor:
    """Multiply each group's rows with its matrix, as `contract` says.

    Args:
        rows: [n, in], sorted by group, any float dtype.
        weights: [groups, in, out], or [groups, out, in] if transposed.
        group_sizes: [groups] integers.
        transposed: whether a group's matrix is used transposed.

    Returns:
        [n, out], in rows' dtype; zero for rows behind the last group.
    """
    sizes = sizes_of_product(
        tuple(rows.shape), tuple(weights.shape), tuple(group_sizes.shape), transposed
    )
    out = rows.new_zeros(sizes.rows, sizes.outer)
    for group, part in _groups(group_sizes):
        matrix = weights[group].T if transposed else weights[group]
        out[part] = (_wide(rows[part]) @ _wide(matrix)).to(rows.dtype)
    return out


def grouped_outer(left: Tensor, right: Tensor, group_sizes: Tensor) -> Tensor:
    """Sum the outer products of each group's rows, as `contract` says.

    Args:
        left: [n, in], sorted by group, any float dtype.
        right: [n, out].
        group_sizes: [groups] integers.

    Returns:
        [groups, in, out], in left's dtype.
    """
    sizes = sizes_of_outer(tuple(left.shape), tuple(right.shape), tuple(group_sizes.shape))
    out = left.new_zeros(sizes.groups, sizes.inner, sizes.outer)
    for group, part in _groups(group_sizes):
        out[group] = (_wide(left[part]).T @ _wide(right[part])).to(left.dtype)
    return out


def _groups(group_sizes: Tensor) -> Iterator[tuple[int, slice]]:
    """Give each group that has rows, and where they lie."""
    begin = 0
    for group, size in enumerate(group_sizes.tolist()):
        if size:
            yield group, slice(begin, begin + size)
        begin += size


def _wide(x: Tensor) -> Tensor:
    """Give x in the dtype of the sums: float32, or float64 where x has that (for tests)."""
    return x if x.dtype == torch.float64 else x.float()

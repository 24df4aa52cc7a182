"""Grouped products as XLA's own ragged product, which TPU's compiler keeps as one instruction.

It compiles for v5e with 32 kB of temporaries where other targets expand it to all groups; it has
not been run on a TPU here. XLA counts its arithmetic as if every group took all rows.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from runtime.kernels.grouped_mm.contract import sizes_of_outer, sizes_of_product


def grouped_mm(rows: Array, weights: Array, group_sizes: Array, transposed: bool = False) -> Array:
    """Multiply each group's rows with its matrix, as `contract` says.

    Args:
        rows: [n, in], sorted by group, any float dtype.
        weights: [groups, in, out], or [groups, out, in] if transposed.
        group_sizes: int32[groups].
        transposed: whether a group's matrix is used transposed.

    Returns:
        [n, out], in rows' dtype; zero for rows behind the last group.
    """
    sizes = sizes_of_product(rows.shape, weights.shape, group_sizes.shape, transposed)
    product = _ragged(
        rows, weights, group_sizes, contracted=(1, 2 if transposed else 1), groups=[0]
    )
    owned = lax.iota(jnp.int32, sizes.rows) < jnp.sum(group_sizes, dtype=jnp.int32)
    return jnp.where(owned[:, None], product, 0).astype(rows.dtype)


def grouped_outer(left: Array, right: Array, group_sizes: Array) -> Array:
    """Sum the outer products of each group's rows, as `contract` says.

    Args:
        left: [n, in], sorted by group, any float dtype.
        right: [n, out].
        group_sizes: int32[groups].

    Returns:
        [groups, in, out], in left's dtype.
    """
    sizes_of_outer(left.shape, right.shape, group_sizes.shape)
    return _ragged(left, right, group_sizes, contracted=(0, 0), groups=[]).astype(left.dtype)


def _ragged(
    x: Array, y: Array, group_sizes: Array, *, contracted: tuple[int, int], groups: list[int]
) -> Array:
    """Multiply over one axis of each, the first axis of x being cut into groups."""
    axes = (([contracted[0]], [contracted[1]]), ([], []))
    numbers = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=axes, lhs_ragged_dimensions=[0], rhs_group_dimensions=groups
    )
    return lax.ragged_dot_general(
        x,
        y,
        group_sizes,
        numbers,
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )

"""Triangular systems for AMD targets: the general loop, kept off a form that IREE cannot compile.

iree-compile 3.13.0 ends by signal 11 on the loop for one right-hand side without a batch, where each
row's product is one number; with a second column it compiles, and gives torch's values on its CPU
code generator.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from runtime.compiler.lower.ops.linear_algebra import solve_triangular
from runtime.compiler.lower.registry import op


@op("aten.linalg_solve_triangular.default", target="rocm")
def solve_with_more_than_one_side(
    a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    """Solve a @ x = b, or x @ a = b where not `left`, with a column of zeros beside a single one.

    Args:
        a: [..., n, n]; only its triangle is read.
        b: [..., n, k], or [..., k, n] where not `left`; batches broadcast.
        upper: whether the triangle above the diagonal counts, else the one below.
        left: on which side of x the matrix stands.
        unitriangular: take the diagonal as ones.
    """
    axis = b.ndim - (1 if left else 2)
    alone = b.shape[axis] == 1
    sides = jnp.concatenate([b, jnp.zeros_like(b)], axis) if alone else b
    x = solve_triangular(a, sides, upper=upper, left=left, unitriangular=unitriangular)
    if not alone:
        return x
    return x[..., :1] if left else x[..., :1, :]

"""Triangular systems (chunked linear attention solves them), by substitution.

XLA's own triangular solve becomes a LAPACK call on CPU, which a node would have to link, and some
targets have none; a loop over the rows runs everywhere, and chunks have few rows.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import widen
from runtime.compiler.lower.ops.matmul import mm
from runtime.compiler.lower.registry import op


@op("aten.linalg_solve_triangular.default")
def solve_triangular(
    a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    """Solve a @ x = b, or x @ a = b where not `left`.

    Args:
        a: [..., n, n]; only its triangle is read.
        b: [..., n, k], or [..., k, n] where not `left`; batches broadcast.
        upper: whether the triangle above the diagonal counts, else the one below.
        left: on which side of x the matrix stands.
        unitriangular: take the diagonal as ones.
    """
    if not left:
        turned = jnp.swapaxes(a, -1, -2), jnp.swapaxes(b, -1, -2)
        x = solve_triangular(*turned, upper=not upper, unitriangular=unitriangular)
        return jnp.swapaxes(x, -1, -2)
    a, b = widen(a), widen(b)
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    n = a.shape[-1]
    diagonal = jnp.diagonal(a, axis1=-2, axis2=-1)[..., None]
    # Rows that are not solved yet are zero in x, so the whole row of the strict triangle is used.
    strict = jnp.triu(a, 1) if upper else jnp.tril(a, -1)

    def solve_row(step: Array, x: Array) -> Array:
        i = n - 1 - step if upper else step
        row = lax.dynamic_slice_in_dim(strict, i, 1, axis=-2)
        rest = lax.dynamic_slice_in_dim(b, i, 1, axis=-2) - mm(row, x)
        if not unitriangular:
            rest = rest / lax.dynamic_slice_in_dim(diagonal, i, 1, axis=-2)
        return lax.dynamic_update_slice_in_dim(x, rest, i, axis=-2)

    return lax.fori_loop(0, n, solve_row, jnp.zeros_like(b)) if b.size else b

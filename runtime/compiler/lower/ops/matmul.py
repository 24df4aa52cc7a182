"""Matrix products, always in the full precision of their dtype.

Left to themselves, XLA's targets multiply float32 in bfloat16 (TPU) or TF32 (NVIDIA); the graph was
captured in float32, so the products ask for it. On CPU this changes nothing.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import Scalar
from runtime.compiler.lower.registry import op


@op("aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def mm(x: Array, y: Array) -> Array:
    """Give the product of matrices, batches of matrices, or vectors."""
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


@op("aten.addmm.default", "aten.baddbmm.default", "aten.addmv.default")
def addmm(bias: Array, x: Array, y: Array, *, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    """Give beta * bias + alpha * (x @ y); with beta 0 the bias counts for nothing, even if NaN."""
    product = mm(x, y)
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


@op("aten.linear.default")
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Give x @ weight^T + bias: [..., in] and [out, in] give [..., out]."""
    product = mm(x, weight.T)
    return product if bias is None else product + bias

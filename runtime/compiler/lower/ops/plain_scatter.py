"""Writes by place in the forms that IREE compiles, on AMD.

IREE 3.13.0 scatters along neighbouring dimensions only, and crashes on a tensor without dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from runtime.compiler.lower.ops import scatter
from runtime.compiler.lower.registry import op

_FAMILY = "rocm"


@op("aten.index_put.default", "aten._unsafe_index_put.default", target=_FAMILY)
def index_put(
    x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False
) -> Array:
    """Set or add values at places, as `scatter.index_put`, whose indices are brought together."""
    indexed = [axis for axis, index in enumerate(indices) if index is not None]
    together = not indexed or indexed[-1] - indexed[0] + 1 == len(indexed)
    if together or any(index is not None and index.dtype == jnp.bool_ for index in indices):
        return scatter.index_put(x, indices, values, accumulate)
    # What indices that stand apart select has their own dimensions first, in numpy and torch, so
    # with the indexed dimensions of x in front the values fit as they are.
    order = [*indexed, *(axis for axis in range(x.ndim) if axis not in indexed)]
    close = [indices[axis] for axis in indexed]
    written = scatter.index_put(jnp.transpose(x, order), close, values, accumulate)
    back = sorted(range(x.ndim), key=order.index)
    return jnp.transpose(written, back)


@op("aten.scatter_add.default", target=_FAMILY)
def scatter_add(x: Array, dim: int, index: Array, source: Array) -> Array:
    """Add at places of a dimension; a number is a row of one."""
    if x.ndim:
        return scatter.scatter_add(x, dim, index, source)
    row = scatter.scatter_add(x[None], 0, jnp.atleast_1d(index), jnp.atleast_1d(source))
    return row.reshape(())

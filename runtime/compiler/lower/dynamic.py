"""Ops that read or write at a place that a scan's iteration decides (`Affine` arguments).

They cannot use an op's plain lowering, which takes places as Python numbers. Sizes are static: they
are the node's. The places are within bounds, as they were in the unrolled graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.graph import Affine, Node, TensorType
from runtime.compiler.lower.registry import Lowering
from runtime.spec import LoweringError

# Takes the size of the result along the dimension, or of what is written, then the arguments.
_Form: TypeAlias = Callable[..., Array]


def dynamic_lowering(node: Node) -> Lowering | None:
    """Give the lowering of a node with `Affine` arguments, or None where it has none.

    Raises:
        LoweringError: the op has no such form.
    """
    if not any(isinstance(arg, Affine) for arg in node.args):
        return None
    if node.op not in DYNAMIC:
        allowed = ", ".join(DYNAMIC)
        message = f"op '{node.op}' takes no place that an iteration decides; only {allowed} do"
        raise LoweringError(message)
    form, shape = DYNAMIC[node.op], node.out.shape if isinstance(node.out, TensorType) else ()
    return lambda *args: form(shape, *args)


def _select(shape: tuple[int, ...], x: Array, dim: int, index: Array) -> Array:
    return lax.dynamic_index_in_dim(x, index, dim % x.ndim, keepdims=False)


def _slice(
    shape: tuple[int, ...], x: Array, dim: int, start: Array, stop: Array | int, step: int
) -> Array:
    axis = dim % x.ndim
    reach = max(shape[axis] - 1, 0) * step + min(shape[axis], 1)
    part = lax.dynamic_slice_in_dim(x, start, reach, axis)
    return lax.slice_in_dim(part, 0, reach, step, axis)


def _select_scatter(
    shape: tuple[int, ...], x: Array, source: Array, dim: int, index: Array
) -> Array:
    source = jnp.expand_dims(source, dim).astype(x.dtype)
    return lax.dynamic_update_slice_in_dim(x, source, index, dim % x.ndim)


def _slice_scatter(
    shape: tuple[int, ...],
    x: Array,
    source: Array,
    dim: int,
    start: Array,
    stop: Array | int,
    step: int,
) -> Array:
    axis = dim % x.ndim
    if step == 1:
        return lax.dynamic_update_slice_in_dim(x, source.astype(x.dtype), start, axis)
    places = start + step * jnp.arange(source.shape[axis])
    return x.at[(slice(None),) * axis + (places,)].set(source.astype(x.dtype))


DYNAMIC: Mapping[str, _Form] = {
    "aten.select.int": _select,
    "aten.slice.Tensor": _slice,
    "aten.select_scatter.default": _select_scatter,
    "aten.slice_scatter.default": _slice_scatter,
}

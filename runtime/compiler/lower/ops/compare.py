"""Comparisons, logic, bits and selection."""

from __future__ import annotations

import operator
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from runtime.compiler.lower.dtypes import Scalar, promote
from runtime.compiler.lower.registry import op

_COMPARISONS = {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}
_LOGIC = {"and": jnp.logical_and, "or": jnp.logical_or, "xor": jnp.logical_xor}
_BITS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def _promoting(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """Give the function on operands of any dtypes."""
    return lambda x, y: function(*promote(x, y))


for _name, _function in _COMPARISONS.items():
    op(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_promoting(_function))
for _name, _function in _LOGIC.items():
    op(f"aten.logical_{_name}.default")(_promoting(_function))
for _name, _function in _BITS.items():
    op(f"aten.bitwise_{_name}.Tensor", f"aten.bitwise_{_name}.Scalar")(_promoting(_function))

op("aten.logical_not.default")(jnp.logical_not)
op("aten.bitwise_not.default")(jnp.bitwise_not)
op("aten.isnan.default")(jnp.isnan)
op("aten.isinf.default")(jnp.isinf)


@op("aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar")
@op("aten.__lshift__.Scalar", "aten.__lshift__.Tensor")
def left_shift(x: Array, bits: Array | Scalar) -> Array:
    """Shift integers left; shifts of the whole width or more are undefined in torch."""
    return jnp.left_shift(x, bits)


@op("aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar")
@op("aten.__rshift__.Scalar", "aten.__rshift__.Tensor")
def right_shift(x: Array, bits: Array | Scalar) -> Array:
    """Shift integers right, keeping the sign."""
    return jnp.right_shift(x, bits)


@op("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(condition: Array, x: Array | Scalar, y: Array | Scalar) -> Array:
    """Take x where the condition holds, else y."""
    x, y = promote(x, y)
    return jnp.where(condition, x, y)


@op("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(x: Array, mask: Array, value: Array | Scalar) -> Array:
    """Replace the elements under the mask; the result keeps x's dtype."""
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)

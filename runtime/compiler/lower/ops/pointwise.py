"""Arithmetic on each element, and the cast between dtypes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import Scalar, cast, floating, is_integral, promote
from runtime.compiler.lower.registry import op

_LARGEST_PRODUCT = 4
_HALF = 0.5
_UNARY = {
    "abs": jnp.abs,
    "acos": jnp.arccos,
    "asin": jnp.arcsin,
    "atan": jnp.arctan,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "erf": lambda x: lax.erf(floating(x)),
    "erfc": lambda x: lax.erfc(floating(x)),
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "neg": jnp.negative,
    "reciprocal": lambda x: 1.0 / floating(x),
    "rsqrt": lambda x: lax.rsqrt(floating(x)),
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
}
_ROUNDING = {"ceil": jnp.ceil, "floor": jnp.floor, "round": jnp.round, "trunc": jnp.trunc}

for _name, _function in _UNARY.items():
    op(f"aten.{_name}.default")(_function)
for _name, _function in _ROUNDING.items():
    op(f"aten.{_name}.default")(lambda x, _f=_function: x if is_integral(x) else _f(x))


@op("aten.alias.default", "aten.clone.default", "aten.detach.default")
@op("aten.lift_fresh_copy.default")
def identity(x: Array) -> Array:
    """Give the same values: a compiled program has no aliases."""
    return x


@op("aten._to_copy.default")
def to_copy(x: Array, *, dtype: Any = None) -> Array:
    """Cast to a dtype: a bool by comparison with zero, an integer by truncation."""
    return x if dtype is None else x.astype(dtype)


@op("aten.copy.default")
def copy(x: Array, source: Array) -> Array:
    """Give the source's values in x's shape and dtype."""
    return jnp.broadcast_to(source.astype(x.dtype), x.shape)


@op("aten.add.Tensor", "aten.add.Scalar")
def add(x: Array, y: Array | Scalar, alpha: Scalar = 1) -> Array:
    """Give x + alpha * y."""
    return jnp.add(*_scaled(x, y, alpha))


@op("aten.sub.Tensor", "aten.sub.Scalar")
def sub(x: Array, y: Array | Scalar, alpha: Scalar = 1) -> Array:
    """Give x - alpha * y."""
    return jnp.subtract(*_scaled(x, y, alpha))


@op("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(x: Array, y: Array | Scalar, alpha: Scalar = 1) -> Array:
    """Give y - alpha * x."""
    return jnp.subtract(*_scaled(y, x, alpha))


def _scaled(x: Any, y: Any, alpha: Scalar) -> tuple[Array, Array]:
    """Give x and alpha * y in their common dtype."""
    x, y = promote(x, y)
    return x, y if alpha == 1 else y * cast(alpha, y.dtype)


@op("aten.mul.Tensor", "aten.mul.Scalar")
def mul(x: Array, y: Array | Scalar) -> Array:
    """Give x * y."""
    return jnp.multiply(*promote(x, y))


@op("aten.div.Tensor", "aten.div.Scalar")
def div(x: Array, y: Array | Scalar) -> Array:
    """Give x / y; integers give a float, each cast to it as it is."""
    common, _ = promote(x, y)
    dtype = jnp.float32 if is_integral(common) else common.dtype
    return cast(x, dtype) / cast(y, dtype)


@op("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(x: Array, y: Array | Scalar, *, rounding_mode: str | None = None) -> Array:
    """Give x / y rounded: not (None), down ("floor") or towards zero ("trunc")."""
    if rounding_mode is None:
        return div(x, y)
    if rounding_mode == "floor":
        return jnp.floor_divide(*promote(x, y))
    x, y = jnp.broadcast_arrays(*promote(x, y))
    if is_integral(x):
        return lax.div(x, y)
    # XLA multiplies by the reciprocal of a broadcast divisor, which turns 49 / 49 into 0.99999994;
    # it cannot see the broadcast through the barrier.
    return jnp.trunc(x / lax.optimization_barrier(y))


@op("aten.floor_divide.default")
def floor_divide(x: Array, y: Array | Scalar) -> Array:
    """Give x / y rounded down; integers stay integers."""
    return jnp.floor_divide(*promote(x, y))


@op("aten.remainder.Tensor", "aten.remainder.Scalar")
def remainder(x: Array, y: Array | Scalar) -> Array:
    """Give x modulo y with the sign of y."""
    return jnp.remainder(*promote(x, y))


@op("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(x: Array, y: Array | Scalar) -> Array:
    """Give x modulo y with the sign of x."""
    return jnp.fmod(*promote(x, y))


@op("aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(x: Array | Scalar, y: Array) -> Array:
    """Give x to the power y."""
    return jnp.power(*promote(x, y))


@op("aten.pow.Tensor_Scalar")
def power_of_number(x: Array, exponent: Scalar) -> Array:
    """Give x to the power of a constant: small whole exponents are products, halves are roots.

    Torch takes roots as well, so a negative infinity gives NaN and not a power's infinity.
    """
    x, wide = promote(x, exponent)
    if abs(exponent) == _HALF:
        return jnp.sqrt(x) if exponent > 0 else lax.rsqrt(x)
    if float(exponent).is_integer() and abs(exponent) <= _LARGEST_PRODUCT:
        return lax.integer_pow(x, int(exponent))
    return jnp.power(x, wide)


@op("aten.atan2.default")
def atan2(y: Array, x: Array) -> Array:
    """Give the angle of the point (x, y), in radians."""
    return jnp.arctan2(y, x)


@op("aten.sign.default")
def sign(x: Array) -> Array:
    """Give -1, 0 or 1; of NaN 0, where jnp.sign gives NaN."""
    return jnp.where(x > 0, 1, 0) - jnp.where(x < 0, 1, 0)


@op("aten.addcmul.default")
def addcmul(x: Array, y: Array, z: Array, *, value: Scalar = 1) -> Array:
    """Give x + value * y * z."""
    return x + value * y * z


@op("aten.addcdiv.default")
def addcdiv(x: Array, y: Array, z: Array, *, value: Scalar = 1) -> Array:
    """Give x + value * y / z."""
    return x + value * y / z


@op("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(start: Array, end: Array, weight: Array | Scalar) -> Array:
    """Give start + weight * (end - start), from the nearer end, as torch rounds it."""
    span = end - start
    return jnp.where(jnp.abs(weight) < 0.5, start + weight * span, end - span * (1 - weight))


@op("aten.maximum.default")
def maximum(x: Array, y: Array) -> Array:
    """Give the larger; NaN where either is."""
    return jnp.maximum(*promote(x, y))


@op("aten.minimum.default")
def minimum(x: Array, y: Array) -> Array:
    """Give the smaller; NaN where either is."""
    return jnp.minimum(*promote(x, y))


@op("aten.clamp.default", "aten.clamp.Tensor")
def clamp(x: Array, low: Any = None, high: Any = None) -> Array:
    """Limit to [low, high], the upper bound winning where they cross; NaN stays."""
    x, *bounds = promote(x, *(bound for bound in (low, high) if bound is not None))
    if low is not None:
        x = jnp.maximum(x, bounds[0])
    return x if high is None else jnp.minimum(x, bounds[-1])


@op("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(x: Array, low: Any) -> Array:
    """Limit from below; NaN stays."""
    return clamp(x, low)


@op("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(x: Array, high: Any) -> Array:
    """Limit from above; NaN stays."""
    return clamp(x, None, high)

"""Functions of negative numbers, on AMD, where IREE 3.13.0 loses their sign.

A power of a negative number is NaN, also where the exponent is whole: its formula is e^(y log x). So
the power is taken of |x|, and the sign is put right afterwards, by the rules of C's `pow` (ISO C,
annex F.10.4.4). And the angle of (-0, x) comes out as that of (0, x), that of two zeros or two
infinities as NaN.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import Scalar, promote
from runtime.compiler.lower.ops import pointwise
from runtime.compiler.lower.registry import op

_FAMILY = "rocm"


@op("aten.pow.Tensor_Tensor", "aten.pow.Scalar", target=_FAMILY)
def power(x: Array | Scalar, y: Array) -> Array:
    """Give x to the power y."""
    x, y = promote(x, y)
    return _power(x, y) if jnp.issubdtype(x.dtype, jnp.floating) else pointwise.power(x, y)


@op("aten.pow.Tensor_Scalar", target=_FAMILY)
def power_of_number(x: Array, exponent: Scalar) -> Array:
    """Give x to the power of a constant; any whole one is a product."""
    wide = promote(x, exponent)[0]
    if float(exponent).is_integer() and jnp.issubdtype(wide.dtype, jnp.floating):
        return lax.integer_pow(wide, int(exponent))
    return pointwise.power_of_number(x, exponent)


@op("aten.atan2.default", target=_FAMILY)
def atan2(y: Array, x: Array) -> Array:
    """Give the angle of the point (x, y), in radians: it has y's sign, a zero's included."""
    return jnp.copysign(jnp.arctan2(*_with_quotient(jnp.abs(y), x)), y)


def _with_quotient(y: Array, x: Array) -> tuple[Array, Array]:
    """Give a point of the same angle whose y / x is a number, where 0 / 0 or inf / inf is none."""
    far = jnp.isinf(y) & jnp.isinf(x)
    near = (y == 0) & (x == 0)
    unit = jnp.ones((), y.dtype)
    return jnp.where(far, unit, y), jnp.where(far | near, jnp.copysign(unit, x), x)


def _power(x: Array, y: Array) -> Array:
    """Give x to the power y for floats of one dtype."""
    size = jnp.abs(x)
    # The formula also gives NaN for 0^0, 1^inf and their like, which are 1.
    magnitude = jnp.where((y == 0) | (size == 1), jnp.ones_like(size), jnp.power(size, y))
    whole = y == jnp.floor(y)
    half = y * jnp.asarray(0.5, y.dtype)
    odd = whole & (half != jnp.floor(half))
    undefined = ~whole & jnp.isfinite(x) & (x != 0)  # also of an undefined y
    negative = jnp.where(odd, -magnitude, jnp.where(undefined, jnp.nan, magnitude))
    return jnp.where(jnp.signbit(x), negative, magnitude).astype(x.dtype)

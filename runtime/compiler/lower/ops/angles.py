"""Sine, cosine and tangent on AMD, with the turns taken off before IREE sees the angle.

IREE 3.13.0's own reduction, as its CPU code generator runs it, loses the angle as it grows: the sine
is off by 1e-4 at 5,000 and by 1e-2 at 400,000, which rotary embeddings of long sequences reach
[measured]. So whole turns are subtracted here, in parts of 2 pi with 7 bits each (Cody and Waite,
Software Manual for the Elementary Functions, 1980): the product of a part and up to 2^17 turns is
exact in float32. An angle of more turns gives NaN, rather than a number that looks right.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import widen
from runtime.compiler.lower.registry import op

_FAMILY = "rocm"
_MOST_TURNS = 2.0**17
_BITS = 7
_TURN = 2 * math.pi


def _parts_of(value: float) -> tuple[float, ...]:
    """Give a double as a sum of numbers of 7 bits, the largest first."""
    parts: list[float] = []
    while value > 0:
        unit = 2.0 ** (math.frexp(value)[1] - _BITS)
        parts.append(math.floor(value / unit) * unit)
        value -= parts[-1]
    return tuple(parts)


_PARTS = _parts_of(_TURN)


@op("aten.sin.default", target=_FAMILY)
def sin(x: Array) -> Array:
    """Give the sine of an angle in radians."""
    return jnp.sin(_within_a_turn(x))


@op("aten.cos.default", target=_FAMILY)
def cos(x: Array) -> Array:
    """Give the cosine of an angle in radians."""
    return jnp.cos(_within_a_turn(x))


@op("aten.tan.default", target=_FAMILY)
def tan(x: Array) -> Array:
    """Give the tangent of an angle in radians."""
    rest = _within_a_turn(x)
    return jnp.sin(rest) / jnp.cos(rest)


def _within_a_turn(x: Array) -> Array:
    """Give an angle without its whole turns, in [-pi, pi]."""
    x = widen(x) if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
    turns = lax.round(x * jnp.float32(1 / _TURN), lax.RoundingMethod.TO_NEAREST_EVEN)
    rest = x
    for part in _PARTS:
        rest = rest - turns * jnp.float32(part)
    return jnp.where(jnp.abs(turns) <= _MOST_TURNS, rest, jnp.nan)

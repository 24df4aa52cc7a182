"""Elementwise functions that Neuron's compiler does not list: powers, log1p, expm1, remainders.

A power needs a constant whole exponent there (the vendor's list of XLA operators; issue 658).
"""

from __future__ import annotations

import math

from runtime.compiler.passes.decompositions.builder import Builder, Number, Val
from runtime.compiler.passes.decompositions.modulo import (
    float_quotient,
    float_remainder,
    float_rest,
    floats_of,
)
from runtime.compiler.passes.decompositions.registry import decomposition

_FAMILIES = ("neuron",)
_POWER = "a power is documented for constant whole exponents only (issue 658)"
_NOT_LISTED = "not among the compiler's documented operators"
_LARGEST_PRODUCT = 4
"""The largest whole exponent that the general lowering multiplies out itself."""

_DIGITS = 31
"""Binary digits of an exponent: programs hold int64 as int32."""

_LARGEST_CHAIN = 1 << 12
"""The largest whole exponent that is multiplied out here, by squaring."""


@decomposition("aten.log1p.default", families=_FAMILIES, because=_NOT_LISTED)
def log1p(b: Builder, x: Val) -> Val:
    """Give log(1 + x) with the rounding of 1 + x taken back (Kahan; HP-15C handbook, 1982)."""
    x = b.wide(x)
    sum_ = b.add(x, 1.0)
    close = b.mul(b.unary("log", sum_), b.div(x, b.sub(sum_, 1.0)))
    exact = b.where(b.compare("eq", sum_, 1.0), x, close)
    # x / x is NaN at infinity.
    return b.where(b.compare("eq", x, math.inf), x, exact)


@decomposition("aten.expm1.default", families=_FAMILIES, because=_NOT_LISTED)
def expm1(b: Builder, x: Val) -> Val:
    """Give e^x - 1 with the rounding of e^x taken back (Kahan, as for log1p)."""
    x = b.wide(x)
    power = b.unary("exp", x)
    less = b.sub(power, 1.0)
    close = b.mul(less, b.div(x, b.unary("log", power)))
    tiny = b.where(b.compare("eq", power, 1.0), x, close)
    far = b.either(b.compare("eq", less, -1.0), b.compare("eq", power, math.inf))
    return b.where(far, less, tiny)


@decomposition("aten.tan.default", families=_FAMILIES, because=_NOT_LISTED)
def tan(b: Builder, x: Val) -> Val:
    """Give sin x / cos x."""
    x = b.wide(x)
    return b.div(b.unary("sin", x), b.unary("cos", x))


@decomposition("aten.sinh.default", families=_FAMILIES, because=_NOT_LISTED)
def sinh(b: Builder, x: Val) -> Val:
    """Give (u + u / (u + 1)) / 2 for u = e^|x| - 1, with the sign of x."""
    x = b.wide(x)
    less = b.call("aten.expm1.default", (b.unary("abs", x),), x.type)
    # u / (u + 1) is NaN where u is infinite; it is 1 long before.
    rest = b.where(b.compare("gt", less, 1e9), 1.0, b.div(less, b.add(less, 1.0)))
    half = b.mul(b.add(less, rest), 0.5)
    return b.where(b.compare("lt", x, 0.0), b.mul(half, -1.0), half)


@decomposition("aten.pow.Tensor_Scalar", families=_FAMILIES, because=_POWER)
def power_of_number(b: Builder, x: Val, exponent: Number) -> Val | None:
    """Multiply out whole exponents by squaring; others are e^(y log x).

    Small whole exponents and halves are left as they are: their lowering has no power.
    """
    if not x.is_float and not isinstance(exponent, int):
        x = b.cast(x, "float32")
    whole = float(exponent).is_integer()
    if abs(exponent) == 0.5 or (whole and abs(exponent) <= _LARGEST_PRODUCT):
        return None
    if whole and abs(exponent) <= _LARGEST_CHAIN and (x.is_float or exponent > 0):
        base = b.wide(x) if x.is_float else x
        result = _chain(b, base, abs(int(exponent)))
        return result if exponent > 0 else b.div(b.full((), 1.0, result.dtype), result)
    if not x.is_float:
        return None
    return _power(b, b.wide(x), b.full((), float(exponent), "float32"))


@decomposition("aten.pow.Tensor_Tensor", families=_FAMILIES, because=_POWER)
def power(b: Builder, x: Val, y: Val) -> Val:
    """Give e^(y log |x|) with the sign of a whole power; integers are multiplied out."""
    if not (x.is_float or y.is_float):
        return _integer_power(b, b.cast(x, "int64"), b.cast(y, "int64"))
    return _power(b, b.wide(x), b.wide(y))


@decomposition("aten.pow.Scalar", families=_FAMILIES, because=_POWER)
def power_of_base(b: Builder, x: Number, y: Val) -> Val:
    """Give e^(y log x) for a constant x; a whole one to whole powers is multiplied out."""
    if isinstance(x, int) and not y.is_float:
        return _integer_power(b, b.full((), x, "int64"), b.cast(y, "int64"))
    return _power(b, b.full((), float(x), "float32"), b.wide(y))


@decomposition(
    "aten.remainder.Tensor", "aten.remainder.Scalar", families=_FAMILIES, because=_NOT_LISTED
)
def remainder(b: Builder, x: Val, y: Val | Number) -> Val | None:
    """Give x modulo y with the sign of y."""
    floats = floats_of(b, x, y)
    if floats is not None:
        return float_remainder(b, *floats)
    parts = _division(b, x, y)
    if parts is None:
        return None
    _, rest, divisor, fix = parts
    return b.where(fix, b.add(rest, divisor), rest)


@decomposition("aten.fmod.Tensor", "aten.fmod.Scalar", families=_FAMILIES, because=_NOT_LISTED)
def fmod(b: Builder, x: Val, y: Val | Number) -> Val | None:
    """Give x modulo y with the sign of x."""
    floats = floats_of(b, x, y)
    if floats is not None:
        return float_rest(b, *floats)
    parts = _division(b, x, y)
    return None if parts is None else parts[1]


@decomposition("aten.floor_divide.default", families=_FAMILIES, because=_NOT_LISTED)
def floor_divide(b: Builder, x: Val, y: Val | Number) -> Val | None:
    """Give x / y rounded down."""
    floats = floats_of(b, x, y)
    if floats is not None:
        return float_quotient(b, *floats)
    parts = _division(b, x, y)
    if parts is None:
        return None
    quotient, _, _, fix = parts
    return b.where(fix, b.sub(quotient, 1), quotient)


@decomposition(
    "aten.div.Tensor_mode", "aten.div.Scalar_mode", families=_FAMILIES, because=_NOT_LISTED
)
def div_mode(
    b: Builder, x: Val, y: Val | Number, *, rounding_mode: str | None = None
) -> Val | None:
    """Give x / y rounded down; other modes are left as they are."""
    return floor_divide(b, x, y) if rounding_mode == "floor" else None


def _division(b: Builder, x: Val, y: Val | Number) -> tuple[Val, Val, Val, Val] | None:
    """Give quotient and rest of integers, the divisor, and where rounding down differs."""
    if x.is_float or x.dtype == "bool" or isinstance(y, float):
        return None
    divisor = y if isinstance(y, Val) else b.full((), y, x.dtype)
    joined = _joined_integer(x, divisor)
    x, divisor = b.cast(x, joined), b.cast(divisor, joined)
    quotient = b.quotient(x, divisor)
    rest = b.sub(x, b.mul(quotient, divisor))
    negative = b.compare("ne", b.compare("lt", rest, 0), b.compare("lt", divisor, 0))
    return quotient, rest, divisor, b.both(b.compare("ne", rest, 0), negative)


def _chain(b: Builder, x: Val, exponent: int) -> Val:
    """Give x to a whole power above 0, squaring."""
    result: Val | None = None
    while exponent:
        if exponent & 1:
            result = x if result is None else b.mul(result, x)
        exponent >>= 1
        x = b.mul(x, x) if exponent else x
    if result is None:
        raise ValueError("a chain of products needs an exponent above 0")
    return result


def _joined_integer(x: Val, y: Val) -> str:
    """Give the dtype that two tensors of integers are divided in, as torch chooses it.

    The wider; but a tensor without dimensions takes the other's, and wraps around in it.
    """
    if x.dtype == y.dtype or (x.ndim and not y.ndim):
        return x.dtype
    return y.dtype if y.ndim and not x.ndim else "int64"


def _integer_power(b: Builder, x: Val, y: Val) -> Val:
    """Give x to the power y of int64, wrapping around, by the binary digits of y.

    A power below 0 is that of 1 or -1, or else 0, as torch has it.
    """
    is_negative = b.compare("lt", y, 0)
    rest = b.where(is_negative, b.mul(y, -1), y)
    result = b.full((), 1, "int64")
    base = x
    for digit in range(_DIGITS):
        half = b.quotient(rest, 2)
        is_set = b.compare("ne", b.sub(rest, b.mul(half, 2)), 0)
        result = b.where(is_set, b.mul(result, base), result)
        rest = half
        base = b.mul(base, base) if digit + 1 < _DIGITS else base
    unit = b.compare("eq", b.mul(x, x), 1)
    return b.where(b.both(is_negative, b.negated(unit)), 0, result)


def _power(b: Builder, x: Val, y: Val) -> Val:
    """Give x to the power y of floats: 1 where y is 0 or |x| is 1 and y whole or infinite."""
    size = b.unary("abs", x)
    result = b.unary("exp", b.mul(b.unary("log", size), y))
    half = b.mul(y, 0.5)
    is_whole = b.compare("eq", b.unary("floor", y), y)
    is_odd = b.both(is_whole, b.compare("ne", b.unary("floor", half), half))
    signed = b.where(is_odd, b.mul(result, -1.0), b.where(is_whole, result, math.nan))
    # A zero or an infinity below 0 has no rest to lose: its broken powers are those of |x|.
    plain = b.either(b.compare("eq", x, 0.0), b.compare("eq", x, -math.inf))
    broken = b.negated(is_whole)
    result = b.where(b.compare("lt", x, 0.0), signed, result)
    result = b.where(b.both(plain, broken), b.unary("exp", b.mul(b.unary("log", size), y)), result)
    far = b.compare("eq", b.unary("abs", y), math.inf)
    unit = b.both(b.compare("eq", size, 1.0), b.either(far, b.compare("eq", x, 1.0)))
    return b.where(b.either(b.compare("eq", y, 0.0), unit), 1.0, result)

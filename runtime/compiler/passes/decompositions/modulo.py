"""The rest of a division of floats, exact as C's `fmod`, from sums, products and comparisons.

`x - trunc(x / y) * y` rounds its product: for x = 1e6 and y = 0.1 nothing of the rest is left. So
the rest is taken digit by digit, as in long division, with digits of 11 bits. A stage has a multiple
T of |y| by a power of 2048 and a rest r of at most 1024 T; it subtracts q T for q = round(r / T),
and leaves at most T / 2. For the product to be exact, T is split into a part of its upper 13 bits,
never above T, and the rest of it (Veltkamp's splitting: Dekker, Numer. Math. 18, 1971). Both q times
either part and the two differences then fit the 24 bits of a float32: where r is below T they are
those of Sterbenz's lemma, else they are multiples of T's last place below 2^24 of it.

24 stages span the range of float32. The upper 21 work on |y| 2^33 and the lower 3 on r and |y|
scaled up, so that no part is a subnormal number, which chips read as zero. A divisor that is itself
subnormal is therefore a division by zero (NaN), and a subnormal rest may be zero.
"""

from __future__ import annotations

import math

from runtime.compiler.passes.decompositions.builder import Builder, Number, Val

__all__ = ["float_quotient", "float_remainder", "float_rest", "floats_of"]

_DIGIT = 2.0**11
_GROUP = 10
"""Stages whose powers of 2048 are constants. A compiler may join factors: all 24 are no float32."""

_LOWER_STAGES, _UPPER_STAGES = 3, 21
_SCALE = _DIGIT**_LOWER_STAGES
_SPLITTER = 2.0**11 + 1  # leaves 24 - 11 bits
_ROOM = 2.0**-20  # so that the splitting does not overflow
_NOT_ABOVE = 1.0 - 2.0**-13  # rounding to 13 bits adds no more than it takes


def floats_of(b: Builder, x: Val, y: Val | Number) -> tuple[Val, Val] | None:
    """Give both operands as float32, or None where the division is one of integers."""
    if not isinstance(y, Val):
        is_float = x.is_float or isinstance(y, float)
        return (b.wide(x), b.full((), float(y), "float32")) if is_float else None
    return (b.wide(x), b.wide(y)) if x.is_float or y.is_float else None


def float_rest(b: Builder, x: Val, y: Val) -> Val:
    """Give x modulo y with the sign of x: NaN for an infinite x and for a zero y.

    Args:
        b: makes the nodes.
        x: float32.
        y: float32; shapes broadcast.
    """
    size, divisor = b.unary("abs", x), b.unary("abs", y)
    one = b.full((), 1.0, "float32")
    # 2 T may be beyond the largest number where r is not.
    room = b.where(b.compare("lt", size, 1.0), one, 0.25)
    rest = _stages(b, b.mul(size, room), b.mul(divisor, b.mul(room, _SCALE)), _UPPER_STAGES)
    is_small = b.compare("lt", divisor, 1.0)
    scale = b.where(is_small, _SCALE, room)
    divisor_up = b.mul(divisor, scale)
    rest = _stages(b, b.mul(rest, b.div(scale, room)), divisor_up, _LOWER_STAGES)
    rest = b.where(b.compare("lt", rest, 0.0), b.add(rest, divisor_up), rest)
    rest = b.div(rest, scale)
    rest = b.where(b.compare("lt", size, divisor), size, rest)
    rest = b.where(b.compare("lt", x, 0.0), b.mul(rest, -1.0), rest)
    # A comparison with NaN does not hold.
    whole = b.both(b.compare("lt", size, math.inf), b.compare("gt", divisor, 0.0))
    return b.where(whole, rest, math.nan)


def float_remainder(b: Builder, x: Val, y: Val) -> Val:
    """Give x modulo y with the sign of y, as torch does: the rest, plus y where signs differ."""
    rest = float_rest(b, x, y)
    return b.where(_is_off(b, rest, y), b.add(rest, y), rest)


def float_quotient(b: Builder, x: Val, y: Val) -> Val:
    """Give x / y rounded down by way of the rest, as torch and Python do."""
    rest = float_rest(b, x, y)
    quotient = b.div(b.sub(x, rest), y)
    quotient = b.where(_is_off(b, rest, y), b.sub(quotient, 1.0), quotient)
    down = b.unary("floor", quotient)
    down = b.where(b.compare("gt", b.sub(quotient, down), 0.5), b.add(down, 1.0), down)
    return b.where(b.compare("eq", y, 0.0), b.div(x, y), down)


def _is_off(b: Builder, rest: Val, y: Val) -> Val:
    """Say where the rest is not zero and has not the divisor's sign."""
    differs = b.compare("ne", b.compare("lt", rest, 0.0), b.compare("lt", y, 0.0))
    return b.both(b.compare("ne", rest, 0.0), differs)


def _stages(b: Builder, rest: Val, divisor: Val, count: int) -> Val:
    """Leave of a rest, at most 2^(11 count - 1) divisors, at most half a divisor on either side."""
    for whole, upper, lower in reversed(_multiples(b, divisor, count)):
        digit = b.unary("round", b.div(rest, whole))
        less = b.sub(b.sub(rest, b.mul(digit, upper)), b.mul(digit, lower))
        # A multiple beyond the largest number is more than the rest.
        rest = b.where(b.compare("lt", whole, math.inf), less, rest)
    return rest


def _multiples(b: Builder, x: Val, count: int) -> list[tuple[Val, Val, Val]]:
    """Give x times 1, 2048, 2048^2 and so on, `count` of them, each with its two parts."""
    found: list[tuple[Val, Val, Val]] = []
    while True:
        parts = (x, *_split(b, x))
        for i in range(min(_GROUP, count - len(found))):
            whole, upper, lower = (b.mul(part, _DIGIT**i) for part in parts)
            found.append((whole, upper, lower))
        if len(found) == count:
            return found
        x = b.mul(x, _DIGIT**_GROUP)
        # The selection keeps the next group's factors apart from this one.
        x = b.where(b.compare("lt", x, math.inf), x, math.inf)


def _split(b: Builder, x: Val) -> tuple[Val, Val]:
    """Give x, not below 0, as the sum of a part of 13 bits, not above it, and one of 13 more."""
    near = b.mul(b.mul(x, _ROOM), _NOT_ABOVE)
    spread = b.mul(near, _SPLITTER)
    upper = b.mul(b.sub(spread, b.sub(spread, near)), 1.0 / _ROOM)
    return upper, b.sub(x, upper)

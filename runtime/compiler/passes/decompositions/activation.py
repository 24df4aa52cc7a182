"""The error function and what is written with it, and softplus.

neuronx-cc stops at HLO's erf ("Unsupported operator: erf", aws-neuron-sdk issue 1081, open).
"""

from __future__ import annotations

import math

from runtime.compiler.passes.decompositions.builder import Builder, Number, Val
from runtime.compiler.passes.decompositions.registry import decomposition

_FAMILIES = ("neuron",)
_BECAUSE = "HLO's erf does not compile (issue 1081)"
_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2_PI = 1.0 / math.sqrt(2.0 * math.pi)

# A rational approximation on [-4, 4], where float32's erf reaches 1: x p(x^2) / q(x^2), the
# coefficients that XLA and Eigen use, highest power first.
_REACH = 3.832506856900711
_P = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_Q = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


@decomposition("aten.erf.default", families=_FAMILIES, because=_BECAUSE)
def erf(b: Builder, x: Val) -> Val:
    """Give the error function by a quotient of two polynomials."""
    x = b.clamp(b.wide(x), -_REACH, _REACH)
    square = b.mul(x, x)
    return b.div(b.mul(x, _polynomial(b, square, _P)), _polynomial(b, square, _Q))


@decomposition("aten.gelu.default", families=_FAMILIES, because=_BECAUSE)
def gelu(b: Builder, x: Val, *, approximate: str = "none") -> Val | None:
    """Give x * Phi(x); the form through tanh is left as it is."""
    if approximate != "none":
        return None
    x = b.wide(x)
    return b.mul(x, _normal(b, x))


@decomposition("aten.gelu_backward.default", families=_FAMILIES, because=_BECAUSE)
def gelu_backward(b: Builder, grad: Val, x: Val, *, approximate: str = "none") -> Val | None:
    """Give the gradient of gelu; the form through tanh is left as it is."""
    if approximate != "none":
        return None
    grad, x = b.wide(grad), b.wide(x)
    density = b.mul(b.unary("exp", b.mul(b.mul(x, x), -0.5)), _INV_SQRT_2_PI)
    return b.mul(grad, b.add(_normal(b, x), b.mul(x, density)))


@decomposition(
    "aten.softplus.default",
    families=_FAMILIES,
    because="HLO's log-plus-one is not among the compiler's documented operators",
)
def softplus(b: Builder, x: Val, beta: Number = 1.0, threshold: Number = 20.0) -> Val:
    """Give log(1 + e^(beta x)) / beta, and x itself where beta x is above the threshold."""
    x = b.wide(x)
    scaled = b.mul(x, beta)
    grown = b.call("aten.log1p.default", (b.unary("exp", scaled),), x.type)
    return b.where(b.compare("gt", scaled, threshold), x, b.div(grown, beta))


def _normal(b: Builder, x: Val) -> Val:
    """Give the normal distribution's Phi(x)."""
    found = b.call("aten.erf.default", (b.mul(x, _SQRT_HALF),), x.type)
    return b.mul(b.add(found, 1.0), 0.5)


def _polynomial(b: Builder, x: Val, coefficients: tuple[float, ...]) -> Val:
    """Evaluate a polynomial by Horner's rule, highest power first."""
    result = b.full((), coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        result = b.add(b.mul(x, result), coefficient)
    return result

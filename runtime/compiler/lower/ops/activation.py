"""Activation functions and their derivatives, computed in float32 where the input is narrower."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import floating, widen
from runtime.compiler.lower.registry import op

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_INV_SQRT_2_PI = 1.0 / math.sqrt(2.0 * math.pi)
_GELU_CUBIC = 0.044715


@op("aten.sigmoid.default")
def sigmoid(x: Array) -> Array:
    """Give 1 / (1 + e^-x)."""
    return jax.nn.sigmoid(widen(floating(x)))


@op("aten.sigmoid_backward.default")
def sigmoid_backward(grad: Array, y: Array) -> Array:
    """Give the gradient of sigmoid from its output y."""
    grad, y = widen(grad), widen(y)
    return grad * (1 - y) * y


@op("aten.tanh.default")
def tanh(x: Array) -> Array:
    """Give the hyperbolic tangent."""
    return jnp.tanh(floating(x))


@op("aten.tanh_backward.default")
def tanh_backward(grad: Array, y: Array) -> Array:
    """Give the gradient of tanh from its output y."""
    grad, y = widen(grad), widen(y)
    return grad * (1 - y * y)


@op("aten.relu.default")
def relu(x: Array) -> Array:
    """Give max(x, 0); NaN stays."""
    return jnp.maximum(x, 0)


@op("aten.threshold_backward.default")
def threshold_backward(grad: Array, x: Array, threshold: float) -> Array:
    """Let the gradient through where x is above the threshold, or NaN."""
    return jnp.where(x <= threshold, jnp.zeros_like(grad), grad)


@op("aten.leaky_relu.default")
def leaky_relu(x: Array, slope: float = 0.01) -> Array:
    """Give x where it is positive, else slope * x."""
    return jnp.where(x > 0, x, x * slope)


@op("aten.leaky_relu_backward.default")
def leaky_relu_backward(grad: Array, x: Array, slope: float, _is_result: bool) -> Array:
    """Give the gradient of leaky_relu; x and its result have the same sign."""
    return jnp.where(x > 0, grad, grad * slope)


@op("aten.silu.default")
def silu(x: Array) -> Array:
    """Give x * sigmoid(x)."""
    x = widen(x)
    return x * jax.nn.sigmoid(x)


@op("aten.silu_backward.default")
def silu_backward(grad: Array, x: Array) -> Array:
    """Give the gradient of silu."""
    grad, x = widen(grad), widen(x)
    s = jax.nn.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@op("aten.softplus.default")
def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """Give log(1 + e^(beta x)) / beta, and x itself where beta * x is above the threshold."""
    x = widen(x)
    return jnp.where(x * beta > threshold, x, jnp.log1p(jnp.exp(x * beta)) / beta)


@op("aten.softplus_backward.default")
def softplus_backward(grad: Array, x: Array, beta: float, threshold: float) -> Array:
    """Give the gradient of softplus."""
    grad, x = widen(grad), widen(x)
    return jnp.where(x * beta > threshold, grad, grad * jax.nn.sigmoid(x * beta))


@op("aten.gelu.default")
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """Give x * Phi(x), with the normal distribution exact ("none") or through tanh."""
    x = widen(x)
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_tanh_argument(x)))
    return 0.5 * x * (1 + lax.erf(x * _SQRT_HALF))


@op("aten.gelu_backward.default")
def gelu_backward(grad: Array, x: Array, *, approximate: str = "none") -> Array:
    """Give the gradient of gelu."""
    grad, x = widen(grad), widen(x)
    if approximate == "tanh":
        t = jnp.tanh(_tanh_argument(x))
        slope = _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * x * x)
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    density = jnp.exp(-0.5 * x * x) * _INV_SQRT_2_PI
    return grad * (0.5 * (1 + lax.erf(x * _SQRT_HALF)) + x * density)


def _tanh_argument(x: Array) -> Array:
    return _SQRT_2_OVER_PI * (x + _GELU_CUBIC * x * x * x)

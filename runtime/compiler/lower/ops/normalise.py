"""Softmax and the layer norms, with their gradients; half precision is computed in float32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import widen
from runtime.compiler.lower.registry import op


@op("aten._softmax.default")
def softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    """Give e^x over its sum along a dimension; a row of -inf gives NaN."""
    shifted, total = _shifted(x, dim)
    return jnp.exp(shifted) / total


@op("aten._log_softmax.default")
def log_softmax(x: Array, dim: int, half_to_float: bool) -> Array:
    """Give the logarithm of softmax."""
    shifted, total = _shifted(x, dim)
    return shifted - jnp.log(total)


def _shifted(x: Array, dim: int) -> tuple[Array, Array]:
    """Give x minus its maximum, and the sum of the exponentials of that."""
    x = widen(x)
    if not x.ndim:
        return x - x, jnp.ones_like(x)
    shifted = x - jnp.max(x, dim, keepdims=True, initial=-jnp.inf)
    return shifted, jnp.sum(jnp.exp(shifted), dim, keepdims=True)


@op("aten._softmax_backward_data.default")
def softmax_backward(grad: Array, y: Array, dim: int, input_dtype: Any) -> Array:
    """Give the gradient of softmax from its output y."""
    weighted = widen(grad) * widen(y)
    total = jnp.sum(weighted, dim, keepdims=True) if y.ndim else weighted
    return weighted - widen(y) * total


@op("aten._log_softmax_backward_data.default")
def log_softmax_backward(grad: Array, y: Array, dim: int, input_dtype: Any) -> Array:
    """Give the gradient of log-softmax from its output y."""
    grad = widen(grad)
    total = jnp.sum(grad, dim, keepdims=True) if y.ndim else grad
    return grad - jnp.exp(widen(y)) * total


@op("aten.native_layer_norm.default")
def native_layer_norm(
    x: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: float,
) -> tuple[Array, Array, Array]:
    """Normalise the last dimensions: [..., *normalized_shape].

    Returns:
        the result, and the mean and 1 / standard deviation with those dimensions of size 1.
    """
    wide = widen(x)
    axes = _trailing(x, normalized_shape)
    mean = jnp.mean(wide, axes, keepdims=True)
    centered = wide - mean
    rstd = lax.rsqrt(jnp.mean(centered * centered, axes, keepdims=True) + eps)
    y = centered * rstd
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean, rstd


@op("aten.native_layer_norm_backward.default")
def native_layer_norm_backward(
    grad: Array,
    x: Array,
    normalized_shape: tuple[int, ...],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: tuple[bool, bool, bool],
) -> tuple[Array, Array, Array]:
    """Give the gradients of the input, weight and bias; those that nobody asked for are dropped."""
    grad, normal = widen(grad), (widen(x) - widen(mean)) * widen(rstd)
    inner = _trailing(x, normalized_shape)
    outer = tuple(range(x.ndim - len(normalized_shape)))
    scaled = grad if weight is None else grad * widen(weight)
    along_normal = normal * jnp.mean(scaled * normal, inner, keepdims=True)
    grad_x = rstd * (scaled - jnp.mean(scaled, inner, keepdims=True) - along_normal)
    return grad_x, jnp.sum(grad * normal, outer), jnp.sum(grad, outer)


def _trailing(x: Array, normalized_shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))

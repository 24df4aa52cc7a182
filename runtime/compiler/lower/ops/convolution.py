"""Convolution of one, two or three dimensions, and its gradients (short ones, in some mixers)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.registry import op
from runtime.spec import LoweringError

Sizes = tuple[int, ...]


@op("aten.convolution.default")
def convolution(
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Array:
    """Convolve x [batch, in, *space] with weight [out, in / groups, *kernel].

    Raises:
        LoweringError: the convolution is transposed.
    """
    if transposed:
        raise LoweringError("a transposed convolution has no lowering")
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=_spread(stride, x),
        padding=[(size, size) for size in _spread(padding, x)],
        rhs_dilation=_spread(dilation, x),
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )
    return y if bias is None else y + bias.reshape((1, -1) + (1,) * (x.ndim - 2))


def _spread(sizes: Sizes, x: Array) -> Sizes:
    """Give one size a dimension of space, where torch may give one for all."""
    return sizes * (x.ndim - 2) if len(sizes) == 1 else sizes


@op("aten.convolution_backward.default")
def convolution_backward(
    grad: Array,
    x: Array,
    weight: Array,
    _bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: tuple[bool, bool, bool],
) -> tuple[Array, Array, Array]:
    """Give the gradients of the input, weight and bias; those that nobody asked for are dropped."""

    def forward(x: Array, weight: Array) -> Array:
        return convolution(
            x, weight, None, stride, padding, dilation, transposed, output_padding, groups
        )

    grad_x, grad_weight = jax.vjp(forward, x, weight)[1](grad)
    return grad_x, grad_weight, jnp.sum(grad, (0, *range(2, grad.ndim)))

"""The gradients of a convolution without a reversed kernel, which Neuron does not document.

The gradient of the input is a convolution of the result's gradient with the kernel read backwards;
that of the kernel is, for each of its places, a matrix product of the gradient with a shifted input.
"""

# A decomposition has the signature of its op.
# ruff: noqa: FBT001, ARG001, PLR0913, PLR0917

from __future__ import annotations

import math

from runtime.compiler.graph import TensorType
from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.registry import decomposition

Sizes = tuple[int, ...]

_MOST_PLACES = 64
"""Places of a kernel, at most: each becomes a product of its own."""


@decomposition(
    "aten.convolution_backward.default",
    families=("neuron",),
    because="HLO's reverse, of the kernel, is not documented",
)
def convolution_backward(
    b: Builder,
    grad: Val,
    x: Val,
    weight: Val,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: tuple[bool, bool, bool],
) -> tuple[Val, Val, Val] | None:
    """Give the gradients of the input, weight and bias.

    Covered are steps of one place and small kernels. Where the input needs no gradient (the patches
    of an image) the op is left as it is: its lowering reverses nothing then.

    Args:
        b: makes the nodes.
        grad: [batch, out, *space'].
        x: [batch, in, *space].
        weight: [out, in / groups, *kernel].
        bias_sizes: not read.
        stride: places between two windows.
        padding: zeros at both ends of each dimension of space.
        dilation: places between two of the kernel.
        transposed: must be False.
        output_padding: not read: it is for transposed convolutions.
        groups: parts of the channels that do not see each other.
        output_mask: which gradients are asked for.
    """
    rank = x.ndim - 2
    stride, padding, dilation = (_spread(sizes, rank) for sizes in (stride, padding, dilation))
    kernel = weight.shape[2:]
    small = math.prod(kernel) <= _MOST_PLACES
    if transposed or not output_mask[0] or set(stride) != {1} or not small or not x.size:
        return None
    grad_x = _of_input(b, grad, x, weight, padding, dilation, groups)
    grad_weight = _of_weight(b, grad, x, weight, padding, dilation, groups)
    by_channel = b.reshape(_by_group(b, grad, 1), (grad.shape[1], grad.size // grad.shape[1]))
    return grad_x, grad_weight, b.total(by_channel, 1)


def _of_input(
    b: Builder, grad: Val, x: Val, weight: Val, padding: Sizes, dilation: Sizes, groups: int
) -> Val:
    """Convolve the gradient with the kernel read backwards, channels in and out exchanged."""
    out, inner = weight.shape[:2]
    kernel, space = weight.shape[2:], tuple(range(2, weight.ndim))
    turned = b.call("aten.flip.default", (weight, space), weight.type)
    grouped = b.reshape(turned, (groups, out // groups, inner, *kernel))
    swapped = b.permute(grouped, (0, 2, 1, *(i + 1 for i in space)))
    back = b.reshape(swapped, (groups * inner, out // groups, *kernel))
    spans = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
    around = tuple(span - pad for span, pad in zip(spans, padding, strict=True))
    if min(around) < 0:
        cut = [max(0, -size) for size in around]
        for axis, size in enumerate(cut):
            grad = b.slice(grad, axis + 2, size, grad.shape[axis + 2] - size)
        around = tuple(max(0, size) for size in around)
    ones = (1,) * len(kernel)
    args = (grad, back, None, ones, around, dilation, False, (0,) * len(kernel), groups)
    return b.call("aten.convolution.default", args, x.type)


def _of_weight(
    b: Builder, grad: Val, x: Val, weight: Val, padding: Sizes, dilation: Sizes, groups: int
) -> Val:
    """Multiply, for each place of the kernel, the gradient with the input that it saw."""
    out, inner = weight.shape[:2]
    kernel, space = weight.shape[2:], grad.shape[2:]
    padded = _padded(b, x, padding)
    left = _by_group(b, grad, groups)
    parts = []
    for place in range(math.prod(kernel)):
        seen, rest = padded, place
        for axis in reversed(range(len(kernel))):
            rest, at = divmod(rest, kernel[axis])
            first = at * dilation[axis]
            seen = b.slice(seen, axis + 2, first, first + space[axis])
        right = b.permute(_by_group(b, seen, groups), (0, 2, 1))
        product = TensorType((groups, out // groups, inner), grad.dtype)
        part = b.call("aten.bmm.default", (left, right), product)
        parts.append(b.reshape(part, (out, inner, 1)))
    return b.reshape(b.cat(parts, 2), weight.shape)


def _by_group(b: Builder, x: Val, groups: int) -> Val:
    """Give [batch, channels, *space] as [groups, channels / groups, batch * space]."""
    channels = x.shape[1]
    first = b.permute(x, _channels_first(x.ndim))
    return b.reshape(first, (groups, channels // groups, x.size // channels))


def _padded(b: Builder, x: Val, padding: Sizes) -> Val:
    """Put zeros at both ends of each dimension of space."""
    if not any(padding):
        return x
    pairs = tuple(side for size in reversed(padding) for side in (size, size))
    spaces = (n + 2 * size for n, size in zip(x.shape[2:], padding, strict=True))
    out = TensorType((*x.shape[:2], *spaces), x.dtype)
    return b.call("aten.constant_pad_nd.default", (x, pairs, 0), out)


def _channels_first(rank: int) -> tuple[int, ...]:
    return (1, 0, *range(2, rank))


def _spread(sizes: Sizes, rank: int) -> Sizes:
    """Give one size a dimension of space, where torch may give one for all."""
    return tuple(sizes) * rank if len(sizes) == 1 else tuple(sizes)

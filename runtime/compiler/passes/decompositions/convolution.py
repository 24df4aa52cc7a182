"""The gradients of a convolution without a reversed kernel, which Neuron does not document.

The gradient of the input is a convolution of the result's gradient, spread out by the stride, with
the kernel read backwards; that of the kernel is, for each of its places, a matrix product of the
gradient with a shifted input. A transposed convolution is the gradient of a plain one, so its own
gradients are that one's result and, with input and gradient exchanged, its kernel's gradient.
"""

# A decomposition has the signature of its op.
# ruff: noqa: FBT001, ARG001, PLR0913, PLR0917

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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

    Covered are small kernels. Where the input needs no gradient (the patches of an image) the op is
    left as it is: its lowering reverses nothing then.

    Args:
        b: makes the nodes.
        grad: [batch, out, *space'].
        x: [batch, in, *space].
        weight: [out, in / groups, *kernel]; transposed, [in, out / groups, *kernel].
        bias_sizes: not read.
        stride: places between two windows.
        padding: zeros at both ends of each dimension of space.
        dilation: places between two of the kernel.
        transposed: whether it was a transposed convolution.
        output_padding: not read: the shapes say how large a transposed convolution's result is.
        groups: parts of the channels that do not see each other.
        output_mask: which gradients are asked for.
    """
    rank = x.ndim - 2
    stride, padding, dilation = (_spread(sizes, rank) for sizes in (stride, padding, dilation))
    window = _Window(stride, padding, dilation, groups)
    small = math.prod(weight.shape[2:]) <= _MOST_PLACES
    if not (output_mask[0] and small and x.size):
        return None
    if transposed:
        ahead = (stride, padding, dilation, False, (0,) * rank, groups)
        grad_x = b.call("aten.convolution.default", (grad, weight, None, *ahead), x.type)
        grad_weight = _of_weight(b, x, grad, weight, window)
    else:
        grad_x = _of_input(b, grad, x, weight, window)
        grad_weight = _of_weight(b, grad, x, weight, window)
    by_channel = b.reshape(_by_group(b, grad, 1), (grad.shape[1], grad.size // grad.shape[1]))
    return grad_x, grad_weight, b.total(by_channel, 1)


@dataclass(frozen=True, slots=True)
class _Window:
    """How a kernel moves: stride, padding and dilation of each dimension of space, and groups."""

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int


def _of_input(b: Builder, grad: Val, x: Val, weight: Val, window: _Window) -> Val:
    """Convolve the gradient with the kernel read backwards, channels in and out exchanged."""
    out, inner = weight.shape[:2]
    groups, kernel, space = window.groups, weight.shape[2:], tuple(range(2, weight.ndim))
    turned = b.call("aten.flip.default", (weight, space), weight.type)
    grouped = b.reshape(turned, (groups, out // groups, inner, *kernel))
    swapped = b.permute(grouped, (0, 2, 1, *(i + 1 for i in space)))
    back = b.reshape(swapped, (groups * inner, out // groups, *kernel))
    for axis, step in zip(space, window.stride, strict=True):
        grad = _spaced(b, grad, axis, step)
    spans = [step * (size - 1) for step, size in zip(window.dilation, kernel, strict=True)]
    before = [span - pad for span, pad in zip(spans, window.padding, strict=True)]
    # The last places of the input, where no window of a longer stride reaches them, count too.
    after = [
        x.shape[axis] + span - grad.shape[axis] - first
        for axis, span, first in zip(space, spans, before, strict=True)
    ]
    grad = _fitted(b, grad, before, after)
    nothing, ones = (0,) * len(kernel), (1,) * len(kernel)
    args = (grad, back, None, ones, nothing, window.dilation, False, nothing, groups)
    return b.call("aten.convolution.default", args, x.type)


def _of_weight(b: Builder, grad: Val, x: Val, weight: Val, window: _Window) -> Val:
    """Multiply, for each place of the kernel, the gradient with the input that it saw."""
    out, inner = weight.shape[:2]
    kernel, space, groups = weight.shape[2:], grad.shape[2:], window.groups
    padded = _fitted(b, x, window.padding, window.padding)
    left = _by_group(b, grad, groups)
    parts = []
    for place in range(math.prod(kernel)):
        seen, rest = padded, place
        for axis in reversed(range(len(kernel))):
            rest, at = divmod(rest, kernel[axis])
            first, step = at * window.dilation[axis], window.stride[axis]
            seen = b.slice(seen, axis + 2, first, first + (space[axis] - 1) * step + 1, step)
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


def _spaced(b: Builder, x: Val, axis: int, step: int) -> Val:
    """Put step - 1 zeros between neighbours of a dimension."""
    if step == 1:
        return x
    count = x.shape[axis]
    apart = b.unsqueeze(x, axis + 1)
    apart = b.pad(apart, [step - 1 if i == axis + 1 else 0 for i in range(apart.ndim)], 0)
    joined = b.reshape(apart, (*x.shape[:axis], count * step, *x.shape[axis + 1 :]))
    return b.slice(joined, axis, 0, (count - 1) * step + 1)


def _fitted(b: Builder, x: Val, before: Sequence[int], after: Sequence[int]) -> Val:
    """Put so many zeros before and behind each dimension of space; take off where it is below 0."""
    for axis, (first, last) in enumerate(zip(before, after, strict=True), 2):
        x = b.slice(x, axis, max(0, -first), x.shape[axis] - max(0, -last))
    more = [(max(0, first), max(0, last)) for first, last in zip(before, after, strict=True)]
    if not any(map(any, more)):
        return x
    pairs = tuple(side for both in reversed(more) for side in both)
    sizes = (n + sum(both) for n, both in zip(x.shape[2:], more, strict=True))
    out = TensorType((*x.shape[:2], *sizes), x.dtype)
    return b.call("aten.constant_pad_nd.default", (x, pairs, 0), out)


def _channels_first(rank: int) -> tuple[int, ...]:
    return (1, 0, *range(2, rank))


def _spread(sizes: Sizes, rank: int) -> Sizes:
    """Give one size a dimension of space, where torch may give one for all."""
    return tuple(sizes) * rank if len(sizes) == 1 else tuple(sizes)

"""Negative log-likelihood, the end of every cross-entropy.

The gradient is written as a comparison of each place with the label, not as a scatter into zeros:
XLA then joins it with the softmax's gradient behind it, and [tokens, vocabulary] is written once.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.registry import op

_NONE, _MEAN = 0, 1


def _weights(target: Array, weight: Array | None, ignore_index: int, like: Array) -> Array:
    """Give each target's weight: 0 where it is ignored."""
    kept = target != ignore_index
    if weight is None:
        return kept.astype(like.dtype)
    return jnp.where(kept, weight[jnp.where(kept, target, 0)], 0)


@op("aten.nll_loss_forward.default")
def nll_loss_forward(
    x: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    """Give the loss of log-probabilities, and the sum of the weights.

    Args:
        x: [tokens, classes] or [classes].
        target: [tokens] or [], integers; `ignore_index` counts for nothing.
        weight: [classes] or None.
        reduction: 0 none, 1 mean, 2 sum.
        ignore_index: the label to ignore.
    """
    weights = _weights(target, weight, ignore_index, x)
    safe = jnp.where(target == ignore_index, 0, target)
    picked = jnp.take_along_axis(x, safe[..., None], -1, mode="fill")[..., 0]
    losses = jnp.where(weights == 0, 0, -picked * weights)
    if reduction == _NONE and target.ndim:
        return losses, jnp.zeros((), x.dtype)
    total, divisor = jnp.sum(losses), jnp.sum(weights)
    return (total / divisor if reduction == _MEAN else total), divisor


@op("aten.nll_loss_backward.default")
def nll_loss_backward(
    grad: Array,
    x: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    """Give the gradient of nll_loss_forward: -weight at each label's place, zero elsewhere."""
    scale = grad / total_weight if reduction == _MEAN else grad
    per_token = -_weights(target, weight, ignore_index, x) * scale
    place = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    return jnp.where(place == target[..., None], per_token[..., None], jnp.zeros((), x.dtype))

"""The `apply` step: integer gradient sums to a clipped AdamW update, in one compiled program.

Formula: decoupled weight decay (Loshchilov and Hutter, 2019, algorithm 2) as `torch.optim.AdamW`
computes it: p <- p (1 - lr wd); m <- m + (1 - b1)(g - m); v <- b2 v + (1 - b2) g^2;
p <- p - (lr / c1) m / (sqrt(v) / sqrt(c2) + eps), with c1 = 1 - b1^t and c2 = 1 - b2^t given by
the caller. Decay touches only parameters with two axes or more. Clipping is that of
`torch.nn.utils.clip_grad_norm_`: g <- g min(1, clip / (|g| + 1e-6)).

The norm is computed from the decoded integers, block by block, and the blocks' sums are added in
a fixed binary tree: its bits depend on the job only, never on who computed which shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from runtime.compiler.fixed_point import decode, decode_blocks

SCALARS = ("lr", "beta1", "beta2", "eps", "weight_decay", "clip", "bias1", "bias2")
"""The entries of the float32 [8] argument `scalars`, in order; clip <= 0 turns clipping off."""

_CLIP_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


class Updated(NamedTuple):
    """A parameter and its moments after a step, float32, all of the parameter's shape."""

    param: jax.Array
    moment1: jax.Array
    moment2: jax.Array


def rates(scalars: jax.Array) -> jax.Array:
    """Give the factors of a step that all parameters share, float32 [7], see `adamw`.

    Args:
        scalars: float32 [8], see `SCALARS`.
    """
    lr, beta1, beta2, eps, decay, _, bias1, bias2 = (scalars[i] for i in range(len(SCALARS)))
    kept = 1.0 - lr * decay
    return jnp.stack([kept, 1.0 - beta1, beta2, 1.0 - beta2, jnp.sqrt(bias2), eps, lr / bias1])


def adamw(
    param: jax.Array, moment1: jax.Array, moment2: jax.Array, grad: jax.Array, rates: jax.Array
) -> Updated:
    """Take one AdamW step for one parameter.

    Args:
        param: float32, of any shape; decayed if it has two axes or more.
        moment1: float32, running mean of the gradient.
        moment2: float32, running mean of its square.
        grad: float32, already averaged and clipped.
        rates: float32 [7], from `rates`.
    """
    kept, new1, old2, new2, root, eps, rate = (rates[i] for i in range(7))
    if param.ndim >= 2:
        param = param * kept
    moment1 = moment1 + (grad - moment1) * new1
    moment2 = moment2 * old2 + new2 * grad * grad
    denominator = jnp.sqrt(moment2) / root + eps
    return Updated(param - rate * (moment1 / denominator), moment1, moment2)


def block_squares(total: jax.Array, exponents: jax.Array, weight: jax.Array) -> jax.Array:
    """Give each block's sum of squares of the mean gradient, float32 [n_blocks_i].

    Args:
        total: int32 [n_blocks_i, BLOCK_SIZE], a parameter's integer sum.
        exponents: int32 [n_blocks_i].
        weight: float32 [], one over the step's supervised tokens.
    """
    return jnp.sum(jnp.square(decode_blocks(total, exponents) * weight), axis=1)


def gradient_norm(squares: Sequence[jax.Array]) -> jax.Array:
    """Give the L2 norm of the mean gradient, float32 [], in a fixed order of additions.

    Args:
        squares: the `block_squares` of every parameter, in order.
    """
    return jnp.sqrt(_tree_sum(jnp.concatenate(list(squares))))


def clip_factor(norm: jax.Array, clip: jax.Array) -> jax.Array:
    """Give what gradients are multiplied by, float32 []: 1 where `clip` <= 0 or is not reached."""
    factor = jnp.minimum(1.0, clip / (norm + _CLIP_EPSILON))
    return jnp.where(clip > 0, factor, 1.0)


def mean_gradient(
    total: jax.Array, exponents: jax.Array, shape: tuple[int, ...], weight: jax.Array
) -> jax.Array:
    """Give a parameter's mean gradient, float32 of `shape`, from its integer sum."""
    return decode(total, exponents, shape) * weight


def _tree_sum(values: jax.Array) -> jax.Array:
    """Add a float32 vector by halving it: the order is part of the program, for any target."""
    length = 1 << (values.size - 1).bit_length()
    values = jnp.pad(values, (0, length - values.size))
    while length > 1:
        length //= 2
        values = values[:length] + values[length:]
    return values[0]

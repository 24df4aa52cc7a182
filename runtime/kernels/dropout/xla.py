"""Keyed dropout over jax.numpy: plain integer arithmetic, so every XLA target gives the same bits."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from runtime.kernels.dropout.contract import MAX_ELEMENTS, PARITY, ROTATIONS, threshold

_WORD_BITS = 32
_MAX_WORD = 0xFFFFFFFF


def threefry2x32(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    """Give 64 random bits for each counter: Threefry-2x32 with 20 rounds.

    Args:
        key: two words, uint32[].
        counter: two arrays of uint32 of the same shape.

    Returns:
        two arrays of uint32 of that shape.
    """
    schedule = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY)
    x0, x1 = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << rotation) | (x1 >> (_WORD_BITS - rotation))) ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1


def dropout(x: Array, p: float, key: Array, call: int) -> Array:
    """Compute dropout as `contract` says.

    Args:
        x: any shape, a float dtype, at most 2**32 elements.
        p: probability of dropping an element, from 0 up to, not including, 1.
        key: int32[2], the bit patterns of uint32[2].
        call: number of the call in the step.

    Raises:
        ValueError: p or the number of elements is out of range.
    """
    if x.size > MAX_ELEMENTS:
        message = f"dropout of {x.size} elements; at most {MAX_ELEMENTS} have a draw"
        raise ValueError(message)
    limit = threshold(p)
    if limit > _MAX_WORD:
        return jnp.zeros_like(x)
    words = lax.bitcast_convert_type(key, jnp.uint32)
    index = lax.iota(jnp.uint32, x.size).reshape(x.shape)
    draws, _ = threefry2x32((words[0], words[1]), (index, jnp.full_like(index, call)))
    scale = np.float32(1.0) / np.float32(1.0 - p)
    kept = x.astype(jnp.float32) * scale
    return jnp.where(draws >= jnp.uint32(limit), kept, 0).astype(x.dtype)

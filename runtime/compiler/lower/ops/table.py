"""Dear functions whose results are read in many places, on targets where XLA would repeat them."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.dtypes import floating
from runtime.compiler.lower.registry import op


def _in_a_loop(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Compute a function's halves one after the other, in a loop that XLA does not fuse.

    The tables of a rotary embedding are read by the queries and keys of each layer, forward and
    backward. XLA's CPU back end takes sine and cosine for cheap and puts them into each reader, once
    for every head; it ignores an optimisation barrier there. 3 % of a step (512 wide, 6 layers).
    """

    def lowered(x: Array) -> Array:
        x = floating(x)
        if x.size == 0 or x.size % 2:
            return function(x)
        return lax.map(function, x.reshape(2, -1)).reshape(x.shape)

    return lowered


op("aten.cos.default", target="cpu")(_in_a_loop(jnp.cos))
op("aten.sin.default", target="cpu")(_in_a_loop(jnp.sin))

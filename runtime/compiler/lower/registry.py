"""The registry of lowerings: one small function an op, found by its ATen name and the target.

A lowering gets a node's arguments as torch's schema orders them, with every reference replaced by
a `jax.Array` (or by a tuple of them), every dtype by a jax dtype, and without the arguments that
say where or how a tensor lies in memory. It returns one array, or a tuple where the schema has
several results. It need not care for the result's dtype: `interpret` casts it to the node's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Lowering: TypeAlias = Callable[..., Any]

_LOWERINGS: dict[tuple[str, str], Lowering] = {}
_ANY_TARGET = ""


def op(*names: str, target: str = _ANY_TARGET) -> Callable[[Lowering], Lowering]:
    """Register the decorated function as the lowering of ops.

    Args:
        names: full op names, such as "aten.add.Tensor".
        target: a target ("cuda-sm90") or a family of targets ("cuda") that the function is for.
            Default: every target that has none of its own.

    Raises:
        ValueError: an op has a lowering for this target already.
    """

    def register(function: Lowering) -> Lowering:
        for name in names:
            if (name, target) in _LOWERINGS:
                message = f"op '{name}' already has a lowering for target '{target or 'any'}'"
                raise ValueError(message)
            _LOWERINGS[name, target] = function
        return function

    return register


def find_lowering(name: str, target: str) -> Lowering | None:
    """Give the lowering for the target, else for its family, else the general one, else None."""
    family = target.partition("-")[0]
    for place in (target, family, _ANY_TARGET):
        if (name, place) in _LOWERINGS:
            return _LOWERINGS[name, place]
    return None


def registered_ops() -> frozenset[str]:
    """Give the names of all ops with a lowering for some target."""
    return frozenset(name for name, _ in _LOWERINGS)

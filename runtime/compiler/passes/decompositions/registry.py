"""The registry of decompositions: one small function an op, with the families that need it.

A decomposition gets a `Builder` and the node's arguments in torch's schema order: tensors as `Val`
(a name and a type, no values), lists as tuples, dtypes as `DType`. It makes nodes through the
builder and returns the value that stands for the result, or a tuple where the schema has several.
It returns None for a form of the op that it does not cover: the node then stays as it is, and the
pre-flight names it if the family cannot compile it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from runtime.compiler.passes.decompositions.builder import Val

Result: TypeAlias = "Val | tuple[Val, ...] | None"
Function: TypeAlias = Callable[..., Result]

_F = TypeVar("_F", bound=Function)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decomposition:
    """How one op is rewritten for some families.

    Attributes:
        op: the op's full name, such as "aten.sort.stable".
        families: the families of targets that it is for.
        because: what those families cannot do with the op, with the source.
        function: makes the nodes.
    """

    op: str
    families: tuple[str, ...]
    because: str
    function: Function

    @property
    def name(self) -> str:
        """The decomposition's name in reports: module and function, such as "order.sort"."""
        subject = self.function.__module__.rpartition(".")[2]
        return f"{subject}.{self.function.__name__}"


_DECOMPOSITIONS: dict[tuple[str, str], Decomposition] = {}


def decomposition(*ops: str, families: tuple[str, ...], because: str) -> Callable[[_F], _F]:
    """Register the decorated function as the decomposition of ops.

    Args:
        ops: full op names, such as "aten.sort.stable".
        families: families of targets, such as "neuron".
        because: what they cannot do, with the source of that knowledge.

    Raises:
        ValueError: an op has a decomposition for one of the families already.
    """

    def register(function: _F) -> _F:
        for op in ops:
            entry = Decomposition(op=op, families=families, because=because, function=function)
            for family in families:
                if (op, family) in _DECOMPOSITIONS:
                    message = f"op '{op}' already has a decomposition for family '{family}'"
                    raise ValueError(message)
                _DECOMPOSITIONS[op, family] = entry
        return function

    return register


def find_decomposition(op: str, family: str) -> Decomposition | None:
    """Give the op's decomposition for a family, or None where it needs none or has none."""
    return _DECOMPOSITIONS.get((op, family))


def registered_decompositions(family: str) -> tuple[Decomposition, ...]:
    """Give the decompositions of a family, by op."""
    return tuple(entry for (_, f), entry in sorted(_DECOMPOSITIONS.items()) if f == family)

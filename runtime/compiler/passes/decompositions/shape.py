"""Re-arrangements whose HLO form Neuron's compiler does not list."""

from __future__ import annotations

from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.index import as_table, from_table, read_rows
from runtime.compiler.passes.decompositions.registry import decomposition

_FAMILIES = ("neuron",)


@decomposition("aten.flip.default", families=_FAMILIES, because="HLO's reverse is not documented")
def flip(b: Builder, x: Val, dims: tuple[int, ...]) -> Val | None:
    """Read each dimension's places from the last to the first."""
    if not x.ndim or not x.size:
        return None
    for dim in dims:
        x = _flipped(b, x, dim % x.ndim)
    return x


def _flipped(b: Builder, x: Val, axis: int) -> Val:
    count = x.shape[axis]
    table, _ = as_table(b, x, (axis,))
    backwards = b.add(b.mul(b.arange(count), -1), count - 1)
    return from_table(b, read_rows(b, table, backwards), x, (axis,))

"""Products of integers, which Neuron computes in float32, exact below 2^24 only (NCC_EVRF035)."""

from __future__ import annotations

from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.registry import decomposition


@decomposition(
    "aten.mm.default",
    "aten.bmm.default",
    families=("neuron",),
    because="products of integers are refused or computed in float32 (NCC_EVRF035)",
)
def integer_product(b: Builder, x: Val, y: Val) -> Val | None:
    """Multiply and add up element by element; products of floats are left as they are."""
    if x.is_float or not (x.size and y.size):
        return None
    rank = x.ndim
    products = b.mul(b.unsqueeze(x, rank), b.unsqueeze(y, rank - 2))
    return b.total(products, rank - 1)

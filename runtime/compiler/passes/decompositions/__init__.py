"""The decompositions by subject; importing this package registers them all."""

from runtime.compiler.passes.decompositions import (
    activation,
    complex_pairs,
    convolution,
    experts,
    index,
    loss,
    matmul,
    order,
    pointwise,
    reduce,
    scatter,
    shape,
)

__all__ = [
    "activation",
    "complex_pairs",
    "convolution",
    "experts",
    "index",
    "loss",
    "matmul",
    "order",
    "pointwise",
    "reduce",
    "scatter",
    "shape",
]

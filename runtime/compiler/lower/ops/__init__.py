"""The lowerings by subject; importing this package registers them all."""

from runtime.compiler.lower.ops import (
    activation,
    compare,
    convolution,
    create,
    index,
    kernel,
    loss,
    matmul,
    normalise,
    order,
    pointwise,
    reduce,
    scatter,
    shape,
    table,
)

__all__ = [
    "activation",
    "compare",
    "convolution",
    "create",
    "index",
    "kernel",
    "loss",
    "matmul",
    "normalise",
    "order",
    "pointwise",
    "reduce",
    "scatter",
    "shape",
    "table",
]

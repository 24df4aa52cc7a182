"""Complex numbers as pairs of floats: a last dimension of size 2, as `view_as_real` gives them.

Neuron's compiler refuses complex numbers (NCC_EVRF004). A value that is complex in the graph is held
as its pairs; the ops below are those on such values, registered under "complex:" and their name. The
pass takes them where a node reads or gives a complex value, and only if every such node of the graph
has one and no input or output is complex: else all stay, and the pre-flight names them.
"""

# A decomposition has the signature of its op.
# ruff: noqa: FBT001, FBT002, ARG001

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from runtime.compiler.graph import DType
from runtime.compiler.passes.decompositions.builder import Builder, Number, Pairs, Val
from runtime.compiler.passes.decompositions.registry import Function, decomposition

_BECAUSE = "complex numbers are refused (NCC_EVRF004)"
_PREFIX = "complex:"


def _on_pairs(*ops: str) -> Callable[[Function], Function]:
    """Register the decorated function for ops on complex values."""
    names = tuple(f"{_PREFIX}aten.{op}" for op in ops)
    return decomposition(*names, families=("neuron",), because=_BECAUSE)


@_on_pairs(
    "view_as_complex.default", "view_as_real.default", "_to_copy.default", "resolve_conj.default"
)
def same(b: Builder, x: Val, dtype: DType | None = None) -> Val | None:
    """Give the pairs as they are; a cast to real numbers is not covered."""
    return x if dtype is None or dtype.name == "complex64" else None


@_on_pairs("complex.default")
def complex_(b: Builder, real: Val, imaginary: Val) -> Val:
    """Join real and imaginary parts."""
    shape = np.broadcast_shapes(real.shape, imaginary.shape)
    return _joined(b, b.expand(real, shape), b.expand(imaginary, shape))


@_on_pairs("polar.default")
def polar(b: Builder, size: Val, angle: Val) -> Val:
    """Give size * (cos angle, sin angle)."""
    cosine, sine = b.unary("cos", angle), b.unary("sin", angle)
    return _joined(b, b.mul(size, cosine), b.mul(size, sine))


@_on_pairs("real.default")
def real(b: Builder, x: Val) -> Val:
    """Give the real parts."""
    return _parts(b, x)[0]


@_on_pairs("imag.default")
def imag(b: Builder, x: Val) -> Val:
    """Give the imaginary parts."""
    return _parts(b, x)[1]


@_on_pairs("_conj.default", "_conj_physical.default", "conj_physical.default")
def conj(b: Builder, x: Val) -> Val:
    """Turn the sign of the imaginary parts."""
    first, second = _parts(b, x)
    return _joined(b, first, b.mul(second, -1.0))


@_on_pairs("neg.default")
def neg(b: Builder, x: Val) -> Val:
    """Turn both signs."""
    return b.mul(x, -1.0)


@_on_pairs("mul.Tensor", "mul.Scalar")
def mul(b: Builder, x: Val, y: Val | Number) -> Val:
    """Multiply complex values, or one with real numbers."""
    if not isinstance(y, Val):
        return b.mul(x, y)
    if not isinstance(x, Pairs):
        x, y = y, x
    if not isinstance(y, Pairs):
        return b.mul(x, b.unsqueeze(y, y.ndim))
    (a, p), (c, d) = _parts(b, x), _parts(b, y)
    return _joined(b, b.sub(b.mul(a, c), b.mul(p, d)), b.add(b.mul(a, d), b.mul(p, c)))


@_on_pairs("add.Tensor")
def add(b: Builder, x: Val, y: Val) -> Val | None:
    """Add two complex values; one with real numbers is not covered."""
    return b.add(x, y) if isinstance(x, Pairs) and isinstance(y, Pairs) else None


@_on_pairs("sub.Tensor")
def sub(b: Builder, x: Val, y: Val) -> Val | None:
    """Subtract two complex values; one with real numbers is not covered."""
    return b.sub(x, y) if isinstance(x, Pairs) and isinstance(y, Pairs) else None


@_on_pairs("view.default", "_unsafe_view.default", "reshape.default")
def view(b: Builder, x: Val, shape: Sequence[int]) -> Val:
    """Give another shape; one size may be -1."""
    known = 1
    for size in shape:
        known *= 1 if size == -1 else size
    return b.reshape(x, (*(x.size // 2 // known if n == -1 else n for n in shape), 2))


@_on_pairs("expand.default")
def expand(b: Builder, x: Val, shape: Sequence[int], implicit: bool = False) -> Val:
    """Repeat dimensions of size 1."""
    own = (1,) * (len(shape) + 1 - x.ndim) + x.shape
    return b.expand(x, (*(s if n == -1 else n for s, n in zip(own, shape, strict=False)), 2))


@_on_pairs("unsqueeze.default")
def unsqueeze(b: Builder, x: Val, dim: int) -> Val:
    """Add a dimension of size 1."""
    return b.unsqueeze(x, dim % x.ndim)


@_on_pairs("permute.default")
def permute(b: Builder, x: Val, dims: Sequence[int]) -> Val:
    """Reorder the dimensions."""
    rank = x.ndim - 1
    return b.permute(x, [*(dim % rank for dim in dims), rank])


@_on_pairs("slice.Tensor")
def slice_(
    b: Builder,
    x: Val,
    dim: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Val:
    """Give part of a dimension."""
    axis = dim % (x.ndim - 1)
    first, last, _ = slice(start, stop, step).indices(x.shape[axis])
    return b.slice(x, axis, first, max(first, last), step)


def _parts(b: Builder, x: Val) -> tuple[Val, Val]:
    """Give real and imaginary parts of pairs."""
    last, shape = x.ndim - 1, x.shape[:-1]
    first, second = (b.reshape(b.slice(x, last, i, i + 1), shape) for i in (0, 1))
    return first, second


def _joined(b: Builder, real: Val, imaginary: Val) -> Val:
    """Give pairs of real and imaginary parts."""
    return b.cat([b.unsqueeze(real, real.ndim), b.unsqueeze(imaginary, imaginary.ndim)], real.ndim)

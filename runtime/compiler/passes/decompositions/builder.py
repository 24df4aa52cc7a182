"""Makes nodes of the plain ops that decompositions are written in, and knows their result types.

Every method is one ATen node whose HLO form all families have: counters, comparisons, selections,
arithmetic, sums and maxima, matrix products, and moving elements about. Types are torch's, so a
rewritten graph can be run by torch as well as lowered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from runtime.compiler.graph import DType, Ref, TensorType

Number: TypeAlias = "bool | int | float"
Argument: TypeAlias = "Val | DType | Number | str | tuple[Argument, ...] | None"

FLOATS = frozenset({"float32", "bfloat16", "float16"})


@dataclass(frozen=True, slots=True)
class Val:
    """A value of the graph: where it comes from, and its type.

    Attributes:
        ref: the input or node that gives it.
        type: its shape and dtype.
    """

    ref: Ref
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, outermost first."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """The dtype's name, as torch has it."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.type.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.type.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats."""
        return self.type.dtype in FLOATS


@dataclass(frozen=True, slots=True)
class Pairs(Val):
    """A complex value, held as pairs of floats: its last dimension is (real, imaginary)."""


Emit: TypeAlias = Callable[[str, tuple[Argument, ...], dict[str, Argument], TensorType], Val]
"""Takes an op, its arguments and its result's type; gives the value of the new node."""


class Builder:
    """Makes nodes.

    Args:
        emit: adds one node to the graph.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def arange(self, count: int) -> Val:
        """Give 0, 1, ... count - 1 as int64 [count]."""
        kwargs: dict[str, Argument] = {"dtype": DType("int64")}
        out = TensorType((count,), "int64")
        return self._emit("aten.arange.start_step", (0, count, 1), kwargs, out)

    def full(self, shape: Sequence[int], value: Number, dtype: str) -> Val:
        """Give a tensor of one value."""
        out = TensorType(tuple(shape), dtype)
        kwargs: dict[str, Argument] = {"dtype": DType(dtype)}
        return self._emit("aten.full.default", (out.shape, value), kwargs, out)

    def cast(self, x: Val, dtype: str) -> Val:
        """Give x in a dtype."""
        if x.dtype == dtype:
            return x
        out = TensorType(x.shape, dtype)
        return self._emit("aten._to_copy.default", (x,), {"dtype": DType(dtype)}, out)

    def wide(self, x: Val) -> Val:
        """Give a float tensor as float32, in which compound formulas are computed."""
        return self.cast(x, "float32")

    def reshape(self, x: Val, shape: Sequence[int]) -> Val:
        """Give the elements, in row-major order, another shape."""
        if tuple(shape) == x.shape:
            return x
        out = TensorType(tuple(shape), x.dtype)
        return self._emit("aten.view.default", (x, out.shape), {}, out)

    def expand(self, x: Val, shape: Sequence[int]) -> Val:
        """Repeat dimensions of size 1; new ones come first."""
        if tuple(shape) == x.shape:
            return x
        out = TensorType(tuple(shape), x.dtype)
        return self._emit("aten.expand.default", (x, out.shape), {}, out)

    def permute(self, x: Val, dims: Sequence[int]) -> Val:
        """Reorder the dimensions."""
        if tuple(dims) == tuple(range(x.ndim)):
            return x
        out = TensorType(tuple(x.shape[dim] for dim in dims), x.dtype)
        return self._emit("aten.permute.default", (x, tuple(dims)), {}, out)

    def unsqueeze(self, x: Val, dim: int) -> Val:
        """Add a dimension of size 1 at `dim`, counted from the front."""
        shape = (*x.shape[:dim], 1, *x.shape[dim:])
        return self._emit("aten.unsqueeze.default", (x, dim), {}, TensorType(shape, x.dtype))

    def slice(self, x: Val, dim: int, start: int, stop: int, step: int = 1) -> Val:
        """Give places `start` up to `stop` of a dimension, both within it."""
        if (start, stop, step) == (0, x.shape[dim], 1):
            return x
        length = len(range(start, stop, step))
        shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
        out = TensorType(shape, x.dtype)
        return self._emit("aten.slice.Tensor", (x, dim, start, stop, step), {}, out)

    def cat(self, parts: Sequence[Val], dim: int) -> Val:
        """Join along a dimension."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        length = sum(part.shape[dim] for part in parts)
        shape = (*first.shape[:dim], length, *first.shape[dim + 1 :])
        out = TensorType(shape, first.dtype)
        return self._emit("aten.cat.default", (tuple(parts), dim), {}, out)

    def pad(self, x: Val, after: Sequence[int], value: Number) -> Val:
        """Pad behind each dimension, in their order, by so many places of a value."""
        if not any(after):
            return x
        pairs = tuple(side for count in reversed(after) for side in (0, count))
        shape = tuple(n + more for n, more in zip(x.shape, after, strict=True))
        out = TensorType(shape, x.dtype)
        return self._emit("aten.constant_pad_nd.default", (x, pairs, value), {}, out)

    def unary(self, name: str, x: Val) -> Val:
        """Give an elementwise function of x by its ATen name, such as "exp", in x's type."""
        return self._emit(f"aten.{name}.default", (x,), {}, x.type)

    def add(self, x: Val, y: Val | Number) -> Val:
        """Give x + y."""
        return self._binary("add", x, y)

    def sub(self, x: Val, y: Val | Number) -> Val:
        """Give x - y."""
        return self._binary("sub", x, y)

    def mul(self, x: Val, y: Val | Number) -> Val:
        """Give x * y."""
        return self._binary("mul", x, y)

    def div(self, x: Val, y: Val | Number) -> Val:
        """Give x / y of floats."""
        return self._binary("div", x, y)

    def quotient(self, x: Val, y: Val | Number) -> Val:
        """Give x / y of integers, rounded towards zero."""
        out = TensorType(_joined(x, y), x.dtype)
        kwargs: dict[str, Argument] = {"rounding_mode": "trunc"}
        return self._emit("aten.div.Tensor_mode", (x, y), kwargs, out)

    def clamp(self, x: Val, low: Number, high: Number) -> Val:
        """Limit to [low, high]; NaN stays."""
        return self._emit("aten.clamp.default", (x, low, high), {}, x.type)

    def compare(self, name: str, x: Val, y: Val | Number) -> Val:
        """Give a bool tensor: "eq", "ne", "lt", "le", "gt" or "ge"."""
        overload = "Tensor" if isinstance(y, Val) else "Scalar"
        return self._emit(f"aten.{name}.{overload}", (x, y), {}, TensorType(_joined(x, y), "bool"))

    def both(self, x: Val, y: Val) -> Val:
        """Give the conjunction of two bool tensors."""
        out = TensorType(_joined(x, y), "bool")
        return self._emit("aten.logical_and.default", (x, y), {}, out)

    def negated(self, x: Val) -> Val:
        """Give the negation of a bool tensor."""
        return self._emit("aten.logical_not.default", (x,), {}, x.type)

    def either(self, x: Val, y: Val) -> Val:
        """Give the disjunction of two bool tensors."""
        return self.negated(self.both(self.negated(x), self.negated(y)))

    def where(self, condition: Val, x: Val | Number, y: Val | Number) -> Val:
        """Take x where the condition holds, else y; at least one is a tensor."""
        kept = x if isinstance(x, Val) else y
        if not isinstance(kept, Val):
            raise TypeError("where of two numbers has no dtype")
        shapes = [condition.shape, *(side.shape for side in (x, y) if isinstance(side, Val))]
        out = TensorType(tuple(np.broadcast_shapes(*shapes)), kept.dtype)
        overload = "self"
        if not isinstance(x, Val):
            overload = "ScalarSelf"
        elif not isinstance(y, Val):
            overload = "ScalarOther"
        return self._emit(f"aten.where.{overload}", (condition, x, y), {}, out)

    def total(self, x: Val, dim: int) -> Val:
        """Add up a dimension and remove it; integers and bools add in int64."""
        out = TensorType(_without(x.shape, dim), x.dtype if x.is_float else "int64")
        return self._emit("aten.sum.dim_IntList", (x, (dim,)), {}, out)

    def largest(self, x: Val, dims: Sequence[int], *, keepdim: bool = False) -> Val:
        """Give the largest element over dimensions; NaN where there is one."""
        return self._extreme("amax", x, dims, keepdim=keepdim)

    def smallest(self, x: Val, dims: Sequence[int], *, keepdim: bool = False) -> Val:
        """Give the smallest element over dimensions; NaN where there is one."""
        return self._extreme("amin", x, dims, keepdim=keepdim)

    def product(self, x: Val, dim: int) -> Val:
        """Multiply along a dimension and remove it."""
        out = TensorType(_without(x.shape, dim), x.dtype)
        kwargs: dict[str, Argument] = {"dtype": DType(x.dtype)}
        return self._emit("aten.prod.dim_int", (x, dim), kwargs, out)

    def mm(self, x: Val, y: Val) -> Val:
        """Give the product of two matrices of floats."""
        return self._emit("aten.mm.default", (x, y), {}, _product_type(x, y))

    def call(self, op: str, args: tuple[Argument, ...], out: TensorType) -> Val:
        """Make a node of any other op; it is decomposed in its turn where the family needs it."""
        return self._emit(op, args, {}, out)

    def _binary(self, name: str, x: Val, y: Val | Number) -> Val:
        if isinstance(y, Val) and y.dtype != x.dtype:
            message = f"{name} of {x.dtype} and {y.dtype}: cast one first"
            raise TypeError(message)
        out = TensorType(_joined(x, y), x.dtype)
        return self._emit(f"aten.{name}.Tensor", (x, y), {}, out)

    def _extreme(self, name: str, x: Val, dims: Sequence[int], *, keepdim: bool) -> Val:
        reduced = set(dims)
        sizes = [1 if i in reduced else n for i, n in enumerate(x.shape)]
        shape = tuple(n for i, n in enumerate(sizes) if keepdim or i not in reduced)
        out = TensorType(shape, x.dtype)
        return self._emit(f"aten.{name}.default", (x, tuple(dims), keepdim), {}, out)


def _joined(x: Val, y: Val | Number) -> tuple[int, ...]:
    """Give the shape of an elementwise result."""
    if not isinstance(y, Val):
        return x.shape
    return tuple(int(n) for n in np.broadcast_shapes(x.shape, y.shape))


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    """Give a shape without one dimension, counted from the front."""
    return (*shape[:dim], *shape[dim + 1 :])


def _product_type(x: Val, y: Val) -> TensorType:
    """Give the type of a matrix product."""
    return TensorType((x.shape[0], y.shape[1]), x.dtype)

"""How an op's lowering is held against torch eager: a case draws arguments, `check_op` compares.

A case names an ATen op and draws its arguments. `check_op` runs the op in torch, makes a graph of
that one node with the types that torch gave, lowers it, runs it on the same values, and compares
values, shapes and dtypes (int64 as int32). Values are drawn by a seeded generator that mixes
ordinary numbers with the edges of the dtype; shapes come from a short list that holds sizes 0 and
1, so XLA compiles each only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from runtime.compiler.graph import DType, Graph, Input, Node, Ref, TensorType
from runtime.compiler.lower import lower_graph

SHAPES = ((), (0,), (1,), (5,), (2, 3), (1, 4), (2, 0, 3), (2, 3, 4))
PAIRS = (
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((3,), (2, 3)),
    ((2, 1), (1, 4)),
    ((2, 3), ()),
    ((), (2, 3)),
    ((0, 3), (1, 3)),
    ((), ()),
)
FLOATS = (torch.float32,)
HALVES = (torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.uint8)
BOOL = (torch.bool,)
EDGES = (0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1.0e37, -1.0e37, 1.2e-38, 0.5, 2.5, -2.5)
# Every example of a new shape compiles: a fifth of the profile's number is 6 by default.
QUICK = settings(max_examples=settings.default.max_examples // 5)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Draw:
    """Draws what cases need, from hypothesis."""

    data: st.DataObject

    def pick(self, *options: Any) -> Any:
        """Give one of the options."""
        return self.data.draw(st.sampled_from(options))

    def shape(self, *, rank_from: int = 0) -> tuple[int, ...]:
        """Give one of `SHAPES` with at least so many dimensions."""
        return self.pick(*[shape for shape in SHAPES if len(shape) >= rank_from])

    def dim(self, shape: Sequence[int]) -> int:
        """Give a dimension of the shape, counted from either end."""
        rank = max(len(shape), 1)
        return self.data.draw(st.integers(-rank, rank - 1))

    def tensor(
        self,
        shape: Sequence[int],
        *dtypes: torch.dtype,
        low: float = -4.0,
        high: float = 4.0,
        edges: bool = True,
    ) -> torch.Tensor:
        """Give a tensor of one of the dtypes: values in [low, high], or edges of a float dtype."""
        dtype = self.pick(*(dtypes or FLOATS))
        generator = np.random.default_rng(self.data.draw(st.integers(0, 2**32 - 1)))
        values = generator.uniform(low, high, size=tuple(shape))
        if dtype.is_floating_point and edges:
            chosen = generator.choice(EDGES, size=tuple(shape))
            values = np.where(generator.random(tuple(shape)) < 0.4, chosen, values)
        elif not dtype.is_floating_point:
            values = np.abs(values) if dtype == torch.uint8 else values
            values = np.round(values) if dtype != torch.bool else generator.random(shape) < 0.5
        return torch.tensor(np.asarray(values, np.float64)).to(dtype)

    def index(self, shape: Sequence[int], size: int, *, negative: bool = False) -> torch.Tensor:
        """Give int64 places of a dimension of that size."""
        low = -size if negative else 0
        return self.tensor(shape, torch.int64, low=low - 0.49, high=size - 0.51).clamp(
            low, size - 1
        )

    def distinct(self, shape: Sequence[int], *dtypes: torch.dtype) -> torch.Tensor:
        """Give a tensor without equal elements."""
        dtype = self.pick(*(dtypes or FLOATS))
        order = np.random.default_rng(self.data.draw(st.integers(0, 2**32 - 1)))
        count = int(np.prod(shape, dtype=np.int64))
        return torch.tensor(order.permutation(count).reshape(tuple(shape)) - count // 2).to(dtype)


@dataclass(frozen=True)
class Case:
    """One op and how to draw its arguments.

    Attributes:
        op: its full name, such as "aten.add.Tensor".
        draw: gives positional and keyword arguments for the torch op.
        rtol: relative tolerance for floats; 0 for equal values.
        atol: absolute tolerance for floats.
    """

    op: str
    draw: Callable[[Draw], Arguments]
    rtol: float = 0.0
    atol: float = 0.0


def check_op(case: Case, data: st.DataObject) -> None:
    """Draw arguments and compare the op's lowering with torch eager."""
    args, kwargs = case.draw(Draw(data))
    expected = torch_op(case.op)(*args, **kwargs)
    actual = lowered(case.op, args, kwargs, expected)
    wanted = expected if isinstance(expected, (tuple, list)) else (expected,)
    for one, other in zip(actual, [w for w in wanted if w is not None], strict=True):
        assert_same(one, other, rtol=case.rtol, atol=case.atol)


def torch_op(name: str) -> Callable[..., Any]:
    """Give torch's overload of that name."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def lowered(name: str, args: Any, kwargs: dict[str, Any], expected: Any) -> list[Any]:
    """Lower one node with the types that torch gave and run it: the arrays that are not absent."""
    inputs: list[Input] = []
    values: list[np.ndarray] = []

    def as_value(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            values.append(run_array(item))
            inputs.append(Input(f"in{len(inputs)}", "buffer", f"in{len(inputs)}", type_of(item)))
            return Ref(inputs[-1].name)
        if isinstance(item, torch.dtype):
            return DType(str(item).removeprefix("torch."))
        return tuple(map(as_value, item)) if isinstance(item, (tuple, list)) else item

    many = isinstance(expected, (tuple, list))
    out = tuple(None if e is None else type_of(e) for e in expected) if many else type_of(expected)
    node = Node("y", name, as_value(args), {k: as_value(v) for k, v in kwargs.items()}, out, "m")
    nodes, outputs = [node], [("y", Ref("y"))]
    if isinstance(out, tuple):
        present = [(i, one) for i, one in enumerate(out) if one is not None]
        nodes += [Node(f"y{i}", "getitem", (Ref("y"), i), {}, one, "m") for i, one in present]
        outputs = [(f"y{i}", Ref(f"y{i}")) for i, _ in present]
    graph = Graph(tuple(inputs), tuple(nodes), tuple(outputs))
    return lower_graph(graph, "cpu")(values)


def type_of(tensor: torch.Tensor) -> TensorType:
    """Give a torch tensor's type as graphs state it."""
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def run_array(tensor: torch.Tensor) -> np.ndarray:
    """Give a torch tensor's values in the dtype that compiled programs hold them in."""
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy().astype(jnp.bfloat16)
    array = tensor.detach().resolve_conj().numpy()
    return array.astype(np.int32) if array.dtype == np.int64 else array


def assert_same(actual: Any, expected: torch.Tensor, *, rtol: float, atol: float) -> None:
    """Compare shape, dtype and values; NaN equals NaN, and floats may differ by the tolerance."""
    want, got = run_array(expected), np.asarray(actual)
    assert got.dtype == want.dtype, f"dtype {got.dtype}, torch {want.dtype}"
    assert got.shape == want.shape, f"shape {got.shape}, torch {want.shape}"
    if expected.dtype in HALVES:
        want, got = want.astype(np.float32), got.astype(np.float32)
        rtol = max(rtol, 2e-2 if expected.dtype == torch.bfloat16 else 2e-3)
        atol = max(atol, 1e-6)
    if expected.dtype.is_floating_point or expected.dtype.is_complex:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    else:
        np.testing.assert_array_equal(got, want)

"""No op is registered without a case against torch, and ops without a comparable result work."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest
import torch

from runtime.compiler.graph import Graph, Node, Ref
from runtime.compiler.lower import lower_graph, registered_ops
from tests.unit.lower import cases
from tests.unit.lower.cases.create import UNCOMPARED
from tests.unit.lower.support import lowered

# Their own tests compare them with their references: tests/unit/kernels.
_KERNELS = {
    "luma.attention.default",
    "luma.attention_backward.default",
    "luma.barrier.default",
    "luma.dropout.default",
    "luma.grouped_mm.default",
    "luma.grouped_outer.default",
}


def _cased() -> set[str]:
    names = [module.name for module in pkgutil.iter_modules(cases.__path__)]
    modules = [importlib.import_module(f"tests.unit.lower.cases.{name}") for name in names]
    return {case.op for module in modules for case in module.CASES}


def test_every_registered_op_is_compared_with_torch() -> None:
    """A new lowering comes with a case; a case for an op that is gone goes too."""
    assert registered_ops() - _cased() - UNCOMPARED - _KERNELS == set()
    assert _cased() - registered_ops() == set()


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("aten.empty.memory_format", ([2, 0],), {"dtype": torch.int64}),
        ("aten.empty_like.default", (torch.ones(2, 3),), {}),
        ("aten.empty_permuted.default", ([2, 3], [1, 0]), {}),
        ("aten.empty_strided.default", ([2, 3], [1, 2]), {}),
        ("aten.new_empty.default", (torch.ones(2), [3]), {}),
        ("aten.new_empty_strided.default", (torch.ones(2), [2, 3], [1, 2]), {}),
    ],
)
def test_an_empty_tensor_is_zeros(op: str, args: tuple, kwargs: dict) -> None:
    """Torch leaves the values open; a compiled program's are the same each time."""
    namespace, name, overload = op.split(".")
    like = getattr(getattr(getattr(torch.ops, namespace), name), overload)(*args, **kwargs)
    (result,) = lowered(op, args, kwargs, like)
    assert result.shape == tuple(like.shape)
    assert not np.asarray(result).any()


@pytest.mark.parametrize(
    "op", ["aten._assert_tensor_metadata.default", "aten._assert_scalar.default"]
)
def test_an_assertion_leaves_nothing(op: str) -> None:
    """An op without a result runs and gives none."""
    size = Node("size", "aten.full.default", ((1,), 2), {}, None)
    graph = Graph((), (size, Node("check", op, (Ref("size"), "text"), {}, None)), ())
    assert lower_graph(graph, "cpu")([]) == []

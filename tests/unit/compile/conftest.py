"""A hand-made package that compiles in a second: the loss is the sum of squares of two parameters."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.compiler.graph import Graph, GraphPackage, Input, Node, Ref, TensorType

BATCH = TensorType(shape=(1, 4), dtype="int64")


def _square_graph() -> Graph:
    """Loss = sum(bias^2) + sum(weight^2); tokens = sum(labels); gradients 2 bias, 2 weight."""
    bias, weight = TensorType((3,), "float32"), TensorType((90, 70), "float32")
    scalar, count = TensorType((), "float32"), TensorType((), "int64")
    inputs = (
        Input("bias", "param", "layer.bias", bias),
        Input("weight", "param", "layer.weight", weight),
        *(Input(key, "batch", key, BATCH) for key in ("input_ids", "labels", "position_ids")),
        Input("key", "key", "key", TensorType((2,), "int32")),
    )
    nodes = (
        Node("b2", "aten.mul.Tensor", (Ref("bias"), Ref("bias")), {}, bias),
        Node("w2", "aten.mul.Tensor", (Ref("weight"), Ref("weight")), {}, weight),
        Node("sb", "aten.sum.default", (Ref("b2"),), {}, scalar),
        Node("sw", "aten.sum.default", (Ref("w2"),), {}, scalar),
        Node("loss", "aten.add.Tensor", (Ref("sb"), Ref("sw")), {}, scalar),
        Node("tokens", "aten.sum.default", (Ref("labels"),), {}, count),
        Node("gb", "aten.mul.Tensor", (Ref("bias"), 2.0), {}, bias),
        Node("gw", "aten.mul.Tensor", (Ref("weight"), 2.0), {}, weight),
    )
    outputs = (
        ("loss_sum", Ref("loss")),
        ("tokens", Ref("tokens")),
        ("grad:layer.bias", Ref("gb")),
        ("grad:layer.weight", Ref("gw")),
    )
    return Graph(inputs, nodes, outputs)


@pytest.fixture(scope="session")
def square_package() -> GraphPackage:
    """A package with a grad graph only."""
    return GraphPackage({"grad": _square_graph()}, config_digest="0" * 64, seq_len=4)


@pytest.fixture
def rng() -> np.random.Generator:
    """Give a seeded generator."""
    return np.random.default_rng(7)

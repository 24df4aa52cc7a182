"""Hand-made graphs that compile in a second: squares of two parameters, and two matrix products."""

from __future__ import annotations

from runtime.compiler.graph import DType, Graph, Input, Node, Ref, TensorType

BATCH = TensorType(shape=(1, 4), dtype="int64")


def square_graph() -> Graph:
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


def linear_graph() -> Graph:
    """Loss = sum((x A B)^2), x being the token ids; gradients by hand."""
    shape, hidden = (4, 512), 256
    ids = TensorType(shape, "int64")
    x, h = TensorType(shape, "float32"), TensorType((4, hidden), "float32")
    first, second = (TensorType(s, "float32") for s in ((512, hidden), (hidden, 512)))
    scalar = TensorType((), "float32")

    def turned(name: str, of: str, kind: TensorType) -> Node:
        out = TensorType(kind.shape[::-1], kind.dtype)
        return Node(name, "aten.t.default", (Ref(of),), {}, out)

    def product(name: str, left: str, right: str, out: TensorType) -> Node:
        return Node(name, "aten.mm.default", (Ref(left), Ref(right)), {}, out, "layers.0")

    nodes = (
        Node("x", "aten._to_copy.default", (Ref("input_ids"),), {"dtype": DType("float32")}, x),
        product("h", "x", "a", h),
        product("o", "h", "b", x),
        Node("o2", "aten.mul.Tensor", (Ref("o"), Ref("o")), {}, x),
        Node("loss", "aten.sum.default", (Ref("o2"),), {}, scalar),
        Node("tokens", "aten.sum.default", (Ref("labels"),), {}, TensorType((), "int64")),
        Node("go", "aten.mul.Tensor", (Ref("o"), 2.0), {}, x),
        turned("ht", "h", h),
        product("gb", "ht", "go", second),
        turned("bt", "b", second),
        product("gh", "go", "bt", h),
        turned("xt", "x", x),
        product("ga", "xt", "gh", first),
    )
    inputs = (
        Input("a", "param", "a.weight", first),
        Input("b", "param", "b.weight", second),
        *(Input(key, "batch", key, ids) for key in ("input_ids", "labels", "position_ids")),
        Input("key", "key", "key", TensorType((2,), "int32")),
    )
    outputs = (
        ("loss_sum", Ref("loss")),
        ("tokens", Ref("tokens")),
        ("grad:a.weight", Ref("ga")),
        ("grad:b.weight", Ref("gb")),
    )
    return Graph(inputs, nodes, outputs)

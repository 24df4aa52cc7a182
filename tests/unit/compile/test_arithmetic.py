"""The arithmetic of graphs, against counts by hand and against XLA's own."""

from __future__ import annotations

import jax
import pytest

from runtime.compiler.arithmetic import matmul_flops
from runtime.compiler.graph import Body, Graph, GraphPackage, Input, Node, Ref, Scan, TensorType
from runtime.compiler.programs import build_programs

FLOAT = "float32"


def graph(op: str, shapes: list[tuple[int, ...]], out, *options) -> Graph:
    """Give a graph of one node over inputs of these shapes."""
    inputs = tuple(
        Input(f"x{i}", "buffer", f"x{i}", TensorType(shape, FLOAT))
        for i, shape in enumerate(shapes)
    )
    args = (*(Ref(item.name) for item in inputs), *options)
    return Graph(inputs, (Node("y", op, args, {}, out),), (("y", Ref("y")),))


def f(*shape: int) -> TensorType:
    return TensorType(shape, FLOAT)


@pytest.mark.parametrize(
    ("op", "shapes", "out", "options", "flops"),
    [
        ("aten.mm.default", [(3, 5), (5, 7)], f(3, 7), (), 2 * 3 * 5 * 7),
        ("aten.bmm.default", [(2, 3, 5), (2, 5, 7)], f(2, 3, 7), (), 2 * 2 * 3 * 5 * 7),
        ("aten.addmm.default", [(7,), (3, 5), (5, 7)], f(3, 7), (), 2 * 3 * 5 * 7),
        (
            "luma.attention.default", [(1, 4, 8, 16), (1, 2, 8, 16), (1, 2, 8, 32)],
            (f(1, 4, 8, 32), f(1, 4, 8)), (None, 0.25, False, 0, 0.0),
            2 * 4 * 8 * 8 * (16 + 32),
        ),
        (
            "luma.attention.default", [(1, 4, 8, 16), (1, 2, 8, 16), (1, 2, 8, 16)],
            (f(1, 4, 8, 16), f(1, 4, 8)), (None, 0.25, True, 2, 0.0),
            2 * 4 * 8 * 2 * (16 + 16),
        ),
        ("luma.grouped_mm.default", [(6, 5), (3, 5, 7), (3,)], f(6, 7), (), 2 * 6 * 5 * 7),
        ("luma.grouped_outer.default", [(6, 5), (6, 7), (3,)], f(3, 5, 7), (), 2 * 6 * 5 * 7),
        (
            "aten.convolution.default", [(1, 4, 10), (6, 2, 3)], f(1, 6, 8),
            (None, (1,), (0,), (1,), False, (0,), 2), 2 * 6 * 8 * 2 * 3,
        ),
        ("aten.add.Tensor", [(3, 5), (3, 5)], f(3, 5), (), 0),
    ],
)  # fmt: skip
def test_products_are_counted_by_their_shapes(op, shapes, out, options, flops) -> None:
    assert matmul_flops(graph(op, shapes, out, *options)) == flops


def test_attentions_backward_makes_the_scores_again() -> None:
    shapes = [(1, 4, 8, 16)] * 5 + [(1, 4, 8)]
    out = (f(1, 4, 8, 16),) * 3
    options = (None, 0.25, True, 0, 0.0)
    backward = matmul_flops(graph("luma.attention_backward.default", shapes, out, *options))
    assert backward == 2 * 4 * (8 * 8 / 2) * 5 * 16


def test_a_loop_counts_as_often_as_it_runs() -> None:
    inside = Node("h", "aten.mm.default", (Ref("c"), Ref("w")), {}, f(3, 5))
    body = Body(("c",), ("w",), (inside,), (Ref("h"),), ())
    scan = Scan(
        "s", "luma.scan", ((Ref("x0"),), (Ref("x1"),)), {}, (f(3, 5),), body=body, length=12
    )
    inputs = tuple(Input(n, "buffer", n, f(*s)) for n, s in (("x0", (3, 5)), ("x1", (5, 5))))
    took = Node("y", "getitem", (Ref("s"), 0), {}, f(3, 5))
    after = Node("z", "aten.mm.default", (Ref("y"), Ref("x1")), {}, f(3, 5))
    looped = Graph(inputs, (scan, took, after), (("z", Ref("z")),))
    assert matmul_flops(looped) == (12 + 1) * 2 * 3 * 5 * 5


def test_a_program_states_its_products_and_xla_counts_at_least_them(
    linear_package: GraphPackage,
) -> None:
    grad = build_programs(linear_package, target="cpu", micro_shards=4)[0]
    assert grad.flops == 5 * 2 * 4 * 512 * 256
    structs = [jax.ShapeDtypeStruct(s.shape, s.dtype) for s in grad.inputs]
    stated = jax.jit(grad.function).lower(*structs).compile().cost_analysis()["flops"]
    assert grad.flops <= stated < 3 * grad.flops

"""Unrolled loops become scans that give the same; what is no loop stays."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.compiler.graph import (
    INDEX_ARGUMENTS,
    Affine,
    Body,
    DType,
    Graph,
    GraphPackage,
    Input,
    Node,
    Ref,
    Scan,
    TensorType,
)
from runtime.compiler.lower.dynamic import DYNAMIC
from runtime.compiler.passes.reroll import reroll
from runtime.spec import CompileError
from tests.unit.passes.loops import Tracer, assert_equal, evaluate, recurrence, run, scans


def _recurrent(body: str, steps: int = 12) -> Graph:
    """Unroll one of several loop bodies over x: [2, 2 * steps, 4], with a second input [2, 4]."""
    trace = Tracer()
    x, a = trace.input(2, 2 * steps, 4), trace.input(2, 4)
    b = trace.op("exp.default", (a,), 2, 4)
    out = trace.op("mul.Scalar", (x, 0.5), 2, 2 * steps, 4)
    kept = []
    for t in range(steps):
        a, b, out = BODIES[body](trace, t, x, a, b, out)
        kept.append(a)
    return trace.graph(a, b, out, kept[0], kept[5], kept[-1])


def _carries_two(trace, t, x, a, b, out):
    place = trace.op("select.int", (x, 1, t), 2, 4)
    a = trace.op("tanh.default", (trace.op("add.Tensor", (a, place), 2, 4),), 2, 4)
    b = trace.op("mul.Tensor", (b, a), 2, 4)
    return a, b, out


def _swaps(trace, t, x, a, b, out):
    place = trace.op("select.int", (x, 1, 2 * t + 1), 2, 4)
    return trace.op("sigmoid.default", (b,), 2, 4), trace.op("add.Tensor", (a, place), 2, 4), out


def _reads_windows(trace, t, x, a, b, out):
    window = trace.op("slice.Tensor", (x, 1, t, t + 3), 2, 3, 4)
    total = trace.op("sum.dim_IntList", (window, (1,)), 2, 4)
    return trace.op("tanh.default", (trace.op("add.Tensor", (a, total), 2, 4),), 2, 4), b, out


def _reads_backwards(trace, t, x, a, b, out):
    place = trace.op("select.int", (x, 1, -1 - t), 2, 4)
    return trace.op("tanh.default", (trace.op("mul.Tensor", (a, place), 2, 4),), 2, 4), b, out


def _writes_places(trace, t, x, a, b, out):
    a = trace.op("tanh.default", (trace.op("mul.Tensor", (a, b), 2, 4),), 2, 4)
    return a, b, trace.op("select_scatter.default", (out, a, 1, t), *_shape(trace, out))


def _reads_what_it_writes(trace, t, x, a, b, out):
    shape = _shape(trace, out)
    old = trace.op("select.int", (out, 1, t), 2, 4)
    a = trace.op("tanh.default", (trace.op("mul.Tensor", (a, old), 2, 4),), 2, 4)
    return a, b, trace.op("select_scatter.default", (out, a, 1, t + 1), *shape)


def _writes_slices(trace, t, x, a, b, out):
    a = trace.op("sin.default", (trace.op("add.Tensor", (a, b), 2, 4),), 2, 4)
    wide = trace.op("unsqueeze.default", (a, 1), 2, 1, 4)
    pair = trace.op("expand.default", (wide, (2, 2, 4)), 2, 2, 4)
    args = (out, pair, 1, 2 * t, 2 * t + 2, 1)
    return a, b, trace.op("slice_scatter.default", args, *_shape(trace, out))


def _adds_places(trace, t, x, a, b, out):
    shape = _shape(trace, out)
    a = trace.op("sin.default", (trace.op("add.Tensor", (a, b), 2, 4),), 2, 4)
    zeros = trace.op("full.default", (shape, 0), *shape)
    written = trace.op("select_scatter.default", (zeros, a, 1, 2 * t + 1), *shape)
    return a, b, trace.op("add.Tensor", (written, out), *shape)


def _adds_to_one_dimension(trace, t, x, a, b, out):
    place = trace.op("select.int", (x, 1, t), 2, 4)
    constant = trace.op("full.default", ((2, 4), 0.25), 2, 4)
    a = trace.op("add.Tensor", (trace.op("mul.Tensor", (a, constant), 2, 4), place), 2, 4)
    return a, trace.op("add.Tensor", (b, trace.op("exp.default", (a,), 2, 4)), 2, 4), out


def _shape(trace, ref):
    return next(
        (node.out.shape for node in trace.nodes if node.name == ref.name),
        trace.inputs[0].type.shape,
    )


BODIES = {
    "two carries": _carries_two,
    "carries that change places": _swaps,
    "overlapping windows": _reads_windows,
    "places from the end": _reads_backwards,
    "writes at places": _writes_places,
    "reads what it wrote": _reads_what_it_writes,
    "writes slices": _writes_slices,
    "adds at places": _adds_places,
    "a constant and a sum": _adds_to_one_dimension,
}


@pytest.mark.parametrize("body", BODIES)
def test_a_loop_becomes_one_scan_with_the_same_values(body: str) -> None:
    """Each kind of operand: the results are the unrolled graph's, and one scan is there."""
    graph = _recurrent(body)
    rolled = reroll(graph)
    assert [scan.length for scan in scans(rolled)] in ([12], [11], [10])
    assert_equal(graph, rolled)


@pytest.mark.parametrize("body", BODIES)
def test_the_size_does_not_grow_with_the_iterations(body: str) -> None:
    """Twice the iterations give as many nodes."""
    short, long = (len(reroll(_recurrent(body, steps)).nodes) for steps in (12, 24))
    assert short == long


def test_forward_and_backward_are_two_scans() -> None:
    """The backward reads in reverse what the forward kept, and writes its gradient at once."""
    graph = recurrence(16)
    rolled = reroll(graph)
    assert [scan.length for scan in scans(rolled)] == [16, 14]
    assert len(rolled.nodes) == len(reroll(recurrence(40)).nodes)
    # No iteration touches all of x's gradient.
    assert all(2 * 16 * 4 not in _sizes(scan) for scan in scans(rolled)[1:])
    assert_equal(graph, rolled)


def _sizes(scan) -> set[int]:
    return {int(np.prod(node.out.shape)) for node in scan.body.nodes}


def test_a_value_of_two_iterations_before() -> None:
    """A recurrence of second order keeps two values."""
    trace = Tracer()
    values = [trace.input(3), trace.input(3)]
    for _ in range(20):
        total = trace.op("add.Tensor", (values[-1], values[-2]), 3)
        values.append(trace.op("sin.default", (total,), 3))
    graph = trace.graph(values[-1], values[-2])
    (scan,) = scans(reroll(graph))
    assert len(scan.body.carries) == 2
    assert_equal(graph, reroll(graph))


def test_an_op_with_several_results_in_the_body() -> None:
    """Its pieces are used inside the iteration."""
    trace = Tracer()
    x, h = trace.input(10, 4), trace.input(2)
    pair = TensorType((2,), "float32")
    for t in range(10):
        row = trace.op("select.int", (x, 0, t), 4)
        name = f"both{t}"
        args = (row, (2, 2), 0)
        trace.nodes.append(Node(name, "aten.split_with_sizes.default", args, {}, (pair, pair), "m"))
        low = Node(f"low{t}", "getitem", (Ref(name), 0), {}, pair, "m")
        trace.nodes.append(low)
        h = trace.op("tanh.default", (trace.op("add.Tensor", (Ref(f"low{t}"), h), 2),), 2)
    graph = trace.graph(h)
    assert len(scans(reroll(graph))) == 1
    assert_equal(graph, reroll(graph))


def test_two_loops_one_after_the_other() -> None:
    """The second reads all that the first gave."""
    trace = Tracer()
    x, h, g = trace.input(9, 3), trace.input(3), trace.input(3)
    first = []
    for t in range(9):
        row = trace.op("select.int", (x, 0, t), 3)
        h = trace.op("tanh.default", (trace.op("add.Tensor", (row, h), 3),), 3)
        first.append(h)
    for t in range(9):
        g = trace.op("sin.default", (trace.op("mul.Tensor", (g, first[t]), 3),), 3)
    graph = trace.graph(g)
    assert [scan.length for scan in scans(reroll(graph))] == [9, 9]
    assert_equal(graph, reroll(graph))


def test_equal_halves_of_an_iteration() -> None:
    """The ops alone repeat twice an iteration; where they take from tells the halves apart."""
    trace = Tracer()
    a, b = trace.input(3), trace.input(3)
    for _ in range(10):
        a, b = trace.op("sin.default", (b,), 3), trace.op("sin.default", (a,), 3)
    graph = trace.graph(a, b)
    assert [scan.length for scan in scans(reroll(graph))] in ([9], [10])
    assert_equal(graph, reroll(graph))


@pytest.mark.parametrize("kind", ["numbers", "places", "short", "shapes"])
def test_what_is_no_loop_stays(kind: str) -> None:
    """Iterations with unlike numbers, places on no line, too few, or growing shapes."""
    trace = Tracer()
    x, h = trace.input(90, 3), trace.input(3)
    for t in range(4 if kind == "short" else 9):
        row = trace.op("select.int", (x, 0, t * t if kind == "places" else t), 3)
        if kind == "shapes":
            rows = trace.op("slice.Tensor", (x, 0, 0, t + 1), t + 1, 3)
            row = trace.op("sum.dim_IntList", (rows, (0,)), 3)
        factor = 0.5**t if kind == "numbers" else 0.5
        row = trace.op("mul.Scalar", (row, factor), 3)
        h = trace.op("tanh.default", (trace.op("add.Tensor", (row, h), 3),), 3)
    graph = trace.graph(h)
    assert reroll(graph) is graph


def _layers(count: int) -> Graph:
    trace = Tracer()
    weights = [trace.input(4, 4) for _ in range(count)]
    x = trace.input(2, 4)
    hidden = []
    for weight in weights:
        product = trace.op("mm.default", (x, weight), 2, 4)
        hidden.append(trace.op("tanh.default", (product,), 2, 4))
        x = trace.op("add.Tensor", (x, hidden[-1]), 2, 4)
    return trace.graph(x, *hidden)


def test_layers_are_a_loop_only_where_that_is_asked_for() -> None:
    """Their weights are copied together then."""
    graph = _layers(6)
    assert reroll(graph) is graph
    rolled = reroll(graph, layers=True)
    assert [scan.length for scan in scans(rolled)] == [6]
    assert_equal(graph, rolled)


def test_a_loop_inside_layers() -> None:
    """Each layer's recurrence becomes a scan, and where layers may be one, it is inside theirs."""
    trace = Tracer()
    weights, x = [trace.input(3, 3) for _ in range(5)], trace.input(9, 3)
    for weight in weights:
        x = trace.op("mm.default", (x, weight), 9, 3)
        h = trace.op("full.default", ((3,), 0.5), 3)
        rows = []
        for t in range(9):
            row = trace.op("select.int", (x, 0, t), 3)
            h = trace.op("tanh.default", (trace.op("mul.Tensor", (row, h), 3),), 3)
            rows.append(trace.op("unsqueeze.default", (h, 0), 1, 3))
        x = trace.op("cat.default", (tuple(rows),), 9, 3)
    graph = trace.graph(x)
    assert [scan.length for scan in scans(reroll(graph))] == [9] * 5
    rolled = reroll(graph, layers=True)
    (outer,) = scans(rolled)
    assert outer.length == 5
    assert [node.length for node in outer.body.nodes if isinstance(node, Scan)] == [9]
    assert_equal(graph, rolled)
    for found, wanted in zip(run(rolled), evaluate(graph), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


def test_masked_writes_are_recognised() -> None:
    """Torch decomposes select_scatter to where(arange == t, source, x): it is a write at a place."""
    trace = Tracer()
    x, a = trace.input(2, 12, 4), trace.input(2, 4)
    for t in range(12):
        a = trace.op("sin.default", (a,), 2, 4)
        numbers = Node(
            f"n{t}", "aten.arange.start_step", (0, 12, 1), {}, TensorType((12,), "int64")
        )
        shape = TensorType((1, 12, 1), "int64")
        view = Node(f"v{t}", "aten.view.default", (Ref(f"n{t}"), (1, 12, 1)), {}, shape)
        args = (Ref(f"v{t}"), t)
        mask = Node(f"m{t}", "aten.eq.Scalar", args, {}, TensorType((1, 12, 1), "bool"))
        trace.nodes += [numbers, view, mask]
        wide = trace.op("unsqueeze.default", (a, 1), 2, 1, 4)
        wide = trace.op("expand.default", (wide, (2, 12, 4)), 2, 12, 4)
        x = trace.op("where.self", (Ref(f"m{t}"), wide, x), 2, 12, 4)
    graph = trace.graph(x)
    rolled = reroll(graph)
    (scan,) = scans(rolled)
    assert {node.op for node in scan.body.nodes} == {"aten.sin.default"}
    assert_equal(graph, rolled)


def test_a_package_with_a_scan_is_refused() -> None:
    """A scan lives between this pass and the lowering only."""
    package = GraphPackage(graphs={"grad": reroll(recurrence(16))}, config_digest="")
    with pytest.raises(CompileError, match="a scan has no form in a package"):
        package.to_bytes()


def test_every_op_with_places_has_a_form_for_them() -> None:
    """The pass makes no argument affine that the lowering cannot take."""
    assert DYNAMIC.keys() == INDEX_ARGUMENTS.keys()


@pytest.mark.parametrize("body", ["overlapping windows", "reads what it wrote", "writes slices"])
def test_a_scan_is_lowered_to_what_it_means(body: str) -> None:
    """XLA's values are numpy's: places that an iteration reads and writes."""
    rolled = reroll(_recurrent(body))
    for found, wanted in zip(run(rolled), evaluate(rolled), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


def test_strided_places_are_lowered_to_what_they_mean() -> None:
    """Slices with a step, read and written."""
    x, rows = TensorType((20, 3), "float32"), TensorType((4, 3), "float32")
    bounds = (0, Affine(1, 2), Affine(8, 2), 2)
    part = Node("n0", "aten.slice.Tensor", (Ref("c0"), *bounds), {}, rows)
    total = Node("n1", "aten.sin.default", (Ref("n0"),), {}, rows)
    args = (Ref("c0"), Ref("n1"), *bounds)
    write = Node("n2", "aten.slice_scatter.default", args, {}, x)
    scan = Scan(
        name="scan",
        op="luma.scan",
        args=((Ref("x"),), ()),
        kwargs={},
        out=(x, TensorType((5, 4, 3), "float32")),
        body=Body(("c0",), (), (part, total, write), (Ref("n2"),), (Ref("n1"),)),
        length=5,
    )
    results = [
        Node("last", "getitem", (Ref("scan"), 0), {}, x),
        Node("each", "getitem", (Ref("scan"), 1), {}, TensorType((5, 4, 3), "float32")),
    ]
    outputs = (("last", Ref("last")), ("each", Ref("each")))
    graph = Graph((Input("x", "buffer", "x", x),), (scan, *results), outputs)
    graph.check()
    for found, wanted in zip(run(graph), evaluate(graph), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


def test_a_result_keeps_its_dtype() -> None:
    """A carry of half precision stays one."""
    trace = Tracer()
    h = trace.input(3)
    kind = TensorType((3,), "bfloat16")
    cast = Node("cast", "aten._to_copy.default", (h,), {"dtype": DType("bfloat16")}, kind)
    trace.nodes.append(cast)
    h = Ref("cast")
    for t in range(10):
        trace.nodes.append(Node(f"s{t}", "aten.mul.Scalar", (h, 0.75), {}, kind))
        trace.nodes.append(Node(f"e{t}", "aten.exp.default", (Ref(f"s{t}"),), {}, kind))
        h = Ref(f"e{t}")
    graph = trace.graph(h)
    rolled = reroll(graph)
    assert len(scans(rolled)) == 1
    (one,), (two,) = run(graph), run(rolled)
    assert one.dtype == two.dtype
    np.testing.assert_allclose(two.astype(np.float32), one.astype(np.float32), rtol=1e-2)

"""The pass itself: what it replaces, what it leaves, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from runtime.compiler.capture.interpret import run_graph
from runtime.compiler.graph import Graph, GraphPackage, Input, Node, Ref, TensorType
from runtime.compiler.passes.decompose import decompose, decompose_package, replacements
from runtime.compiler.passes.decompositions import registry
from runtime.compiler.passes.decompositions.builder import Builder, Val
from runtime.compiler.passes.decompositions.registry import (
    decomposition,
    find_decomposition,
    registered_decompositions,
)
from runtime.spec import CompileError
from tests.unit.passes.support import FAMILY

X = TensorType((3,), "float32")
PLACES = TensorType((3,), "int64")


def graph(*nodes: Node, outputs: tuple[str, ...]) -> Graph:
    """A graph over one float vector."""
    return Graph(
        (Input("x", "buffer", "x", X),), nodes, tuple((name, Ref(name)) for name in outputs)
    )


@pytest.fixture
def own() -> Iterator[None]:
    """Take decompositions that a test registers out again."""
    before = dict(registry._DECOMPOSITIONS)
    yield
    registry._DECOMPOSITIONS.clear()
    registry._DECOMPOSITIONS.update(before)


def test_only_the_families_of_a_decomposition_get_it() -> None:
    given = graph(Node("y", "aten.erf.default", (Ref("x"),), {}, X), outputs=("y",))
    for family in ("cpu", "cuda", "tpu", "rocm"):
        assert decompose(given, family) == given
    ops = {node.op for node in decompose(given, FAMILY).nodes}
    assert "aten.erf.default" not in ops
    assert "aten.div.Tensor" in ops


def test_labels_inputs_types_and_modules_stay_and_twice_is_once() -> None:
    given = graph(
        Node("a", "aten.erf.default", (Ref("x"),), {}, X, "model.mlp"),
        Node("y", "aten.mul.Tensor", (Ref("a"), Ref("a")), {}, X, "model.head"),
        outputs=("y", "a", "x"),
    )
    done = decompose(given, FAMILY)
    done.check()
    assert done.inputs == given.inputs
    assert [label for label, _ in done.outputs] == ["y", "a", "x"]
    assert {node.module for node in done.nodes if node.name != "y"} == {"model.mlp"}
    assert decompose(done, FAMILY) == done
    values = {"x": torch.tensor([0.5, -2.0, 9.0])}
    expected = torch.erf(values["x"])
    torch.testing.assert_close(run_graph(done, values)["a"], expected)
    torch.testing.assert_close(run_graph(done, values)["y"], expected * expected)


def test_a_graph_that_was_rewritten_before_gets_new_names() -> None:
    given = graph(
        Node("a.made0", "aten.mul.Tensor", (Ref("x"), Ref("x")), {}, X),
        Node("a", "aten.erf.default", (Ref("a.made0"),), {}, X),
        Node("a.made1", "aten.erf.default", (Ref("a"),), {}, X),
        outputs=("a.made1",),
    )
    done = decompose(given, FAMILY)
    done.check()
    values = {"x": torch.tensor([0.5, -2.0, 1.0])}
    expected = torch.erf(torch.erf(values["x"] * values["x"]))
    torch.testing.assert_close(run_graph(done, values)["a.made1"], expected)


def test_results_that_nobody_reads_are_not_computed() -> None:
    sort = Node("s", "aten.sort.default", (Ref("x"),), {}, (X, PLACES))
    places = Node("p", "getitem", (Ref("s"), 1), {}, PLACES)
    both = graph(sort, Node("v", "getitem", (Ref("s"), 0), {}, X), places, outputs=("v", "p"))
    one = graph(sort, places, outputs=("p",))
    assert len(decompose(one, FAMILY).nodes) < len(decompose(both, FAMILY).nodes)
    (found,) = replacements(both, FAMILY).replaced
    assert (found.node, found.by.name) == (sort, "order.sort")


def test_an_op_with_several_results_that_stays_keeps_them() -> None:
    given = graph(
        Node("e", "aten.erf.default", (Ref("x"),), {}, X),
        Node("t", "aten.split_with_sizes.default", (Ref("e"), (1, 2)), {}, (
            TensorType((1,), "float32"), TensorType((2,), "float32"),
        )),
        Node("y", "getitem", (Ref("t"), 1), {}, TensorType((2,), "float32")),
        outputs=("y",),
    )  # fmt: skip
    done = decompose(given, FAMILY)
    done.check()
    values = {"x": torch.tensor([0.5, -2.0, 1.0])}
    torch.testing.assert_close(run_graph(done, values)["y"], torch.erf(values["x"])[1:])


def test_a_form_that_is_not_covered_stays_and_leaves_no_nodes(own: None) -> None:
    @decomposition("aten.sin.default", families=("toy",), because="a test")
    def _tries(b: Builder, x: Val) -> None:
        b.add(x, 1.0)

    given = graph(Node("y", "aten.sin.default", (Ref("x"),), {}, X), outputs=("y",))
    done = replacements(given, "toy")
    assert (done.graph, done.replaced) == (given, ())


def test_another_shape_or_number_of_results_is_refused(own: None) -> None:
    @decomposition("aten.sin.default", families=("toy",), because="a test")
    def _longer(b: Builder, x: Val) -> Val:
        return b.unsqueeze(x, 0)

    @decomposition("aten.cos.default", families=("toy",), because="a test")
    def _several(b: Builder, x: Val) -> tuple[Val, Val]:
        return x, x

    sine = graph(Node("y", "aten.sin.default", (Ref("x"),), {}, X, "model.mlp"), outputs=("y",))
    with pytest.raises(CompileError, match=r"module 'model.mlp'.*gave shape \[1, 3\], torch \[3\]"):
        decompose(sine, "toy")
    cosine = graph(Node("y", "aten.cos.default", (Ref("x"),), {}, X), outputs=("y",))
    with pytest.raises(CompileError, match="gave another number of results"):
        decompose(cosine, "toy")


def test_decompositions_that_go_in_a_circle_are_refused(own: None) -> None:
    @decomposition("aten.sin.default", families=("toy",), because="a test")
    def _one(b: Builder, x: Val) -> Val:
        return b.unary("cos", x)

    @decomposition("aten.cos.default", families=("toy",), because="a test")
    def _other(b: Builder, x: Val) -> Val:
        return b.unary("sin", x)

    given = graph(Node("y", "aten.sin.default", (Ref("x"),), {}, X), outputs=("y",))
    with pytest.raises(CompileError, match="in a circle"):
        decompose(given, "toy")


def test_an_op_has_one_decomposition_a_family(own: None) -> None:
    with pytest.raises(ValueError, match=r"'aten.erf.default' already has a decomposition"):
        decomposition("aten.erf.default", families=(FAMILY,), because="a test")(lambda b, x: x)
    assert find_decomposition("aten.erf.default", "cpu") is None


def test_every_decomposition_says_why_and_from_where() -> None:
    entries = registered_decompositions(FAMILY)
    assert len(entries) > 40
    sources = ("issue", "NCC_", "document", "JAX NeuronX")
    assert [e.op for e in entries if not any(word in e.because for word in sources)] == []


def test_a_package_keeps_all_but_its_graphs() -> None:
    given = graph(Node("y", "aten.erf.default", (Ref("x"),), {}, X), outputs=("y",))
    package = GraphPackage({"forward": given}, config_digest="0" * 64, packing=True, seq_len=7)
    done = decompose_package(package, FAMILY)
    assert done.graphs["forward"] == decompose(given, FAMILY)
    assert (done.packing, done.seq_len, done.config_digest) == (True, 7, "0" * 64)


def test_values_of_two_dtypes_are_not_mixed_by_accident() -> None:
    def emit(op: str, args: object, kwargs: object, out: TensorType) -> Val:
        return Val(Ref(op), out)

    b = Builder(emit)
    x = Val(Ref("x"), X)
    with pytest.raises(TypeError, match="cast one first"):
        b.add(x, Val(Ref("n"), PLACES))
    with pytest.raises(TypeError, match="where of two numbers"):
        b.where(Val(Ref("c"), TensorType((3,), "bool")), 1.0, 2.0)


def _rotary(last: Node, *more: Node) -> Graph:
    """Rotate x [2, 4, 6] by angles [4, 3], as complex numbers; `last` reads "turned" or "back"."""
    whole, pairs = TensorType((2, 4, 6), "float32"), TensorType((2, 4, 3, 2), "float32")
    value, angles = TensorType((2, 4, 3), "complex64"), TensorType((4, 3), "float32")
    turn, row = TensorType((4, 3), "complex64"), TensorType((1, 4, 3), "complex64")
    nodes = (
        Node("pairs", "aten.view.default", (Ref("x"), (2, 4, 3, 2)), {}, pairs),
        Node("value", "aten.view_as_complex.default", (Ref("pairs"),), {}, value),
        Node("ones", "aten.full.default", ((4, 3), 1.0), {}, angles),
        Node("turn", "aten.polar.default", (Ref("ones"), Ref("angles")), {}, turn),
        Node("half", "aten.mul.Tensor", (Ref("turn"), 0.5), {}, turn),
        Node("row", "aten.unsqueeze.default", (Ref("half"), 0), {}, row),
        Node("turned", "aten.mul.Tensor", (Ref("value"), Ref("row")), {}, value),
        Node("conj", "aten._conj.default", (Ref("turned"),), {}, value),
        Node("sum", "aten.add.Tensor", (Ref("turned"), Ref("conj")), {}, value),
        Node("cut", "aten.slice.Tensor", (Ref("turned"), -1, 1, 3), {}, TensorType(
            (2, 4, 2), "complex64")),
        Node("moved", "aten.permute.default", (Ref("cut"), (2, 0, -2)), {}, TensorType(
            (2, 2, 4), "complex64")),
        *more,
        last,
    )  # fmt: skip
    inputs = (Input("angles", "buffer", "angles", angles), Input("x", "buffer", "x", whole))
    return Graph(inputs, nodes, ((last.name, Ref(last.name)),))


@pytest.mark.parametrize(
    ("op", "source", "shape"),
    [
        ("view_as_real", "turned", (2, 4, 3, 2)),
        ("imag", "conj", (2, 4, 3)),
        ("view_as_real", "sum", (2, 4, 3, 2)),
        ("view_as_real", "moved", (2, 2, 4, 2)),
        ("real", "turned", (2, 4, 3)),
        ("imag", "turned", (2, 4, 3)),
    ],
)
def test_complex_numbers_become_pairs(op: str, source: str, shape: tuple[int, ...]) -> None:
    last = Node("y", f"aten.{op}.default", (Ref(source),), {}, TensorType(shape, "float32"))
    given = _rotary(last)
    done = decompose(given, FAMILY)
    done.check()
    assert not [n for n in done.nodes if isinstance(n.out, TensorType) and "complex" in n.out.dtype]
    generator = torch.Generator().manual_seed(1)
    values = {
        "x": torch.randn(2, 4, 6, generator=generator),
        "angles": torch.randn(4, 3, generator=generator) * 9,
    }
    expected, found = run_graph(given, values)["y"], run_graph(done, values)["y"]
    torch.testing.assert_close(found, expected.resolve_conj().resolve_neg())


def test_a_complex_op_that_is_not_covered_leaves_all_of_them() -> None:
    value = TensorType((2, 4, 3), "complex64")
    given = _rotary(
        Node(
            "y", "aten.view_as_real.default", (Ref("e"),), {}, TensorType((2, 4, 3, 2), "float32")
        ),
        Node("e", "aten.exp.default", (Ref("turned"),), {}, value),
    )
    assert decompose(given, FAMILY) == replacements(given, "cpu").graph
    real = _rotary(
        Node(
            "y", "aten.view_as_real.default", (Ref("e"),), {}, TensorType((2, 4, 3, 2), "float32")
        ),
        Node("e", "aten.add.Tensor", (Ref("turned"), 1.0), {}, value),
    )
    assert decompose(real, FAMILY) == replacements(real, "cpu").graph

"""One graph inside another: op for op, on the same inputs."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.compiler.capture._cones import computes_all_of
from runtime.compiler.graph import Graph, Input, Node, Ref, TensorType

KIND = TensorType((4,), "float32")
INPUTS = (Input("w", "param", "w", KIND), Input("x", "batch", "targets", KIND))


def graph(scale: object = 2.0, *, last: str = "aten.relu.default", more: bool = False) -> Graph:
    nodes = [
        Node("a", "aten.mul.Tensor", (Ref("w"), Ref("x")), {}, KIND),
        Node("b", "aten.mul.Tensor", (Ref("a"), scale), {}, KIND),
        Node("c", last, (Ref("b"),), {}, KIND),
    ]
    if more:
        nodes.append(Node("loss", "aten.sum.default", (Ref("c"),), {}, TensorType((), "float32")))
    return Graph(INPUTS, tuple(nodes), (("out", Ref(nodes[-1].name)),))


def renamed(found: Graph) -> Graph:
    names = {n.name: f"other_{n.name}" for n in found.nodes}

    def of(value: object) -> object:
        return Ref(names.get(value.name, value.name)) if isinstance(value, Ref) else value

    nodes = tuple(
        dataclasses.replace(n, name=names[n.name], args=tuple(map(of, n.args))) for n in found.nodes
    )
    outputs = tuple((label, of(ref)) for label, ref in found.outputs)
    return Graph(found.inputs, nodes, outputs)


def test_a_part_is_found_under_other_names_and_the_whole_is_no_part_of_it():
    assert computes_all_of(graph(more=True), renamed(graph()))
    assert not computes_all_of(graph(), graph(more=True))


@pytest.mark.parametrize("scale", [2, 3.0, True, "2.0", -2.0])
def test_another_constant_is_another_value(scale):
    assert not computes_all_of(graph(more=True), graph(scale))


def test_zero_has_a_sign():
    assert not computes_all_of(graph(0.0, more=True), graph(-0.0))


@pytest.mark.parametrize(
    "changed",
    [
        {"role": "frozen"},
        {"target": "v"},
        {"type": TensorType((4,), "bfloat16")},
    ],
)
def test_another_input_is_another_value(changed):
    part = graph()
    inputs = (dataclasses.replace(INPUTS[0], **changed), INPUTS[1])
    assert not computes_all_of(graph(more=True), Graph(inputs, part.nodes, part.outputs))


def test_another_op_or_type_is_another_value():
    assert not computes_all_of(graph(more=True), graph(last="aten.neg.default"))
    part = graph()
    last = dataclasses.replace(part.nodes[-1], out=TensorType((4,), "float64"))
    assert not computes_all_of(
        graph(more=True), Graph(INPUTS, (*part.nodes[:-1], last), part.outputs)
    )

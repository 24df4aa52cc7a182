"""A bfloat16 graph is trained from float32 masters, and its gradients are added in fixed point."""

from __future__ import annotations

from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest

from runtime.artifact.program import EMPTY
from runtime.compiler.graph import Graph, GraphPackage, Node, TensorType
from runtime.compiler.programs import apply_program, grad_program
from runtime.spec import CompileError

UNIT = -12


def _narrow(package: GraphPackage, dtype: str) -> GraphPackage:
    """Give the package with parameters, and what is computed from them alone, in another dtype."""
    graph = package.graphs["grad"]

    def narrowed(kind: TensorType) -> TensorType:
        return replace(kind, dtype=dtype) if kind.shape else kind

    def changed(node: Node) -> Node:
        assert isinstance(node.out, TensorType)
        return replace(node, out=narrowed(node.out))

    inputs = tuple(
        replace(item, type=narrowed(item.type)) if item.role == "param" else item
        for item in graph.inputs
    )
    nodes = tuple(map(changed, graph.nodes))
    return replace(package, graphs={"grad": Graph(inputs, nodes, graph.outputs)})


def test_masters_are_rounded_on_entry_and_gradients_widened(
    square_package: GraphPackage, rng: np.random.Generator
) -> None:
    flat = grad_program(_narrow(square_package, "bfloat16"), "cpu", 4)
    params = [spec for spec in flat.inputs if spec.role == "param"]
    assert {spec.dtype for spec in params} == {"float32"}
    values = [rng.standard_normal(spec.shape).astype(np.float32) for spec in params]
    others = {
        "batch": lambda spec: np.ones(spec.shape, spec.dtype),
        "exponents": lambda spec: np.full(spec.shape, UNIT, spec.dtype),
        "maxima": lambda spec: np.full(spec.shape, EMPTY, spec.dtype),
    }
    rest = [
        others.get(spec.role, lambda spec: np.zeros(spec.shape, spec.dtype))(spec)
        for spec in flat.inputs[len(values) :]
    ]
    results = jax.jit(flat.function)(*values, *rest)
    for value, found in zip(values, results, strict=False):
        exact = 2 * value.astype(ml_dtypes.bfloat16).astype(np.float32)
        units = np.round(exact.reshape(-1) * 2.0**-UNIT).astype(np.int32)
        assert np.array_equal(np.asarray(found).reshape(-1)[: units.size], units)


def test_state_and_sums_are_those_of_a_float32_job(square_package: GraphPackage) -> None:
    narrow, plain = (
        apply_program(_narrow(square_package, "bfloat16"), "cpu"),
        apply_program(square_package, "cpu"),
    )
    assert (narrow.inputs, narrow.outputs) == (plain.inputs, plain.outputs)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_are_refused(square_package: GraphPackage, dtype: str) -> None:
    with pytest.raises(CompileError, match=f"has dtype {dtype}; expected float32 or bfloat16"):
        grad_program(_narrow(square_package, dtype), "cpu", 4)


def test_checkpointing_by_layer_needs_layers(square_package: GraphPackage) -> None:
    with pytest.raises(CompileError, match="no module path of this model holds a number"):
        grad_program(replace(square_package, checkpointing="layer"), "cpu", 4)

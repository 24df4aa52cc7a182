"""Every lowered op by the path of AMD targets, with IREE's CPU code generator, against torch.

The cases are those of the lowerings' own tests; all of one subject go into one program, since
starting IREE takes longer than compiling an op. A refused op fails with its name, a wrong one with
its values.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from runtime.agent.iree_executable import CPU_DRIVER, host_view, load
from runtime.artifact.program import TensorSpec
from runtime.compiler.graph import DType, Graph, Input, Node, Ref, Value
from runtime.compiler.lower import lower_graph
from runtime.compiler.programs import FlatProgram
from runtime.compiler.targets import find_target
from runtime.compiler.targets.rocm import RocmBackEnd
from tests.unit.iree_support import cpu_flags, needs_iree
from tests.unit.lower import cases
from tests.unit.lower.support import EDGES, Case, Draw, assert_same, run_array, torch_op, type_of

# Complex numbers cannot be arguments of a program; inside one they are XLA's and IREE's own.
SUBJECTS = sorted(
    {item.name for item in pkgutil.iter_modules(cases.__path__)} - {"complex_numbers"}
)
TARGET = "rocm-gfx942"
_TRIES = 20


@dataclass(frozen=True)
class OneOp:
    """An op with drawn arguments: its graph, their arrays, and what torch gives."""

    case: Case
    graph: Graph
    values: list[np.ndarray]
    wanted: list[torch.Tensor]


def draw_op(case: Case, draw: Draw) -> OneOp | None:
    """Draw arguments until no tensor is empty, as in a model; None where there are none to draw."""
    for _ in range(_TRIES):
        args, kwargs = case.draw(draw)
        expected = torch_op(case.op)(*args, **kwargs)
        one = _one_op(case, args, kwargs, expected)
        arrays = [*one.values, *map(run_array, one.wanted)]
        if one.values and all(map(_drawable, arrays)):
            return one
    return None


def _drawable(array: np.ndarray) -> bool:
    """Leave out empty arrays, and bfloat16: IREE's linker for CPU lacks a function to round to it."""
    return array.size > 0 and array.dtype != jnp.bfloat16


def _one_op(case: Case, args: Any, kwargs: Any, expected: Any) -> OneOp:
    """Make the graph of one node, with the types that torch gave."""
    inputs: list[Input] = []
    values: list[np.ndarray] = []

    def as_value(item: Any) -> Value:
        if isinstance(item, torch.Tensor):
            values.append(run_array(item))
            name = f"in{len(inputs)}"
            inputs.append(Input(name, "buffer", name, type_of(item)))
            return Ref(name)
        if isinstance(item, torch.dtype):
            return DType(str(item).removeprefix("torch."))
        return tuple(map(as_value, item)) if isinstance(item, (tuple, list)) else item

    many = isinstance(expected, (tuple, list))
    results = tuple(expected) if many else (expected,)
    wanted = [result for result in results if result is not None]
    types = tuple(None if result is None else type_of(result) for result in results)
    given = {key: as_value(value) for key, value in kwargs.items()}
    node = Node("y", case.op, as_value(args), given, types if many else types[0], "m")
    if not many:
        return OneOp(case, Graph(tuple(inputs), (node,), (("y", Ref("y")),)), values, wanted)
    parts = [
        Node(f"y{i}", "getitem", (Ref("y"), i), {}, kind, "m")
        for i, kind in enumerate(types)
        if kind is not None
    ]
    outputs = tuple((part.name, Ref(part.name)) for part in parts)
    return OneOp(case, Graph(tuple(inputs), (node, *parts), outputs), values, wanted)


def one_program(ops: list[OneOp]) -> FlatProgram:
    """Put ops beside each other into one program."""
    functions = [(lower_graph(one.graph, TARGET), len(one.values)) for one in ops]

    def run_all(*flat: Any) -> tuple[Any, ...]:
        results: list[Any] = []
        for function, count in functions:
            results += function(flat[:count])
            flat = flat[count:]
        return tuple(results)

    arrays = [value for one in ops for value in one.values]
    results = [run_array(wanted) for one in ops for wanted in one.wanted]
    return FlatProgram(
        name="forward", function=run_all, inputs=_specs(arrays), outputs=_specs(results)
    )


def _specs(arrays: list[np.ndarray]) -> tuple[TensorSpec, ...]:
    """Describe arrays as buffers with numbers for names."""
    return tuple(
        TensorSpec(role="buffer", name=str(i), shape=array.shape, dtype=array.dtype.name)
        for i, array in enumerate(arrays)
    )


@needs_iree
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("subject", SUBJECTS)
@settings(
    max_examples=2,  # the simplest arguments, and others
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_ops_match_eager(subject: str, data: st.DataObject) -> None:
    found = importlib.import_module(f"{cases.__name__}.{subject}").CASES
    drawn = [draw_op(case, Draw(data)) for case in found]
    ops = [one for one in drawn if one is not None]
    assume(ops)  # the simplest arguments of a subject may all be empty
    program = one_program(ops)
    compiled = RocmBackEnd(cpu_flags).compile(
        program, find_target(TARGET), lambda stage, seconds: None
    )
    arguments = [value for one in ops for value in one.values]
    results = iter(load(compiled, driver=CPU_DRIVER).run(arguments))
    for one in ops:
        for wanted in one.wanted:
            try:
                # IREE's own polynomials differ from torch's functions in the last bits.
                assert_same(
                    host_view(next(results)),
                    wanted,
                    rtol=max(one.case.rtol, 2e-6),
                    atol=max(one.case.atol, 1e-7),
                )
            except AssertionError as error:
                raise AssertionError(f"{one.case.op}: {error}") from error


@needs_iree
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_functions_of_two_numbers_match_eager_over_all_edges() -> None:
    numbers = torch.tensor([*EDGES, 2.0, 3.0, -3.0, 0.3, 17.0])
    pairs = tuple(grid.ravel() for grid in torch.meshgrid(numbers, numbers, indexing="ij"))
    names = ("atan2.default", "pow.Tensor_Tensor", "maximum.default", "minimum.default")
    _hold(("div.Tensor", "eq.Tensor", "lt.Tensor", "sub.Tensor", *names), pairs, rtol=2e-5)


@needs_iree
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_large_angles_match_eager() -> None:
    """As rotary embeddings of long sequences have them: one radian a place."""
    angles = torch.tensor(np.geomspace(1e-3, 8e5, 2000), dtype=torch.float32)
    _hold(("sin.default", "cos.default"), (angles,), rtol=2e-5)


def _hold(names: tuple[str, ...], args: tuple[torch.Tensor, ...], *, rtol: float) -> None:
    """Run ops in one program and compare each with torch."""
    ops = []
    for name in names:
        case = Case(f"aten.{name}", lambda _: (args, {}))
        ops.append(_one_op(case, args, {}, torch_op(case.op)(*args)))
    compiled = RocmBackEnd(cpu_flags).compile(
        one_program(ops), find_target(TARGET), lambda stage, seconds: None
    )
    results = load(compiled, driver=CPU_DRIVER).run([value for one in ops for value in one.values])
    for one, result in zip(ops, results, strict=True):
        try:
            assert_same(host_view(result), one.wanted[0], rtol=rtol, atol=1e-6)
        except AssertionError as error:
            raise AssertionError(f"{one.case.op}: {error}") from error

"""HLO modules for Neuron's compiler: read like XLA reads them, rewritten without another meaning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jaxlib import _hlo, _jax, xla_client

from runtime.artifact.protobuf import RawField, join, split, write_varint
from runtime.compiler.neuron import hlo
from runtime.compiler.neuron.hlo_rewrite import prepared
from runtime.spec import CompileError

X = jnp.asarray([[3.0, -1.0, 2.0], [0.5, 8.0, -7.0]])
PLACES = jnp.asarray([2, 0], jnp.int32)


def _kinds(x: jax.Array, places: jax.Array) -> tuple[jax.Array, ...]:
    """Calls, nested calls, a loop, reductions, a sort, a gather, a convolution and a product."""
    looped = lax.fori_loop(0, 5, lambda i, y: jnp.where(y > i, y * 2, y - 1), x)
    windows = lax.conv_general_dilated(
        x[None], x[None, :, :2], (2,), [(1, 1)], feature_group_count=1, rhs_dilation=(2,)
    )
    clipped = jnp.clip(jnp.where(x > 0, x, 0.0), 0.0, 5.0)
    return looped, windows, clipped, jnp.sort(x), x[:, places], x @ x.T, jnp.argmax(x, 1)


def serialized(function: Callable[..., Any], *arguments: jax.Array) -> bytes:
    """Give a function's HLO module as jax writes it."""
    lowered = jax.jit(function).lower(*arguments)
    return lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()


@pytest.fixture(scope="module")
def module() -> bytes:
    """A module with every form that ids and calls take."""
    return serialized(_kinds, X, PLACES)


def test_the_operators_are_those_that_xla_prints(module: bytes) -> None:
    text = _hlo.HloModule.from_serialized_hlo_module_proto(module).to_string()
    printed = Counter(re.findall(r"^ .*? = .*? ([a-z][a-z0-9-]*)\(", text, re.MULTILINE))
    read = Counter(item.opcode for _, item in hlo.read(module).instructions())
    assert read == printed
    assert {"call", "while", "sort", "gather", "convolution", "dot", "reduce"} <= read.keys()


def test_windows_types_and_directions_are_read(module: bytes) -> None:
    items = [item for _, item in hlo.read(module).instructions()]
    (convolution,) = [item for item in items if item.opcode == "convolution"]
    assert convolution.window == (hlo.Dimension(stride=2, kernel_dilation=2),)
    (product,) = [item for item in items if item.opcode == "dot"]
    assert product.shape == hlo.Shape("f32", (2, 2))
    assert "LT" in {item.direction for item in items if item.opcode == "compare"}
    loop = next(item for item in items if item.opcode == "while")
    assert loop.shape.dtype == "tuple"
    assert {leaf.dtype for leaf in loop.shape.leaves()} == {"s32", "f32"}


def test_ids_fit_32_bits_only_after_rewriting(module: bytes) -> None:
    assert hlo.read(module).largest_id > 2**31 - 1
    done = hlo.read(prepared(module))
    ids = [item.id for _, item in done.instructions()]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    assert done.largest_id == max(*ids, *done.computations)


def test_nothing_is_called_and_no_name_of_ours_is_left(module: bytes) -> None:
    done = prepared(module)
    assert "call" not in {item.opcode for _, item in hlo.read(done).instructions()}
    assert b"_where" in module
    assert b"_where" not in done
    assert not any(b"clip" in item.name.encode() for _, item in hlo.read(done).instructions())


def test_every_use_follows_its_definition(module: bytes) -> None:
    for computation in hlo.read(prepared(module)).computations.values():
        seen: set[int] = set()
        for item in computation.instructions.values():
            assert set(item.operands) <= seen
            seen.add(item.id)
        assert computation.root in seen


def run(module: bytes, *arguments: jax.Array) -> list[np.ndarray]:
    """Compile an HLO module by XLA and run it."""
    text = _jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(module))
    device = jax.devices()[0]
    loaded = device.client.compile_and_load(
        text, _jax.DeviceList((device,)), xla_client.CompileOptions()
    )
    parts = loaded.execute_sharded(list(arguments)).disassemble_into_single_device_arrays()
    return [np.asarray(part[0]) for part in parts]


def test_the_rewritten_module_computes_the_same_bits(module: bytes) -> None:
    expected = jax.jit(_kinds)(X, PLACES)
    for one, other in zip(run(prepared(module), X, PLACES), expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_call_whose_result_is_its_argument(module: bytes) -> None:
    @jax.jit
    def inner(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return y, x

    data = serialized(lambda x: inner(x, x + 1), X)
    first, second = run(prepared(data), X)
    np.testing.assert_array_equal(first, X + 1)
    np.testing.assert_array_equal(second, X)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_that_are_no_module_are_refused(module: bytes, data: st.DataObject) -> None:
    cut = module[: data.draw(st.integers(0, len(module) - 1))]
    message = _refusal(cut)
    # A cut between two fields can leave a whole, smaller module.
    assert "HLO module" in message if message else hlo.read(cut).entry


def _refusal(data: bytes) -> str:
    """Give the error's message, "" where the bytes are taken."""
    try:
        prepared(data)
    except CompileError as error:
        return error.message
    return ""


def test_a_use_without_a_definition_is_refused() -> None:
    whole = serialized(lambda x: x + 1, X)

    def broken(raw: bytes) -> bytes:
        operands = RawField.of(hlo.OPERANDS, write_varint(99) * 2)
        kept = [item for item in split(raw) if item.number != hlo.OPERANDS]
        return join([*kept, operands]) if b"add" in raw else raw

    def computation(raw: bytes) -> bytes:
        return join(
            [
                RawField.of(item.number, broken(item.value))
                if item.number == hlo.INSTRUCTION and item.value is not None
                else item
                for item in split(raw)
            ]
        )

    altered = join(
        [
            RawField.of(item.number, computation(item.value))
            if item.number == hlo.COMPUTATION and item.value is not None
            else item
            for item in split(whole)
        ]
    )
    with pytest.raises(CompileError, match="uses id 99 before it is there"):
        prepared(altered)

"""A scrubbed CPU executable holds no name and no path, loads, and gives the same bits."""

from __future__ import annotations

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.agent.executable import load_program
from runtime.artifact import Program, TensorSpec
from runtime.artifact.leaks import SCRUBBED_KINDS, leaks_in_executable
from runtime.artifact.xla_forms import divide
from runtime.artifact.xla_schema import rewrite
from runtime.compiler.scrub import scrub_cpu_executable, scrub_program
from runtime.spec import CompileError
from tests.unit.artifact import executables as by_hand

SHAPES = (("w1", (32, 64)), ("w2", (64, 16)), ("x", (8, 32)))


@jax.jit
def secret_activation(x):
    return jnp.where(x > 0, jnp.tanh(x), x)


def secret_loss(w1, w2, x):
    """Give a loss with what compiles to each kind of step: kernels, a loop, a branch, a sort."""
    with jax.named_scope("model.layers.0.mlp"):
        hidden = secret_activation(x @ w1)
    hidden = jax.lax.fori_loop(0, 3, lambda _, h: jnp.sin(h) + 0.1, hidden)
    hidden = jax.lax.cond(x[0, 0] > 0, jnp.cos, lambda h: h * 2, hidden)
    ranked = jnp.sort(hidden @ w2, axis=-1)
    return (jax.nn.softmax(ranked) ** 2).sum()


def spec(role: str, name: str, shape) -> TensorSpec:
    return TensorSpec(role=role, name=name, shape=shape, dtype="float32")


@pytest.fixture(scope="module")
def program() -> Program:
    """Compile a gradient with all its debug information left in."""
    arrays = [jnp.zeros(shape) for _, shape in SHAPES]
    compiled = jax.jit(jax.grad(secret_loss, argnums=(0, 1))).lower(*arrays).compile()
    return Program(
        name="grad",
        inputs=tuple(spec("param", name, shape) for name, shape in SHAPES),
        outputs=tuple(spec("param", name, shape) for name, shape in SHAPES[:2]),
        donated=(),
        executable=compiled.runtime_executable().serialize(),
        peak_memory_bytes=0,
        flops=0.0,
        bytes_moved=0.0,
    )


def test_what_was_there_is_gone(program):
    before = leaks_in_executable(program.executable)
    for kind in ("op_name", "source_path", "stack_frame", "local_path", "function_name"):
        assert before[kind] > 0
    assert before["hlo_name"] > 20
    for trace in (b"model.layers.0.mlp", b"secret_loss", b"secret_activation"):
        assert trace in program.executable
    scrubbed, clean = scrub_program(program, "cpu")
    assert clean
    assert not set(leaks_in_executable(scrubbed.executable)) & set(SCRUBBED_KINDS)
    for trace in (b"model.layers", b"secret", b"test_scrub", b"jvp", b"jit_", b"cuda_sdk_lib"):
        assert trace not in scrubbed.executable


def test_it_loads_and_gives_the_same_bits(program):
    scrubbed, _ = scrub_program(program, "cpu")
    before, after = load_program(program), load_program(scrubbed)
    rng = np.random.default_rng(5)
    for sign in (1, -1):  # either branch
        arrays = [rng.normal(size=shape).astype(np.float32) for _, shape in SHAPES]
        arrays[2][0, 0] = sign
        for got, want in zip(after.run(arrays), before.run(arrays), strict=True):
            np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_only_telling_fields_are_changed(program):
    def without(executable: bytes) -> bytes:
        return rewrite(divide(executable)[1], "ExecutableAndOptions", lambda _tag, _value: None)

    scrubbed = scrub_cpu_executable(program.executable)
    assert without(scrubbed) == without(program.executable)


def test_scrubbing_twice_changes_nothing(program):
    once = scrub_cpu_executable(program.executable)
    assert scrub_cpu_executable(once) == once


@pytest.mark.parametrize("family", ["tpu", "rocm", "neuron"])
def test_other_families_are_never_called_clean(program, family):
    scrubbed, clean = scrub_program(program, family)
    assert not clean
    assert scrubbed is program


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_other_forms_are_refused(program, size):
    with pytest.raises(CompileError, match="cannot be scrubbed"):
        scrub_cpu_executable(program.executable[:size])
    with pytest.raises(CompileError, match="cannot be scrubbed"):
        scrub_cpu_executable(b"\x7fELF" + bytes(size))


@pytest.mark.parametrize("family", ["cpu", "cuda"])
def test_a_form_that_is_not_known_is_kept_and_not_called_clean(program, family):
    other = dataclasses.replace(program, executable=b"\x7fELF" + bytes(100))
    assert scrub_program(other, family) == (other, False)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_altered_bytes_are_scrubbed_or_refused(data):
    executable = bytearray(by_hand.cpu_executable())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(executable) - 1))
        executable[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(executable)))
    for altered in (bytes(executable), bytes(executable[:cut])):
        with contextlib.suppress(CompileError):
            scrub_cpu_executable(altered)

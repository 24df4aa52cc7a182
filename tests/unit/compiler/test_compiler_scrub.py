"""A scrubbed CPU executable holds no name and no path, loads, and gives the same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.agent.executable import load_program
from runtime.artifact import Program, TensorSpec
from runtime.artifact.leaks import SCRUBBED_KINDS, leaks_in_executable
from runtime.compiler.scrub import scrub_cpu_executable, scrub_program
from runtime.spec import CompileError

SHAPES = (("w1", (32, 64)), ("w2", (64, 16)), ("x", (8, 32)))


def loss(w1, w2, x):
    with jax.named_scope("model.layers.0.mlp"):
        hidden = jnp.tanh(x @ w1)
    return (jax.nn.softmax(hidden @ w2) ** 2).sum()


def spec(role: str, name: str, shape) -> TensorSpec:
    return TensorSpec(role=role, name=name, shape=shape, dtype="float32")


@pytest.fixture(scope="module")
def program() -> Program:
    """Compile a gradient with all its debug information left in."""
    arrays = [jnp.zeros(shape) for _, shape in SHAPES]
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*arrays).compile()
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
    assert before["op_names"] > 10
    assert before["source_paths"] > 0
    assert before["local_paths"] > 0
    assert b"model.layers.0.mlp" in program.executable
    scrubbed, clean = scrub_program(program, "cpu")
    assert clean
    assert not set(leaks_in_executable(scrubbed.executable)) & set(SCRUBBED_KINDS)
    for trace in (b"model.layers", b"test_compiler_scrub", b"jvp", b"cuda_sdk_lib"):
        assert trace not in scrubbed.executable


def test_it_loads_and_gives_the_same_bits(program):
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=shape).astype(np.float32) for _, shape in SHAPES]
    scrubbed, _ = scrub_program(program, "cpu")
    expected = load_program(program).run(arrays)
    for got, want in zip(load_program(scrubbed).run(arrays), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_scrubbing_twice_changes_nothing(program):
    once = scrub_cpu_executable(program.executable)
    assert scrub_cpu_executable(once) == once


def test_other_targets_are_never_called_clean(program):
    scrubbed, clean = scrub_program(program, "cuda-sm90")
    assert not clean
    assert scrubbed.executable == program.executable


@pytest.mark.parametrize("size", [0, 1, 100, 5000])
def test_other_forms_are_refused(program, size):
    with pytest.raises(CompileError, match="cannot be scrubbed"):
        scrub_cpu_executable(program.executable[:size])
    with pytest.raises(CompileError, match="cannot be scrubbed"):
        scrub_cpu_executable(b"\x7fELF" + bytes(size))

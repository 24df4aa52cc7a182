"""Load and run programs on a node: real executables, compiled here, run in other processes too."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

import runtime
from runtime.agent import executable
from runtime.agent.threads import island_environment
from runtime.artifact.cpu_class import CpuClass, cpu_class, missing_features
from runtime.artifact.program import Program, TargetPayload
from runtime.compiler.targets import find_target
from runtime.spec import ArtifactError, RunError

N = 384


COMPILE = """
import sys
import jax, jax.numpy as jnp
from runtime.artifact.cpu_class import cpu_class
from runtime.artifact.program import BlockTable, TargetPayload, TensorSpec
from runtime.compiler.programs import FlatProgram
from runtime.compiler.targets.pjrt import compile_pjrt

def function(x, weight, unused):
    hidden = jax.nn.softmax(x @ weight, axis=1)
    return x + hidden @ weight.T, jnp.sum(hidden * hidden)

def spec(role, name, *shape):
    return TensorSpec(role=role, name=name, shape=shape, dtype="float32")

n = int(sys.argv[1])
program = compile_pjrt(FlatProgram(
    name="forward", function=function, donated=(0,),
    inputs=(spec("param", "x", n, n), spec("param", "w", n, n), spec("buffer", "u", 2)),
    outputs=(spec("param", "x", n, n), spec("grad_norm", "")),
), jax.local_devices()[:1], lambda stage, seconds: None)
cpu = cpu_class(program.executable)
payload = TargetPayload(
    target="cpu", programs={"forward": program}, blocks=BlockTable(block_size=4096, rows=()),
    cpu_name=cpu.name, cpu_features=cpu.features, scrubbed=False)
sys.stdout.buffer.write(payload.to_bytes())
"""
"""Matrix products, a softmax and a sum: the kinds of code whose bits could vary. It runs in a
process of its own, since the pinned instruction set is a flag of the whole process. The program
takes over its first input and never reads its last."""


@pytest.fixture(scope="module")
def payload() -> bytes:
    """A payload with one program, compiled as nodes get it."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(N)],
        env=environment(dict(find_target("cpu").environment)),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def program(payload: bytes) -> Program:
    """The program of the payload."""
    return TargetPayload.from_bytes(payload).programs["forward"]


def environment(extra: dict[str, str]) -> dict[str, str]:
    """Give a child's environment that finds this package."""
    return {**os.environ, "PYTHONPATH": str(Path(runtime.__file__).parents[1]), **extra}


def inputs() -> list[np.ndarray]:
    """Give the same arguments in every process."""
    rng = np.random.default_rng(11)
    square = [rng.standard_normal((N, N)).astype(np.float32) for _ in range(2)]
    return [*square, np.zeros(2, np.float32)]


def test_a_loaded_program_computes_what_was_compiled(program: Program) -> None:
    x, weight, _ = given = inputs()
    results = executable.load_program(program).run(given)
    scores = np.exp(x @ weight - (x @ weight).max(axis=1, keepdims=True))
    hidden = scores / scores.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(results[0], x + hidden @ weight.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(results[1], (hidden**2).sum(), rtol=1e-4)


def test_donated_inputs_are_taken_over_in_place_and_others_stay(program: Program) -> None:
    given = inputs()
    arrays = [executable.device_array(array) for array in given]
    place = executable.host_view(arrays[0]).ctypes.data
    results = executable.load_program(program).run(arrays)
    assert arrays[0].is_deleted()
    assert executable.host_view(results[0]).ctypes.data == place
    np.testing.assert_array_equal(executable.host_view(arrays[1]), given[1])


RUN_ELSEWHERE = """
import sys
from pathlib import Path
import numpy as np
from blake3 import blake3
from runtime.agent.executable import load_program
from runtime.artifact.program import TargetPayload
payload = TargetPayload.from_bytes(Path(sys.argv[1]).read_bytes())
arrays = np.load(sys.argv[2])
results = load_program(payload.programs["forward"]).run([arrays[k] for k in sorted(arrays)])
print(blake3(b"".join(np.asarray(r).tobytes() for r in results)).hexdigest(), end="")
"""


def run_elsewhere(folder: Path, threads: int) -> str:
    """Run the stored program in another process; give the hash of its results."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ELSEWHERE, str(folder / "payload"), str(folder / "in.npz")],
        env=environment(island_environment(threads)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_processes_get_the_same_bits_with_one_thread_and_with_two(
    payload: bytes, program: Program, tmp_path: Path
) -> None:
    (tmp_path / "payload").write_bytes(payload)
    np.savez(tmp_path / "in.npz", *inputs())
    here = executable.load_program(program).run(inputs())
    hashes = {run_elsewhere(tmp_path, threads) for threads in (1, 2)}
    assert hashes == {blake3(b"".join(np.asarray(r).tobytes() for r in here)).hexdigest()}


def test_a_host_without_a_feature_is_refused(program: Program) -> None:
    host = executable.host_class()
    poorer = dataclasses.replace(host, features=tuple(f for f in host.features if f != "popcnt"))
    assert "popcnt" in cpu_class(program.executable).features
    with pytest.raises(ArtifactError, match=r"lacks popcnt"):
        executable.load_program(program, host=poorer)


def test_features_that_no_code_uses_do_not_matter() -> None:
    assert missing_features(("avx2", "clzero", "shstk"), ("avx2",)) == ()
    assert missing_features(("avx2", "fma"), ("sse2",)) == ("avx2", "fma")


def test_this_host_can_run_what_it_compiles(program: Program) -> None:
    needed = cpu_class(program.executable)
    assert isinstance(needed, CpuClass)
    assert needed.name
    assert missing_features(needed.features, executable.host_class().features) == ()


@pytest.mark.parametrize("data", [b"", b"not an executable", b"\x00" * 4096])
def test_bytes_that_are_no_executable_are_refused(program: Program, data: bytes) -> None:
    broken = dataclasses.replace(program, executable=data)
    with pytest.raises(ArtifactError):
        executable.load_program(broken)


def test_arguments_are_checked_by_name(program: Program) -> None:
    loaded = executable.load_program(program)
    given = inputs()
    with pytest.raises(ArtifactError, match="takes 3 arrays and got 2"):
        loaded.run(given[:2])
    with pytest.raises(ArtifactError, match=r"argument 1 \(param 'w'\) is float64\[384, 384\]"):
        loaded.run([given[0], given[1].astype(np.float64), given[2]])
    with pytest.raises(ArtifactError, match=r"expected float32\[2\]"):
        loaded.run([given[0], given[1], np.zeros(3, np.float32)])


def test_device_array_copies_even_aligned_memory() -> None:
    room = np.zeros(4096 + 16, np.float32)
    start = (-room.ctypes.data % 64) // 4
    source = room[start : start + 4096]
    array = executable.device_array(source)
    source[:] = 7
    assert float(np.asarray(array).max()) == 0.0


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (4, 5)])
def test_device_array_keeps_shape_and_values(shape: tuple[int, ...]) -> None:
    source = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    array = executable.device_array(source)
    assert array.shape == shape
    np.testing.assert_array_equal(executable.host_view(array), source)


def test_device_array_takes_views_with_strides() -> None:
    source = np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2].T
    np.testing.assert_array_equal(executable.host_view(executable.device_array(source)), source)


def test_host_view_is_read_only_and_free_of_copies() -> None:
    array = executable.device_array(np.ones(1000, np.float32))
    first, second = executable.host_view(array), executable.host_view(array)
    assert first.ctypes.data == second.ctypes.data
    assert not first.flags.writeable


def test_the_chip_class_names_what_must_be_equal() -> None:
    name = executable.chip_class("cpu", "haswell")
    assert name.startswith("cpu/haswell/jaxlib-")


@pytest.mark.parametrize("threads", [0, -2])
def test_an_island_needs_a_thread(threads: int) -> None:
    with pytest.raises(RunError, match="threads_per_island"):
        island_environment(threads)

"""Executables of the real CUDA and TPU compilers: what the scan finds, and what scrubbing leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.artifact.leaks import SCRUBBED_KINDS, leaks, leaks_in_executable
from runtime.artifact.protobuf import split
from runtime.artifact.xla_forms import divide, field_value, gpu_executable, telling_fields
from runtime.compiler import compile_package
from runtime.compiler.scrub import scrub_cuda_executable
from runtime.compiler.targets import back_end, find_target
from tests.unit.executables import cubins

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Compiles with all debug information left in: a step with a loop and a branch, and a kernel.
SCRIPT = """
import sys
from pathlib import Path
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl, topologies

platform, topology, description, folder = sys.argv[1:]
if platform == "cuda":
    from jax.experimental.pallas import triton

    options = {"topology_name": "", "topology": topology, "target_config": description}
    kernel_options = {"compiler_params": triton.CompilerParams(num_warps=4)}
else:
    options, kernel_options = {"topology_name": topology}, {}
device = topologies.get_topology_desc(platform=platform, **options).devices[0]
sharding = jax.sharding.SingleDeviceSharding(device)

def secret_loss(w, x):
    with jax.named_scope("model.layers.0.mlp"):
        hidden = jnp.tanh(x @ w)
    hidden = jax.lax.fori_loop(0, 3, lambda _, h: jnp.sin(h) + 0.1, hidden)
    hidden = jax.lax.cond(x[0, 0] > 0, jnp.cos, lambda h: h * 2, hidden)
    return (jax.nn.softmax(hidden) ** 2).sum()

def add_kernel(x, y, o):
    o[...] = jnp.exp(x[...]) + y[...]

def secret_call(x, y):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(add_kernel, out_shape=out, **kernel_options)(x, y) * 2

for name, function, shapes in (
    ("step", jax.grad(secret_loss), ((128, 128), (128, 128))),
    ("kernel", secret_call, ((64, 128), (64, 128))),
):
    given = [jax.ShapeDtypeStruct(shape, "float32", sharding=sharding) for shape in shapes]
    compiled = jax.jit(function).lower(*given).compile()
    Path(folder, name).write_bytes(compiled.runtime_executable().serialize())
"""


def compiled(target_name: str, folder: Path) -> dict[str, bytes]:
    """Compile for a target whose device is not here; skip where its compiler is not either."""
    target = find_target(target_name)
    lacking = back_end(target).missing(target)
    if lacking is not None:
        pytest.skip(f"the compiler of {target_name}, package {lacking.package}, is not installed")
    arguments = [target.family, target.topology, target.description, str(folder)]
    subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, **target.environment},
        check=True,
        capture_output=True,
        timeout=500,
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def cuda(tmp_path_factory) -> dict[str, bytes]:
    """Give executables for an H100."""
    return compiled("cuda-sm90", tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="module")
def tpu(tmp_path_factory) -> dict[str, bytes]:
    """Give executables for a TPU v5e."""
    return compiled("tpu-v5e", tmp_path_factory.mktemp("tpu"))


@pytest.mark.parametrize("name", ["step", "kernel"])
def test_a_cuda_executable_tells_nothing_once_it_is_scrubbed(cuda, name):
    before = leaks_in_executable(cuda[name])
    for kind in ("op_name", "stack_frame", "local_path", "function_name", "hlo_name"):
        assert before[kind] > 0
    assert ("triton_ir" in before) == (name == "kernel")
    assert "unread" not in before
    scrubbed = scrub_cuda_executable(cuda[name])
    assert not set(leaks_in_executable(scrubbed)) & set(SCRUBBED_KINDS)
    header, body = divide(scrubbed)
    rest = [f.raw for f in split(body) if f.number != 1]
    plain = b"\0".join([header, gpu_executable(body).merged(), *rest])
    for trace in (b"secret", b"model.layers", b"ML\\EFR", b"nvidia/cu13"):
        assert trace not in plain
    assert len(scrubbed) < 1.2 * len(cuda[name])


@pytest.mark.parametrize("name", ["step", "kernel"])
def test_its_steps_and_machine_code_are_the_same(cuda, name):
    scrubbed = scrub_cuda_executable(cuda[name])
    before, after = (gpu_executable(divide(e)[1]) for e in (cuda[name], scrubbed))
    assert [p.field for p in after.parts] == [p.field for p in before.parts]
    assert [p.data for p in after.parts[1:-1]] == [p.data for p in before.parts[1:-1]]
    # Every field of the rest but those that hold names; kernels keep theirs, and their cubins.
    names = {1, 2, 8, 9, 13}
    rests = [split(code.parts[-1].data) for code in (before, after)]
    assert [f.number for f in rests[0]] == [f.number for f in rests[1]]
    kept = [[f.raw for f in rest if f.number not in names] for rest in rests]
    assert kept[0] == kept[1]
    kernels = [
        [value for tag, value in telling_fields(e) if tag == "kernel_name"]
        for e in (cuda[name], scrubbed)
    ]
    assert kernels[0] == kernels[1] != []
    assert cubins(cuda[name]) == cubins(scrubbed) != []


@pytest.mark.parametrize("name", ["step", "kernel"])
def test_xla_itself_reads_the_scrubbed_module(cuda, name):
    from jax._src.lib import xla_client  # the parser in C++, the same that loading uses

    def instructions(executable: bytes) -> list[tuple[str, ...]]:
        module = field_value(gpu_executable(divide(executable)[1]).merged(), 1, 1)
        text = xla_client.XlaComputation(module).get_hlo_module().to_string()
        lines = [line.split(" = ", 1)[1] for line in text.splitlines() if " = " in line]
        return sorted(tuple(line.split("(")[0].split()) for line in lines)

    before = instructions(cuda[name])
    assert len(before) > 5
    assert instructions(scrub_cuda_executable(cuda[name])) == before


def test_a_tpu_executable_is_read_and_its_kernel_found(tpu):
    step, kernel = leaks_in_executable(tpu["step"]), leaks_in_executable(tpu["kernel"])
    for found in (step, kernel):
        assert found["op_name"] > 0
        assert found["local_path"] > 0
        assert found["hlo_module"] == 1
        assert "unread" not in found
    assert kernel["mosaic_ir"] >= 1
    assert "mosaic_ir" not in step


@pytest.mark.parametrize(("name", "scrubbed"), [("cuda-sm90", True), ("tpu-v5e", False)])
def test_a_payload_is_called_scrubbed_exactly_where_it_is(
    square_package, tmp_path, name, scrubbed
) -> None:
    lacking = back_end(find_target(name)).missing(find_target(name))
    if lacking is not None:
        pytest.skip(f"the compiler of {name}, package {lacking.package}, is not installed")
    payload = compile_package(
        square_package, target=name, micro_shards=16, cache_dir=tmp_path
    ).payload
    assert payload.scrubbed == scrubbed
    found = leaks(payload.to_bytes())
    assert {kind for kind in SCRUBBED_KINDS if kind in found} == (
        set() if scrubbed else {"local_path", "function_name", "hlo_name"}
    )

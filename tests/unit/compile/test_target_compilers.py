"""The same lowering compiles for targets whose devices are not here, wherever a compiler is.

A tiny graph for one CUDA and one TPU target is quick; a model for one chip of each and for islands
is in the slow tests. Without the extra that holds the compiler a test is skipped and says so. None
of the executables has run on its chip: what they are made of is looked at instead.
"""

from __future__ import annotations

from pathlib import Path

import jax
import pytest
import torch
from jax._src import config
from transformers import Qwen3Config, Qwen3ForCausalLM

from runtime.artifact.leaks import SCRUBBED_KINDS, leaks_in_executable
from runtime.artifact.program import Program, TargetPayload
from runtime.compiler import GraphPackage, compile_package
from runtime.compiler.capture import capture
from runtime.compiler.targets import back_end, find_target
from runtime.plan import chips_of, estimate
from runtime.plan.estimate import memory_of
from tests.unit.executables import (
    TPU_CHIPS,
    compute_capability,
    cubins,
    signature,
    tpu_chip,
    tpu_code,
)

QUICK = ("cuda-sm90", "tpu-v5e")
ONE = (
    "cuda-sm80", "cuda-sm89", "cuda-sm90", "cuda-sm100", "tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e",
)  # fmt: skip
ISLANDS = ("cuda-sm90x8", "tpu-v5ex4")


@pytest.fixture(scope="module")
def qwen() -> GraphPackage:
    """A captured Qwen3 of one layer."""
    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=256,
    )
    return capture(Qwen3ForCausalLM(config), micro_batch=8, seq_len=128, packing=True).package


def compiled(package: GraphPackage, name: str, folder: Path) -> TargetPayload:
    """Compile for a target, or skip where its compiler is not installed."""
    target = find_target(name)
    lacking = back_end(target).missing(target)
    if lacking is not None:
        pytest.skip(f"the compiler of {name}, {lacking.package}, is not installed")
    return compile_package(package, target=name, micro_shards=16, cache_dir=folder).payload


def check_costs(payload: TargetPayload) -> None:
    """Require figures that a plan can work with."""
    assert (payload.cpu_name, payload.cpu_features) == ("", ())
    for program in payload.programs.values():
        assert program.form == "pjrt"
        assert len(program.executable) > 10_000
        arrays = sum(4 * n for n in (_elements(spec.shape) for spec in program.inputs))
        assert program.peak_memory_bytes >= arrays / program.chips
        assert program.bytes_moved >= arrays / program.chips
        assert program.flops > 0


def check_structure(payload: TargetPayload) -> None:
    """Require executables that are whole, for the chip that was asked for, and scrubbed if said."""
    chip = find_target(payload.target).chip
    assert payload.scrubbed == chip.startswith("cuda")
    for program in payload.programs.values():
        if chip.startswith("cuda"):
            _check_cuda(program, int(chip.removeprefix("cuda-sm")))
        else:
            _check_tpu(program, TPU_CHIPS[chip])


def _check_cuda(program: Program, architecture: int) -> None:
    """Require cubins of one architecture, nothing that a scrubbed program must not tell."""
    found = cubins(program.executable)
    assert found
    assert {compute_capability(cubin) for cubin in found} == {architecture}
    assert not set(leaks_in_executable(program.executable)) & set(SCRUBBED_KINDS)


def _check_tpu(program: Program, chip: tuple[int, bytes]) -> None:
    """Require code for the chip."""
    assert tpu_chip(program.executable) == chip
    assert len(tpu_code(program.executable)) > 10_000


def check_signature(payload: TargetPayload) -> None:
    """Require that the compiled modules take and give what the payload says, in its order."""
    for program in payload.programs.values():
        inputs, outputs = signature(program.executable)
        assert inputs == [(spec.shape, spec.dtype) for spec in program.inputs]
        assert outputs == [(spec.shape, spec.dtype) for spec in program.outputs]


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


@pytest.mark.parametrize("name", QUICK)
def test_two_products_compile_without_the_device(
    linear_package: GraphPackage, tmp_path: Path, name: str
) -> None:
    payload = compiled(linear_package, name, tmp_path)
    assert set(payload.programs) == {"grad", "apply"}
    check_costs(payload)
    check_structure(payload)
    check_signature(payload)
    (chip, *_) = chips_of(name)
    assert estimate(payload, chip, micro_shards=16).predicted_step_s > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ONE)
def test_a_train_step_compiles_without_the_device(
    qwen: GraphPackage, tmp_path: Path, name: str
) -> None:
    payload = compiled(qwen, name, tmp_path)
    assert set(payload.programs) == {"grad", "apply", "forward"}
    check_costs(payload)
    check_structure(payload)
    check_signature(payload)
    assert payload.plain_forms == ("luma.attention.default", "luma.attention_backward.default")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ISLANDS)
def test_the_chips_of_an_island_share_a_train_step(
    qwen: GraphPackage, tmp_path: Path, name: str
) -> None:
    payload = compiled(qwen, name, tmp_path)
    single = compiled(qwen, find_target(name).chip, tmp_path)
    check_costs(payload)
    check_structure(payload)
    chips = find_target(name).chips
    for program in payload.programs.values():
        assert program.chips == chips
    ours, alone = memory_of(payload), memory_of(single)
    assert ours.state <= 1.1 * alone.state / chips
    assert ours.sums <= 1.1 * alone.sums / chips
    if find_target(name).family == "cuda":  # a TPU's code outweighs a model as small as this
        assert ours.peak < alone.peak
    assert payload.programs["grad"].flops < single.programs["grad"].flops


def test_the_h100_is_described_as_its_specification_says() -> None:
    text = find_target("cuda-sm90").description
    assert "cuda_compute_capability { major: 9 minor: 0 }" in text
    assert "core_count: 132" in text
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"' in text


def test_the_effort_that_tpu_targets_ask_for_is_known_to_jax() -> None:
    """jax ignores a variable that it does not know in silence, and a compile takes minutes then."""
    variable = "JAX_OPTIMIZATION_LEVEL"
    effort = find_target("tpu-v5e").environment[variable]
    assert hasattr(jax.config, variable.lower())
    assert effort in config.EffortLevel.__members__
    assert variable not in find_target("cuda-sm90").environment

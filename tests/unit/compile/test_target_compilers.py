"""The same lowering compiles for targets whose devices are not here, wherever a compiler is.

A tiny graph for one CUDA and one TPU target is quick; a model for one chip of each and for islands
is in the slow tests. Without the extra that holds the compiler a test is skipped and says so.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from runtime.artifact.program import TargetPayload
from runtime.compiler import GraphPackage, compile_package
from runtime.compiler.capture import capture
from runtime.compiler.targets import back_end, find_target
from runtime.plan import chips_of, estimate
from runtime.plan.estimate import memory_of

QUICK = ("cuda-sm90", "tpu-v5e")
ONE = ("cuda-sm80", "cuda-sm89", "cuda-sm90", "cuda-sm100", "tpu-v5e", "tpu-v6e")
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
    assert payload.programs["grad"].flops > 0


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

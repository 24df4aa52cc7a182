"""The same lowering compiles for targets whose devices are not here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from runtime.compiler import GraphPackage, compile_package
from runtime.compiler.capture import capture
from runtime.compiler.targets import find_target, missing_plugin

TARGETS = ("cuda-sm90", "tpu-v5e")


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
    return capture(Qwen3ForCausalLM(config), micro_batch=1, seq_len=128, packing=True).package


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_a_train_step_compiles_without_the_device(
    qwen: GraphPackage, tmp_path: Path, name: str
) -> None:
    lacking = missing_plugin(find_target(name))
    if lacking is not None:
        pytest.skip(f"the compiler of {name}, package {lacking}, is not installed")
    result = compile_package(qwen, target=name, micro_shards=16, cache_dir=tmp_path)
    assert set(result.payload.programs) == {"grad", "apply", "forward"}
    assert all(len(p.executable) > 10_000 for p in result.payload.programs.values())
    assert (result.payload.cpu_name, result.payload.cpu_features) == ("", ())


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_needs_no_device_but_its_compiler(name: str) -> None:
    target = find_target(name)
    assert target.environment["JAX_PLATFORMS"] == "cpu"
    assert target.plugin


def test_the_h100_is_described_as_its_specification_says() -> None:
    text = find_target("cuda-sm90").description
    assert "cuda_compute_capability { major: 9 minor: 0 }" in text
    assert "core_count: 132" in text
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"' in text

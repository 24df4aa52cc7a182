"""Tensor-parallel islands of chips that are not here, compiled without them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from runtime.compiler import GraphPackage, compile_package
from runtime.compiler.targets import back_end, find_target
from runtime.plan.estimate import memory_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def package() -> GraphPackage:
    """A captured Qwen3 of two layers whose heads and features four chips can share."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from runtime.compiler.capture import capture

    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, vocab_size=1024,
    )  # fmt: skip
    return capture(Qwen3ForCausalLM(config), micro_batch=4, seq_len=64).package


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("cuda-sm90x8-tp4", (("fsdp", 2), ("tensor", 4))),
        ("tpu-v5ex4-tp2", (("fsdp", 2), ("tensor", 2))),
    ],
)
def test_an_island_compiles_without_its_chips(
    package: GraphPackage, name: str, mesh: tuple[tuple[str, int], ...], tmp_path: Path
) -> None:
    target = find_target(name)
    lacking = back_end(target).missing(target)
    if lacking is not None:
        pytest.skip(f"the compiler of '{name}' is absent: {lacking.package}")
    payload = compile_package(package, target=name, micro_shards=4, cache_dir=tmp_path).payload
    grad, update = payload.programs["grad"], payload.programs["apply"]
    for program in payload.programs.values():
        assert program.partitions is not None
        assert program.partitions.mesh == mesh
        assert program.chips == target.chips
        assert program.executable
    cuts = {
        spec.name.removeprefix("model.layers.0."): cut
        for spec, cut in zip(grad.inputs, grad.partitions.inputs, strict=True)
        if spec.role == "param"
    }
    assert cuts["self_attn.q_proj.weight"] == cuts["mlp.up_proj.weight"] == (1, 0)
    assert cuts["self_attn.o_proj.weight"] == cuts["mlp.down_proj.weight"] == (0, 1)
    # Where both take a state's array, they have it in the same place.
    stepped = {
        spec.name: cut
        for spec, cut in zip(update.inputs, update.partitions.inputs, strict=True)
        if spec.role == "param"
    }
    assert {n.removeprefix("model.layers.0."): cut for n, cut in stepped.items()} == cuts
    whole = sum(4 * math.prod(spec.shape) for spec in update.inputs[: 3 * len(cuts)])
    assert memory_of(payload).state < 1.05 * whole / target.chips

"""The flat programs, traced and run in this process, against torch and against their contract."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from runtime.compiler.capture import capture
from runtime.compiler.graph import Graph, GraphPackage, Input, TensorType
from runtime.compiler.programs import FlatProgram, block_table, build_programs
from runtime.spec import CompileError

EXPONENT = -26


def arguments(program: FlatProgram, given: dict[tuple[str, str], np.ndarray]) -> list[jax.Array]:
    """Fill a program's inputs: what is given, zeros elsewhere."""
    return [
        jnp.asarray(given.get((spec.role, spec.name), np.zeros(spec.shape)), spec.dtype)
        for spec in program.inputs
    ]


def run(
    program: FlatProgram, given: dict[tuple[str, str], np.ndarray]
) -> dict[tuple[str, str], np.ndarray]:
    """Run a program; give its results by role and name, after checking the signature."""
    results = jax.jit(program.function)(*arguments(program, given))
    for spec, result in zip(program.outputs, results, strict=True):
        assert (result.shape, result.dtype.name) == (spec.shape, spec.dtype), spec
    return {
        (spec.role, spec.name): np.asarray(result)
        for spec, result in zip(program.outputs, results, strict=True)
    }


def test_two_shards_of_a_llama_give_torchs_gradients_and_step() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=61,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    captured = capture(model, micro_batch=1, seq_len=8, packing=False)
    grad, apply, forward = build_programs(captured.package, target="cpu", micro_shards=2)
    given = {
        (item.role, item.target): captured.arrays[item.target]
        for item in captured.package.graphs["grad"].inputs
        if item.role in {"param", "buffer"}
    }
    params = [spec.name for spec in grad.inputs if spec.role == "param"]
    given |= {
        ("exponents", name): np.full(count, EXPONENT)
        for name, _, count in block_table(captured.package).rows
    }
    given["maxima", ""] = np.full(block_table(captured.package).n_blocks, -1024)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    rng = np.random.default_rng(0)
    tokens, losses = 0, []
    for shard in range(2):
        ids, labels = rng.integers(0, 61, (2, 1, 8))
        labels[0, : 2 + shard] = -100
        positions = np.arange(8)[None]
        for name, value in zip(
            ("input_ids", "labels", "position_ids"), (ids, labels, positions), strict=True
        ):
            given["batch", name] = value
        out = run(grad, given)
        logits = model(input_ids=torch.from_numpy(ids)).logits
        loss = torch.nn.functional.cross_entropy(
            logits[0], torch.from_numpy(labels[0]), reduction="sum"
        )
        loss.backward()
        losses.append((float(out["loss_sum", ""]), float(loss.detach())))
        tokens += int(out["tokens", ""])
        assert (int(out["overflow", ""]), int(out["nonfinite", ""])) == (0, 0)
        given |= {key: value for key, value in out.items() if key[0] in {"grad_sum", "maxima"}}
        shown = run(forward, given)["logits", ""]
        np.testing.assert_allclose(shown, logits.detach().numpy(), atol=2e-6)
    assert losses[0] == (pytest.approx(losses[0][1], rel=1e-6), losses[0][1])
    assert losses[1] == (pytest.approx(losses[1][1], rel=1e-6), losses[1][1])
    assert tokens == 6 + 5
    named = dict(model.named_parameters())
    for name in params:
        theirs = named[name].grad
        assert theirs is not None
        ours = given["grad_sum", name].reshape(-1)[: theirs.numel()] * 2.0**EXPONENT
        scale = float(theirs.abs().max())
        np.testing.assert_allclose(
            ours.reshape(theirs.shape), theirs.numpy(), rtol=0, atol=2e-6 * scale + 2.0**EXPONENT
        )
        theirs /= tokens
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    given["scalars", ""] = np.array([1e-2, 0.9, 0.95, 1e-8, 0.0, 0.1, 1 - 0.9, 1 - 0.95])
    given["tokens", ""] = np.array(tokens)
    stepped = run(apply, given)
    assert float(stepped["grad_norm", ""]) == pytest.approx(float(norm), rel=1e-5)
    for name in params:
        state = optimizer.state[named[name]]
        largest = float(state["exp_avg"].abs().max())
        np.testing.assert_allclose(
            stepped["moment1", name], state["exp_avg"].numpy(), rtol=1e-4, atol=1e-4 * largest
        )


def test_maxima_accumulate_over_shards_and_empty_blocks_stay_empty(
    square_package: GraphPackage,
) -> None:
    grad = build_programs(square_package, target="cpu", micro_shards=4)[0]
    weight = np.zeros((90, 70))
    weight[0, 0] = 4.0  # gradient 8: exponent 3, in the weight's first block of two
    given = {
        ("param", "layer.weight"): weight,
        ("param", "layer.bias"): np.full(3, 0.5),  # gradient 1: exponent 0
        ("batch", "labels"): np.array([[1, 1, 1, 0]]),
        ("maxima", ""): np.array([2, -1024, -1024]),
    }
    out = run(grad, given)
    assert out["maxima", ""].tolist() == [2, 3, -1024]
    assert int(out["tokens", ""]) == 3
    assert float(out["loss_sum", ""]) == 16.75
    assert out["grad_sum", "layer.bias"][0, :4].tolist() == [1, 1, 1, 0]


def test_grad_keeps_the_sums_it_was_given(square_package: GraphPackage) -> None:
    grad, apply = build_programs(square_package, target="cpu", micro_shards=4)
    assert grad.donated == ()
    roles = {apply.inputs[i].role for i in apply.donated}
    assert roles == {"param", "moment1", "moment2"}


def test_apply_with_no_tokens_moves_nothing_but_decay(square_package: GraphPackage) -> None:
    apply = build_programs(square_package, target="cpu", micro_shards=4)[1]
    given = {
        ("param", "layer.bias"): np.ones(3),
        ("scalars", ""): np.array([1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0, 0.1, 0.05]),
    }
    out = run(apply, given)
    assert out["param", "layer.bias"].tolist() == [1, 1, 1]
    assert float(out["grad_norm", ""]) == 0.0


def test_a_package_without_a_grad_graph_is_refused(square_package: GraphPackage) -> None:
    empty = dataclasses.replace(square_package, graphs={})
    with pytest.raises(CompileError, match="holds no 'grad' graph"):
        build_programs(empty, target="cpu", micro_shards=2)


def test_a_parameter_that_is_not_float32_is_refused() -> None:
    half = Input("w", "param", "w", TensorType((2,), "float16"))
    package = GraphPackage({"grad": Graph((half,), (), ())}, config_digest="0" * 64)
    with pytest.raises(CompileError, match=r"'w' has dtype float16; expected float32"):
        build_programs(package, target="cpu", micro_shards=2)

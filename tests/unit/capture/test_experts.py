"""Mixtures of experts: one grouped product a matrix, with the gradients of the model's own experts."""

import functools
import types

import jax
import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers.integrations.moe import batched_mm_experts_forward, use_experts_implementation

from runtime.compiler.capture import capture, eager_loss
from runtime.compiler.capture._attention import as_one_op
from runtime.compiler.capture._batches import random_batch
from runtime.compiler.capture._experts import (
    IMPLEMENTATION,
    _luma_experts,
    _order,
    as_grouped_products,
)
from runtime.compiler.capture._router_loss import router_loss
from runtime.compiler.lower import lower_graph
from runtime.spec import CaptureError

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS = {
    "mixtral": lambda: transformers.MixtralConfig(
        **SIZES, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **SIZES, head_dim=16, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=24
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=5
    ),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 4, "num_hidden_layers": 2},
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=24,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
    "router loss": lambda: transformers.MixtralConfig(
        **{**SIZES, "num_hidden_layers": 2},
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
    ),
}
MIXTURES = {"mixtral": 1, "qwen3_moe": 1, "gpt_oss": 1, "deepseek_v3": 1, "router loss": 2}
QUICK = ("gpt_oss",)
CASES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CONFIGS]


def build(name):
    torch.manual_seed(7)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())


@functools.cache
def captured(name):
    return capture(build(name), micro_batch=2, seq_len=20)


def count(graph, op):
    return sum(node.op == op for node in graph.nodes)


@pytest.mark.parametrize("name", CASES)
def test_a_mixture_is_grouped_products_with_eager_s_gradients(name):
    package, check = captured(name).package, captured(name).check
    assert check.worst_relative_gradient_error < 1e-5
    layers = MIXTURES[name]
    # Two matrices a layer; each has its rows' gradient by the same op, and its own by the other.
    assert count(package.graphs["forward"], "luma.grouped_mm.default") == 2 * layers
    assert count(package.graphs["grad"], "luma.grouped_mm.default") == 4 * layers
    biases = 2 * layers if name == "gpt_oss" else 0
    assert count(package.graphs["grad"], "luma.grouped_outer.default") == 2 * layers + biases
    for graph in package.graphs.values():
        assert not [n.op for n in graph.nodes if n.op.startswith("transformers.")]


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_step_gives_eager_s_loss_and_gradients(name):
    model, graph = build(name), captured(name).package.graphs["grad"]
    batch = random_batch(model, micro_batch=2, seq_len=20, packing=False, seed=5)
    given = {"key": np.zeros(2, np.int32)}
    given |= {key: value.numpy().astype(np.int32) for key, value in batch.items()}
    flat = [{**captured(name).arrays, **given}[item.target] for item in graph.inputs]
    results = jax.jit(lower_graph(graph, "cpu"))(flat)
    found = dict(zip([label for label, _ in graph.outputs], results, strict=True))
    model.train()
    loss, tokens = eager_loss(model, batch)
    loss.backward()
    assert int(found["tokens"]) == int(tokens) > 0
    assert float(found["loss_sum"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    largest = max(float(grad.abs().max()) for grad in grads.values())
    for path, grad in grads.items():
        error = np.abs(np.asarray(found[f"grad:{path}"]) - grad.numpy()).max()
        assert error <= 1e-5 * largest, path


@pytest.mark.slow
@pytest.mark.parametrize("packing", [False, True])
def test_the_router_s_loss_is_part_of_the_step(packing):
    """As in transformers' own loss: its coefficient counts once beside the mean cross-entropy."""
    model = build("router loss")
    model.router_aux_loss_coef = 0.5
    found = capture(model, micro_batch=2, seq_len=20, packing=packing)
    batch = random_batch(model, micro_batch=2, seq_len=20, packing=packing)
    model.train()
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with as_one_op(model), torch.no_grad():
        out = model(**inputs)
    mean = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), batch["labels"].flatten())
    expected = float(mean + 0.5 * out.aux_loss)
    assert found.check.loss_eager / found.check.tokens == pytest.approx(expected, rel=1e-5)
    assert float(out.aux_loss) > 0.1
    assert found.check.worst_relative_gradient_error < 1e-5


def test_a_router_loss_without_a_coefficient_is_refused():
    model = nn.Linear(2, 2)
    model.config = types.SimpleNamespace(output_router_logits=True)
    with pytest.raises(CaptureError, match="router_aux_loss_coef") as caught:
        router_loss(model, types.SimpleNamespace(aux_loss=torch.ones(())))
    assert "output_router_logits" in caught.value.diagnostics()


class Experts(nn.Module):
    """Experts as transformers' models define them; each test's decorator says how they lie."""

    def __init__(self, config, experts=5, gate=True, transposed=False):
        super().__init__()
        self.num_experts = experts
        shape = (16, 6)
        names = {"gate_up_proj" if gate else "up_proj": shape, "down_proj": (6, 8 if gate else 16)}
        for name, (out, inner) in names.items():
            size = (experts, inner, out) if transposed else (experts, out, inner)
            self.register_parameter(name, nn.Parameter(torch.randn(size)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.randn(experts, out)))
        self.act_fn = nn.SiLU()
        self.post_expert_norm = nn.LayerNorm(6)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        raise AssertionError("the interface was not asked")


def experts(**how):
    """Give an experts layer with this layout."""
    decorated = use_experts_implementation(**how)(type("Decorated", (Experts,), {}))
    config = transformers.MixtralConfig(**SIZES)
    torch.manual_seed(11)
    return decorated(config, gate=how.get("has_gate", True), transposed=how.get("is_transposed"))


LAYOUTS = [
    {},
    {"is_transposed": True},
    {"has_bias": True},
    {"has_gate": False},
    {"has_post_expert_norm": True},
    {"has_gate": False, "has_bias": True, "is_transposed": True, "has_post_expert_norm": True},
]
ROUTES = {
    "spread": lambda draw: torch.rand(9, 5, generator=draw).topk(3).indices,
    "all to one": lambda _: torch.full((9, 1), 4),
    "one expert twice": lambda _: torch.tensor([[2, 2]] * 9),
    "no tokens": lambda _: torch.zeros(0, 2, dtype=torch.int64),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("how", LAYOUTS, ids=str)
def test_every_layout_equals_batched_mm_in_values_and_gradients(how, route):
    draw = torch.Generator().manual_seed(2)
    layer, index = experts(**how), ROUTES[route](draw)
    hidden = torch.randn(len(index), 6, generator=draw, requires_grad=True)
    weights = torch.rand(index.shape, generator=draw, requires_grad=True)
    leaves = [hidden, weights, *layer.parameters()]
    grad = torch.randn(hidden.shape, generator=draw)
    results = []
    for function in (_luma_experts, batched_mm_experts_forward):
        out = function(layer, hidden, index, weights)
        grads = torch.autograd.grad(out, leaves, grad, allow_unused=True, materialize_grads=True)
        results.append([out, *grads])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_pairs_are_sorted_by_expert_and_come_back():
    chosen = torch.tensor([2, 0, 2, 3, 0, 2])
    order = _order(chosen, 5)
    assert order.experts.tolist() == [0, 0, 2, 2, 2, 3]
    assert order.pairs.tolist() == [1, 4, 0, 2, 5, 3]
    assert order.places[order.pairs].tolist() == list(range(6))
    assert order.sizes.tolist() == [2, 0, 3, 1, 0]
    assert order.sizes.dtype == torch.int32


def test_the_model_s_own_experts_come_back():
    model = build("mixtral")
    before = model.config._experts_implementation
    with pytest.raises(ZeroDivisionError), as_grouped_products(model):
        assert model.config._experts_implementation == IMPLEMENTATION
        raise ZeroDivisionError
    assert model.config._experts_implementation == before != IMPLEMENTATION


def test_a_module_of_its_own_around_a_model_is_reached():
    wrapped = nn.Sequential(build("qwen3_moe"))
    with as_grouped_products(wrapped):
        assert wrapped[0].config._experts_implementation == IMPLEMENTATION


def test_experts_split_over_processes_are_refused():
    layer = experts()
    layer._is_expert_parallel = True
    with pytest.raises(CaptureError, match="expert parallelism"):
        _luma_experts(layer, torch.ones(2, 6), torch.zeros(2, 1, dtype=int), torch.ones(2, 1))


def test_wrong_experts_do_not_pass(monkeypatch):
    def swapped(module, hidden, index, weights):
        return _luma_experts(module, hidden, index.flip(1), weights)

    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    monkeypatch.setitem(ALL_EXPERTS_FUNCTIONS._global_mapping, IMPLEMENTATION, swapped)
    with pytest.raises(CaptureError, match=r"differs from eager's|eager's is"):
        capture(build("mixtral"), micro_batch=1, seq_len=8)

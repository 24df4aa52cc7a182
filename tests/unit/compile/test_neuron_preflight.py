"""The pre-flight: every op that a target cannot compile is named, and after decomposition none is."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.compiler.capture import capture
from runtime.compiler.graph import Graph, GraphPackage, Node, Ref, TensorType
from runtime.compiler.lower.registry import find_lowering, registered_ops
from runtime.compiler.neuron.rules import broken_rules
from runtime.compiler.passes.decompose import decompose, replacements
from runtime.compiler.preflight import Judgements, node_module, preflight
from runtime.compiler.targets import find_target
from tests.unit.lower import cases as lowered_cases
from tests.unit.lower.support import Case, Draw, torch_op
from tests.unit.passes.support import FAMILY, TARGET, graph_of

TRN2 = find_target("trn2")
VECTOR = TensorType((4,), "float32")

# Ops with a lowering that Neuron cannot compile in every form, and that have no decomposition.
LEFT = {
    **dict.fromkeys(
        ("aten.complex.default", "aten.imag.default", "aten.polar.default", "aten.real.default"),
        "complex numbers",
    ),
    **dict.fromkeys(("aten.view_as_complex.default", "aten.view_as_real.default"), "complex"),
    **dict.fromkeys(
        ("aten._conj.default", "aten._conj_physical.default", "aten.conj_physical.default"),
        "complex numbers",
    ),
}


def with_nodes(package: GraphPackage, *nodes: Node) -> GraphPackage:
    """Put nodes before those of the package's graph, and read each in an output."""
    graph = package.graphs["grad"]
    outputs = tuple((f"more{i}", Ref(node.name)) for i, node in enumerate(nodes))
    more = Graph(graph.inputs, (*nodes, *graph.nodes), (*graph.outputs, *outputs))
    return dataclasses.replace(package, graphs={"grad": more})


def test_a_job_that_needs_nothing_has_empty_lists(square_package: GraphPackage) -> None:
    for name in ("cpu", "cuda-sm90", "tpu-v5e", "trn1", "trn2"):
        found = preflight(square_package, find_target(name), micro_shards=4)
        assert (found.unsupported, found.decomposed) == ((), ()), name


def test_all_that_is_unsupported_is_named_at_once_with_its_modules(
    square_package: GraphPackage,
) -> None:
    source = (Ref("bias"),)
    bias, spins = TensorType((3,), "float32"), TensorType((3,), "complex64")
    # An output that is complex cannot be pairs of floats: the graph keeps its complex values.
    package = with_nodes(
        square_package,
        Node("a", "aten.erfinv.default", source, {}, bias, "model.layers.0.mlp"),
        Node("b", "aten.polar.default", source * 2, {}, spins, "model.layers.1.norm"),
        Node("c", "aten.polar.default", source * 2, {}, spins, "model.layers.2.norm"),
        Node("d", "aten.erf.default", source, {}, bias, "model.head"),
    )
    found = preflight(package, TRN2, micro_shards=4).to_json()
    unsupported = {item["op"]: item for item in found["unsupported"]}
    assert unsupported["aten.erfinv.default"]["reasons"] == ["no lowering for target 'trn2'"]
    assert unsupported["aten.erfinv.default"]["modules"] == ["model.layers.0.mlp"]
    assert unsupported["aten.polar.default"]["modules"] == [
        "model.layers.1.norm",
        "model.layers.2.norm",
    ]
    assert "NCC_EVRF004" in unsupported["aten.polar.default"]["reasons"][0]
    assert set(unsupported) == {"aten.erfinv.default", "aten.polar.default"}
    (replaced,) = found["decomposed"]
    assert (replaced["op"], replaced["by"]) == ("aten.erf.default", "activation.erf")
    assert (replaced["nodes"], replaced["modules"]) == (1, ["model.head"])
    assert "issue 1081" in replaced["because"]


def test_other_targets_keep_their_ops(square_package: GraphPackage) -> None:
    node = Node("d", "aten.erf.default", (Ref("bias"),), {}, TensorType((3,), "float32"))
    package = with_nodes(square_package, node)
    found = preflight(package, find_target("cuda-sm90"), micro_shards=4)
    assert (found.unsupported, found.decomposed) == ((), ())
    assert decompose(package.graphs["grad"], "cuda") == package.graphs["grad"]


def test_nodes_that_are_known_are_not_lowered_again(
    square_package: GraphPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Judgements()
    first = preflight(square_package, TRN2, micro_shards=4, known=known)
    monkeypatch.setattr("runtime.compiler.preflight.node_module", None)
    assert preflight(square_package, TRN2, micro_shards=4, known=known) == first


def test_the_chips_of_the_family_share_every_lowering() -> None:
    """So that what is judged for one holds for all: neither rules nor decompositions know a chip."""
    chips = [find_target(name).lowering for name in ("trn1", "trn2", "trn3", "inf2")]
    for op in registered_ops():
        assert len({find_lowering(op, chip) for chip in chips}) == 1, op


def test_what_stands_around_the_graph_is_judged_too(square_package: GraphPackage) -> None:
    found = preflight(square_package, TRN2, micro_shards=4)
    assert "round-nearest-even" in found.assumed  # of the gradients' fixed point


def test_a_dtype_without_a_form_is_named(square_package: GraphPackage) -> None:
    wide = TensorType((3,), "float64")
    node = Node("a", "aten._to_copy.default", (Ref("bias"),), {}, wide, "model.norm")
    found = preflight(with_nodes(square_package, node), TRN2, micro_shards=4)
    assert found.unsupported[0].to_json()["reasons"] == ["float64 has no form on any target"]


_SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "max_position_embeddings": 64,
}  # fmt: skip
_MODELS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(**_SIZES),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES, head_dim=16, tie_word_embeddings=True),
    "mistral": lambda: transformers.MistralConfig(**_SIZES, sliding_window=5),
    "gemma2": lambda: transformers.Gemma2Config(**_SIZES, head_dim=16, sliding_window=5),
    "gpt2": lambda: transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, vocab_size=96, n_positions=64
    ),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**_SIZES),
    "opt": lambda: transformers.OPTConfig(
        hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
        max_position_embeddings=64, word_embed_proj_dim=32,
    ),
    "mixtral": lambda: transformers.MixtralConfig(
        **_SIZES, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **_SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        decoder_sparse_step=1,
    ),
    "deepseek_v2": lambda: transformers.DeepseekV2Config(
        **{**_SIZES, "num_key_value_heads": 4}, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=24, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8,
        qk_rope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
    ),
    "mamba": lambda: transformers.MambaConfig(
        hidden_size=32, num_hidden_layers=1, vocab_size=96, state_size=4
    ),
}  # fmt: skip
_QUICK = ("qwen3",)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in _MODELS],
)
def test_after_decomposition_nothing_of_a_model_is_left(name: str) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(_MODELS[name]())
    package = capture(model, micro_batch=2, seq_len=16).package
    found = preflight(package, TRN2, micro_shards=4)
    assert [item.to_json() for item in found.unsupported] == []
    assert {"aten.embedding.default", "aten.gather.default"} <= {i.op for i in found.decomposed}


def _cases() -> list[Case]:
    names = [module.name for module in pkgutil.iter_modules(lowered_cases.__path__)]
    modules = [importlib.import_module(f"tests.unit.lower.cases.{name}") for name in names]
    return [case for module in modules for case in module.CASES]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.op)
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_lowered_op_has_a_form_for_neuron(case: Case, data: st.DataObject) -> None:
    """Or it is listed in `LEFT`, with what is missing."""
    if case.op in LEFT:
        pytest.skip(f"not compiled for Neuron: {LEFT[case.op]}")
    args, kwargs = case.draw(Draw(data))
    expected = torch_op(case.op)(*args, **kwargs)
    graph, values = graph_of(case.op, args, kwargs, expected)
    if not all(value.numel() for value in values):
        return  # no graph of a model holds an empty tensor
    done = replacements(graph, FAMILY).graph
    types = {item.name: item.type for item in done.inputs}
    for node in done.nodes:
        if node.op != "getitem" and node.out is not None:
            broken = broken_rules(node_module(node, types, TARGET))
            assert [item.text() for item in broken] == [], node.op
        if isinstance(node.out, TensorType):
            types[node.name] = node.out


def test_what_is_left_is_lowered() -> None:
    assert set(LEFT) <= registered_ops()

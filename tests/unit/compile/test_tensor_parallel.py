"""Column and row cuts, read from graphs: captured models, and small ones made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from runtime.compiler.capture import capture
from runtime.compiler.graph import Graph, Input, Node, Ref, TensorType
from runtime.compiler.tensor_parallel import tensor_cuts
from tests.unit.packages import linear_graph

COLUMN, ROW = 0, 1  # of a Linear's weight [out, in]


def cuts_of(config: Any, **options: Any) -> dict[str, int]:
    """Capture a small model and give its cuts."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    package = capture(model, micro_batch=2, seq_len=8, **options).package
    return tensor_cuts(package.graphs["grad"])


def test_a_llamas_layers_alternate_as_megatrons_do() -> None:
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, tie_word_embeddings=False,
    )  # fmt: skip
    cuts = cuts_of(config)
    for layer in range(2):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj",
                     "mlp.up_proj"):  # fmt: skip
            assert cuts.pop(f"model.layers.{layer}.{name}.weight") == COLUMN, name
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            assert cuts.pop(f"model.layers.{layer}.{name}.weight") == ROW, name
    assert cuts == {"model.embed_tokens.weight": 0, "lm_head.weight": COLUMN}


def test_weights_that_lie_the_other_way_round_are_cut_by_what_they_do() -> None:
    """GPT-2 keeps weights as [in, out], has biases, and one product for q, k and v."""
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=4, vocab_size=64, n_positions=16, attn_pdrop=0.0, **ends
    )
    cuts = cuts_of(config)
    found = {name.removeprefix("transformer.h.0."): cut for name, cut in cuts.items()}
    assert found["attn.c_attn.weight"] == 1
    assert found["attn.c_proj.weight"] == 0
    assert found["mlp.c_fc.weight"] == 1
    assert found["mlp.c_proj.weight"] == 0


def test_two_products_in_a_row_are_a_column_and_a_row() -> None:
    assert tensor_cuts(linear_graph()) == {"a.weight": 1, "b.weight": 0}


def graph_of(*nodes: Node, weights: dict[str, tuple[int, ...]]) -> Graph:
    """Give a graph over x [4, 64] whose last node is the loss."""
    inputs = [Input(n, "param", n, TensorType(s, "float32")) for n, s in weights.items()]
    x = Input("x", "batch", "input_ids", TensorType((4, 64), "float32"))
    loss = Node("loss", "aten.sum.default", (Ref(nodes[-1].name),), {}, TensorType((), "float32"))
    return Graph((*inputs, x), (*nodes, loss), (("loss_sum", Ref("loss")),))


def node(name: str, op: str, *args: Any, shape: tuple[int, ...]) -> Node:
    """Give a node; texts are names of values."""
    refs = tuple(Ref(a) if isinstance(a, str) else a for a in args)
    return Node(name, f"aten.{op}", refs, {}, TensorType(shape, "float32"))


@pytest.mark.parametrize(
    ("between", "second"),
    [
        (node("h", "relu.default", "y", shape=(4, 32)), 0),
        (node("h", "mul.Tensor", "y", "y", shape=(4, 32)), 0),
        (node("h", "add.Tensor", "y", "bias", shape=(4, 32)), 0),
        # What mixes features, or adds whole ones, makes the result whole: columns again.
        (node("h", "_softmax.default", "y", 1, False, shape=(4, 32)), 1),
        (node("h", "add.Tensor", "y", "whole", shape=(4, 32)), 1),
    ],
)
def test_rows_follow_columns_only_where_features_are_worked_on_alone(
    between: Node, second: int
) -> None:
    graph = graph_of(
        node("whole", "slice.Tensor", "x", 1, 0, 32, shape=(4, 32)),
        node("y", "mm.default", "x", "first", shape=(4, 32)),
        between,
        node("z", "mm.default", "h", "second", shape=(4, 64)),
        weights={"first": (64, 32), "second": (32, 64), "bias": (32,)},
    )
    assert tensor_cuts(graph) == {"first": 1, "second": second}


def test_a_narrow_weight_stays_whole_and_the_next_is_cut_by_columns() -> None:
    graph = graph_of(
        node("y", "mm.default", "x", "down", shape=(4, 4)),
        node("z", "mm.default", "y", "up", shape=(4, 64)),
        weights={"down": (64, 4), "up": (4, 64)},
    )
    assert tensor_cuts(graph) == {"up": 1}


def test_products_of_the_backward_pass_decide_nothing() -> None:
    graph = graph_of(
        node("y", "mm.default", "x", "w", shape=(4, 32)), weights={"w": (64, 32), "v": (64, 32)}
    )
    late = node("g", "mm.default", "x", "v", shape=(4, 32))
    wider = Graph(graph.inputs, (*graph.nodes, late), (*graph.outputs, ("grad:v", Ref("g"))))
    assert tensor_cuts(wider) == {"w": 1}


def test_a_lora_adapter_leaves_the_columns_of_what_it_adapts() -> None:
    graph = graph_of(
        node("base", "mm.default", "x", "q", shape=(4, 64)),
        node("a", "mm.default", "x", "lora_a", shape=(4, 4)),
        node("b", "mm.default", "a", "lora_b", shape=(4, 64)),
        node("sum", "add.Tensor", "base", "b", shape=(4, 64)),
        node("o", "mm.default", "sum", "out", shape=(4, 64)),
        weights={"q": (64, 64), "lora_a": (64, 4), "lora_b": (4, 64), "out": (64, 64)},
    )
    assert tensor_cuts(graph) == {"q": 1, "lora_b": 1, "out": 0}

"""Activation checkpointing gives the plain graph's results, bit for bit, from less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from runtime.compiler.capture import capture
from runtime.compiler.capture.interpret import run_graph
from runtime.compiler.graph import Graph, GraphPackage, Input, Node, Ref, TensorType, Value, refs
from runtime.compiler.lower import lower_graph
from runtime.compiler.passes.rematerialise import BARRIER, rematerialise
from runtime.spec import CompileError

BATCH, SEQ_LEN = 2, 24


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_embd=32, n_layer=3, n_head=4, vocab_size=64, n_positions=64, attn_pdrop=0.0
    )
    return transformers.GPT2LMHeadModel(config)


class Recurrent(nn.Module):
    """One block that runs three times, with another one in between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 16)
        self.blocks = nn.ModuleList([_block(16), _block(16)])
        self.head = nn.Linear(16, 64)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids)
        for block in (0, 1, 0, 1, 0):
            x = x + self.blocks[block](x)
        return self.head(x)


def _block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "gpt2": gpt2, "shared": Recurrent}


@pytest.fixture(scope="module")
def captured() -> Callable[[str], tuple[Graph, dict[str, torch.Tensor]]]:
    """Give (graph, values of its inputs) of a model, captured once."""
    done: dict[str, tuple[Graph, dict[str, torch.Tensor]]] = {}

    def one(name: str) -> tuple[Graph, dict[str, torch.Tensor]]:
        if name not in done:
            torch.manual_seed(3)
            result = capture(MODELS[name](), micro_batch=BATCH, seq_len=SEQ_LEN)
            graph = result.package.graphs["grad"]
            done[name] = graph, dict(_values(graph, result.arrays))
        return done[name]

    return one


def _values(graph: Graph, arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, torch.Tensor]]:
    shape = (BATCH, SEQ_LEN)
    generator = torch.Generator().manual_seed(1)
    batch = {
        "input_ids": torch.randint(64, shape, generator=generator),
        "labels": torch.randint(64, shape, generator=generator),
        "position_ids": torch.arange(SEQ_LEN).expand(shape).contiguous(),
    }
    for item in graph.inputs:
        if item.role == "batch":
            yield item.name, batch[item.target]
        elif item.role == "key":
            yield item.name, torch.tensor([5, -6], dtype=torch.int32)
        else:
            yield item.name, torch.from_numpy(np.array(arrays[item.target]))


def without_barriers(graph: Graph) -> Graph:
    """Give the graph with what enters a barrier in place of what leaves it."""
    values: dict[str, tuple[Value, ...]] = {}
    names: dict[str, Ref] = {}
    nodes = []
    for node in graph.nodes:
        args = tuple(_replaced(item, names) for item in node.args)
        kwargs = {key: _replaced(item, names) for key, item in node.kwargs.items()}
        source = node.args[0] if node.args else None
        if node.op == BARRIER:
            assert isinstance(args[0], tuple)
            values[node.name] = args[0]
        elif node.op == "getitem" and isinstance(source, Ref) and source.name in values:
            index = node.args[1]
            assert isinstance(index, int)
            entering = values[source.name][index]
            assert isinstance(entering, Ref)
            names[node.name] = entering
        else:
            nodes.append(replace(node, args=args, kwargs=kwargs))
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _replaced(value: Value, names: dict[str, Ref]) -> Value:
    if isinstance(value, Ref):
        return names.get(value.name, value)
    if isinstance(value, tuple):
        return tuple(_replaced(item, names) for item in value)
    return value


@pytest.mark.parametrize("name", MODELS)
def test_results_are_the_plain_graphs_bit_for_bit(captured: Any, name: str) -> None:
    """Dropout included: a copy draws what the first run drew."""
    graph, values = captured(name)
    plain = run_graph(graph, values)
    again = run_graph(without_barriers(rematerialise(graph)), values)
    assert list(again) == list(plain)
    for label, value in plain.items():
        assert torch.equal(again[label], value), label


@pytest.mark.parametrize("name", MODELS)
def test_of_each_layer_only_what_entered_it_is_kept(captured: Any, name: str) -> None:
    """No value of a layer's inside lives until the backward but what the next layer takes."""
    graph, _ = captured(name)
    result = rematerialise(graph)
    split = 1 + max(i for i, n in enumerate(result.nodes) if n.name in _ends(result))
    inside = {
        n.name: n for n in result.nodes[:split] if any(map(str.isdecimal, n.module.split(".")))
    }
    later = {use for node in result.nodes[split:] for use in _uses(node)} & inside.keys()
    hidden = [BATCH, SEQ_LEN, 16 if name == "shared" else 32]
    layers = sum(node.op == BARRIER for node in result.nodes)
    assert all(list(_type(inside[use]).shape) == hidden for use in later)
    assert len(later) <= layers


def _ends(graph: Graph) -> set[str]:
    return {ref.name for label, ref in graph.outputs if label in {"loss_sum", "tokens"}}


def _type(node: Node) -> TensorType:
    assert isinstance(node.out, TensorType)
    return node.out


def _uses(node: Node) -> Iterator[str]:
    return refs((node.args, tuple(node.kwargs.values())))


def test_a_block_that_runs_again_is_recomputed_for_each_of_its_runs(captured: Any) -> None:
    graph, _ = captured("shared")
    assert sum(node.op == BARRIER for node in rematerialise(graph).nodes) == 5


def _compiled(graph: Graph, values: dict[str, torch.Tensor]) -> tuple[list[np.ndarray], int]:
    """Give the outputs, and the bytes of temporaries that XLA plans for them."""
    arrays = [values[item.name].numpy() for item in graph.inputs]
    arrays = [array.astype(np.int32) if array.dtype == np.int64 else array for array in arrays]
    run = lower_graph(graph, "cpu")
    compiled = jax.jit(lambda *flat: run(flat)).lower(*arrays).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    return [np.asarray(item) for item in compiled(*arrays)], memory.temp_size_in_bytes


@pytest.mark.slow
def test_the_compiled_step_needs_less_memory_and_gives_the_same(captured: Any) -> None:
    """XLA's CPU back end neither joins the copies with the first runs nor starts them early."""
    graph, values = captured("llama")
    plain, bytes_plain = _compiled(graph, values)
    again, bytes_again = _compiled(rematerialise(graph), values)
    assert bytes_again < 0.75 * bytes_plain
    for one, other in zip(again, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


def test_the_option_is_part_of_the_packages_digest(captured: Any) -> None:
    graph, _ = captured("shared")
    plain = GraphPackage({"grad": graph}, config_digest="0" * 64)
    layered = replace(plain, checkpointing="layer")
    assert plain.digest() != layered.digest()
    assert GraphPackage.from_bytes(layered.to_bytes()) == layered


# --- graphs that no model has ---------------------------------------------------------------------

VECTOR, SCALAR = TensorType((3,), "float32"), TensorType((), "float32")
MODULES = ("", "head", "layers.0", "layers.0.mlp", "layers.1", "layers.2.attn.0")


@st.composite
def joint_graphs(draw: st.DrawFn) -> Graph:
    """Draw a forward whose nodes belong to any modules, and a backward that reads any of them."""
    names = ["w", "x"]
    nodes: list[Node] = []

    def grow(prefix: str, count: int, modules: tuple[str, ...]) -> None:
        for index in range(count):
            pair = draw(st.tuples(*[st.sampled_from(names)] * 2))
            op = draw(st.sampled_from(["aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor"]))
            name = f"{prefix}{index}"
            module = draw(st.sampled_from(modules))
            nodes.append(Node(name, op, tuple(Ref(n) for n in pair), {}, VECTOR, module))
            names.append(name)

    grow("f", draw(st.integers(1, 12)), MODULES)
    nodes.append(Node("in_layer", "aten.sin.default", (Ref(names[-1]),), {}, VECTOR, "layers.0"))
    nodes.append(Node("loss", "aten.sum.default", (Ref("in_layer"),), {}, SCALAR))
    nodes.append(Node("tokens", "aten.sum.default", (Ref("x"),), {}, SCALAR))
    grow("b", draw(st.integers(1, 12)), MODULES)
    outputs = (("loss_sum", "loss"), ("tokens", "tokens"), ("grad:w", names[-1]))
    inputs = (Input("w", "param", "w", VECTOR), Input("x", "buffer", "x", VECTOR))
    return Graph(inputs, tuple(nodes), tuple((label, Ref(name)) for label, name in outputs))


@given(joint_graphs(), st.integers(0, 2**31))
def test_any_joint_graph_keeps_its_results(graph: Graph, seed: int) -> None:
    values = {
        name: torch.rand(3, generator=torch.Generator().manual_seed(seed + i))
        for i, name in enumerate(("w", "x"))
    }
    result = rematerialise(graph)
    result.check()
    plain, again = run_graph(graph, values), run_graph(without_barriers(result), values)
    for label, value in plain.items():
        assert torch.equal(again[label], value), label


def test_a_model_without_numbered_modules_is_refused_with_a_remedy() -> None:
    loss = Node("loss", "aten.sum.default", (Ref("w"),), {}, SCALAR, "head")
    outputs = (("loss_sum", Ref("loss")), ("tokens", Ref("loss")))
    graph = Graph((Input("w", "param", "w", VECTOR),), (loss,), outputs)
    with pytest.raises(CompileError, match="no module path of this model holds a number") as raised:
        rematerialise(graph)
    assert "checkpointing to none" in (raised.value.remedy or "")


def test_a_graph_without_a_loss_is_refused() -> None:
    graph = Graph((Input("w", "param", "w", VECTOR),), (), (("logits", Ref("w")),))
    with pytest.raises(CompileError, match="loss_sum"):
        rematerialise(graph)

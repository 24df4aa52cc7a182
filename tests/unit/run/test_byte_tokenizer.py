"""A model without a tokenizer gets one whose tokens are those that it was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from runtime.run.byte_tokenizer import byte_tokenizer
from runtime.run.data.readers import Document
from runtime.run.data.tokens import END_OF_DOCUMENT, ByteEncoder, TextEncoder
from runtime.run.model_files import save_model_files

TOKENIZER = byte_tokenizer()


def tiny_model() -> Qwen3ForCausalLM:
    """Give a random model of bytes."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=320, **sizes, **heads, **ends))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model without a tokenizer."""
    folder = tmp_path_factory.mktemp("files") / "model"
    save_model_files(tiny_model(), None, folder)
    return folder


@given(st.text(max_size=60))
def test_a_text_encodes_to_its_bytes_and_back(text):
    ids = TOKENIZER(text)["input_ids"]
    assert ids == list(text.encode())
    assert TOKENIZER.decode(ids) == text


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4))
def test_documents_encode_as_the_training_data_does(texts):
    documents = [Document(content=text, where=f"document {i}") for i, text in enumerate(texts)]
    ours, theirs = ByteEncoder().encode(documents), TextEncoder(TOKENIZER).encode(documents)
    for mine, other in zip(ours, theirs, strict=True):
        assert np.array_equal(mine.ids, other.ids)


def test_a_loader_reads_the_same_tokenizer_from_the_models_files(saved):
    loaded = AutoTokenizer.from_pretrained(saved)
    text = "é\x00\r\n  <|end_of_document|> \U0001f600 e\u0301"
    assert loaded(text)["input_ids"] == list(text.encode())
    assert (loaded.eos_token_id, len(loaded)) == (END_OF_DOCUMENT, 257)
    # An id of the vocabulary's padding, and half a character, must not break a stream.
    assert loaded.decode([65, 256, 300, 0xE2], skip_special_tokens=True) == "A\ufffd"


def test_the_chat_template_is_plain_words(saved):
    loaded = AutoTokenizer.from_pretrained(saved)
    messages = [{"role": "user", "content": "Hello"}]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "user: Hello\nassistant:"
    ids = loaded.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids == list(text.encode())


def test_the_saved_files_can_be_served_and_end_at_the_end_of_a_document(saved):
    from runtime.serve.checkpoint import read_servable

    (saved / "model.safetensors").write_bytes(b"")
    assert read_servable(saved).has_chat_template
    assert f'"eos_token_id": {END_OF_DOCUMENT}' in (saved / "generation_config.json").read_text()

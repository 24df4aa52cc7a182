"""Tiny random models, one a family, and the captures that several tests look at."""

import functools

import pytest
import torch
import transformers

from runtime.compiler.capture import capture

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 64}
GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 128,
    "n_positions": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "llama tied": lambda: transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=16),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=5),
    "gemma": lambda: transformers.GemmaConfig(**GROUPED, head_dim=16),
    "gemma2": lambda: transformers.Gemma2Config(
        **GROUPED, head_dim=16, sliding_window=5, query_pre_attn_scalar=16
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=5),
    "phi": lambda: transformers.PhiConfig(**GROUPED, resid_pdrop=0.1, embd_pdrop=0.1),
    "phi3": lambda: transformers.Phi3Config(**GROUPED),
    "gpt2": lambda: transformers.GPT2Config(
        **GPT2, attn_pdrop=0.0, resid_pdrop=0.1, embd_pdrop=0.1
    ),
    "gpt2 attention dropout": lambda: transformers.GPT2Config(**GPT2, attn_pdrop=0.2),
    "opt": lambda: transformers.OPTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        ffn_dim=64,
        num_attention_heads=4,
        vocab_size=128,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        dropout=0.0,
        bos_token_id=2,
    ),
    "bloom": lambda: transformers.BloomConfig(
        hidden_size=32, n_layer=2, n_head=4, vocab_size=128, bos_token_id=1, eos_token_id=2
    ),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(1234)


def make(name):
    torch.manual_seed(7)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name]())


@pytest.fixture
def build():
    """Give a function from a family's name to a random model of the test's own."""
    return make


@functools.cache
def captured_once(name, packing):
    return capture(make(name), micro_batch=2, seq_len=20, packing=packing)


@pytest.fixture
def captured():
    """Give a function from (family, packing) to its capture at 2 x 20, made once and shared."""
    return captured_once

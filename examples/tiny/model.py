"""A random Qwen3 of about one million parameters over bytes: small enough for every test."""

from __future__ import annotations

from transformers import Qwen3Config, Qwen3ForCausalLM


def build() -> Qwen3ForCausalLM:
    """Give the model with random weights; the caller seeds torch first.

    The vocabulary holds the 256 bytes, the end-of-document token 256, and padding up to 320.
    """
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config)

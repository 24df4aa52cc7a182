"""The models of the test jobs, over bytes; copied beside each job file as its `model.py`."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM


def qwen3_config() -> Qwen3Config:
    """Two small layers with grouped queries and tied embeddings."""
    return Qwen3Config(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=None,
    )


def qwen3() -> Qwen3ForCausalLM:
    """A random Qwen3."""
    return Qwen3ForCausalLM(qwen3_config())


def gpt2() -> GPT2LMHeadModel:
    """A random GPT-2 with dropout everywhere: embeddings, attention, residuals."""
    config = GPT2Config(
        vocab_size=320,
        n_embd=32,
        n_layer=1,
        n_head=2,
        n_positions=64,
        embd_pdrop=0.1,
        attn_pdrop=0.1,
        resid_pdrop=0.1,
        bos_token_id=None,
        eos_token_id=256,
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config)


class ScaledQwen3(Qwen3ForCausalLM):
    """Qwen3 with a buffer that is saved with the weights, and one that is not."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.register_buffer("logit_scale", torch.ones(()))
        self.register_buffer("logit_bias", torch.zeros(config.vocab_size), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Scale the logits."""
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * self.logit_scale + self.logit_bias
        return output


def scaled() -> ScaledQwen3:
    """A random one whose saved buffer has a value of its own, and whose first layer is frozen."""
    model = ScaledQwen3(qwen3_config())
    model.logit_scale.fill_(1.75)
    model.model.layers[0].requires_grad_(False)
    return model

"""The architectures: every model_type of transformers' causal-LM mapping, and a fast dozen."""

from __future__ import annotations

FAST = (
    "llama",
    "qwen3",
    "gemma2",
    "gpt2",
    "phi",
    "qwen3_moe",
    "bloom",
    "opt",
    "gpt_neox",
    "falcon",
    "cohere",
    "deepseek_v3",
)
"""A diverse dozen for `make test`: grouped, sliding, soft-capped, latent and ALiBi attention,
learned and rotary positions, experts, parallel blocks, tied and untied heads."""


def model_types() -> list[str]:
    """Give every model_type that transformers maps to a causal LM, in its order."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

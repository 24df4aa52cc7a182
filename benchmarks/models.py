"""The models that are measured, with random weights; the caller seeds torch first.

Job files name these functions as their model, so nothing here imports Luma.
"""

from __future__ import annotations

from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM


def qwen3_512x6() -> Qwen3ForCausalLM:
    """Qwen3-like: hidden 512, 6 layers, vocabulary 8,192, 25 M parameters."""
    return _qwen3(hidden=512, layers=6, vocabulary=8192, heads=8, intermediate=1536)


def qwen3_128x4() -> Qwen3ForCausalLM:
    """The tiny example's model: hidden 128, 4 layers, vocabulary 320, 1 M parameters."""
    return _qwen3(hidden=128, layers=4, vocabulary=320, heads=4, intermediate=512)


def qwen3_256(layers: int) -> Qwen3ForCausalLM:
    """Qwen3-like: hidden 256, vocabulary 1,024, as many layers as asked for."""
    return _qwen3(hidden=256, layers=layers, vocabulary=1024, heads=4, intermediate=768)


def smollm2_135m() -> LlamaForCausalLM:
    """SmolLM2-135M's shape: Llama, hidden 576, 30 layers, vocabulary 49,152, tied head."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=256,
            pad_token_id=None,
        )
    )


def _qwen3(
    *, hidden: int, layers: int, vocabulary: int, heads: int, intermediate: int
) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=hidden // heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=256,
            pad_token_id=None,
        )
    )

"""A small configuration of any architecture, by rules on its configuration's fields.

Four rules make it: a field that `_SIZES` names gets that size; of lists with one entry a layer, one
layer of each kind stays; what drops or jitters at random is off; token ids move into the small
vocabulary. A configuration inside another (`text_config`) gets the same. `_CONSISTENT` holds what
the rules cannot know: fields that an architecture requires to agree with each other.
"""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY = 512
POSITIONS = 128
_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _LAYERS = 64, 4, 2, 16, 2


def _same(size: int, *names: str) -> dict[str, int]:
    return dict.fromkeys(names, size)


_LAYER_COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
    "encoder_layers",
    "num_decoder_layers",
    "num_encoder_layers",
)
_HEAD_COUNTS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "attention_heads",
    "decoder_attention_heads",
    "encoder_attention_heads",
    "num_decoder_attention_heads",
    "num_encoder_attention_heads",
    "swa_num_attention_heads",
    "linear_num_heads",
    "num_attention_heads_per_layer",
)
_SIZES: dict[str, int] = {
    **_same(_LAYERS, *_LAYER_COUNTS, "depth"),
    **_same(_HEADS, *_HEAD_COUNTS),
    **_same(
        _KV_HEADS,
        *("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"),
        *("num_global_key_value_heads", "linear_num_key_heads"),
    ),
    **_same(4, "linear_num_value_heads", "indexer_n_heads"),
    **_same(
        _HIDDEN,
        *("hidden_size", "d_model", "n_embd", "emb_dim", "word_embed_proj_dim", "embedding_size"),
        *("input_embedding_size", "output_embedding_size", "lru_width", "embedding_dim"),
        *("pronunciation_embed_dim", "shape_embed_dim", "embed_dim", "dim"),
        *("adapter_in_dim", "adapter_out_dim", "adapter_input_size", "projector_hidden_size"),
        "hidden_size_global",
    ),
    **_same(
        _HEAD_DIM,
        *("head_dim", "swa_head_dim", "dim_head", "attention_head_size", "v_head_dim"),
        *("qk_nope_head_dim", "kv_channels", "linear_key_head_dim", "linear_value_head_dim"),
        *("linear_head_dim", "index_head_dim", "indexer_head_dim", "global_head_dim", "d_head"),
        *("mamba_head_dim", "mamba_d_head", "mamba_headdim", "swa_v_head_dim"),
    ),
    **_same(8, "qk_rope_head_dim", "rotary_dim"),
    **_same(
        128,
        *("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "dim_ff", "dff"),
        *("n_inner", "d_inner", "feed_forward_size", "intermediate_size_mlp", "ffn_hidden_size"),
        *("dense_intermediate_size", "prefix_dense_intermediate_size", "mlp_dim"),
    ),
    **_same(
        32,
        *("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"),
        *("shared_experts_intermediate_size", "expert_ffn_hidden_size", "q_lora_rank"),
        *("moe_shared_expert_intermediate_size", "kv_lora_rank", "o_lora_rank", "hc_lowrank"),
        *("hidden_size_per_layer_input", "router_hidden_size", "time_step_rank", "mamba_dt_rank"),
    ),
    **_same(8, "gated_norm_rank", "laurel_rank", "adapter_rank", "loop_gate_rank", "d_rel"),
    **_same(4, "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
    **_same(
        2,
        "num_experts_per_tok",
        "num_experts_per_token",
        "kv_n_heads",
        "moe_top_k",
        "moe_topk",
        "moe_k",
        "top_k_experts",
        "zero_expert_num",
    ),
    # Scores are sums of rectified heads: with few heads many are exactly 0, and torch leaves open
    # which of equal scores a top-k takes.
    **_same(16, "index_n_heads"),
    **_same(2, "num_codebooks"),
    **_same(
        1, "n_group", "num_expert_group", "topk_group", "n_shared_experts", "num_shared_experts"
    ),
    **_same(1, "moe_num_shared_experts", "first_k_dense_replace", "num_dense_layers"),
    **_same(0, "num_nextn_predict_layers", "num_mtp_layers", "num_kv_shared_layers"),
    **_same(
        VOCABULARY,
        *("vocab_size", "vocab_size_per_layer_input", "unpadded_vocab_size", "text_vocab_size"),
        *("pronunciation_vocab_size", "shape_vocab_size", "decoder_vocab_size"),
        *("output_vocab_size", "audio_vocab_size", "encoder_hash_byte_group_vocab"),
        "ngram_vocab_size_base",
    ),
    **_same(
        POSITIONS,
        *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"),
        *("max_target_positions", "max_source_positions", "original_max_position_embeddings"),
    ),
    **_same(16, "mamba_d_state", "state_size", "ssm_state_size"),
    **_same(128, "mamba_d_ssm"),
    **_same(8, "mamba_n_heads", "mamba_num_heads", "n_mamba_heads"),
    **_same(1, "n_groups", "mamba_n_groups", "mamba_ngroups"),
    **_same(16, "mamba_chunk_size", "chunk_size", "block_size"),
    # Shorter than the sequence, so that a window, a chunk or a selection counts.
    **_same(
        16,
        *("sliding_window", "sliding_window_size", "attention_window_size", "window_size"),
        *("local_attention", "attention_chunk_size", "index_topk", "rel_extent"),
    ),
}
_RANDOM = ("dropout", "pdrop", "layerdrop", "jitter", "drop_path", "dropout_p", "dropout_prob")
_TOKEN_ID = ("_token_id", "_token_index", "_index")

_INDEXER = {
    "indexer_n_heads": 16,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}
_NO_LAYER_INPUTS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
_CONSISTENT: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
            }
        }
    },
    "dbrx": {
        "attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64},
    },
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    # By default it rescales its weights in place when it goes from training to inference, for half
    # precision's sake.
    "rwkv": {"rescale_every": 0},
    # A shared block must be used twice.
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_hidden_layers": 3,
    },
    "xmod": {"default_language": "en_XX"},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "deepseek_v2": {"num_experts_per_tok": 2},
    "gemma4_assistant": {"text_config": _NO_LAYER_INPUTS},
    "gemma4_unified_assistant": {"text_config": _NO_LAYER_INPUTS},
    "mamba2": {"num_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "dory": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
    },
    "dots3_note": {"text_config": {"head_dim": 24}},
    "dots3_note_text": {"head_dim": 24},
    "inkling2_loop_text": {
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
        "num_hidden_layers": 3,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 2,
        "n_layers_per_attn_res_block": 1,
    },
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "o_groups": 2,
    },
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 2},
    "inkling2_text": {"n_layers_per_attn_res_block": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [4, 8],
        "axial_pos_embds_dim": [16, 48],
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
        "num_buckets": 4,
        "hash_seed": 0,
    },
}


def tiny_config(model_type: str) -> PreTrainedConfig:
    """Give the small configuration of an architecture.

    Raises:
        KeyError: transformers knows no such model_type.
        Exception: whatever the architecture's configuration refuses.
    """
    return _shrunk(CONFIG_MAPPING[model_type], _CONSISTENT.get(model_type, {}))


def _shrunk(kind: type[PreTrainedConfig], consistent: dict[str, Any]) -> PreTrainedConfig:
    """Give a small configuration of a class."""
    return kind(**_fields(kind, consistent))


def _fields(kind: type[PreTrainedConfig], consistent: dict[str, Any]) -> dict[str, Any]:
    """Give the keywords of a small configuration: those fields that differ from the default."""
    default = kind(**{k: v for k, v in consistent.items() if isinstance(v, dict)})
    stated = default.to_dict()
    fields: dict[str, Any] = {}
    for name, value in stated.items():
        # The dictionary holds a configuration inside as a dictionary; its class is needed.
        inside = getattr(default, name, None) if isinstance(value, dict) else None
        if isinstance(inside, PreTrainedConfig):
            inner = consistent.get(name)
            fields[name] = _fields(type(inside), inner if isinstance(inner, dict) else {})
        elif _is_number(value):
            fields |= _number(name, value)
    fields |= _one_layer_of_each_kind(stated)
    if "kv_lora_rank" in fields:
        # Latent attention has a key for each query head, and heads of two parts.
        for layer in (fields, *fields.get("per_layer_config", {}).values()):
            if "num_key_value_heads" in layer:
                layer["num_key_value_heads"] = _HEADS
            layer.pop("head_dim", None)
        if stated.get("head_dim") == stated["qk_rope_head_dim"]:
            fields["head_dim"] = fields["qk_rope_head_dim"]
    if "is_decoder" in stated:
        fields["is_decoder"] = True
    return fields | {k: v for k, v in consistent.items() if not isinstance(fields.get(k), dict)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(name: str, value: float) -> dict[str, Any]:
    """Give the small value of one number, or nothing where it stays."""
    if name in _SIZES:
        if "key_value" in name and value == 1:
            return {}  # multi-query attention stays so
        return {name: _SIZES[name]} if isinstance(value, int) else {}
    if any(part in name for part in _RANDOM):
        return {name: type(value)(0)}
    if name.endswith(_TOKEN_ID) and value >= VOCABULARY:
        # Distinct ids stay distinct: they keep their order modulo a part of the vocabulary.
        return {name: VOCABULARY // 2 + int(value) % (VOCABULARY // 2)}
    return {}


def _one_layer_of_each_kind(stated: dict[str, Any]) -> dict[str, Any]:
    """Cut what has one entry a layer, so that one layer of each kind stays.

    A layer's kind is its entries in all lists of that length, and in `per_layer_config`, together.
    At least two layers stay.
    """
    count = next((stated[name] for name in _LAYER_COUNTS if name in stated), None)
    own = {int(layer): fields for layer, fields in (stated.get("per_layer_config") or {}).items()}
    lists = {
        name: value
        for name, value in stated.items()
        if isinstance(value, (list, tuple))
        and len(value) == count
        and list(value) != list(range(count))  # the places of layers, and no property of theirs
        and all(isinstance(item, (str, int, float)) for item in value)
    }
    if count is None or not (lists or own):
        return {}
    kinds: dict[str, int] = {}
    for place in range(count):
        kind = [value[place] for value in lists.values()]
        kinds.setdefault(repr((kind, own.get(place))), place)
    places = sorted(kinds.values())
    if len(places) < _LAYERS:
        places = list(range(_LAYERS))
    cut: dict[str, Any] = {
        name: [_kept(name, value[place])[name] for place in places] for name, value in lists.items()
    }
    if own:
        cut["per_layer_config"] = {
            new: {k: v for name, old in own[place].items() for k, v in _kept(name, old).items()}
            for new, place in enumerate(places)
            if place in own
        }
    return cut | {name: len(places) for name in _LAYER_COUNTS if name in stated}


def _kept(name: str, value: Any) -> dict[str, Any]:
    """Give a field of one layer: small where there is a rule, else as it is."""
    return {name: value} | (_number(name, value) if _is_number(value) else {})

"""Configurations of the tiny checkpoints of Mixtral and the families after it. See `tests.tiny`."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 448,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 3,
    "num_local_experts": 8,
}

_BAILING = COMMON | {
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 600000.0,
    "num_experts": 8,
    "moe_intermediate_size": 32,
    "intermediate_size": 96,
    "num_shared_experts": 2,
    "first_k_dense_replace": 0,
    "norm_topk_prob": True,
}
_BAILING_2 = {"first_k_dense_replace": 1, "use_qk_norm": True, "partial_rotary_factor": 0.5, "head_dim": 16}
_BAILING_2 |= {"num_experts": 16, "score_function": "sigmoid", "moe_router_enable_expert_bias": True}
_BAILING_2 |= {"n_group": 4, "topk_group": 2}
_BAILING_2 |= {"moe_shared_expert_intermediate_size": 64, "num_shared_experts": 1, "routed_scaling_factor": 2.5}
_YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 64}
_YARN |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
_GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.17}
_GRANITE["logits_scaling"] = 1.6
_LLAMA4 = {"head_dim": 32, "intermediate_size_mlp": 96, "num_experts_per_tok": 1, "num_hidden_layers": 4}
_LLAMA4 |= {"floor_scale": 50, "attn_scale": 0.3, "interleave_moe_layer_step": 2}
_SCOUT = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 16.0, "original_max_position_embeddings": 64}
_SCOUT |= {"low_freq_factor": 1.0, "high_freq_factor": 1.0}

MOE_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", COMMON),
    "olmoe": (
        "Olmoe",
        COMMON | {"num_experts": 8, "num_key_value_heads": 4, "clip_qkv": 1.2, "norm_topk_prob": False},
    ),
    "minimax_m2": ("MiniMaxM2", COMMON | {"head_dim": 32, "rotary_dim": 16, "num_experts_per_tok": 4}),
    "gpt_oss": ("GptOss", COMMON | {"head_dim": 32, "sliding_window": 24, "rope_parameters": _YARN}),
    "granite_moe": ("GraniteMoe", COMMON | _GRANITE),
    "granite_moe_shared": (
        "GraniteMoeShared",
        COMMON | _GRANITE | {"shared_intermediate_size": 96, "tie_word_embeddings": True},
    ),
    "hunyuan_moe": (
        "HunYuanMoEV1",
        COMMON
        | {"num_experts": 8, "moe_topk": 3, "head_dim": 32}
        | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0}},
    ),
    "bailing_moe": ("BailingMoe", _BAILING | {"norm_head": True}),
    "bailing_moe_v2": ("BailingMoeV2", _BAILING | _BAILING_2),
    "hy_v3": (
        "HYV3",
        COMMON
        | {"num_experts": 8, "head_dim": 32, "intermediate_size": 96, "moe_intermediate_size": 32}
        | {"num_shared_experts": 2, "router_scaling_factor": 1.7},
    ),
    "ernie4_5_moe": (
        "Ernie4_5_Moe",
        COMMON
        | {"moe_num_experts": 8, "moe_k": 3, "intermediate_size": 96, "moe_intermediate_size": 32}
        | {"moe_num_shared_experts": 2, "num_hidden_layers": 4, "moe_layer_interval": 1},
    ),
    "llama4": ("Llama4", COMMON | _LLAMA4 | {"attention_chunk_size": 40, "rope_parameters": _SCOUT}),
    "llama4_maverick": ("Llama4", COMMON | _LLAMA4 | {"attention_chunk_size": None, "use_qk_norm": False}),
}
"""By name: (class prefix, configuration); the classes are transformers', Bailing's are in `tests.bailing_reference`."""

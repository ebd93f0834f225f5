"""Tiny configurations of the Qwen families for `tests.tiny`: name to (transformers' class prefix, configuration)."""

from __future__ import annotations

from typing import Any

_COMMON: dict[str, Any] = {
    "vocab_size": 448,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
_MOE: dict[str, Any] = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
_HYBRID: dict[str, Any] = {
    "head_dim": 32,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
_VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
_ROPE_3_5 = _HYBRID["rope_parameters"] | {"mrope_section": [2, 1, 1], "mrope_interleaved": True}

QWEN_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", _COMMON | {"intermediate_size": 96, "num_hidden_layers": 2}),
    "qwen3": ("Qwen3", _COMMON | {"intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32}),
    "qwen2_moe": (
        "Qwen2Moe",
        _COMMON | _MOE | {"intermediate_size": 96, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    ),
    "qwen3_next": ("Qwen3Next", _COMMON | _MOE | _HYBRID | {"intermediate_size": 96}),
    "qwen3_5_moe": (
        "Qwen3_5Moe",
        {"text_config": _COMMON | _MOE | _HYBRID | {"rope_parameters": _ROPE_3_5}, "vision_config": _VISION},
    ),
    "qwen3_5": (
        "Qwen3_5",
        {
            "text_config": _COMMON | _HYBRID | {"intermediate_size": 96, "rope_parameters": _ROPE_3_5},
            "vision_config": _VISION,
        },
    ),
}

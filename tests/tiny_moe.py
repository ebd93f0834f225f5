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

MOE_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", COMMON),
    "olmoe": ("Olmoe", COMMON | {"num_experts": 8, "clip_qkv": 1.2, "norm_topk_prob": False}),
    "minimax_m2": ("MiniMaxM2", COMMON | {"head_dim": 32, "rotary_dim": 16, "num_experts_per_tok": 4}),
}
"""By name: (transformers' class prefix, configuration)."""

"""Tiny checkpoints of DeepSeek-V4. See `tests.tiny`."""

from __future__ import annotations

from typing import Any

V4: dict[str, Any] = {
    "vocab_size": 448,
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "head_dim": 32,
    "q_lora_rank": 32,
    "partial_rotary_factor": 0.25,
    "o_groups": 4,
    "o_lora_rank": 16,
    "sliding_window": 24,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    "mlp_layer_types": ["hash_moe", "hash_moe", "moe", "moe", "moe"],
    "max_position_embeddings": 256,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 12,
    "num_nextn_predict_layers": 0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
}
"""Window, both kinds of entries, both kinds of routing; positions pass the window and the indexer's choice."""

V4_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {"deepseek_v4": ("DeepseekV4", V4)}
"""By name: (transformers' class prefix, configuration)."""


def rewrite_v4(config: dict[str, Any]) -> None:
    """Spell a configuration of DeepSeek-V4 as the hub does: rates instead of kinds, one rope with a second base."""
    ropes, rates = config.pop("rope_parameters"), config.pop("compress_rates")
    main, entries = ropes["main"], ropes["compress"]
    config["rope_theta"], config["compress_rope_theta"] = main["rope_theta"], entries.pop("rope_theta")
    config["qk_rope_head_dim"] = int(config["head_dim"] * entries.pop("partial_rotary_factor"))
    del config["partial_rotary_factor"], entries["attention_factor"]
    config["rope_scaling"] = {"type": entries.pop("rope_type"), **entries}
    names = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    config["compress_ratios"] = [names[kind] for kind in config.pop("layer_types")]
    config["compress_rate_csa"] = rates["compressed_sparse_attention"]
    config["compress_rate_hca"] = rates["heavily_compressed_attention"]
    config["num_hash_layers"] = config.pop("mlp_layer_types").count("hash_moe")

"""Tiny checkpoints of the Kimi and GLM families: their configurations, and what the hub's files have beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LATENT: dict[str, Any] = {
    "vocab_size": 448,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
}
_GROUPED: dict[str, Any] = {
    "vocab_size": 448,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "attention_bias": True,
    "num_mtp_layers": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
}
_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_PLAIN: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e6}
_INDEXER: dict[str, Any] = {"index_n_heads": 16, "index_head_dim": 64, "index_topk": 48}
"""Many heads: with few of them relu leaves scores of exactly 0, and the choice among equals is anyone's."""

LATENT_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "kimi_k25": (
        "DeepseekV3",
        LATENT
        | {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827}
        | {"rms_norm_eps": 1e-5, "num_mtp_layers": 0}
        | {"rope_parameters": _YARN | {"rope_theta": 50000.0, "beta_fast": 1.0, "beta_slow": 1.0}},
    ),
    "glm4_moe": ("Glm4Moe", _GROUPED | {"use_qk_norm": True, "routed_scaling_factor": 2.5}),
    "glm4_moe_air": ("Glm4Moe", _GROUPED | {"use_qk_norm": False}),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        LATENT | {"rope_parameters": _PLAIN, "num_attention_heads": 5}
        | {"num_key_value_heads": 5, "v_head_dim": 48},
    ),
    "deepseek_v32": (
        "DeepseekV32",
        LATENT | {"first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "rope_parameters": _YARN} | _INDEXER,
    ),
    "glm_moe_dsa": (
        "GlmMoeDsa",
        LATENT | {"first_k_dense_replace": 1, "num_hidden_layers": 4, "rope_parameters": _PLAIN} | _INDEXER,
    ),
    "glm_moe_dsa_shared": (
        "GlmMoeDsa",
        LATENT
        | {"first_k_dense_replace": 1, "num_hidden_layers": 4, "rope_parameters": _PLAIN | {"rope_theta": 8e6}}
        | _INDEXER
        | {"indexer_types": ["full", "shared", "full", "shared"]},
    ),
}  # fmt: skip
"""By name: (transformers' class prefix, configuration)."""


def nest_kimi(directory: Path) -> None:
    """Turn a Kimi K2 directory into one of K2.5: a nested configuration, prefixed names, and some vision tensors."""
    import torch
    from safetensors.torch import load_file, save_file

    for file in directory.glob("*.safetensors"):
        tensors = {f"language_model.{name}": tensor for name, tensor in load_file(file).items()}
        for name in ("vision_tower.encoder.blocks.0.norm0.weight", "mm_projector.proj.0.weight"):
            tensors[name] = torch.ones(8)
        save_file(tensors, file, metadata={"format": "pt"})
    path = directory / "config.json"
    text = json.loads(path.read_text(encoding="utf-8")) | {"model_type": "kimi_k2"}
    nested = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": text}
    path.write_text(json.dumps(nested | {"vision_config": {"hidden_size": 8}}, indent=2), encoding="utf-8")


def unnested(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The text configuration of such a directory and its language model's tensors under their plain names."""
    from safetensors.torch import load_file

    config: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))["text_config"]
    tensors: dict[str, Any] = {}
    for file in directory.glob("*.safetensors"):
        tensors |= {name.removeprefix("language_model."): t for name, t in load_file(file).items() if "model." in name}
    return config, tensors

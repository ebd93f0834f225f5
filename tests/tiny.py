"""Tiny random checkpoints with fixed seeds, made in seconds: `tiny_hf` through transformers, `tiny_gguf` without.

Weights are drawn so that the logits have a deviation of about 1 and every router, bias and norm matters: a model with
constants in those places would pass its tests with wrong code.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests import bailing_reference
from tests.tiny_gguf import random_weights, tiny_config, tiny_gguf, write_gguf
from tests.tiny_latent import LATENT_FAMILIES, nest_kimi, unnested
from tests.tiny_moe import MOE_FAMILIES
from tests.tiny_qwen import QWEN_FAMILIES
from tests.tiny_tokenizer import save_tokenizer, tokens_and_merges
from tests.tiny_v4 import V4_FAMILIES, rewrite_v4

__all__ = ["FAMILIES", "load_reference", "random_weights", "tiny_config", "tiny_gguf", "tiny_hf", "write_gguf"]

_COMMON: dict[str, Any] = {
    "vocab_size": 448,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_QWEN = _COMMON | {
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
_MLA = _COMMON | {
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
_V3 = _MLA | {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "num_mtp_layers": 0}


def _yarn(factor: float, theta: float, mscale: float, fast: float = 32, slow: float = 1) -> dict[str, Any]:
    out = {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "original_max_position_embeddings": 32}
    out |= {"beta_fast": fast, "beta_slow": slow}
    return out | {"mscale": mscale, "mscale_all_dim": mscale} if mscale else out


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _COMMON | {"num_key_value_heads": 2, "head_dim": 16}),
    "qwen3_moe": ("Qwen3Moe", _QWEN),
    "qwen3_moe_plain_topk": ("Qwen3Moe", _QWEN | {"norm_topk_prob": False, "mlp_only_layers": [1]}),
    "qwen3_moe_yarn": ("Qwen3Moe", _QWEN | {"rope_parameters": _yarn(8.0, 1e6, 0)}),
    "deepseek_v2_lite": (
        "DeepseekV2",
        _MLA
        | {"q_lora_rank": None, "topk_method": "greedy", "n_shared_experts": 2, "norm_topk_prob": False, "n_group": 1}
        | {"topk_group": 1, "rope_parameters": _yarn(8.0, 10000.0, 0.707)},
    ),
    "deepseek_v2": (
        "DeepseekV2",
        _MLA
        | {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 4.0}
        | {"norm_topk_prob": False, "rope_parameters": _yarn(8.0, 10000.0, 0.707)},
    ),
    "deepseek_v3": ("DeepseekV3", _V3 | {"rope_parameters": _yarn(8.0, 10000.0, 1.0)}),
    "deepseek_v3_plain_rope": ("DeepseekV3", _V3),
    "kimi_k2": (
        "DeepseekV3",
        _V3
        | {
            "n_routed_experts": 384,
            "num_experts_per_tok": 8,
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.827,
        }
        | {"num_hidden_layers": 2, "rope_parameters": _yarn(8.0, 50000.0, 1.0, 1, 1)},
    ),
}
FAMILIES |= MOE_FAMILIES | LATENT_FAMILIES | QWEN_FAMILIES | V4_FAMILIES
"""By name: (transformers' class prefix, configuration)."""


def tiny_hf(
    family: str, tmp: Path, *, seed: int = 0, sharded: bool = False, dtype: str = "float32", **overrides: Any
) -> Path:
    """Make a Hugging Face directory `tmp/family` with weights, tokenizer and hub-style config.json, and return it."""
    import torch
    import transformers

    torch.set_num_threads(min(2, torch.get_num_threads()))
    prefix, config = FAMILIES[family]
    directory = tmp / family
    if prefix.startswith("Bailing"):
        bailing_reference.save(directory, prefix + "ForCausalLM", config | overrides, seed)
        save_tokenizer(directory)
        return directory
    eos = tokens_and_merges()[0].index("<|im_end|>")
    cls = getattr(transformers, _config_class(prefix))
    head = "ForCausalLM"
    if "text_config" in config:  # a model with images: what concerns the text is nested
        config = config | {"text_config": config["text_config"] | overrides}
        overrides, head = {}, "ForConditionalGeneration"
    made = cls(**(config | overrides), eos_token_id=eos, bos_token_id=None)
    model = getattr(transformers, prefix + head)(made).to(torch.float32)
    _randomise(model, seed)
    model.to(getattr(torch, dtype)).save_pretrained(directory, max_shard_size="200KB" if sharded else "5GB")
    save_tokenizer(directory)
    _as_on_the_hub(directory / "config.json", family, config | overrides)
    if family == "kimi_k25":
        nest_kimi(directory)
    return directory


def _config_class(prefix: str) -> str:
    return "Llama4TextConfig" if prefix == "Llama4" else f"{prefix}Config"


def _randomise(model: Any, seed: int) -> None:
    """Draw every parameter and the correction biases anew."""
    import torch

    g = torch.Generator().manual_seed(seed)
    tied = model.config.tie_word_embeddings
    zero_centred = model.config.model_type in ("qwen3_next", "qwen3_5_moe", "qwen3_5")
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            x = torch.randn(p.shape, generator=g)
            if name.endswith("norm.weight"):
                p.copy_((0 if zero_centred and "linear_attn" not in name else 1) + 0.2 * x)
            elif name.endswith("tid2eid"):
                p.copy_(torch.stack([torch.randperm(16, generator=g)[: p.shape[1]] for _ in range(len(p))]))
            elif name.endswith("_scale") or name.endswith("hc.scale"):
                p.copy_(1 + 0.3 * x)
            elif "experts." in name and model.config.model_type == "deepseek_v4":  # gates that are clamped
                p.copy_((0.1 if "down" in name else 5) * x / p.shape[-1] ** 0.5)
            elif name.endswith("A_log"):
                p.copy_(x - 1.5)
            elif name.endswith("e_score_correction_bias") or (p.ndim == 1 and name.endswith(("bias", "sinks", "base"))):
                p.copy_(0.2 * x)
            elif name.endswith("embed_tokens.weight") and not tied:
                p.copy_(x)
            elif p.ndim >= 2:
                gain = 2.0 if name.endswith(("mlp.gate.weight", "router.weight", "gate.wg.weight")) else 1.0
                p.copy_(x * gain / p.shape[-1] ** 0.5)


def _as_on_the_hub(path: Path, family: str, wanted: dict[str, Any]) -> None:
    """Spell the config as the hub does: `rope_theta` + `rope_scaling` for DeepSeek and Kimi, Kimi's model type."""
    config = json.loads(path.read_text(encoding="utf-8"))
    if family.startswith("deepseek_v4"):
        rewrite_v4(config)
    elif family.startswith(("deepseek", "kimi")):
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else {"type": rope.pop("rope_type"), **rope}
        for key in ("topk_method", "norm_topk_prob"):
            config[key] = wanted.get(key, "noaux_tc")
        config["scoring_func"] = "softmax" if "v2" in family else "sigmoid"
    if family == "kimi_k2":
        config["model_type"] = "kimi_k2"
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")


def load_reference(directory: Path) -> Any:
    """transformers' own model of a `tiny_hf` directory, in float32 with plain attention."""
    import torch
    import transformers

    torch.set_num_threads(min(2, torch.get_num_threads()))
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    name = config["architectures"][0]
    if name.startswith("KimiK25"):  # what hub files call its tensors is not what transformers' own class does
        return _load_nested(directory)
    if name.startswith("Bailing"):
        return bailing_reference.Reference(directory)
    cls = getattr(transformers, name)
    config["model_type"] = "deepseek_v3" if config["model_type"] == "kimi_k2" else config["model_type"]
    made = getattr(transformers, _config_class(re.sub("For(CausalLM|ConditionalGeneration)$", "", name)))(**config)
    model = cls.from_pretrained(directory, config=made, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def _load_nested(directory: Path) -> Any:
    import torch
    import transformers

    config, tensors = unnested(directory)
    made = transformers.DeepseekV3Config(**config | {"model_type": "deepseek_v3"})
    cls = transformers.DeepseekV3ForCausalLM
    model = cls.from_pretrained(None, config=made, state_dict=tensors, dtype=torch.float32, attn_implementation="eager")
    return model.eval()

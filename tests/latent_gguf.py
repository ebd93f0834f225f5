"""GGUF files of the checkpoints in `tests.tiny_latent`: the reference's own weights under GGUF's names and keys.

The layout is that of llama.cpp's converter: kv_b in two parts per head, keys under `*_mla`, experts stacked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.tiny import load_reference
from tests.tiny_gguf import NAMES, add_tokenizer

Floats = npt.NDArray[np.float32]

ARCHS = {
    "kimi_k2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "glm4_moe": "glm4moe",
    "deepseek_v32": "deepseek32",
    "glm_moe_dsa": "glm-dsa",
}
_NAMES = NAMES | {
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
}


def gguf_of(directory: Path, path: Path, *, betas: bool = True, mtp: bool = False) -> Path:
    """The checkpoint in `directory` as a GGUF file of F32 tensors; older files lack YaRN's `betas`.

    `mtp` adds a part of a layer that predicts further tokens.
    """
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    arch = ARCHS[config["model_type"]]
    writer = gguf.GGUFWriter(path, arch)
    more = {"block_count": config["num_hidden_layers"] + 1, "nextn_predict_layers": 1} if mtp else {}
    for key, value in (_keys(arch, config) | more).items():
        if "yarn_beta" in key and not betas:
            continue
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        if isinstance(value, list):
            writer.add_array(f"{arch}.{key}", value)
        else:
            kinds[value.__class__](f"{arch}.{key}", value)
    add_tokenizer(writer, config["vocab_size"])
    for name, tensor in load_reference(directory).state_dict().items():
        for gguf_name, value in _tensors(arch, config, name, tensor.detach().float().numpy()):
            writer.add_tensor(gguf_name, np.ascontiguousarray(value, dtype=np.float32))
    for part in ("nextn.eh_proj", "nextn.enorm", "attn_norm") if mtp else ():
        writer.add_tensor(f"blk.{config['num_hidden_layers']}.{part}.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(arch: str, c: Mapping[str, Any], name: str, value: Floats) -> Iterator[tuple[str, Floats]]:
    if not name.startswith("model.layers."):
        stem, _, kind = name.rpartition(".")
        yield f"{_NAMES[stem]}.{kind}", value
        return
    _, _, layer, rest = name.split(".", 3)
    p = f"blk.{layer}."
    if rest == "mlp.gate.e_score_correction_bias":
        yield p + "exp_probs_b.bias", value
    elif rest == "mlp.experts.gate_up_proj":
        gate, up = np.split(value, 2, axis=1)
        yield p + "ffn_gate_exps.weight", gate
        yield p + "ffn_up_exps.weight", up
    elif rest == "mlp.experts.down_proj":
        yield p + "ffn_down_exps.weight", value
    elif rest == "self_attn.kv_b_proj.weight":
        heads = value.reshape(c["num_attention_heads"], -1, c["kv_lora_rank"])
        yield p + "attn_k_b.weight", heads[:, : c["qk_nope_head_dim"]].swapaxes(1, 2)
        yield p + "attn_v_b.weight", heads[:, c["qk_nope_head_dim"] :]
    else:
        stem, _, kind = rest.rpartition(".")
        after = arch == "glm4moe" and stem == "post_attention_layernorm"
        yield f"{p}{'post_attention_norm' if after else _NAMES[stem]}.{kind}", value


def _keys(arch: str, c: Mapping[str, Any]) -> dict[str, Any]:
    rope = c.get("rope_parameters") or {"rope_theta": c["rope_theta"]} | (c.get("rope_scaling") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    out = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
        "rope.freq_base": float(rope["rope_theta"]),
        "vocab_size": c["vocab_size"],
        "expert_count": c["n_routed_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": c["n_shared_experts"],
        "expert_weights_scale": float(c["routed_scaling_factor"]),
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "leading_dense_block_count": c.get("first_k_dense_replace", 1),
    }
    if c.get("n_group", 1) > 1:
        out |= {"expert_group_count": c["n_group"], "expert_group_used_count": c["topk_group"]}
    if kind == "yarn":
        out |= _yarn(rope)
    return out | (_grouped(c, rope) if arch == "glm4moe" else _latent(c))


def _yarn(rope: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"],
        "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
    }


def _grouped(c: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    share = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))
    return {
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": c["head_dim"],
        "attention.value_length": c["head_dim"],
        "rope.dimension_count": int(c["head_dim"] * share),
    }


def _latent(c: Mapping[str, Any]) -> dict[str, Any]:
    out = {
        "attention.head_count_kv": 1,
        "attention.key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"],
        "attention.value_length": c["kv_lora_rank"],
        "attention.key_length_mla": c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        "attention.value_length_mla": c["v_head_dim"],
        "attention.q_lora_rank": c["q_lora_rank"],
        "attention.kv_lora_rank": c["kv_lora_rank"],
        "rope.dimension_count": c["qk_rope_head_dim"],
    }
    if "index_topk" in c:
        out |= {"attention.indexer.head_count": c["index_n_heads"], "attention.indexer.key_length": c["index_head_dim"]}
        out["attention.indexer.top_k"] = c["index_topk"]
    if "indexer_types" in c:
        out["attention.indexer.types"] = [kind == "full" for kind in c["indexer_types"]]
    return out

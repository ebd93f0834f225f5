"""GGUF files of the checkpoints in `tests.tiny_v4`: the reference's own weights under GGUF's names and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.tiny import load_reference
from tests.tiny_gguf import add_tokenizer


def v4_gguf(directory: Path, path: Path) -> Path:
    """The checkpoint in `directory` as a GGUF file of F32 tensors, as llama.cpp's converter lays it out."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "deepseek4")
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    kinds[list] = writer.add_array
    for key, value in _keys(config).items():
        kinds[value.__class__](f"deepseek4.{key}", value)
    add_tokenizer(writer, config["vocab_size"])
    for name, tensor in load_reference(directory).state_dict().items():
        for gguf_name, value in _tensors(name, tensor.detach().numpy()):
            kind = np.int32 if gguf_name.endswith("tid2eid.weight") else np.float32
            writer.add_tensor(gguf_name, np.ascontiguousarray(value, dtype=kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    **{f"model.hc_head.hc_{part}": f"output_hc_{part}.weight" for part in ("fn", "base", "scale")},
}
_LAYER = {
    "input_layernorm.weight": "attn_norm",
    "post_attention_layernorm.weight": "ffn_norm",
    **{f"{at}_hc.{part}": f"hc_{at}_{part}" for at in ("attn", "ffn") for part in ("fn", "base", "scale")},
    "self_attn.sinks": "attn_sinks",
    "self_attn.q_a_proj.weight": "attn_q_a",
    "self_attn.q_a_norm.weight": "attn_q_a_norm",
    "self_attn.q_b_proj.weight": "attn_q_b",
    "self_attn.kv_proj.weight": "attn_kv",
    "self_attn.kv_norm.weight": "attn_kv_a_norm",
    "self_attn.o_a_proj.weight": "attn_output_a",
    "self_attn.o_b_proj.weight": "attn_output_b",
    "mlp.gate.weight": "ffn_gate_inp",
    "mlp.gate.tid2eid": "ffn_gate_tid2eid",
    "mlp.experts.down_proj": "ffn_down_exps",
    **{f"mlp.shared_experts.{part}_proj.weight": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    "self_attn.compressor.indexer.q_b_proj.weight": "indexer.attn_q_b",
    "self_attn.compressor.indexer.scorer.weights_proj.weight": "indexer.proj",
}
_STEMS = {"self_attn.compressor.": "attn_compressor", "self_attn.compressor.indexer.": "indexer_compressor"}
for _stem, _to in _STEMS.items():
    _LAYER |= {_stem + "kv_proj.weight": _to + "_kv", _stem + "gate_proj.weight": _to + "_gate"}
    _LAYER |= {_stem + "kv_norm.weight": _to + "_norm", _stem + "position_bias": _to + "_ape"}


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if name in _TOP:
        yield _TOP[name], value
        return
    _, _, layer, rest = name.split(".", 3)
    if rest == "mlp.gate.e_score_correction_bias":
        yield f"blk.{layer}.exp_probs_b.bias", value
    elif rest == "mlp.experts.gate_up_proj":
        gate, up = np.split(value, 2, axis=1)
        yield f"blk.{layer}.ffn_gate_exps.weight", gate
        yield f"blk.{layer}.ffn_up_exps.weight", up
    else:
        yield f"blk.{layer}.{_LAYER[rest]}.weight", value


def _keys(c: Mapping[str, Any]) -> dict[str, Any]:
    scaling, n_layers = c["rope_scaling"], c["num_hidden_layers"]
    return {
        "block_count": n_layers,
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "embedding_length_out": c["hidden_size"] * c["hc_mult"],
        "feed_forward_length": c["moe_intermediate_size"],
        "vocab_size": c["vocab_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": 1,
        "attention.key_length": c["head_dim"],
        "attention.value_length": c["head_dim"],
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
        "attention.q_lora_rank": c["q_lora_rank"],
        "attention.sliding_window": c["sliding_window"],
        "attention.indexer.head_count": c["index_n_heads"],
        "attention.indexer.key_length": c["index_head_dim"],
        "attention.indexer.top_k": c["index_topk"],
        "attention.output_group_count": c["o_groups"],
        "attention.output_lora_rank": c["o_lora_rank"],
        "attention.compress_ratios": c["compress_ratios"],
        "attention.compress_rope_freq_base": c["compress_rope_theta"],
        "rope.dimension_count": c["qk_rope_head_dim"],
        "rope.freq_base": c["rope_theta"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
        "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
        "hyper_connection.count": c["hc_mult"],
        "hyper_connection.sinkhorn_iterations": c["hc_sinkhorn_iters"],
        "hyper_connection.epsilon": c["hc_eps"],
        "hash_layer_count": c["num_hash_layers"],
        "expert_count": c["n_routed_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": c["n_shared_experts"],
        "expert_weights_scale": c["routed_scaling_factor"],
        "expert_weights_norm": True,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [c["swiglu_limit"]] * n_layers,
        "swiglu_clamp_shexp": [c["swiglu_limit"]] * n_layers,
    }

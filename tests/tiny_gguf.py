"""Tiny random GGUF models of every supported architecture, written with the `gguf` package. See `tests.tiny`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from tests.tiny_tokenizer import CHAT_TEMPLATE, tokens_and_merges

Floats = npt.NDArray[np.float32]

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
    },
    "qwen3moe": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_theta": 1e6,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "deepseek2": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "n_group": 4,
        "topk_group": 2,
    },
}
"""By GGUF architecture, with Hugging Face's keys. deepseek2 is of the V3 form."""

_K_BLOCKS = {Type.Q4_K: (144, 200.0, 7.5), Type.Q5_K: (176, 400.0, 15.5), Type.Q6_K: (210, 1370.0, 0.0)}
"""Bytes of a block, the spread of its weights at d = 1, and the dmin (in units of d) that centres them."""


def tiny_config(arch: str, type: str = "F32", **overrides: Any) -> dict[str, Any]:
    """The configuration of `tiny_gguf`; K-quants need rows of 256."""
    config = CONFIGS[arch] | {"vocab_size": len(tokens_and_merges()[0])}
    if type.endswith("_K"):
        config |= {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}
    return config | overrides


def random_weights(arch: str, config: Mapping[str, Any], seed: int = 0) -> dict[str, Floats]:
    """Weights by Hugging Face name with experts stacked, drawn so that the logits have a deviation of about 1."""
    rng = np.random.default_rng(seed)
    out: dict[str, Floats] = {}
    for name, shape in _shapes(arch, config).items():
        x = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            out[name] = 1 + 0.2 * x
        elif len(shape) == 1:
            out[name] = 0.2 * x
        else:
            gain = 1.0 if name.startswith("model.embed") else 2.0 if name.endswith("mlp.gate.weight") else 1.0
            fan_in = 1 if name.startswith("model.embed") else shape[-1]
            out[name] = x * np.float32(gain / fan_in**0.5)
    return out


def _shapes(arch: str, c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    if c.get("tie_word_embeddings"):
        del out["lm_head.weight"]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (hidden,)
        attention = _mla_shapes(c) if arch == "deepseek2" else _gqa_shapes(c, arch == "qwen3moe")
        out |= {f"{p}self_attn.{n}": s for n, s in attention.items()}
        out |= {f"{p}mlp.{n}": s for n, s in _mlp_shapes(arch, c, i).items()}
    return out


def _gqa_shapes(c: Mapping[str, Any], qk_norm: bool) -> dict[str, tuple[int, ...]]:
    hidden, dim = c["hidden_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    out: dict[str, tuple[int, ...]] = {f"{n}_proj.weight": (r, hidden) for n, r in (("q", q), ("k", kv), ("v", kv))}
    out["o_proj.weight"] = (hidden, q)
    if c.get("attention_bias"):
        out |= {"q_proj.bias": (q,), "k_proj.bias": (kv,), "v_proj.bias": (kv,), "o_proj.bias": (hidden,)}
    if qk_norm:
        out |= {"q_norm.weight": (dim,), "k_norm.weight": (dim,)}
    return out


def _mla_shapes(c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, q_lora, kv_lora = c["hidden_size"], c["num_attention_heads"], c["q_lora_rank"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    out: dict[str, tuple[int, ...]] = {
        "kv_a_proj_with_mqa.weight": (kv_lora + rope, hidden),
        "kv_a_layernorm.weight": (kv_lora,),
        "kv_b_proj.weight": (heads * (nope + v), kv_lora),
        "o_proj.weight": (hidden, heads * v),
    }
    if q_lora is None:
        return out | {"q_proj.weight": (heads * (nope + rope), hidden)}
    out |= {"q_a_proj.weight": (q_lora, hidden), "q_a_layernorm.weight": (q_lora,)}
    return out | {"q_b_proj.weight": (heads * (nope + rope), q_lora)}


def _mlp_shapes(arch: str, c: Mapping[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    hidden = c["hidden_size"]

    def mlp(prefix: str, inter: int) -> dict[str, tuple[int, ...]]:
        out = {f"{prefix}{n}_proj.weight": (inter, hidden) for n in ("gate", "up")}
        return out | {f"{prefix}down_proj.weight": (hidden, inter)}

    if arch == "llama" or layer < c.get("first_k_dense_replace", 0):
        return mlp("", c["intermediate_size"])
    e, inter = c.get("num_experts") or c["n_routed_experts"], c["moe_intermediate_size"]
    out: dict[str, tuple[int, ...]] = {"gate.weight": (e, hidden)}
    out |= {"experts.gate.weight": (e, inter, hidden), "experts.up.weight": (e, inter, hidden)}
    out["experts.down.weight"] = (e, hidden, inter)
    if c.get("scoring_func") == "sigmoid":
        out["gate.e_score_correction_bias"] = (e,)
    if c.get("n_shared_experts"):
        out |= mlp("shared_experts.", c["n_shared_experts"] * inter)
    return out


NAMES: dict[str, str] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate": "ffn_gate_exps",
    "mlp.experts.up": "ffn_up_exps",
    "mlp.experts.down": "ffn_down_exps",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}


def _gguf_name(name: str) -> str:
    if name.startswith("model.layers."):
        _, _, layer, rest = name.split(".", 3)
        if rest == "mlp.gate.e_score_correction_bias":
            return f"blk.{layer}.exp_probs_b.bias"
        stem, kind = rest.rsplit(".", 1)
        return f"blk.{layer}.{NAMES[stem]}.{kind}"
    stem, kind = name.rsplit(".", 1)
    return f"{NAMES[stem]}.{kind}"


def _gguf_tensors(arch: str, c: Mapping[str, Any], weights: Mapping[str, Floats], old_kv_b: bool) -> dict[str, Floats]:
    """Under GGUF names, with q and k of llama in rope pairs and kv_b split, as llama.cpp's converter writes them."""
    out: dict[str, Floats] = {}
    for name, w in weights.items():
        target = _gguf_name(name)
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = c["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            w = w.reshape(heads, 2, len(w) // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
        if target.endswith("attn_kv_b.weight") and not old_kv_b:
            nope, v = c["qk_nope_head_dim"], c["v_head_dim"]
            kv = w.reshape(c["num_attention_heads"], nope + v, -1)
            out[target.replace("attn_kv_b", "attn_k_b")] = np.ascontiguousarray(kv[:, :nope].swapaxes(1, 2))
            out[target.replace("attn_kv_b", "attn_v_b")] = np.ascontiguousarray(kv[:, nope:])
            continue
        out[target] = np.ascontiguousarray(w)
    return out


def _encode(x: Floats, want: Type, rng: np.random.Generator) -> tuple[npt.NDArray[Any], Type]:
    """Encoded rows, in the wanted type or a smaller-blocked one where rows do not fit."""
    block = gguf.GGML_QUANT_SIZES[want][0]
    if x.shape[-1] % block:
        want = Type.Q8_0 if x.shape[-1] % 32 == 0 else Type.F16
    if want in _K_BLOCKS:
        return _k_rows(x, want, rng), want
    return gguf.quants.quantize(x, want), want


def _k_rows(x: Floats, kind: Type, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Random codes with scales that give about the spread of `x`; the gguf package cannot encode K-quants."""
    size, spread, dmin = _K_BLOCKS[kind]
    blocks = x.shape[-1] // 256
    raw = rng.integers(0, 256, (*x.shape[:-1], blocks, size), dtype=np.uint8)
    d = (rng.uniform(0.5, 1.5, (*x.shape[:-1], blocks, 1)) * float(x.std()) / spread).astype(np.float16)
    at = 208 if kind == Type.Q6_K else 0
    raw[..., at : at + 2] = d.view(np.uint8)
    if kind != Type.Q6_K:
        raw[..., 2:4] = (d * np.float16(dmin)).view(np.uint8)
    return raw.reshape(*x.shape[:-1], blocks * size)


def write_gguf(
    path: Path,
    arch: str,
    config: Mapping[str, Any],
    weights: Mapping[str, Floats],
    *,
    type: str = "F32",
    dense_type: str | None = None,
    split: int = 0,
    old_kv_b: bool = False,
    seed: int = 0,
    extra: Mapping[str, Floats] | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model; `split` > 0 is the number of tensors in a part. Returns the (first) file.

    `extra` tensors are stored as F32; `metadata` adds or replaces integer, float, bool or text keys.
    """
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    _add_metadata(writer, arch, config, old_kv_b)
    add_tokenizer(writer)
    for key, value in (metadata or {}).items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        for part in writer.kv_data:
            part.pop(key, None)
        kinds[value.__class__](key, value)
    rng = np.random.default_rng(seed + 1)
    for name, w in _gguf_tensors(arch, config, weights, old_kv_b).items():
        small = w.ndim == 1 or ".ffn_gate_inp." in name
        wanted = Type.F32 if small else Type[type if "_exps." in name else dense_type or type]
        data, kind = _encode(w, wanted, rng)
        writer.add_tensor(name, data, raw_dtype=kind)
    for name, w in (extra or {}).items():
        writer.add_tensor(name, w.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def _add_metadata(w: gguf.GGUFWriter, arch: str, c: Mapping[str, Any], old_kv_b: bool) -> None:
    w.add_name(f"tiny {arch}")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_vocab_size(c["vocab_size"])
    if arch != "deepseek2":
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
        w.add_rope_dimension_count(c["head_dim"])
    else:
        _add_deepseek(w, c, old_kv_b)
    if arch != "llama":
        w.add_expert_count(c.get("num_experts") or c["n_routed_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    scaling = c.get("rope_scaling")
    if scaling:
        _add_scaling(w, scaling)


def _add_scaling(w: gguf.GGUFWriter, scaling: Mapping[str, Any]) -> None:
    w.add_rope_scaling_type(gguf.RopeScalingType(scaling["type"]))
    w.add_rope_scaling_factor(scaling["factor"])
    if scaling["type"] == "yarn":
        w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "beta_fast" in scaling:
            w.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
            w.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
        if "mscale_all_dim" in scaling:
            w.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def _add_deepseek(w: gguf.GGUFWriter, c: Mapping[str, Any], old_kv_b: bool) -> None:
    key, value = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["v_head_dim"]
    if old_kv_b:
        w.add_head_count_kv(c["num_attention_heads"])
        w.add_key_length(key)
        w.add_value_length(value)
    else:
        w.add_head_count_kv(1)
        w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
        w.add_value_length(c["kv_lora_rank"])
        w.add_key_length_mla(key)
        w.add_value_length_mla(value)
    if c["q_lora_rank"] is not None:
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    kinds = gguf.ExpertGatingFuncType
    w.add_expert_gating_func(kinds.SIGMOID if c["scoring_func"] == "sigmoid" else kinds.SOFTMAX)
    if c.get("n_group"):
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])


def add_tokenizer(w: gguf.GGUFWriter, vocab_size: int = 0) -> None:
    """The tokenizer of `tests.tiny_tokenizer`, filled up to `vocab_size` tokens."""
    tokens, merges, specials = tokens_and_merges()
    tokens = [*tokens, *(f"[PAD{i}]" for i in range(len(tokens), vocab_size))]
    kinds = [gguf.TokenType.CONTROL if t in specials else gguf.TokenType.NORMAL for t in tokens]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges(merges)
    w.add_bos_token_id(tokens.index("<|endoftext|>"))
    w.add_eos_token_id(tokens.index("<|im_end|>"))
    w.add_add_bos_token(False)
    w.add_chat_template(CHAT_TEMPLATE)


def tiny_gguf(arch: str, path: Path, type: str = "F32", seed: int = 0, **options: Any) -> Path:
    """A random model of `arch` (llama, qwen3moe, deepseek2). Options of `write_gguf`, others change the configuration.

    `type` is that of all matrices but the router (F32), or of the experts where `dense_type` says otherwise.
    """
    names = ("dense_type", "split", "old_kv_b", "extra", "metadata")
    rest = {n: options.pop(n) for n in names if n in options}
    config = tiny_config(arch, type, **options)
    return write_gguf(path, arch, config, random_weights(arch, config, seed), type=type, seed=seed, **rest)

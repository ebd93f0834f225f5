"""Ling and Ring 1.x and 2.0, which transformers lacks: formulae after the published modeling_bailing_moe(_v2).py.

Written for these tests alone, without anything of hetero: one function per part, no cache, no batching.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file

Weights = Mapping[str, torch.Tensor]


def save(directory: Path, architecture: str, config: dict[str, Any], seed: int) -> None:
    """Random weights under the published names, and the config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"architectures": [architecture], "model_type": "bailing_moe"} | config
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    rng = np.random.default_rng(seed)
    out = {}
    for name, shape in _shapes(config).items():
        x = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            out[name] = np.float32(0.2) * x + (0 if name.endswith("expert_bias") else 1)
        else:
            gain = 2.0 if name.endswith("mlp.gate.weight") else 1.0
            fan_in = 1 if "word_embeddings" in name else shape[-1]
            out[name] = x * np.float32(gain / fan_in**0.5)
    save_file(out, directory / "model.safetensors", {"format": "pt"})


def _shapes(c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, vocab, dim = c["hidden_size"], c["vocab_size"], c["head_dim"]
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    out: dict[str, tuple[int, ...]] = {"model.norm.weight": (hidden,)}
    out["model.word_embeddings.weight"] = out["lm_head.weight"] = (vocab, hidden)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (hidden,)
        out[p + "attention.query_key_value.weight"] = ((heads + 2 * groups) * dim, hidden)
        out[p + "attention.dense.weight"] = (hidden, heads * dim)
        if c.get("use_qk_norm"):
            out[p + "attention.query_layernorm.weight"] = out[p + "attention.key_layernorm.weight"] = (dim,)
        if i < c["first_k_dense_replace"]:
            out |= _mlp_shapes(p + "mlp.", hidden, c["intermediate_size"])
            continue
        out[p + "mlp.gate.weight"] = (c["num_experts"], hidden)
        if c.get("moe_router_enable_expert_bias"):
            out[p + "mlp.gate.expert_bias"] = (c["num_experts"],)
        for e in range(c["num_experts"]):
            out |= _mlp_shapes(f"{p}mlp.experts.{e}.", hidden, c["moe_intermediate_size"])
        shared = c.get("moe_shared_expert_intermediate_size", c["moe_intermediate_size"]) * c["num_shared_experts"]
        out |= _mlp_shapes(p + "mlp.shared_experts.", hidden, shared)
    return out


def _mlp_shapes(prefix: str, hidden: int, inter: int) -> dict[str, tuple[int, ...]]:
    out = {f"{prefix}{part}_proj.weight": (inter, hidden) for part in ("gate", "up")}
    return out | {f"{prefix}down_proj.weight": (hidden, inter)}


class Reference:
    """A checkpoint directory as a function of token ids [1, T], like a transformers model."""

    def __init__(self, directory: Path) -> None:
        self.config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self.weights = {n: torch.from_numpy(w) for n, w in load_file(directory / "model.safetensors").items()}

    def state_dict(self) -> Weights:
        return self.weights

    def __call__(self, ids: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=_logits(self.config, self.weights, ids[0])[None])


def _logits(c: Mapping[str, Any], w: Weights, ids: torch.Tensor) -> torch.Tensor:
    h = w["model.word_embeddings.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = h + _attention(c, w, p + "attention.", _norm(c, w[p + "input_layernorm.weight"], h))
        x = _norm(c, w[p + "post_attention_layernorm.weight"], h)
        dense = i < c["first_k_dense_replace"]
        h = h + (_mlp(w, p + "mlp.", x) if dense else _experts(c, w, p + "mlp.", x))
    head = w["lm_head.weight"]
    if c.get("norm_head"):
        head = head / (head.norm(dim=0, keepdim=True) + 1e-7)
    return _norm(c, w["model.norm.weight"], h) @ head.T


def _norm(c: Mapping[str, Any], weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + c["rms_norm_eps"])


def _mlp(w: Weights, p: str, x: torch.Tensor) -> torch.Tensor:
    return (F.silu(x @ w[p + "gate_proj.weight"].T) * (x @ w[p + "up_proj.weight"].T)) @ w[p + "down_proj.weight"].T


def _attention(c: Mapping[str, Any], w: Weights, p: str, x: torch.Tensor) -> torch.Tensor:
    heads, groups, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    qkv = (x @ w[p + "query_key_value.weight"].T).view(len(x), heads + 2 * groups, dim)
    q, k, v = qkv.split([heads, groups, groups], dim=1)
    if c.get("use_qk_norm"):
        q, k = _norm(c, w[p + "query_layernorm.weight"], q), _norm(c, w[p + "key_layernorm.weight"], k)
    width = int(dim * c.get("partial_rotary_factor", 1.0))
    q, k = _rotate(q, width, c["rope_theta"]), _rotate(k, width, c["rope_theta"])
    k, v = (a.repeat_interleave(heads // groups, dim=1) for a in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) * dim**-0.5
    scores = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), float("-inf"))
    out = torch.einsum("hts,shd->thd", scores.softmax(-1), v)
    return out.flatten(1) @ w[p + "dense.weight"].T


def _rotate(x: torch.Tensor, width: int, theta: float) -> torch.Tensor:
    inverse = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = torch.arange(len(x), dtype=torch.float32)[:, None] * inverse
    cos, sin = (torch.cat([a, a], -1)[:, None] for a in (angle.cos(), angle.sin()))
    turned = x[..., :width]
    swapped = torch.cat([-turned[..., width // 2 :], turned[..., : width // 2]], -1)
    return torch.cat([turned * cos + swapped * sin, x[..., width:]], -1)


def _experts(c: Mapping[str, Any], w: Weights, p: str, x: torch.Tensor) -> torch.Tensor:
    logits = x @ w[p + "gate.weight"].T
    ids, weights = _grouped(c, w[p + "gate.expert_bias"], logits) if "n_group" in c else _plain(c, logits)
    out = _mlp(w, p + "shared_experts.", x)
    for t in range(len(x)):
        for slot, e in enumerate(ids[t].tolist()):
            out[t] += weights[t, slot] * _mlp(w, f"{p}experts.{e}.", x[t])
    return out


def _plain(c: Mapping[str, Any], logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights, ids = logits.softmax(-1).topk(c["num_experts_per_tok"], dim=-1)
    return ids, weights / weights.sum(-1, keepdim=True) if c["norm_topk_prob"] else weights


def _grouped(c: Mapping[str, Any], bias: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = logits.sigmoid()
    by_group = (scores + bias).view(len(logits), c["n_group"], -1)
    best = by_group.topk(2, dim=-1).values.sum(-1).topk(c["topk_group"], dim=-1).indices
    kept = torch.full_like(by_group, float("-inf"))
    for t in range(len(logits)):
        kept[t, best[t]] = by_group[t, best[t]]
    ids = kept.flatten(1).topk(c["num_experts_per_tok"], dim=-1).indices
    weights = scores.gather(1, ids)
    return ids, weights / (weights.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]

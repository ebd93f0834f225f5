"""Routed experts in the manner of DeepSeek-V3: how a configuration tells of them, in either format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hetero.models.config import MoeConfig
from hetero.models.families.common import MAX_EXPERTS, Keys, check_groups

Scoring = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What transformers takes for keys that a config.json of the architecture lacks."""

    n_group: int = 1
    topk_group: int = 1
    scaling: float = 1.0
    first_dense: int = 1
    top_k: int = 8


def sigmoid_moe_from_hf(k: Keys, n_layers: int, defaults: Defaults) -> MoeConfig:
    """Sigmoid scores with a correction bias (arXiv 2412.19437, section 2.1.2). Raises ModelError."""
    k.refuse_unless("scoring_func", "sigmoid", "sigmoid")
    k.refuse_unless("topk_method", "noaux_tc", "noaux_tc")
    n_experts = k.integer(k.any_of("n_routed_experts", "num_local_experts", "num_experts"), high=MAX_EXPERTS)
    inter = k.integer("moe_intermediate_size")
    first, dense = _dense_layers(k, defaults, n_layers)
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", defaults.top_k, high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("n_shared_experts", 1, low=0),
        first_dense=first,
        scoring="sigmoid",
        norm_topk=k.flag("norm_topk_prob", True),
        scaling=k.number("routed_scaling_factor", defaults.scaling),
        n_group=k.integer("n_group", defaults.n_group),
        topk_group=k.integer("topk_group", defaults.topk_group),
        group_score="top2",
        correction_bias=True,
        dense_layers=dense,
    )
    return check_groups(moe, k.where)


def _dense_layers(k: Keys, defaults: Defaults, n_layers: int) -> tuple[int, tuple[int, ...]]:
    """How many leading layers are dense and which later ones: by a kind for each layer, or by the distance between
    layers with experts."""
    first = k.integer("first_k_dense_replace", defaults.first_dense, low=0)
    kinds = k.get("mlp_layer_types")
    if kinds is None:
        step = k.integer("moe_layer_freq", 1)
        return first, tuple(layer for layer in range(first, n_layers) if layer % step)
    if not isinstance(kinds, list) or len(kinds) < n_layers or any(kind not in ("dense", "sparse") for kind in kinds):
        raise k.fail("mlp_layer_types", repr(kinds)[:60], f"'dense' or 'sparse' for each of {n_layers} layers")
    first = next((layer for layer in range(n_layers) if kinds[layer] == "sparse"), n_layers)
    return first, tuple(layer for layer in range(first, n_layers) if kinds[layer] == "dense")


def moe_from_gguf(k: Keys, shapes: Mapping[str, tuple[int, ...]], n_layers: int, default: Scoring | None) -> MoeConfig:
    """From GGUF metadata. `default` is how files of the architecture score that do not say so; None goes by whether
    they hold a correction bias. Raises ModelError."""
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    bias = any(f"model.layers.{i}.mlp.gate.e_score_correction_bias" in shapes for i in range(n_layers))
    scoring: Scoring = default or ("sigmoid" if bias else "softmax")
    gating = k.integer("expert_gating_func", 0, low=0)
    if gating not in (0, 1, 2):
        raise k.fail("expert_gating_func", str(gating), "1 (softmax) or 2 (sigmoid)")
    if gating:
        scoring = "sigmoid" if gating == 2 else "softmax"
    inter = k.integer("expert_feed_forward_length")
    n_group = max(1, k.integer("expert_group_count", 0, low=0))
    return MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("expert_used_count", high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("expert_shared_count", low=0),
        first_dense=k.integer("leading_dense_block_count", 0, low=0),
        scoring=scoring,
        norm_topk=k.flag("expert_weights_norm", False),
        scaling=k.number("expert_weights_scale", 1.0) if k.get("expert_weights_scale") != 0 else 1.0,
        n_group=n_group,
        topk_group=k.integer("expert_group_used_count") if n_group > 1 else 1,
        group_score="top2" if scoring == "sigmoid" else "max",
        correction_bias=bias,
    )


def layers_without_mtp(k: Keys, high: int) -> tuple[int, int]:
    """Layers that run, and those behind them in a GGUF file that predict further tokens."""
    mtp = k.integer("nextn_predict_layers", 0, low=0, high=high)
    n_layers = k.integer("block_count", high=high) - mtp
    if n_layers < 1:
        raise k.fail("block_count", str(n_layers + mtp), f"more than nextn_predict_layers ({mtp})")
    return n_layers, mtp


def mtp_from_hf(k: Keys, high: int) -> int:
    """Layers behind the last one that predict further tokens, by the hub's key or transformers'."""
    return k.integer("num_nextn_predict_layers", k.integer("num_mtp_layers", 0, low=0), low=0, high=high)

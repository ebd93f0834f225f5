"""The stages of a forward pass by the names of their tensors, and what each must read and compute."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hetero.machine.types import ModelIndex, TensorInfo
from hetero.models.config import ModelConfig
from hetero.native.formats import packed_bytes

STAGES = ("experts", "projections", "attention", "dense mlp", "router", "head", "norms", "embedding")
"""Projections are those around attention; attention includes the cache and latent attention's per-head products."""
_LATENT = (".k_b_proj", ".v_b_proj")
_HEAD, _EMBEDDING = "lm_head", "model.embed_tokens"


def stage_of(name: str) -> str:
    """The stage of a tensor, by its canonical name with or without `.weight`."""
    base = name.removesuffix(".weight").removesuffix(".bias")
    if ".mlp.experts." in name:
        return "experts"
    if base.endswith(".mlp.gate") or name.endswith("e_score_correction_bias"):
        return "router"
    if base.endswith(_LATENT):
        return "attention"
    if base.endswith("norm"):
        return "norms"
    if ".self_attn." in name or ".linear_attn." in name:
        return "projections"
    if ".mlp." in name:
        return "dense mlp"
    return {_HEAD: "head", _EMBEDDING: "embedding"}.get(base, "norms")


@dataclass
class Demand:
    """Bytes to read, and multiplications plus additions by the format of the weights (F32: activations only)."""

    bytes: float = 0.0
    ops: dict[str, float] = field(default_factory=dict)

    def add(self, n_bytes: float, fmt: str, ops: float) -> None:
        """Count some more."""
        self.bytes += n_bytes
        if ops:
            self.ops[fmt] = self.ops.get(fmt, 0.0) + ops

    @property
    def all_ops(self) -> float:
        return sum(self.ops.values())


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one request: `tokens` new ones after `past` cached ones, of which `sampled` want logits."""

    tokens: int
    past: int
    sampled: int


def demands(index: ModelIndex, config: ModelConfig, step: Step, kv_value_bytes: float) -> dict[str, Demand]:
    """What each of STAGES needs for `step`; every weight is read once, experts as many as random routes meet.

    Past the last attention only sampled rows are computed.
    """
    out = {stage: Demand() for stage in STAGES}
    tied = config.tie_word_embeddings
    for info in index.tensors:
        rows = _rows(info.name, config, step)
        stage = stage_of(info.name)
        if stage == "experts":
            _add_expert_part(out[stage], info, rows, index)
        elif stage == "embedding":
            out[stage].add(4 * rows * info.shape[-1], info.format, 0)
            if tied:
                _add_matrix(out["head"], info, step.sampled)
        elif rows:
            _add_matrix(out[stage], info, rows)
    seen, scored = index.pairs(step.past, step.tokens)
    length = step.past + step.tokens
    cached = length * index.kv_elements_per_token if step.tokens > 1 else index.cache_read(length)
    products = seen * _query_width(config) + scored * _index_width(config)
    out["attention"].add(cached * kv_value_bytes + 2 * index.recurrent_bytes, "F32", 2.0 * products)
    return out


def _rows(name: str, config: ModelConfig, step: Step) -> int:
    """Tokens that a tensor is applied to."""
    if name.startswith(f"model.layers.{config.n_layers - 1}.") and ".self_attn." not in name:
        return step.tokens if name.endswith("input_layernorm.weight") else step.sampled
    return step.tokens if name.startswith(("model.layers.", _EMBEDDING)) else step.sampled


def _add_matrix(to: Demand, info: TensorInfo, rows: int) -> None:
    """A dense matrix in its packed size; vectors and routers are float32."""
    n, k = math.prod(info.shape[:-1]), info.shape[-1]
    if len(info.shape) == 1:
        to.add(4 * k, "F32", 0)
        return
    fmt = "F32" if info.role == "small" else info.format
    to.add(packed_bytes(fmt, n, k), fmt, 2.0 * n * k * rows)


def _add_expert_part(to: Demand, info: TensorInfo, rows: int, index: ModelIndex) -> None:
    _, n, k = info.shape
    met = _met(index, rows)
    to.add(met * packed_bytes(info.format, n, k), info.format, 2.0 * n * k * index.top_k * rows)


def _met(index: ModelIndex, rows: int) -> float:
    """Experts of a layer that `rows` tokens meet on average when all are equally likely: top_k for one token."""
    return index.n_experts * (1 - (1 - index.top_k / index.n_experts) ** rows) if index.n_experts else 0.0


def _query_width(config: ModelConfig) -> int:
    """Multiply-adds of one query token with one cached token, over all layers."""
    if config.mla is None:
        layers = config.n_layers - (len(config.delta.layers) if config.delta else 0)
        return layers * config.n_heads * 2 * config.head_dim
    return config.n_layers * config.n_heads * (2 * config.mla.kv_lora_rank + config.mla.rope_dim)


def _index_width(config: ModelConfig) -> int:
    """Multiply-adds of one token's indexers with one cached token, over all layers."""
    indexer = config.indexer
    return len(indexer.layers) * indexer.heads * indexer.dim if indexer else 0

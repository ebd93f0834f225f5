"""What the families with multi-head latent attention share (MLA, DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hetero.models.blocks import Ops, Selection
from hetero.models.config import IndexerConfig, MlaConfig, ModelConfig, MoeConfig
from hetero.models.families.common import (
    MAX_LAYERS,
    Expected,
    Keys,
    feed_forward_tensors,
    gguf_shape,
    rope_from_gguf,
    rope_from_hf,
    shell_tensors,
)
from hetero.models.families.routed import layers_without_mtp, mtp_from_hf
from hetero.models.rope import softmax_mscale
from hetero.native.formats import FORMATS, TILE_ROWS

if TYPE_CHECKING:
    import torch

MAX_CONTEXT = 1 << 30
PLAIN = ("F32", "F16", "BF16")
LATENT_EPS = 1e-6
"""transformers and the models' own code build the norms of the latents with this, whatever rms_norm_eps says."""


def config_of_hf(k: Keys, family: str, moe: MoeConfig, *, model_type: str, context: int, eps: float) -> ModelConfig:
    """The common part of a config.json; the keywords are the architecture's defaults in transformers.

    Raises ModelError naming a missing or wrong key.
    """
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("attention_bias", False, False)
    k.refuse_unless("mlp_bias", False, False)
    heads = k.integer("num_attention_heads")
    _check_tiles(k, "kv_lora_rank", "v_head_dim")
    mla = MlaConfig(
        q_lora_rank=k.integer("q_lora_rank") if k.has("q_lora_rank") else None,
        kv_lora_rank=k.integer("kv_lora_rank"),
        nope_dim=k.integer("qk_nope_head_dim"),
        rope_dim=k.integer("qk_rope_head_dim"),
        v_dim=k.integer("v_head_dim"),
        latent_norm_eps=LATENT_EPS,
    )
    length = k.integer("max_position_embeddings", context, high=MAX_CONTEXT)
    interleaved = k.flag("rope_interleave", True)
    return ModelConfig(
        family=family,
        model_type=k.text("model_type", model_type),
        vocab_size=k.integer("vocab_size"),
        hidden_size=k.integer("hidden_size"),
        n_layers=k.integer("num_hidden_layers", high=MAX_LAYERS),
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=mla.nope_dim + mla.rope_dim,
        intermediate_size=k.integer("intermediate_size"),
        rms_norm_eps=k.number("rms_norm_eps", eps),
        max_context=length,
        rope=rope_from_hf(k, mla.rope_dim, length, interleaved=interleaved),
        tie_word_embeddings=k.flag("tie_word_embeddings", False),
        moe=moe,
        mla=mla,
        mtp_layers=mtp_from_hf(k, MAX_LAYERS),
    )


def config_of_gguf(
    k: Keys, shapes: Mapping[str, tuple[int, ...]], family: str, moe: MoeConfig, *, model_type: str
) -> ModelConfig:
    """The common part of GGUF metadata, whose files norm the latents with the model's own eps. Raises ModelError.

    New files (since April 2025) store the latent attention's sizes under `*_mla` keys and kv_b split in two.
    """
    n_layers, mtp = layers_without_mtp(k, MAX_LAYERS)
    heads = k.integer("attention.head_count")
    mla = _mla_from_gguf(k, shapes)
    length = k.integer("context_length", high=MAX_CONTEXT)
    rope = rope_from_gguf(k, mla.rope_dim, length, interleaved=True)
    multiplier = k.optional_number("rope.scaling.yarn_log_multiplier")
    if rope.kind == "yarn" and multiplier:
        # Written as a tenth of mscale_all_dim; mscale itself is not stored and equals it in every model of the kind.
        mscale = round(multiplier / 0.1, 5)
        rope = replace(rope, mscale=mscale, mscale_all_dim=mscale)
    return ModelConfig(
        family=family,
        model_type=model_type,
        vocab_size=gguf_shape(shapes, "model.embed_tokens.weight", 2, k.where)[0],
        hidden_size=k.integer("embedding_length"),
        n_layers=n_layers,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=mla.nope_dim + mla.rope_dim,
        intermediate_size=k.integer("feed_forward_length", 1),
        rms_norm_eps=mla.latent_norm_eps,
        max_context=length,
        rope=rope,
        tie_word_embeddings="lm_head.weight" not in shapes,
        moe=moe,
        mla=mla,
        mtp_layers=mtp,
    )


def _mla_from_gguf(k: Keys, shapes: Mapping[str, tuple[int, ...]]) -> MlaConfig:
    attn = "model.layers.0.self_attn."
    split = attn + "k_b_proj.weight" in shapes
    q_lora = None
    if attn + "q_proj.weight" not in shapes:  # llama.cpp goes by layer counts, which misses smaller models
        q_lora = gguf_shape(shapes, attn + "q_a_proj.weight", 2, k.where)[0]
        if k.integer("attention.q_lora_rank", q_lora) != q_lora:
            raise k.fail(
                "attention.q_lora_rank", str(k.integer("attention.q_lora_rank")), f"{q_lora}, as in the tensors"
            )
    rope_dim = k.integer("rope.dimension_count")
    suffix = "_mla" if split else ""
    key_length = k.integer(f"attention.key_length{suffix}")
    if key_length <= rope_dim:
        raise k.fail(f"attention.key_length{suffix}", str(key_length), f"more than rope.dimension_count ({rope_dim})")
    _check_tiles(k, "attention.kv_lora_rank", f"attention.value_length{suffix}")
    return MlaConfig(
        q_lora_rank=q_lora,
        kv_lora_rank=k.integer("attention.kv_lora_rank"),
        nope_dim=key_length - rope_dim,
        rope_dim=rope_dim,
        v_dim=k.integer(f"attention.value_length{suffix}"),
        latent_norm_eps=k.number("attention.layer_norm_rms_epsilon"),
    )


def _check_tiles(k: Keys, *keys: str) -> None:
    """The products of a head are whole tiles of its matrix."""
    for key in keys:
        if k.integer(key) % TILE_ROWS:
            raise k.fail(key, str(k.integer(key)), f"a multiple of {TILE_ROWS}")


def turned_format(fmt: str, head_rows: int, square: bool) -> str:
    """What k_b is held in when a whole kv_b, of so many rows a head, is in `fmt`.

    `square`: its FP8 scales serve 128 rows each, or all of them.
    """
    aligned = square and head_rows % FORMATS["FP8_E4M3"].block_k == 0
    return fmt if fmt in PLAIN or (fmt == "FP8_E4M3" and aligned) else "F32"


def model_tensors(config: ModelConfig) -> dict[str, Expected]:
    """Every tensor of a model by canonical name; kv_b in the two halves that `models.kv_b` makes of a whole one."""
    out = shell_tensors(config.hidden_size, config.vocab_size, config.n_layers)
    for layer in range(config.n_layers):
        out |= _attention(f"model.layers.{layer}.self_attn.", config)
        if config.indexer is not None and layer in config.indexer.layers:
            out |= _indexer(f"model.layers.{layer}.self_attn.indexer.", config, config.indexer)
        out |= feed_forward_tensors(config, layer)
    return out


def _attention(p: str, config: ModelConfig) -> dict[str, Expected]:
    assert config.mla is not None
    mla, hidden, heads = config.mla, config.hidden_size, config.n_heads
    q_rows = heads * (mla.nope_dim + mla.rope_dim)
    out = {
        p + "kv_a_proj_with_mqa.weight": Expected((mla.kv_lora_rank + mla.rope_dim, hidden), "dense"),
        p + "kv_a_layernorm.weight": Expected((mla.kv_lora_rank,), "small"),
        p + "o_proj.weight": Expected((hidden, heads * mla.v_dim), "dense"),
    }
    if mla.q_lora_rank is None:
        out[p + "q_proj.weight"] = Expected((q_rows, hidden), "dense")
    else:
        out[p + "q_a_proj.weight"] = Expected((mla.q_lora_rank, hidden), "dense")
        out[p + "q_a_layernorm.weight"] = Expected((mla.q_lora_rank,), "small")
        out[p + "q_b_proj.weight"] = Expected((q_rows, mla.q_lora_rank), "dense")
    out[p + "k_b_proj.weight"] = Expected((heads, mla.kv_lora_rank, mla.nope_dim), "dense")
    out[p + "v_b_proj.weight"] = Expected((heads, mla.v_dim, mla.kv_lora_rank), "dense")
    return out


def _indexer(p: str, config: ModelConfig, indexer: IndexerConfig) -> dict[str, Expected]:
    assert config.mla is not None
    assert config.mla.q_lora_rank is not None
    return {
        p + "wq_b.weight": Expected((indexer.heads * indexer.dim, config.mla.q_lora_rank), "dense"),
        p + "wk.weight": Expected((indexer.dim, config.hidden_size), "dense"),
        p + "k_norm.weight": Expected((indexer.dim,), "small"),
        p + "k_norm.bias": Expected((indexer.dim,), "small"),
        p + "weights_proj.weight": Expected((indexer.heads, config.hidden_size), "dense"),
    }


def _low_queries(config: ModelConfig, prefix: str, x: torch.Tensor, ops: Ops) -> tuple[torch.Tensor, torch.Tensor]:
    """The queries' latent [T, q_rank], normed, and the joint latent [T, r + rope] of the normed x [T, hidden]."""
    assert config.mla is not None
    low, joint = ops.linears([prefix + "q_a_proj", prefix + "kv_a_proj_with_mqa"], x)
    return ops.norm(prefix + "q_a_layernorm.weight", low, config.mla.latent_norm_eps), joint


def latent_attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """MLA on the normed x [T, hidden]; one rope key serves all heads."""
    prefix = f"model.layers.{layer}.self_attn."
    if config.mla is not None and config.mla.q_lora_rank is None:
        q, joint = ops.linears([prefix + "q_proj", prefix + "kv_a_proj_with_mqa"], x)
    else:
        low, joint = _low_queries(config, prefix, x, ops)
        q = ops.linear(prefix + "q_b_proj", low)
    return _attend(config, layer, q, joint, ops, None)


class SparseLatentAttention:
    """MLA over the positions that indexers choose. Made anew for each pass: a layer without an indexer uses the choice
    of the layer before it."""

    def __init__(self) -> None:
        self._choice: Selection | None = None

    def __call__(self, config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[T, hidden] for the normed x [T, hidden]."""
        prefix = f"model.layers.{layer}.self_attn."
        low, joint = _low_queries(config, prefix, x, ops)
        assert config.indexer is not None
        if layer in config.indexer.layers:
            self._choice = _choose(config.indexer, layer, x, low, ops)
        return _attend(config, layer, ops.linear(prefix + "q_b_proj", low), joint, ops, self._choice)


def _choose(indexer: IndexerConfig, layer: int, x: torch.Tensor, low: torch.Tensor, ops: Ops) -> Selection | None:
    """What each token attends to, by the normed x [T, hidden] and the queries' latent; None while that is all."""
    import torch.nn.functional as F

    prefix = f"model.layers.{layer}.self_attn.indexer."
    weight, bias = ops.small(prefix + "k_norm.weight"), ops.small(prefix + "k_norm.bias")
    key = F.layer_norm(ops.linear(prefix + "wk", x), (indexer.dim,), weight, bias, indexer.norm_eps)
    ops.index(layer, ops.rotate(key[:, None], indexer.interleaved)[:, 0])
    if ops.longest <= indexer.top_k:
        return None
    q = ops.linear(prefix + "wq_b", low).view(-1, indexer.heads, indexer.dim)
    q = ops.rotate(q, indexer.interleaved)
    return ops.choose(layer, q, ops.linear(prefix + "weights_proj", x), indexer.top_k)


def _attend(
    config: ModelConfig, layer: int, q: torch.Tensor, joint: torch.Tensor, ops: Ops, select: Selection | None
) -> torch.Tensor:
    mla = config.mla
    assert mla is not None
    prefix = f"model.layers.{layer}.self_attn."
    q = q.view(-1, config.n_heads, mla.nope_dim + mla.rope_dim)
    latent, key = joint[:, : mla.kv_lora_rank], joint[:, mla.kv_lora_rank :]
    latent = ops.norm(prefix + "kv_a_layernorm.weight", latent, mla.latent_norm_eps)
    stored = ops.join(latent, ops.rotate(key[:, None])[:, 0])
    scale = (mla.nope_dim + mla.rope_dim) ** -0.5 * softmax_mscale(config.rope)
    q_nope, q_rope = q[..., : mla.nope_dim], ops.rotate(q[..., mla.nope_dim :])
    out = ops.latent_attention(layer, q_nope, q_rope, stored, scale, select)
    return ops.linear(prefix + "o_proj", out.flatten(1))

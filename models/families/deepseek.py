"""The DeepSeek family: V2-Lite, V2, V3, R1, V3.1 and the text part of Kimi K2.

Multi-head latent attention with or without a query latent, interleaved rope (YaRN), shared experts, leading dense
layers; V2 routes by softmax (groups by their maximum), V3 by sigmoid with a correction bias (groups by their top 2).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from hetero.machine.types import ModelError
from hetero.models.blocks import Batch, Ops, decoder
from hetero.models.config import MlaConfig, ModelConfig, MoeConfig, RopeConfig
from hetero.models.families.common import (
    MAX_EXPERTS,
    MAX_LAYERS,
    Expected,
    FusedExperts,
    Keys,
    check_groups,
    expert_tensors,
    gguf_shape,
    mlp_tensors,
    rope_from_gguf,
    rope_from_hf,
    shell_tensors,
)
from hetero.models.rope import softmax_mscale
from hetero.native.formats import TILE_ROWS

if TYPE_CHECKING:
    import torch

NAME = "deepseek"
HF_ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
HF_MODEL_TYPES = ("deepseek_v2", "deepseek_v3", "kimi_k2")
GGUF_ARCHS = ("deepseek2",)
SKIP_HF = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
RENAME_HF: tuple[tuple[str, str], ...] = ()
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
_LATENT_EPS = 1e-6
"""transformers and DeepSeek's own code build the norms of the latents with this, whatever rms_norm_eps says."""


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' DeepseekV2Config or DeepseekV3Config."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("attention_bias", False, False)
    k.refuse_unless("mlp_bias", False, False)
    v3 = _is_v3(raw)
    heads = k.integer("num_attention_heads")
    mla = MlaConfig(
        q_lora_rank=k.integer("q_lora_rank") if k.has("q_lora_rank") else None,
        kv_lora_rank=k.integer("kv_lora_rank"),
        nope_dim=k.integer("qk_nope_head_dim"),
        rope_dim=k.integer("qk_rope_head_dim"),
        v_dim=k.integer("v_head_dim"),
        latent_norm_eps=_LATENT_EPS,
    )
    n_layers = k.integer("num_hidden_layers", high=MAX_LAYERS)
    context = k.integer("max_position_embeddings", 4096 if v3 else 2048, high=1 << 30)
    interleaved = k.flag("rope_interleave", True)
    return ModelConfig(
        family=NAME,
        model_type=k.text("model_type", "deepseek_v3" if v3 else "deepseek_v2"),
        vocab_size=k.integer("vocab_size"),
        hidden_size=k.integer("hidden_size"),
        n_layers=n_layers,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=mla.nope_dim + mla.rope_dim,
        intermediate_size=k.integer("intermediate_size"),
        rms_norm_eps=k.number("rms_norm_eps", 1e-6),
        max_context=context,
        rope=rope_from_hf(k, mla.rope_dim, context, interleaved=interleaved),
        tie_word_embeddings=k.flag("tie_word_embeddings", False),
        moe=_moe_from_hf(k, v3, n_layers),
        mla=mla,
        mtp_layers=k.integer("num_nextn_predict_layers", k.integer("num_mtp_layers", 0, low=0), low=0, high=MAX_LAYERS),
    )


def _is_v3(raw: Mapping[str, Any]) -> bool:
    architectures = raw.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else raw.get("model_type")
    return name in ("DeepseekV3ForCausalLM", "deepseek_v3", "kimi_k2")


def _moe_from_hf(k: Keys, v3: bool, n_layers: int) -> MoeConfig:
    n_experts = k.integer("n_routed_experts", high=MAX_EXPERTS)
    inter = k.integer("moe_intermediate_size")
    method = k.text("topk_method", "noaux_tc" if v3 else "greedy")
    scoring = k.text("scoring_func", "sigmoid" if v3 else "softmax")
    known = {("sigmoid", "noaux_tc"), ("softmax", "greedy"), ("softmax", "group_limited_greedy")}
    if (scoring, method) not in known or v3 != (scoring == "sigmoid"):
        raise ModelError(
            f"{k.where}: the router scoring_func {scoring!r} with topk_method {method!r} is not supported for this "
            f"architecture; expected {'sigmoid with noaux_tc' if v3 else 'softmax with (group_limited_)greedy'}",
            "this variant of the architecture is not supported yet",
        )
    grouped = method != "greedy"
    first = k.integer("first_k_dense_replace", 3 if v3 else 0, low=0)
    freq = k.integer("moe_layer_freq", 1)
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", 8 if v3 else None, high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("n_shared_experts", 1 if v3 else 2, low=0),
        first_dense=first,
        scoring="sigmoid" if v3 else "softmax",
        norm_topk=k.flag("norm_topk_prob", v3),
        scaling=k.number("routed_scaling_factor", 2.5 if v3 else 1.0),
        n_group=k.integer("n_group", 8 if v3 else 1) if grouped else 1,
        topk_group=k.integer("topk_group", 4 if v3 else 1) if grouped else 1,
        group_score="top2" if v3 else "max",
        correction_bias=v3,
        dense_layers=tuple(layer for layer in range(first, n_layers) if layer % freq),
    )
    return check_groups(moe, k.where)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    New files (since April 2025) store the latent attention's sizes under `*_mla` keys and kv_b split in two.
    """
    k = Keys(meta, where, "deepseek2.")
    mtp = k.integer("nextn_predict_layers", 0, low=0, high=MAX_LAYERS)
    n_layers = k.integer("block_count", high=MAX_LAYERS) - mtp
    if n_layers < 1:
        raise k.fail("block_count", str(n_layers + mtp), f"more than nextn_predict_layers ({mtp})")
    heads = k.integer("attention.head_count")
    mla = _mla_from_gguf(k, shapes, where)
    context = k.integer("context_length", high=1 << 30)
    moe = _moe_from_gguf(k, shapes, n_layers)
    return ModelConfig(
        family=NAME,
        model_type="deepseek_v3" if moe.scoring == "sigmoid" else "deepseek_v2",
        vocab_size=gguf_shape(shapes, "model.embed_tokens.weight", 2, where)[0],
        hidden_size=k.integer("embedding_length"),
        n_layers=n_layers,
        n_heads=heads,
        n_kv_heads=heads,
        head_dim=mla.nope_dim + mla.rope_dim,
        intermediate_size=k.integer("feed_forward_length", 1),
        rms_norm_eps=mla.latent_norm_eps,
        max_context=context,
        rope=_rope_from_gguf(k, mla.rope_dim, context, moe.n_experts),
        tie_word_embeddings="lm_head.weight" not in shapes,
        moe=moe,
        mla=mla,
        mtp_layers=mtp,
    )


def _mla_from_gguf(k: Keys, shapes: Mapping[str, tuple[int, ...]], where: str) -> MlaConfig:
    attn = "model.layers.0.self_attn."
    split = attn + "k_b_proj.weight" in shapes
    q_lora = None
    if attn + "q_proj.weight" not in shapes:  # llama.cpp goes by layer counts, which misses smaller models
        q_lora = gguf_shape(shapes, attn + "q_a_proj.weight", 2, where)[0]
        if k.integer("attention.q_lora_rank", q_lora) != q_lora:
            raise k.fail(
                "attention.q_lora_rank", str(k.integer("attention.q_lora_rank")), f"{q_lora}, as in the tensors"
            )
    rope_dim = k.integer("rope.dimension_count")
    suffix = "_mla" if split else ""
    key_length = k.integer(f"attention.key_length{suffix}")
    if key_length <= rope_dim:
        raise k.fail(f"attention.key_length{suffix}", str(key_length), f"more than rope.dimension_count ({rope_dim})")
    for key in ("attention.kv_lora_rank", f"attention.value_length{suffix}") if split else ():
        if k.integer(key) % TILE_ROWS:  # the products of a head are whole tiles of its matrix
            raise k.fail(key, str(k.integer(key)), f"a multiple of {TILE_ROWS}")
    return MlaConfig(
        q_lora_rank=q_lora,
        kv_lora_rank=k.integer("attention.kv_lora_rank"),
        nope_dim=key_length - rope_dim,
        rope_dim=rope_dim,
        v_dim=k.integer(f"attention.value_length{suffix}"),
        latent_norm_eps=k.number("attention.layer_norm_rms_epsilon"),
    )


def _moe_from_gguf(k: Keys, shapes: Mapping[str, tuple[int, ...]], n_layers: int) -> MoeConfig:
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    bias = any(f"model.layers.{i}.mlp.gate.e_score_correction_bias" in shapes for i in range(n_layers))
    scoring: Literal["softmax", "sigmoid"] = "sigmoid" if bias else "softmax"
    gating = k.integer("expert_gating_func", 0, low=0)
    if gating not in (0, 1, 2):
        raise k.fail("expert_gating_func", str(gating), "1 (softmax) or 2 (sigmoid)")
    if gating:
        scoring = "sigmoid" if gating == 2 else "softmax"
    inter = k.integer("expert_feed_forward_length")
    n_group = max(1, k.integer("expert_group_count", 0, low=0))
    moe = MoeConfig(
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
    return check_groups(_known_groups(moe, k), k.where)


def _known_groups(moe: MoeConfig, k: Keys) -> MoeConfig:
    """Files written before llama.cpp knew of groups lack the two keys; the models of that time are known by size."""
    if k.has("expert_group_count"):
        return moe
    if moe.n_experts == 160 and moe.scoring == "softmax":  # DeepSeek-V2, V2.5, Coder-V2
        return replace(moe, n_group=8, topk_group=3)
    if moe.n_experts == 256 and moe.scoring == "sigmoid" and moe.top_k == 8:  # DeepSeek-V3, R1
        return replace(moe, n_group=8, topk_group=4)
    return moe


def _rope_from_gguf(k: Keys, dim: int, context: int, n_experts: int) -> RopeConfig:
    rope = rope_from_gguf(k, dim, context, interleaved=True)
    if rope.kind != "yarn":
        return rope
    multiplier = k.optional_number("rope.scaling.yarn_log_multiplier")
    if multiplier:
        # Written as a tenth of mscale_all_dim; mscale itself is not stored and equals it in every model of the family.
        mscale = round(multiplier / 0.1, 5)
        rope = replace(rope, mscale=mscale, mscale_all_dim=mscale)
    kimi = rope.theta == 50000.0 and n_experts == 384
    if kimi and not k.has("rope.scaling.yarn_beta_fast"):
        rope = replace(rope, beta_fast=1.0, beta_slow=1.0)
    return rope


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; kv_b whole or split in two as `names` (what a file holds) says."""
    assert config.moe is not None
    moe, hidden = config.moe, config.hidden_size
    out = shell_tensors(hidden, config.vocab_size, config.n_layers)
    for layer in range(config.n_layers):
        p = f"model.layers.{layer}."
        out |= _attention(p + "self_attn.", config, names)
        if not config.is_moe_layer(layer):
            out |= mlp_tensors(p + "mlp.", hidden, config.intermediate_size)
            continue
        out |= expert_tensors(p + "mlp.", hidden, moe.intermediate_size, moe.n_experts)
        if moe.correction_bias:
            out[p + "mlp.gate.e_score_correction_bias"] = Expected((moe.n_experts,), "small")
        if moe.shared_intermediate_size:
            out |= mlp_tensors(p + "mlp.shared_experts.", hidden, moe.shared_intermediate_size)
    return out


def _attention(p: str, config: ModelConfig, names: Container[str]) -> dict[str, Expected]:
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
    if p + "k_b_proj.weight" in names:
        out[p + "k_b_proj.weight"] = Expected((heads, mla.kv_lora_rank, mla.nope_dim), "dense")
        out[p + "v_b_proj.weight"] = Expected((heads, mla.v_dim, mla.kv_lora_rank), "dense")
    else:
        out[p + "kv_b_proj.weight"] = Expected((heads * (mla.nope_dim + mla.v_dim), mla.kv_lora_rank), "dense")
    return out


def _queries(config: ModelConfig, prefix: str, x: torch.Tensor, ops: Ops) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [T, H, nope + rope] and the joint latent [T, r + rope] of the normed x [T, hidden]."""
    mla = config.mla
    assert mla is not None
    if mla.q_lora_rank is None:
        q, joint = ops.linears([prefix + "q_proj", prefix + "kv_a_proj_with_mqa"], x)
    else:
        low, joint = ops.linears([prefix + "q_a_proj", prefix + "kv_a_proj_with_mqa"], x)
        low = ops.norm(prefix + "q_a_layernorm.weight", low, mla.latent_norm_eps)
        q = ops.linear(prefix + "q_b_proj", low)
    return q.view(-1, config.n_heads, mla.nope_dim + mla.rope_dim), joint


def latent_attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """MLA (arXiv 2405.04434, section 2.1) on the normed x [T, hidden]; one rope key serves all heads."""
    import torch

    mla = config.mla
    assert mla is not None
    prefix = f"model.layers.{layer}.self_attn."
    q, joint = _queries(config, prefix, x, ops)
    latent, key = joint[:, : mla.kv_lora_rank], joint[:, mla.kv_lora_rank :]
    latent = ops.norm(prefix + "kv_a_layernorm.weight", latent, mla.latent_norm_eps)
    stored = torch.cat([latent, ops.rotate(key[:, None])[:, 0]], dim=-1)
    scale = (mla.nope_dim + mla.rope_dim) ** -0.5 * softmax_mscale(config.rope)
    q_nope, q_rope = q[..., : mla.nope_dim], ops.rotate(q[..., mla.nope_dim :])
    out = ops.latent_attention(layer, q_nope, q_rope, stored, scale)
    return ops.linear(prefix + "o_proj", out.flatten(1))


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, latent_attention)

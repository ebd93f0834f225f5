"""DeepSeek-V4: attention over a window and compressed entries, hyper-connections, experts by scores or by token."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.machine.types import ModelError
from hetero.models.blocks import Batch, Ops, dense_mlp
from hetero.models.compressed import CompressedAttention
from hetero.models.config import CompressedConfig, HyperConfig, IndexerConfig, ModelConfig, MoeConfig, RopeConfig
from hetero.models.families.common import (
    INV_FREQ,
    MAX_EXPERTS,
    MAX_LAYERS,
    Expected,
    Keys,
    expert_tensors,
    gguf_shape,
    mlp_tensors,
    nested,
    rope_from_gguf,
    rope_of,
    shell_tensors,
)
from hetero.models.families.grouped import MAX_CONTEXT
from hetero.models.families.routed import layers_without_mtp, mtp_from_hf
from hetero.models.hyper import last, narrow, widen
from hetero.models.router import weigh
from hetero.native.formats import TILE_ROWS

if TYPE_CHECKING:
    import torch

NAME = "deepseek_v4"
HF_ARCHITECTURES = ("DeepseekV4ForCausalLM",)
HF_MODEL_TYPES = ("deepseek_v4",)
GGUF_ARCHS = ("deepseek4",)
FUSED_EXPERTS = None
SKIP_HF = (INV_FREQ,)
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
RENAME_HF = (
    (r"^embed\.", "model.embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"^(norm|layers)\.", r"model.\1."),
    (r"^(?:model\.)?hc_head(?:_|\.hc_)fn$", "model.hc_head.fn.weight"),
    (r"^(?:model\.)?hc_head(?:_|\.hc_)(base|scale)$", r"model.hc_head.\1"),
    (r"\.hc_(attn|ffn)_fn$", r".\1_hc.fn.weight"),
    (r"\.hc_(attn|ffn)_(base|scale)$", r".\1_hc.\2"),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
    (r"\.attn_sink$", ".sinks"),
    (r"\.q_norm\.", ".q_a_layernorm."),
    (r"\.compressor\.norm\.", ".compressor.kv_norm."),
    (r"\.self_attn\.(kv_)?norm\.", ".self_attn.kv_a_layernorm."),  # transformers saves kv_norm as norm
    (r"\.ape$", ".position_bias"),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"\.self_attn\.wq_b\.", ".self_attn.q_b_proj."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.wo_a\.", ".o_a_proj."),
    (r"\.wo_b\.", ".o_proj."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
)
LIMIT = 10.0
"""What the factors of experts, the shared one's too, are clamped to; the kernels have it as a constant."""
_KINDS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Kinds of layers with the positions that an entry stands for."""
_SPARSE = "compressed_sparse_attention"
_HINT = "the file is damaged or of a variant that is not supported; try another upload of this model"


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' DeepseekV4Config. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("attention_bias", False, False)
    k.refuse_unless("mlp_bias", False, False)
    k.refuse_unless("num_key_value_heads", 1, 1)
    k.refuse_unless("swiglu_limit", LIMIT, LIMIT)
    k.refuse_unless("norm_topk_prob", True, True)
    n_layers, dim = k.integer("num_hidden_layers", high=MAX_LAYERS), k.integer("head_dim", 512)
    kinds, rates = _layers_of_hf(k, n_layers)
    length = k.integer("max_position_embeddings", 1048576, high=MAX_CONTEXT)
    main, entries = _ropes_of_hf(k, dim, length)
    config = ModelConfig(
        family=NAME,
        model_type=k.text("model_type", NAME),
        vocab_size=k.integer("vocab_size"),
        hidden_size=k.integer("hidden_size"),
        n_layers=n_layers,
        n_heads=k.integer("num_attention_heads"),
        n_kv_heads=1,
        head_dim=dim,
        intermediate_size=k.integer("moe_intermediate_size", 2048),
        rms_norm_eps=k.number("rms_norm_eps", 1e-6),
        max_context=length,
        rope=main,
        tie_word_embeddings=k.flag("tie_word_embeddings", False),
        moe=_moe_of_hf(k, n_layers),
        indexer=_indexer_of_hf(k, kinds),
        compressed=_compressed_of_hf(k, [rates[kind] for kind in kinds], entries),
        hyper=HyperConfig(
            k.integer("hc_mult", 4, high=64),
            k.integer("hc_sinkhorn_iters", 20, high=1000),
            k.number("hc_eps", 1e-6),
        ),
        mtp_layers=mtp_from_hf(k, MAX_LAYERS),
    )
    return _checked(config, where)


def _compressed_of_hf(k: Keys, rates: Sequence[int], rope: RopeConfig) -> CompressedConfig:
    return CompressedConfig(
        rates=tuple(rates),
        window=k.integer("sliding_window", 128, low=2),
        q_rank=k.integer("q_lora_rank", 1024),
        groups=k.integer("o_groups", 8),
        group_rank=k.integer("o_lora_rank", 1024),
        rope=rope,
    )


def _indexer_of_hf(k: Keys, kinds: Sequence[str]) -> IndexerConfig:
    return IndexerConfig(
        heads=k.integer("index_n_heads", 64),
        dim=k.integer("index_head_dim", 128),
        top_k=k.integer("index_topk", 512),
        layers=tuple(layer for layer, kind in enumerate(kinds) if kind == _SPARSE),
        interleaved=True,
    )


def _layers_of_hf(k: Keys, n_layers: int) -> tuple[list[str], dict[str, int]]:
    """The kind of each layer, by name or by its rate; and the rate of each kind."""
    rates = dict(_KINDS)
    given = k.get("compress_rates") or {}
    if not isinstance(given, dict) or set(given) - set(rates):
        raise k.fail("compress_rates", repr(given)[:60], f"an object with {' and '.join(list(rates)[1:])}")
    named = Keys({f"compress_rates.{key}": value for key, value in given.items()}, k.where, "compress_rates.")
    for kind, old in (("heavily_compressed_attention", "compress_rate_hca"), (_SPARSE, "compress_rate_csa")):
        rates[kind] = k.integer(old, named.integer(kind, rates[kind], low=2), low=2)
    kinds, old_rates = k.get("layer_types"), k.get("compress_ratios")
    if kinds is None and old_rates is None:  # as transformers has it: two of the third kind, then in turn
        kinds = ["heavily_compressed_attention" if i < 2 or i % 2 == 0 else _SPARSE for i in range(n_layers)]
    elif kinds is None:
        names = {rate: kind for kind, rate in _KINDS.items()}
        listed = old_rates if isinstance(old_rates, list) else []
        kinds = [names.get(rate) if isinstance(rate, int) else None for rate in listed]
    if not isinstance(kinds, list) or len(kinds) < n_layers or any(kind not in tuple(rates) for kind in kinds):
        raise k.fail(k.any_of("layer_types", "compress_ratios"), repr(kinds)[:60], f"{n_layers} of {', '.join(rates)}")
    return kinds[:n_layers], rates


def _ropes_of_hf(k: Keys, dim: int, length: int) -> tuple[RopeConfig, RopeConfig]:
    """The rope of layers without entries, and that of the others, which alone is scaled, without YaRN's temperature."""
    partial = k.integer("qk_rope_head_dim", dim // 8) / dim
    given = k.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise k.fail("rope_parameters", repr(given)[:60], "an object")
    if isinstance(given.get("main"), dict) and isinstance(given.get("compress"), dict):
        outer = nested(k, "rope_parameters", given)
        objects = [nested(outer, name, given[name]) for name in ("main", "compress")]
    else:
        scaling = k.get("rope_scaling") or given
        if not isinstance(scaling, dict):
            raise k.fail("rope_scaling", repr(scaling)[:60], "an object")
        base = k.number("compress_rope_theta", 160000.0, above=1.0)
        objects = [nested(k, "rope_scaling", {}), nested(k, "rope_scaling", {**scaling, "rope_theta": base})]
    ropes = [rope_of(p, k, dim, length, interleaved=True, theta=10000.0, partial=partial) for p in objects]
    main, entries = ropes
    return main, entries if entries.attention_factor is not None else replace(entries, attention_factor=1.0)


def _moe_of_hf(k: Keys, n_layers: int) -> MoeConfig:
    k.refuse_unless("scoring_func", "sqrtsoftplus", "sqrtsoftplus")
    n_experts, inter = k.integer("n_routed_experts", 256, high=MAX_EXPERTS), k.integer("moe_intermediate_size", 2048)
    kinds = k.get("mlp_layer_types")
    if kinds is None:
        hashed = tuple(range(min(n_layers, k.integer("num_hash_layers", 3, low=0))))
    elif isinstance(kinds, list) and len(kinds) >= n_layers and all(kind in ("hash_moe", "moe") for kind in kinds):
        hashed = tuple(layer for layer in range(n_layers) if kinds[layer] == "hash_moe")
    else:
        raise k.fail("mlp_layer_types", repr(kinds)[:60], f"'hash_moe' or 'moe' for each of {n_layers} layers")
    return MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", 6, high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("n_shared_experts", 1),
        scoring="sqrtsoftplus",
        scaling=k.number("routed_scaling_factor", 1.5),
        correction_bias=True,
        activation="clamped_silu",
        hash_layers=hashed,
    )


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "deepseek4.")
    n_layers, mtp = layers_without_mtp(k, MAX_LAYERS)
    dim, length = k.integer("attention.key_length"), k.integer("context_length", high=MAX_CONTEXT)
    rotated = k.integer("rope.dimension_count", high=dim)
    entries = rope_from_gguf(k, rotated, length, interleaved=True)
    entries = replace(entries, theta=k.number("attention.compress_rope_freq_base", above=1.0), attention_factor=1.0)
    compressed = _compressed_of_gguf(k, n_layers, entries)
    config = ModelConfig(
        family=NAME,
        model_type=NAME,
        vocab_size=gguf_shape(shapes, "model.embed_tokens.weight", 2, where)[0],
        hidden_size=k.integer("embedding_length"),
        n_layers=n_layers,
        n_heads=k.integer("attention.head_count"),
        n_kv_heads=1,
        head_dim=dim,
        intermediate_size=k.uniform("expert_feed_forward_length"),
        rms_norm_eps=k.number("attention.layer_norm_rms_epsilon"),
        max_context=length,
        rope=RopeConfig(theta=k.number("rope.freq_base", 10000.0, above=1.0), dim=rotated, interleaved=True),
        tie_word_embeddings="lm_head.weight" not in shapes,
        moe=_moe_of_gguf(k, n_layers),
        indexer=IndexerConfig(
            heads=k.integer("attention.indexer.head_count"),
            dim=k.integer("attention.indexer.key_length"),
            top_k=k.integer("attention.indexer.top_k"),
            layers=tuple(layer for layer, rate in enumerate(compressed.rates) if rate == _KINDS[_SPARSE]),
            interleaved=True,
        ),
        compressed=compressed,
        hyper=HyperConfig(
            k.integer("hyper_connection.count", high=64),
            k.integer("hyper_connection.sinkhorn_iterations", high=1000),
            k.number("hyper_connection.epsilon"),
        ),
        mtp_layers=mtp,
    )
    return _checked(config, where)


def _compressed_of_gguf(k: Keys, n_layers: int, rope: RopeConfig) -> CompressedConfig:
    rates = k.get("attention.compress_ratios")
    rates = rates if isinstance(rates, list) else [rates] * n_layers
    if len(rates) < n_layers or any(rate not in _KINDS.values() for rate in rates):
        raise k.fail("attention.compress_ratios", str(rates)[:60], f"0, 4 or 128 for each of {n_layers} layers")
    return CompressedConfig(
        rates=tuple(rates[:n_layers]),
        window=k.integer("attention.sliding_window", low=2),
        q_rank=k.integer("attention.q_lora_rank"),
        groups=k.integer("attention.output_group_count"),
        group_rank=k.integer("attention.output_lora_rank"),
        rope=rope,
    )


def _moe_of_gguf(k: Keys, n_layers: int) -> MoeConfig:
    k.refuse_unless("expert_gating_func", 4, 4)
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        k.refuse_unless(key, LIMIT, LIMIT)
    n_experts, inter = k.integer("expert_count", high=MAX_EXPERTS), k.uniform("expert_feed_forward_length")
    return MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("expert_used_count", high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("expert_shared_count"),
        scoring="sqrtsoftplus",
        norm_topk=k.flag("expert_weights_norm", True),
        scaling=k.number("expert_weights_scale", 1.0),
        correction_bias=True,
        activation="clamped_silu",
        hash_layers=tuple(range(min(n_layers, k.integer("hash_layer_count", low=0)))),
    )


def _checked(config: ModelConfig, where: str) -> ModelConfig:
    compressed, indexer = config.compressed, config.indexer
    assert compressed is not None
    assert indexer is not None
    if config.n_heads % compressed.groups or compressed.group_rank % TILE_ROWS:
        groups = f"{compressed.groups} groups of {config.n_heads} heads with {compressed.group_rank} rows each"
        raise ModelError(f"{where}: {groups}; expected as many heads in each, and rows by {TILE_ROWS}", _HINT)
    if indexer.dim < compressed.rope.dim:
        raise ModelError(
            f"{where}: the indexer's keys have {indexer.dim} values; rope turns {compressed.rope.dim}", _HINT
        )
    return config


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    hyper, moe = config.hyper, config.moe
    assert hyper is not None
    assert moe is not None
    n, hidden = hyper.streams, config.hidden_size
    out = shell_tensors(hidden, config.vocab_size, config.n_layers)
    out |= _hyper_tensors("model.hc_head.", n, n, 1, hidden)
    for layer in range(config.n_layers):
        p = f"model.layers.{layer}."
        out |= _hyper_tensors(p + "attn_hc.", n, (2 + n) * n, 3, hidden)
        out |= _hyper_tensors(p + "ffn_hc.", n, (2 + n) * n, 3, hidden)
        out |= _attention_tensors(p + "self_attn.", config, layer)
        out |= expert_tensors(p + "mlp.", hidden, moe.intermediate_size, moe.n_experts)
        out |= mlp_tensors(p + "mlp.shared_experts.", hidden, moe.shared_intermediate_size)
        if layer in moe.hash_layers:
            out[p + "mlp.gate.tid2eid"] = Expected((config.vocab_size, moe.top_k), "small", integers=True)
        else:
            out[p + "mlp.gate.e_score_correction_bias"] = Expected((moe.n_experts,), "small")
    return out


def _hyper_tensors(p: str, streams: int, rows: int, scales: int, hidden: int) -> dict[str, Expected]:
    return {
        p + "fn.weight": Expected((rows, streams * hidden), "small"),
        p + "base": Expected((rows,), "small"),
        p + "scale": Expected((scales,), "small"),
    }


def _attention_tensors(p: str, config: ModelConfig, layer: int) -> dict[str, Expected]:
    c, indexer, hidden, dim = config.compressed, config.indexer, config.hidden_size, config.head_dim
    assert c is not None
    assert indexer is not None
    out = {
        p + "q_a_proj.weight": Expected((c.q_rank, hidden), "dense"),
        p + "q_a_layernorm.weight": Expected((c.q_rank,), "small"),
        p + "q_b_proj.weight": Expected((config.n_heads * dim, c.q_rank), "dense"),
        p + "kv_proj.weight": Expected((dim, hidden), "dense"),
        p + "kv_a_layernorm.weight": Expected((dim,), "small"),
        p + "o_a_proj.weight": Expected((c.groups, c.group_rank, config.n_heads * dim // c.groups), "dense", flat=True),
        p + "o_proj.weight": Expected((hidden, c.groups * c.group_rank), "dense"),
        p + "sinks": Expected((config.n_heads,), "small"),
    }
    if not c.rates[layer]:
        return out
    if layer not in indexer.layers:
        return out | _compressor_tensors(p + "compressor.", c.rates[layer], dim, dim, hidden)
    out |= _compressor_tensors(p + "compressor.", c.rates[layer], dim, 2 * dim, hidden)
    p += "indexer."
    out |= _compressor_tensors(p + "compressor.", c.rates[layer], indexer.dim, 2 * indexer.dim, hidden)
    out[p + "wq_b.weight"] = Expected((indexer.heads * indexer.dim, c.q_rank), "dense")
    out[p + "weights_proj.weight"] = Expected((indexer.heads, hidden), "dense")
    return out


def _compressor_tensors(p: str, rate: int, dim: int, width: int, hidden: int) -> dict[str, Expected]:
    out = {f"{p}{name}_proj.weight": Expected((width, hidden), "dense") for name in ("kv", "gate")}
    out[p + "position_bias"] = Expected((rate, width), "small")
    out[p + "kv_norm.weight"] = Expected((dim,), "small")
    return out


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    assert config.hyper is not None
    attention, ids = CompressedAttention(config, batch, ops), batch.token_ids
    streams = ops.embed(ids)[:, None].repeat(1, config.hyper.streams, 1)
    for layer in range(config.n_layers):
        prefix = f"model.layers.{layer}."
        x, spread, mix = narrow(config, prefix + "attn_hc.", streams, ops)
        streams = widen(streams, attention(layer, ops.norm(prefix + "input_layernorm.weight", x)), spread, mix)
        if layer == config.n_layers - 1:  # past the last attention only sampled rows matter
            streams, ids = ops.sampled(streams), ops.sampled(ids)
        x, spread, mix = narrow(config, prefix + "ffn_hc.", streams, ops)
        x = _experts(config, layer, ops.norm(prefix + "post_attention_layernorm.weight", x), ids, ops)
        streams = widen(streams, x, spread, mix)
    return ops.linear("lm_head", ops.norm("model.norm.weight", last(config, streams, ops)))


def _experts(config: ModelConfig, layer: int, x: torch.Tensor, token_ids: torch.Tensor, ops: Ops) -> torch.Tensor:
    """Routed and shared experts on the normed x [T, hidden]."""
    prefix, moe = f"model.layers.{layer}.mlp.", config.moe
    assert moe is not None
    logits = ops.linear(prefix + "gate", x)
    if layer in moe.hash_layers:
        table = ops.small(prefix + "gate.tid2eid")
        assert table is not None
        ids = table[token_ids].int()
        weights = weigh(logits, ids, moe)
    else:
        ids, weights = ops.route(logits, prefix + "gate.e_score_correction_bias")
    return ops.experts(layer, x, ids, weights) + dense_mlp(prefix + "shared_experts.", x, ops, LIMIT)

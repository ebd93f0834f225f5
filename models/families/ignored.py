"""Keys of a config.json that change nothing here, each with the reason.

Any other key that a family does not look up is noted when a model is opened: it may be a part of the model that this
version does not compute. Nested keys are spelt with dots, those of a nested `text_config` without that name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

EVERYWHERE = {
    r"architectures|model_type|transformers_version|_name_or_path|_attn_implementation\w*": "which code, not what",
    r"auto_map(\..*)?|custom_pipelines(\..*)?|name_or_path": "code of the repository, which is never run",
    r"dtype|torch_dtype|use_bfloat16": "every tensor says its own type",
    r"(quantization|compression)_config(\..*)?|expert_dtype": "tensors say how they are quantised",
    r"unsloth_\w+": "who has uploaded it",
    r"\w+_token_(id|index)|media_placeholder_token_id|ignore_index|tokenizer_class": "read by the text side",
    r"attention_dropout|embd_pdrop|resid_pdrop|hidden_dropout(_prob)?|(output|embedding)_dropout": "training only",
    r"initializer_range|router_(aux|z)_loss_\w+|router_jitter_noise|aux_loss_alpha|seq_aux|z_loss_\w+": "training only",
    r"mtp_loss_scaling_factor|balance_loss_\w+|bias_update_speed|dropout": "training only",
    r"ep_size|pretraining_tp|tp_plan|moe_router_\w*loss\w*": "how it was spread over machines",
    r"use_cache|output_(attentions|hidden_states|router_logits|scores)|return_dict\w*|torchscript": "switches of code",
    r"chunk_size_feed_forward|gradient_checkpointing|pruned_heads|is_encoder_decoder|is_decoder": "switches of code",
    r"add_cross_attention|cross_attention_hidden_size|tie_encoder_decoder|tf_legacy_loss|use_flash_attn": "switches",
    r"problem_type|finetuning_task|task_specific_params|num_labels|(id2label|label2id)(\..*)?": "other tasks",
    r"add_classification_head|class_num|pool_type|skip_cls_token": "other tasks",
    r"do_sample|temperature|top_k|top_p|typical_p|repetition_penalty|length_penalty|diversity_penalty": "sampling",
    r"num_beams?(_groups)?|num_return_sequences|early_stopping|max_length|min_length|max_new_tokens": "sampling",
    r"(encoder_)?no_repeat_ngram_size|bad_words_ids|(begin_)?suppress_tokens|prefix|forced_\w+": "sampling",
    r"exponential_decay_length_penalty|remove_invalid_values|cache_implementation": "sampling",
    r"(vision|audio|projector|visual)_config(\..*)?|vision_start_\w+|vision_end_\w+": "only text is read",
    r"(image|video|audio)_\w+|use_unified_vision_chunk|unfreeze_\w+|mm_\w+|projector_\w+|vit_\w+": "only text is read",
    r"num_media_embeds|anyres_\w+|boi_\w+|eoi_\w+": "only text is read",
    r"(im|video|text|mask)_(start|end|newline|init)_id": "only text is read",
    r"num_mtp_modules|mtp_\w+|use_mtp|index_share_for_mtp_iteration": "draft layers are kept and not used",
    r"max_model_len|max_sequence_length|seq_length|model_max_length": "max_position_embeddings is what counts",
}
_WINDOW = {r"sliding_window|max_window_layers|layer_types": "no window without use_sliding_window, which is refused"}
_WIDTHS = {r"head_dim|num_key_value_heads|qk_head_dim": "latent attention has widths of its own"}
_SPARSE = _WIDTHS | {
    r"layer_types": "every layer attends to what an indexer chooses",
    r"moe_layer_freq|first_k_dense_replace": "mlp_layer_types says it layer by layer",
}
_HYBRID = _WINDOW | {r"full_attention_interval": "layer_types says it layer by layer"}
_EXPERTS = {r"num_local_experts": "another name that transformers adds"}
OWN: dict[str, dict[str, str]] = {
    "bailing_moe": _EXPERTS | _WINDOW | {r"multi_gate|router_dtype|norm_softmax|use_rmsnorm": "as published"},
    "bailing_moe_v2": _EXPERTS | _WINDOW | {r"router_dtype|use_rmsnorm": "as published"},
    "deepseek": _WIDTHS | {r"n_group|topk_group": "greedy routing has no groups"},
    "deepseek_v32": _SPARSE,
    "deepseek_v4": {r"compress_rope_theta": "rope_parameters.compress says it"},
    "ernie4_5_moe": _EXPERTS,
    "glm_moe_dsa": _SPARSE,
    "granite_moe": {r"sliding_window": "null in every model of the kind"},
    "gpt_oss": {r"initial_context_length": "rope_scaling says the same", r"experts_per_token": "another name"},
    "hunyuan_moe": {
        r"rope_parameters\.(alpha|factor)|rope_scaling\..*": "read from the raw object by a rule of this family's own",
        r"cla_share_factor|dense_list|norm_type|use_rotary_pos_emb|position_embedding_xdrope": "as published",
        r"moe_(drop_tokens|random_routing_dropped_token)|group_limited_greedy|org_vocab_size|pad_id": "as published",
        r"(kv|q)_lora_rank|(qk_nope|qk_rope|v)_head_dim|attention_head_dim|n_group|topk_group": "latent attention",
        r"routed_scaling_factor|max_image_size|sep_token_id|enable_\w+_fp32\w*": "as published",
    },
    "hy_v3": {r"enable_\w+_fp32\w*": "sums and heads are float32 in any case"},
    "llama": {r"sliding_window": "no window in this architecture"},
    "llama4": _WINDOW | {
        r"no_rope_layer_interval|moe_layers|for_llm_compressor|attn_scale": "other keys say it layer by layer",
    },
    "minimax_m2": _WINDOW | {
        r"layernorm_\w+_(alpha|beta)|attn_type_list|shared_moe_mode|postnorm": "of the generation before",
        r"mlp_intermediate_size": "all layers have experts",
    },
    "mixtral": _WINDOW,
    "qwen3_5_moe": _HYBRID | {
        r"rope_(parameters|scaling)\.mrope_\w+": "all axes are equal for text",
        r"attn_output_gate|mamba_ssm_dtype|language_model_only": "as published",
    },
}  # fmt: skip
OWN |= dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen_dense"), _WINDOW)
OWN |= {"qwen3_next": _HYBRID, "qwen3_5": OWN["qwen3_5_moe"]}


def unknown_keys(raw: Mapping[str, Any], looked_up: Collection[str], family: str) -> list[str]:
    """The keys of a config.json that neither the family has looked up nor this module lists; without nulls."""
    known = {name.removeprefix("text_config.") for name in looked_up}
    listed = re.compile("|".join((*EVERYWHERE, *OWN.get(family, {}))))
    names = dict.fromkeys(name.removeprefix("text_config.") for name in _names(raw))
    return [name for name in names if name not in known and not listed.fullmatch(name)]


def _names(raw: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict) and value and depth < 4:
            yield from _names(value, f"{prefix}{key}.", depth + 1)
        elif value is not None:
            yield prefix + key

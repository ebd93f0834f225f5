"""A ModelIndex without weights: from a config.json alone, its tensors are those its architecture must have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero.machine.types import ModelError, ModelIndex, TensorInfo
from hetero.models.config import ModelConfig
from hetero.models.config_formats import REPLAN, Formats, formats_of_config
from hetero.models.families import FAMILIES, Family, family_for_hf
from hetero.models.families.common import Expected
from hetero.models.families.latent import turned_format
from hetero.native import FORMATS
from hetero.native.widths import source_bytes

_SHELL = ("model.embed_tokens.weight", "lm_head.weight")


def index_of_config(raw: Mapping[str, Any], name: str, where: str, *, joint: bool = True) -> ModelIndex:
    """The index of the model that a config.json describes. Raises ModelError naming a missing or wrong key.

    `joint` False: latent attention's kv_b is in two halves, as GGUF files and cards have it; else k_b is what turning a
    whole one makes of it.
    """
    formats = formats_of_config(raw, where)
    family = family_for_hf(raw, where)
    index = _of_family(family, family.config_from_hf(raw, where), formats, name, joint)
    for info in index.tensors:
        block = FORMATS[info.format]
        if info.shape[-1] % block.block_k and not block.plain:
            raise ModelError(
                f"{where}: {info.name} has rows of {info.shape[-1]} weights; expected a multiple of the "
                f"{block.block_k} in a group, as quantization_config says",
                REPLAN,
            )
    return index


def architecture_of(raw: Mapping[str, Any]) -> str:
    """The first of `architectures`, or empty."""
    names = raw.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def runs_as_it_is(raw: Mapping[str, Any]) -> bool:
    """Whether this version reads a checkpoint with this config.json; False: it can at most be planned."""
    return any(architecture_of(raw) in family.HF_ARCHITECTURES for family in FAMILIES.values())


def _of_family(family: Family, config: ModelConfig, formats: Formats, name: str, joint: bool) -> ModelIndex:
    turned, mla = formats.dense, config.mla
    if joint and mla is not None:
        turned = turned_format(formats.dense, mla.nope_dim + mla.v_dim, square=True)
    tensors = family.expected_tensors(config)
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    moe = config.moe
    return ModelIndex(
        name=name,
        architecture=config.model_type,
        tensors=tuple(_tensor(n, want, formats, turned) for n, want in tensors.items()),
        n_layers=config.n_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_context=config.max_context,
        n_experts=moe.n_experts if moe else 0,
        top_k=moe.top_k if moe else 0,
        kv_elements_per_token=config.kv_elements_per_token,
        kv_padding=config.kv_padding,
        recurrent_bytes=config.recurrent_bytes,
        attended=config.attended,
        index_elements=config.index_elements,
        notes=(formats.note,) if formats.note else (),
    )


def _tensor(name: str, want: Expected, formats: Formats, turned: str) -> TensorInfo:
    fmt = {"expert": formats.experts, "dense": formats.dense, "small": "F32"}[want.role]
    fmt = turned if name.endswith(".k_b_proj.weight") else fmt
    fmt = formats.shell if name in _SHELL else fmt
    return TensorInfo(name, want.shape, fmt, source_bytes(fmt, want.shape), want.role)

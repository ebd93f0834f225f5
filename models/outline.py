"""A ModelIndex without weights: from a config.json alone, its tensors are those its architecture must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero.machine.types import ModelError, ModelIndex, TensorInfo
from hetero.models.config import ModelConfig
from hetero.models.families import FAMILIES, Family, family_for_hf
from hetero.models.families.common import Expected
from hetero.models.families.latent import turned_format
from hetero.models.hints import Hints
from hetero.native import FORMATS
from hetero.native.widths import source_bytes

_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_SHELL = ("model.embed_tokens.weight", "lm_head.weight")
_REPLAN = "--experts FORMAT and a config.json without quantization_config plan it in another format"


@dataclass(frozen=True, slots=True)
class Formats:
    """Types of a checkpoint's weights by role. `shell` is that of embedding and head, which stay unquantised."""

    experts: str
    dense: str
    shell: str


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
                _REPLAN,
            )
    return index


def architecture_of(raw: Mapping[str, Any]) -> str:
    """The first of `architectures`, or empty."""
    names = raw.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def runs_as_it_is(raw: Mapping[str, Any]) -> bool:
    """Whether this version reads a checkpoint with this config.json; False: it can at most be planned."""
    return any(architecture_of(raw) in family.HF_ARCHITECTURES for family in FAMILIES.values())


def formats_of_config(raw: Mapping[str, Any], where: str) -> Formats:
    """The native types, by `quantization_config` and `torch_dtype`. Raises ModelError for a method that is unknown."""
    dtype = raw.get("torch_dtype", raw.get("dtype", "bfloat16"))
    plain = _DTYPES.get(dtype if isinstance(dtype, str) else "", "BF16")
    quantization = _quantization(raw)
    if not quantization:
        return Formats(plain, plain, plain)
    method = quantization.get("quant_method")
    hints = Hints.of(raw)
    if method == "fp8":
        fp4 = raw.get("expert_dtype", quantization.get("expert_dtype")) == "fp4"
        return Formats("MXFP4" if fp4 else "FP8_E4M3", "FP8_E4M3", plain)
    if method == "mxfp4":
        return Formats("MXFP4", plain, plain)
    if (method == "modelopt" and "NVFP4" in str(quantization.get("quant_algo"))) or (
        method == "compressed-tensors" and hints.floating and hints.bits == 4 and hints.group == 16
    ):
        return Formats("NVFP4_F32_64", "NVFP4_F32_64", plain)
    if method == "compressed-tensors" and hints.bits == 8:
        packed = "FP8_E4M3" if hints.floating else _int8(hints)
        return Formats(packed, packed, plain)
    if method == "compressed-tensors" and hints.bits == 4 and not hints.floating:
        return Formats(_int4(hints, 32), plain, plain)
    if method == "gptq" and hints.bits == 8:
        return Formats(_int8(hints) + "_F16", _int8(hints) + "_F16", plain)
    if method in ("gptq", "awq") and hints.bits == 4:
        packed = _int4(replace(hints, symmetric=method == "gptq" and hints.symmetric), 128) + "_F16"
        return Formats(packed, packed, plain)
    raise ModelError(
        f"{where}: quantization_config has quant_method {method!r} of a kind that is not known",
        _REPLAN,
    )


def _int4(hints: Hints, group: int) -> str:
    """The kernels' name of 4-bit integers in groups; those without a word on symmetry are symmetric but AWQ's."""
    block = next((b for b in (128, 64, 32) if (hints.group or group) % b == 0), group)
    return f"{'U4' if hints.symmetric is False else 'I4'}_{block}"


def _int8(hints: Hints) -> str:
    """As `_int4`; without a group a scale serves a row, and is kept for every 128 inputs."""
    return f"I8_{next((b for b in (128, 64, 32) if (hints.group or 128) % b == 0), 128)}"


def _quantization(raw: Mapping[str, Any]) -> dict[str, Any]:
    nested = raw.get("text_config")
    inner = nested.get("quantization_config") if isinstance(nested, dict) else None
    found = raw.get("quantization_config", inner)
    return found if isinstance(found, dict) else {}


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
    )


def _tensor(name: str, want: Expected, formats: Formats, turned: str) -> TensorInfo:
    fmt = {"expert": formats.experts, "dense": formats.dense, "small": "F32"}[want.role]
    fmt = turned if name.endswith(".k_b_proj.weight") else fmt
    fmt = formats.shell if name in _SHELL else fmt
    return TensorInfo(name, want.shape, fmt, source_bytes(fmt, want.shape), want.role)

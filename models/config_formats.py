"""The formats of a checkpoint's weights as its config.json tells them, for plans that see nothing else of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetero.machine.types import ModelError
from hetero.models.hints import Hints

_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
REPLAN = "--experts FORMAT and a config.json without quantization_config plan it in another format"


@dataclass(frozen=True, slots=True)
class Formats:
    """Types of a checkpoint's weights by role. `shell` is that of embedding and head, which stay unquantised.

    `note` says what was assumed; empty: all was said.
    """

    experts: str
    dense: str
    shell: str
    note: str = ""


def formats_of_config(raw: Mapping[str, Any], where: str) -> Formats:
    """The native types, by `quantization_config` and `torch_dtype`.

    What this version cannot read is counted by its bits, and a note says so. Raises ModelError for a method that tells
    nothing of them and for a `quantization_config` that is no object.
    """
    dtype = raw.get("torch_dtype", raw.get("dtype", "bfloat16"))
    plain = _DTYPES.get(dtype if isinstance(dtype, str) else "", "")
    note = "" if plain else f"torch_dtype {dtype!r} is not known: unquantised weights are counted as BF16"
    plain = plain or "BF16"
    found = _said(raw)
    if not isinstance(found, dict | None):
        raise ModelError(f"{where}: quantization_config is {str(found)[:40]!r}, expected an object", REPLAN)
    quantization = _quantization(raw)
    if not quantization:
        return Formats(plain, plain, plain, note)
    formats = _read(raw, Hints.of(raw), plain) or _by_bits(quantization, Hints.of(raw), plain, where)
    return replace(formats, note="; ".join(filter(None, (note, formats.note, _contradiction(raw)))))


def _read(raw: Mapping[str, Any], hints: Hints, plain: str) -> Formats | None:
    """Those that this version reads; None for others."""
    quantization = _quantization(raw)
    method, experts, dense = quantization.get("quant_method"), "", ""
    nvfp4 = method == "modelopt" and "NVFP4" in str(quantization.get("quant_algo"))
    nvfp4 |= method == "compressed-tensors" and hints.floating and hints.bits == 4 and hints.group == 16
    if method == "fp8":
        fp4 = raw.get("expert_dtype", quantization.get("expert_dtype")) == "fp4"
        experts, dense = "MXFP4" if fp4 else "FP8_E4M3", "FP8_E4M3"
    elif method == "mxfp4":
        experts, dense = "MXFP4", plain
    elif nvfp4:
        experts = "NVFP4_F32_64"
    elif method == "compressed-tensors" and hints.bits == 8:
        experts = "FP8_E4M3" if hints.floating else _int8(hints)
    elif method == "compressed-tensors" and hints.bits == 4 and not hints.floating:
        experts, dense = _int4(hints, 32), plain
    elif method == "gptq" and hints.bits == 8:
        experts = _int8(hints) + "_F16"
    elif method in ("gptq", "awq") and hints.bits == 4:
        experts = _int4(replace(hints, symmetric=method == "gptq" and hints.symmetric), 128) + "_F16"
    return Formats(experts, dense or experts, plain) if experts else None


def _by_bits(quantization: Mapping[str, Any], hints: Hints, plain: str, where: str) -> Formats:
    """The nearest format of as many bits. ModelError where the bits are not told."""
    method = quantization.get("quant_method")
    named = str(quantization.get("quant_algo", "")).upper()
    loaded = next((n for n in (8, 4) if quantization.get(f"load_in_{n}bit") is True), None)
    bits = hints.bits or _weights(quantization).get("num_bits") or loaded
    by_name = {"FP8": "FP8_E4M3", "NVFP4": "NVFP4", "W4A16_AWQ": "I4_128_F16", "W4A8_AWQ": "I4_128_F16"}
    by_size = {8: "Q8_0", 6: "Q6_K", 5: "Q5_K", 4: "Q4_0", 3: "Q3_K", 2: "Q2_K"}
    fmt = by_name.get(named) or ("NVFP4" if bits == 4 and _weights(quantization).get("type") == "float" else None)
    fmt = fmt or (by_size.get(bits) if type(bits) is int else None)
    if fmt is None:
        found = f"quantization_config has quant_method {method!r} of a kind that is not known"
        raise ModelError(f"{where}: {found}", REPLAN)
    kind = f"{method} {named}".strip() if named else f"{method} of {bits} bits"
    return Formats(fmt, fmt, plain, f"this version does not read {kind}: weights are counted as {fmt}")


def _contradiction(raw: Mapping[str, Any]) -> str:
    """What of two statements on the same thing counts."""
    quantization, nested = raw.get("quantization_config"), raw.get("text_config")
    inner = nested.get("quantization_config") if isinstance(nested, dict) else None
    if isinstance(quantization, dict) and isinstance(inner, dict) and quantization != inner:
        return "text_config has another quantization_config, which is passed over"
    groups = _quantization(raw).get("config_groups")
    if isinstance(groups, dict) and len(groups) > 1:
        return f"quantization_config has {len(groups)} groups: the first of them counts for all weights"
    outer = _quantization(raw).get("num_bits", _quantization(raw).get("bits"))
    inside = _weights(_quantization(raw)).get("num_bits")
    if type(outer) is int and type(inside) is int and outer != inside:
        return f"quantization_config says {outer} bits and, of its only group, {inside}: those of the group count"
    return ""


def _weights(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    """What compressed-tensors says of weights in its first group."""
    groups = quantization.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    return weights if isinstance(weights, dict) else {}


def _int4(hints: Hints, group: int) -> str:
    """The kernels' name of 4-bit integers in groups; those without a word on symmetry are symmetric but AWQ's."""
    block = next((b for b in (128, 64, 32) if (hints.group or group) % b == 0), group)
    return f"{'U4' if hints.symmetric is False else 'I4'}_{block}"


def _int8(hints: Hints) -> str:
    """As `_int4`; without a group a scale serves a row, and is kept for every 128 inputs."""
    return f"I8_{next((b for b in (128, 64, 32) if (hints.group or 128) % b == 0), 128)}"


def _quantization(raw: Mapping[str, Any]) -> dict[str, Any]:
    found = _said(raw)
    return found if isinstance(found, dict) else {}


def _said(raw: Mapping[str, Any]) -> object:
    """The `quantization_config`, of the whole model or of its text part, whatever it is."""
    nested = raw.get("text_config")
    inner = nested.get("quantization_config") if isinstance(nested, dict) else None
    return raw.get("quantization_config", inner)

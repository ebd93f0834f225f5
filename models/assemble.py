"""From the tensors that lie in files to the model's tensors: names, stacked experts, and every shape checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hetero.machine.types import ModelError, TensorInfo, TierError
from hetero.models.config import ModelConfig
from hetero.models.families import Family
from hetero.models.families.common import Expected
from hetero.models.formats import SAFETENSORS_SUPPORTED, StoredTensor, plain_to_f32
from hetero.models.names import from_gguf, from_hf, hf_expert, layer_of
from hetero.models.safetensors_file import HfDirectory

_OTHER = "the file and its configuration do not belong together; try another upload of this model"
MTP_PREFIX = "mtp."
"""How Qwen3-Next and DeepSeek-V4 name what others keep in layers behind the last one."""
_CAST = "use a BF16 version of this model, or a GGUF one"


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive rows of a tensor in one file."""

    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the model: one part, or one per expert. `head_dim` > 0 where rows lie in rope pairs per head."""

    info: TensorInfo
    parts: tuple[Part, ...]
    rows_per_part: int
    head_dim: int = 0


def assemble_gguf(
    family: Family, meta: Mapping[str, Any], stored: Sequence[StoredTensor], files: tuple[Path, ...]
) -> tuple[ModelConfig, dict[str, Tensor], tuple[StoredTensor, ...]]:
    """The configuration, tensors and MTP tensors of a GGUF model.

    Raises ModelError for missing, unknown or misshapen tensors.
    """
    named: dict[str, StoredTensor] = {}
    unknown: list[StoredTensor] = []
    where = str(files[0])
    for t in stored:
        name = from_gguf(t.name)
        if name is None:
            unknown.append(t)
        elif name in named:
            raise ModelError(f"{files[t.file]}: {t.name!r} and {named[name].name!r} are the same tensor", _OTHER)
        else:
            named[name] = t
    _refuse_partial(named, stored, where)
    config = family.config_from_gguf(meta, {n: t.shape for n, t in named.items()}, where)
    factors = next((t for t in unknown if t.name == "rope_freqs.weight" and t.name in family.SKIP_GGUF), None)
    if factors is not None:
        rope = replace(config.rope, freq_factors=_freq_factors(factors, files[factors.file], config.rope.dim))
        config = replace(config, rope=rope)
    mtp = tuple(t for t in stored if _is_mtp(t.name, config))
    known = {n: t for n, t in named.items() if not _is_mtp(t.name, config)}
    unknown = [t for t in unknown if t.name not in family.SKIP_GGUF and not _is_mtp(t.name, config)]
    expected = family.expected_tensors(config, known)
    unknown += [t for n, t in known.items() if n not in expected]
    _refuse_unused(unknown, files)
    whole = {n: (t.shape, (t,)) for n, t in known.items()}
    tensors = _check(whole, expected, files, where)
    if family.PERMUTED_QK:
        tensors = {n: _permuted(n, t, config.head_dim) for n, t in tensors.items()}
    return config, tensors, mtp


def _permuted(name: str, tensor: Tensor, head_dim: int) -> Tensor:
    return replace(tensor, head_dim=head_dim) if ".q_proj." in name or ".k_proj." in name else tensor


def _refuse_partial(named: Mapping[str, StoredTensor], stored: Sequence[StoredTensor], where: str) -> None:
    if "model.embed_tokens.weight" in named:
        return
    what = "holds no tensors (a vocabulary only)" if not stored else "lacks token_embd.weight"
    if any(".nextn." in t.name for t in stored):
        what = "holds only multi-token prediction layers (a draft model)"
    raise ModelError(f"{where}: {what}; expected a whole language model", "name the GGUF file of the model itself")


def _freq_factors(t: StoredTensor, path: Path, dim: int) -> tuple[float, ...]:
    """The frequency divisors of Llama-3 files: dim/2 floats, the only tensor that is read while opening."""
    if t.shape != (dim // 2,) or t.format != "F32":
        raise ModelError(
            f"{path}: tensor {t.name!r} has shape {list(t.shape)} and type {t.format}; expected [{dim // 2}] and F32",
            _OTHER,
        )
    try:
        with path.open("rb") as f:
            f.seek(t.offset)
            raw = np.frombuffer(f.read(t.n_bytes), dtype=np.uint8)
    except OSError as e:
        raise TierError(f"{path}: cannot be read: {e.strerror or e}", "check the disk") from None
    values = plain_to_f32(raw, "F32")
    if len(values) != dim // 2 or not np.all(np.isfinite(values)) or not np.all(values > 0):
        raise ModelError(f"{path}: tensor {t.name!r} holds values that are no positive numbers", _OTHER)
    return tuple(float(v) for v in values)


def _is_mtp(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of a file belongs to the layers behind the last one that predict further tokens."""
    layer = layer_of(name)
    behind = layer is not None and config.n_layers <= layer < config.n_layers + config.mtp_layers
    return behind or name.startswith(MTP_PREFIX)


def assemble_hf(
    family: Family, found: HfDirectory
) -> tuple[ModelConfig, dict[str, Tensor], tuple[str, ...], tuple[StoredTensor, ...]]:
    """The configuration, tensors, notes and MTP tensors of a Hugging Face directory.

    Raises ModelError as `assemble_gguf` does.
    """
    config = family.config_from_hf(found.config, str(found.path / "config.json"))
    skip = re.compile("|".join(family.SKIP_HF))
    named = {t: from_hf(t.name, family.RENAME_HF) for t in found.tensors}
    mtp = tuple(t for t, name in named.items() if _is_mtp(name, config))
    used = [t for t, name in named.items() if not skip.fullmatch(t.name) and not _is_mtp(name, config)]
    whole: dict[str, tuple[tuple[int, ...], tuple[StoredTensor, ...]]] = {}
    experts: dict[str, dict[int, StoredTensor]] = {}
    for t in used:
        expert = hf_expert(named[t])
        if expert is None:
            whole[named[t]] = (t.shape, (t,))
        else:
            experts.setdefault(expert[0], {})[expert[1]] = t
    expected = family.expected_tensors(config, whole)
    unused = [parts[0] for n, (_, parts) in whole.items() if n not in expected]
    unused += [next(iter(parts.values())) for n, parts in experts.items() if n not in expected]
    _refuse_unused(unused, found.files)
    _refuse_dtypes(used, found.files)
    for name, want in expected.items():
        if want.role == "expert" and name in experts:
            whole[name] = _stack(name, experts[name], want, found)
    tensors = _check(whole, expected, found.files, str(found.path))
    notes: tuple[str, ...] = ()
    if "lm_head.weight" not in tensors and not config.tie_word_embeddings:
        notes = (f"{found.path}: has no lm_head.weight; the embedding is used in its place",)
    config = replace(config, tie_word_embeddings="lm_head.weight" not in tensors)
    return config, tensors, notes, mtp


def _stack(
    name: str, parts: Mapping[int, StoredTensor], want: Expected, found: HfDirectory
) -> tuple[tuple[int, ...], tuple[StoredTensor, ...]]:
    """One stacked tensor of all experts, which must be complete and alike."""
    n = want.shape[0]
    where = str(found.path)
    if set(parts) != set(range(n)):
        missing, extra = sorted(set(range(n)) - set(parts)), sorted(set(parts) - set(range(n)))
        what = f"lacks experts {_some(missing)}" if missing else f"has experts {_some(extra)} too many"
        raise ModelError(f"{where}: {_place(name)} {what}; expected experts 0 to {n - 1}", _OTHER)
    ordered = tuple(parts[e] for e in range(n))
    first = ordered[0]
    for t in ordered:
        if t.shape != first.shape or t.format != first.format:
            raise ModelError(
                f"{found.files[t.file]}: {t.name!r} has shape {list(t.shape)} and type {t.format}, but expert 0 has "
                f"{list(first.shape)} and {first.format}",
                _OTHER,
            )
    return (n, *first.shape), ordered


def _place(name: str) -> str:
    return f"layer {layer_of(name)} ({name!r})"


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _refuse_unused(unused: Sequence[StoredTensor], files: tuple[Path, ...]) -> None:
    if unused:
        names = ", ".join(repr(t.name) for t in unused[:4]) + (" ..." if len(unused) > 4 else "")
        raise ModelError(
            f"{files[unused[0].file]}: {len(unused)} tensors have no place in this architecture: {names}",
            "the file is of a variant that is not supported, or its configuration is of another model",
        )


def _refuse_dtypes(used: Sequence[StoredTensor], files: tuple[Path, ...]) -> None:
    for t in used:
        if t.format not in SAFETENSORS_SUPPORTED:
            raise ModelError(
                f"{files[t.file]}: tensor {t.name!r} has the dtype {t.format}; this version reads F32, F16 and BF16",
                _CAST,
            )


def _check(
    whole: Mapping[str, tuple[tuple[int, ...], tuple[StoredTensor, ...]]],
    expected: Mapping[str, Expected],
    files: tuple[Path, ...],
    where: str,
) -> dict[str, Tensor]:
    """Every expected tensor with its expected shape, in the family's order."""
    missing = [n for n, want in expected.items() if not want.optional and n not in whole]
    if missing:
        names = ", ".join(map(repr, missing[:4])) + (" ..." if len(missing) > 4 else "")
        kind = "experts" if any(expected[n].role == "expert" for n in missing) else "tensors"
        raise ModelError(f"{where}: {len(missing)} {kind} of the model are missing: {names}", _OTHER)
    out = {}
    for name, want in expected.items():
        if name not in whole:
            continue
        shape, parts = whole[name]
        if shape != want.shape:
            raise _wrong_shape(name, shape, parts[0], want, files)
        rows = int(np.prod(shape[:-1], dtype=np.int64)) // len(parts)
        info = TensorInfo(name, shape, parts[0].format, sum(p.n_bytes for p in parts), want.role)
        out[name] = Tensor(info, tuple(Part(p.file, p.offset) for p in parts), max(1, rows))
    return out


def _wrong_shape(
    name: str, shape: tuple[int, ...], stored: StoredTensor, want: Expected, files: tuple[Path, ...]
) -> ModelError:
    layer = layer_of(name)
    place = "" if layer is None else f" of layer {layer}"
    if name.endswith("mlp.gate.weight") and shape[:1] != want.shape[:1]:
        what = f"the router{place} ({stored.name!r}) has {shape[0]} rows for {want.shape[0]} experts"
    elif want.role == "expert" and shape[:1] != want.shape[:1]:
        what = f"{stored.name!r}{place} holds {shape[0]} experts; expected {want.shape[0]}"
    else:
        what = f"tensor {stored.name!r} has shape {list(shape)}; expected {list(want.shape)}"
    return ModelError(f"{files[stored.file]}: {what}", _OTHER)

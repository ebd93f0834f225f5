"""From the tensors of GGUF files to the model's tensors: names, shapes and types checked. See `assemble_hf`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hetero.machine.types import ModelError, TensorInfo, TierError
from hetero.models.config import ModelConfig
from hetero.models.families import Family
from hetero.models.families.common import Expected, FusedExperts
from hetero.models.formats import FORMATS, StoredTensor, n_elements, plain_to_f32, row_bytes
from hetero.models.fused import fused_weights
from hetero.models.gguf_scales import scales_apart, with_scales
from hetero.models.joint import split_joint
from hetero.models.kv_b import split_kv_b
from hetero.models.matrices import Found, Integers, Matrix, PairedHeads, Rows
from hetero.models.names import delta_layers, from_gguf, layer_of
from hetero.models.wording import counted

OTHER = "the file and its configuration do not belong together; try another upload of this model"
MTP_PREFIX = "mtp."
"""How Qwen3-Next and DeepSeek-V4 name what others keep in layers behind the last one."""
_GATE_UP = ".mlp.experts.gate_up.weight"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the model whose shape has been checked; its rows are those of its matrices one after the other."""

    info: TensorInfo
    matrices: tuple[Matrix, ...]


def whole(t: StoredTensor) -> Found:
    """A tensor that is stored as the model has it."""
    rows = n_elements(t.shape[:-1])
    return Found(t.shape, (Rows(t, rows, t.shape[-1] if t.shape else 1),))


def assemble_gguf(
    family: Family, meta: Mapping[str, Any], stored: Sequence[StoredTensor], files: tuple[Path, ...]
) -> tuple[ModelConfig, dict[str, Tensor], tuple[StoredTensor, ...]]:
    """The configuration, tensors and MTP tensors of a GGUF model.

    Raises ModelError for missing, unknown or misshapen tensors.
    """
    named: dict[str, StoredTensor] = {}
    unknown: list[StoredTensor] = []
    where = str(files[0])
    deltas = delta_layers(t.name for t in stored)
    weights, scales = scales_apart(stored)
    for t in weights:
        name = from_gguf(t.name, deltas)
        if name is None:
            unknown.append(t)
        elif name in named:
            raise ModelError(f"{files[t.file]}: {t.name!r} and {named[name].name!r} are the same tensor", OTHER)
        else:
            named[name] = t
    _refuse_partial(named, stored, where)
    config = family.config_from_gguf(meta, {n: t.shape for n, t in named.items()}, where)
    factors = next((t for t in unknown if t.name == "rope_freqs.weight" and t.name in family.SKIP_GGUF), None)
    if factors is not None:
        rope = replace(config.rope, freq_factors=_freq_factors(factors, files[factors.file], config.rope.dim))
        config = replace(config, rope=rope)
    mtp = tuple(t for t in stored if is_mtp(t.name, config))
    known = {n: t for n, t in named.items() if not is_mtp(n, config)}
    unknown = [t for t in unknown if t.name not in family.SKIP_GGUF and not is_mtp(t.name, config)]
    found = split_kv_b(with_scales(_found_in_gguf(known, files), scales, files), config, files)
    expected = family.expected_tensors(config, found)
    found = split_joint(found, expected, files)
    unknown += [t.matrices[0].stored for n, t in found.items() if n not in expected]
    refuse_unused(unknown, files)
    if family.PERMUTED_QK:
        found = {n: _permuted(n, t, config.head_dim) for n, t in found.items()}
    return config, check(found, expected, files, where), mtp


def _found_in_gguf(known: Mapping[str, StoredTensor], files: tuple[Path, ...]) -> dict[str, Found]:
    """The tensors of a GGUF file, gate and up experts apart where `--fuse-gate-up-exps` has put them together."""
    found: dict[str, Found] = {}
    for name, t in known.items():
        if name.endswith(_GATE_UP):
            halves = fused_weights(t, "gate_up", FusedExperts(), files[t.file])
            found |= {name.replace("gate_up", part): Found(*half) for part, half in halves.items()}
        else:
            found[name] = whole(t)
    return found


def _permuted(name: str, found: Found, head_dim: int) -> Found:
    if ".q_proj." not in name and ".k_proj." not in name:
        return found
    return Found(found.shape, tuple(PairedHeads(m, head_dim) for m in found.matrices))


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
            OTHER,
        )
    try:
        with path.open("rb") as f:
            f.seek(t.offset)
            raw = np.frombuffer(f.read(t.n_bytes), dtype=np.uint8)
    except OSError as e:
        raise TierError(f"{path}: cannot be read: {e.strerror or e}", "check the disk") from None
    values = plain_to_f32(raw, "F32")
    if len(values) != dim // 2 or not np.all(np.isfinite(values)) or not np.all(values > 0):
        raise ModelError(f"{path}: tensor {t.name!r} holds values that are no positive numbers", OTHER)
    return tuple(float(v) for v in values)


def is_mtp(name: str, config: ModelConfig) -> bool:
    """Whether a tensor of a file belongs to the layers behind the last one that predict further tokens."""
    layer = layer_of(name)
    behind = layer is not None and config.n_layers <= layer < config.n_layers + config.mtp_layers
    return behind or name.startswith(MTP_PREFIX)


def refuse_unused(unused: Sequence[StoredTensor], files: tuple[Path, ...]) -> None:
    """Raises ModelError naming the first few of the tensors that the architecture has no place for."""
    if unused:
        names = ", ".join(repr(t.name) for t in unused[:4]) + (" ..." if len(unused) > 4 else "")
        count = f"{counted(len(unused), 'tensor')} {'has' if len(unused) == 1 else 'have'}"
        raise ModelError(
            f"{files[unused[0].file]}: {count} no place in this architecture: {names}",
            "the file is of a variant that is not supported, or its configuration is of another model",
        )


def check(
    found: Mapping[str, Found], expected: Mapping[str, Expected], files: tuple[Path, ...], where: str
) -> dict[str, Tensor]:
    """Every expected tensor with its expected shape, in the family's order. Raises ModelError."""
    missing = [n for n, want in expected.items() if not want.optional and n not in found]
    if missing:
        names = ", ".join(map(repr, missing[:4])) + (" ..." if len(missing) > 4 else "")
        kind = "expert" if any(expected[n].role == "expert" for n in missing) else "tensor"
        are = "is" if len(missing) == 1 else "are"
        raise ModelError(f"{where}: {counted(len(missing), kind)} of the model {are} missing: {names}", OTHER)
    out = {}
    for name, want in expected.items():
        if name not in found:
            continue
        shape, matrices = found[name].shape, found[name].matrices
        if _without_ones(shape) == _without_ones(want.shape):  # GGUF does not keep dimensions of 1
            shape = want.shape
        if want.flat and shape == (n_elements(want.shape[:-1]), want.shape[-1]):
            shape = want.shape
        if shape != want.shape:
            raise _wrong_shape(name, shape, matrices[0].stored, want, files)
        if want.integers and matrices[0].stored.format in ("I32", "I64"):
            matrices = (Integers(matrices[0].stored, n_elements(shape[:-1]), shape[-1]),)
        _refuse_dtype(matrices[0], files)
        n_bytes = sum(m.n * row_bytes(m.format, m.k) for m in matrices)
        out[name] = Tensor(TensorInfo(name, shape, matrices[0].format, n_bytes, want.role), matrices)
    return out


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _refuse_dtype(matrix: Matrix, files: tuple[Path, ...]) -> None:
    if matrix.format not in FORMATS:
        stored = matrix.stored
        raise ModelError(
            f"{files[stored.file]}: tensor {stored.name!r} has the dtype {matrix.format}; expected F32, F16 or BF16",
            OTHER,
        )


def _wrong_shape(
    name: str, shape: tuple[int, ...], stored: StoredTensor, want: Expected, files: tuple[Path, ...]
) -> ModelError:
    layer = layer_of(name)
    place = "" if layer is None else f" of layer {layer}"
    if name.endswith("mlp.gate.weight") and shape and shape[0] != want.shape[0]:
        what = f"the router{place} ({stored.name!r}) has {shape[0]} rows for {want.shape[0]} experts"
    elif want.role == "expert" and shape and shape[0] != want.shape[0]:
        what = f"{stored.name!r}{place} holds {shape[0]} experts; expected {want.shape[0]}"
    elif want.role == "expert" and stored.shape[:1] == shape[:1] and stored.shape != shape:
        gives = f"gives {name} as {list(shape)}; expected {list(want.shape)}"
        what = f"tensor {stored.name!r} of shape {list(stored.shape)} {gives}"
    else:
        what = f"tensor {stored.name!r} has shape {list(shape)}; expected {list(want.shape)}"
    return ModelError(f"{files[stored.file]}: {what}", OTHER)

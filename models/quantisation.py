"""How the tensors of one quantised matrix are recognised: by their types and by which of them are there.

A config.json's quantization_config is a hint that must agree; where it cannot be checked against tensors (GPTQ's zero
points) it decides. Its lists of patterns are never used: a tensor's type says whether it is quantised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hetero.machine.types import ModelError
from hetero.models.float_codes import FP8_BLOCK, Fp8Rows, Grid, Mxfp4Rows, Mxfp8Rows, Nvfp4Rows
from hetero.models.formats import SAFETENSORS_SUPPORTED, StoredTensor
from hetero.models.hints import Hints
from hetero.models.int_codes import Awq, Gptq, PackedInt, SignedInt
from hetero.models.matrices import Matrix

Parts = Mapping[str, StoredTensor]
"""The tensors of one matrix by what they are: `weight`, `weight_scale_inv`, `qzeros` ..."""
_OTHER = "use another upload of this model, or a GGUF one"
_DAMAGED = "the download is damaged or incomplete; download it again and compare its checksum"
FLOATS = ("F32", "F16", "BF16")
_HALVES = ("BF16", "F16")
_POWERS = ("F8_E8M0", "U8")


def matrix_of(parts: Parts, path: Path, hints: Hints) -> Matrix:
    """The matrix that `parts` make up. Raises ModelError naming the tensor, what was found and what is expected."""
    weights = [parts[code] for code in ("weight", "weight_packed", "qweight") if code in parts]
    if len(weights) > 1:
        raise _several(weights, path, "weights")
    if "qweight" in parts:
        return _gptq_or_awq(parts, path, hints)
    if "weight_packed" in parts:
        packed = parts["weight_packed"]
        return _packed_int(parts, path, hints) if packed.format == "I32" else _fp4(packed, parts, path)
    weight = parts["weight"]
    if weight.format == "F8_E4M3":
        return _fp8(parts, path, hints)
    if weight.format == "I8" and "weight_scale" in parts and parts["weight_scale"].format in FLOATS:
        return _signed_int(parts, path, hints)
    if weight.format in ("I8", "U8"):
        return _fp4(weight, parts, path)
    if weight.format not in SAFETENSORS_SUPPORTED:
        read = "F32, F16, BF16, FP8, MXFP8, MXFP4, NVFP4, and INT4 and INT8 of compressed-tensors, GPTQ and AWQ"
        found = f"tensor {weight.name!r} has the dtype {weight.format}"
        raise ModelError(f"{path}: {found}; this version reads {read}", _OTHER)
    scale = next(t for name, t in parts.items() if name != "weight")
    raise ModelError(
        f"{path}: tensor {weight.name!r} is {weight.format}, but has scales ({scale.name!r}); expected F8_E4M3 or "
        "codes of 4 bits",
        _DAMAGED,
    )


def _need(parts: Parts, names: tuple[str, ...], path: Path) -> StoredTensor:
    """The one of `names` that is there. Raises ModelError for none, and for several, which may differ."""
    found = [parts[name] for name in names if name in parts]
    if len(found) > 1:
        raise _several(found, path, "scales")
    if found:
        return found[0]
    weight = next(t for key, t in parts.items() if key in ("weight", "weight_packed", "qweight"))
    raise ModelError(
        f"{path}: tensor {weight.name!r} of type {weight.format} has no scales; expected a tensor "
        f"{' or '.join(repr(n) for n in names)} beside it",
        _DAMAGED,
    )


def _several(found: list[StoredTensor], path: Path, what: str) -> ModelError:
    names = " and ".join(repr(t.name) for t in found)
    return ModelError(f"{path}: the tensors {names} are all {what} of one matrix; expected one of them", _OTHER)


def require(t: StoredTensor, path: Path, shape: tuple[int, ...] | None, dtypes: tuple[str, ...]) -> None:
    """Raises ModelError unless `t` has one of the types and, where given, the shape."""
    if t.format not in dtypes:
        raise ModelError(f"{path}: tensor {t.name!r} has the dtype {t.format}; expected {' or '.join(dtypes)}", _OTHER)
    if shape is not None and t.shape != shape:
        raise ModelError(f"{path}: tensor {t.name!r} has shape {list(t.shape)}; expected {list(shape)}", _OTHER)


def _matrix_shape(t: StoredTensor, path: Path) -> tuple[int, int]:
    if len(t.shape) != 2 or not all(t.shape):
        raise ModelError(f"{path}: tensor {t.name!r} has shape {list(t.shape)}; expected a matrix", _OTHER)
    return t.shape[0], t.shape[1]


def _fp8(parts: Parts, path: Path, hints: Hints) -> Fp8Rows | Mxfp8Rows:
    weight = parts["weight"]
    scale = _need(parts, ("weight_scale_inv", "weight_scale", "scale", "qscale_weight"), path)
    n, k = _matrix_shape(weight, path)
    if k % 32 == 0 and scale.format in _POWERS and scale.shape == (n, k // 32):
        return Mxfp8Rows(path, weight, scale, n, k)
    return Fp8Rows(path, weight, fp8_grid(scale, scale.shape, n, k, path, hints), n, k)


def fp8_grid(scale: StoredTensor, shape: tuple[int, ...], n: int, k: int, path: Path, hints: Hints) -> Grid:
    """The scales of an FP8 matrix: one for all, one per row, or a grid of blocks whose last ones may be ragged.

    `shape` is that of the scales of this one matrix.
    """
    require(scale, path, None, (*FLOATS, *_POWERS))
    if shape in ((), (1,), (1, 1)) and (n, k) != (1, 1):
        return Grid(scale, 1, max(k, FP8_BLOCK), 0)
    if shape in ((n,), (n, 1)):
        return Grid(scale, 1, max(k, FP8_BLOCK), 1)
    height, width = hints.block or (FP8_BLOCK, FP8_BLOCK)
    expected = (-(-n // height), -(-k // width))
    if shape != expected or width % FP8_BLOCK:
        blocks = f"{list(expected)} for blocks of {height} x {width}"
        if width % FP8_BLOCK:
            blocks = f"blocks of a multiple of {FP8_BLOCK} inputs instead of the {width} of weight_block_size"
        raise ModelError(
            f"{path}: tensor {scale.name!r} has shape {list(scale.shape)}; expected {blocks}, {[n, 1]} or one number "
            f"for a matrix of {n} x {k}",
            _OTHER,
        )
    return Grid(scale, expected[1], width, height)


def _fp4(codes: StoredTensor, parts: Parts, path: Path) -> Mxfp4Rows | Nvfp4Rows:
    """Two e2m1 codes to a byte, under scales e8m0 per 32, or e4m3 per 16 and a float32 for all."""
    require(codes, path, None, ("U8", "I8"))
    n, half = _matrix_shape(codes, path)
    scale = _need(parts, ("weight_scale", "scale"), path)
    if scale.format == "F8_E4M3":
        return _nvfp4(codes, scale, parts, path, n, 2 * half)
    if scale.format not in _POWERS:
        raise ModelError(
            f"{path}: tensor {codes.name!r} has the dtype {codes.format} with scales of {scale.format}; of bytes this "
            "version reads I8 with scales of floating point, and codes of 4 bits with scales of F8_E8M0, U8 or F8_E4M3",
            _OTHER,
        )
    _divisible(codes, 2 * half, 32, path)
    require(scale, path, (n, half // 16), _POWERS)
    return Mxfp4Rows(path, codes, scale, n, 2 * half)


def _nvfp4(codes: StoredTensor, scale: StoredTensor, parts: Parts, path: Path, n: int, k: int) -> Nvfp4Rows:
    """A scale for all of the matrix is a factor in ModelOpt's files and a divisor in those of compressed-tensors."""
    whole = _need(parts, ("weight_scale_2", "weight_global_scale"), path)
    _divisible(codes, k, 64, path)
    require(scale, path, (n, k // 16), ("F8_E4M3",))
    require(whole, path, None, ("F32",))
    if whole.shape not in ((), (1,), (1, 1)):
        raise ModelError(f"{path}: tensor {whole.name!r} has shape {list(whole.shape)}; expected one number", _OTHER)
    return Nvfp4Rows(path, codes, scale, whole, "weight_global_scale" in parts, n, k)


def _divisible(t: StoredTensor, k: int, block: int, path: Path) -> None:
    if k % block:
        raise ModelError(f"{path}: tensor {t.name!r} has rows of {k} codes; expected a multiple of {block}", _OTHER)


def _packed_int(parts: Parts, path: Path, hints: Hints) -> PackedInt:
    packed, scale = parts["weight_packed"], _need(parts, ("weight_scale",), path)
    bits = 8 if hints.bits == 8 else 4
    n, words = _matrix_shape(packed, path)
    k = 32 // bits * words
    require(scale, path, None, FLOATS if bits == 8 else _HALVES)
    groups = scale.shape[1] if len(scale.shape) == 2 else 0
    group = _group(packed, scale, k, groups, n, path, hints)
    zero, shape = parts.get("weight_zero_point"), parts.get("weight_shape")
    if zero is not None:
        require(zero, path, (-(-n * bits // 32), groups), ("I32",))
    elif hints.symmetric is False:
        raise ModelError(
            f"{path}: tensor {packed.name!r} has no zero points; expected 'weight_zero_point' beside it, as "
            "quantization_config says symmetric false",
            _DAMAGED,
        )
    if shape is not None:
        require(shape, path, (2,), ("I64", "I32"))
    if "weight_g_idx" in parts:
        raise ModelError(
            f"{path}: tensor {parts['weight_g_idx'].name!r} permutes the inputs; expected groups in order",
            "use a version of this model that was quantised without act-order",
        )
    return PackedInt(path, packed, scale, zero, n, k, group, zero is None or bits == 8, bits, shape)


def _signed_int(parts: Parts, path: Path, hints: Hints) -> SignedInt:
    """Bytes with a scale per row or group; activations, which such files also mean to quantise, stay as they are."""
    codes, scale = parts["weight"], parts["weight_scale"]
    n, k = _matrix_shape(codes, path)
    if "weight_zero_point" in parts:
        raise ModelError(
            f"{path}: tensor {parts['weight_zero_point'].name!r}: codes of 8 bits with zero points; this version reads "
            "symmetric ones",
            _OTHER,
        )
    groups = scale.shape[1] if len(scale.shape) == 2 else 1
    group = _group(codes, replace(scale, shape=(n, 1)) if scale.shape == (n,) else scale, k, groups, n, path, hints)
    return SignedInt(path, codes, scale, None, n, k, group, True, 8)


def _group(
    codes: StoredTensor, scale: StoredTensor, k: int, groups: int, n: int, path: Path, hints: Hints
) -> int:
    """Inputs of a group: what the scales' number says, which must be a multiple of 32 and agree with the config."""
    if hints.bits not in (None, 4, 8):
        raise ModelError(
            f"{path}: tensor {codes.name!r} has codes of {hints.bits} bits, as quantization_config says; of packed "
            "integers this version reads those of 4 and 8 bits",
            _OTHER,
        )
    group = k // groups if groups else 0
    if not group or k % groups or group % 32 or scale.shape not in ((n, groups), (groups, n)):
        raise ModelError(
            f"{path}: tensor {scale.name!r} has shape {list(scale.shape)}; expected groups of 32, 64 or 128 of the {k} "
            f"inputs of {codes.name!r}, which has {n} rows",
            _OTHER,
        )
    if hints.group is not None and hints.group != group:
        raise ModelError(
            f"{path}: tensor {scale.name!r} has groups of {group}; quantization_config says {hints.group}", _OTHER
        )
    return group


def _gptq_or_awq(parts: Parts, path: Path, hints: Hints) -> Gptq | Awq:
    """Both have qweight, qzeros and scales [groups, out]; GPTQ packs inputs into words, AWQ outputs."""
    codes, scale = parts["qweight"], _need(parts, ("scales",), path)
    lines, width = _matrix_shape(codes, path)
    require(codes, path, None, ("I32",))
    require(scale, path, None, _HALVES)
    groups, n = _matrix_shape(scale, path)
    gptq = width == n
    if not gptq and 8 * width != n:
        raise ModelError(
            f"{path}: tensor {codes.name!r} has shape {list(codes.shape)}; expected {n} (GPTQ) or {n / 8:g} (AWQ) "
            f"columns for the {n} outputs of {scale.name!r}",
            _OTHER,
        )
    bits = 8 if gptq and hints.bits == 8 else 4
    k = 32 // bits * lines if gptq else lines
    group = _group(codes, scale, k, groups, n, path, hints)
    _divisible(codes, n, 32 // bits, path)
    zero = parts.get("qzeros")
    if zero is None:
        raise ModelError(f"{path}: tensor {codes.name!r} has no zero points; expected 'qzeros' beside it", _DAMAGED)
    require(zero, path, (groups, n * bits // 32), ("I32",))
    order = parts.get("g_idx")
    if order is not None:
        require(order, path, (k,), ("I32",))
    if not gptq:
        return Awq(path, codes, scale, zero, n, k, group, False, 4)
    symmetric = hints.symmetric is True or bits == 8
    return Gptq(path, codes, scale, zero, n, k, group, symmetric, bits, order, hints.zero_offset)

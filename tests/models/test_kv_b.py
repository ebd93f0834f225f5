"""A whole kv_b is taken apart: values as rows of the file, keys turned, with every number what it was."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from hetero.machine.types import ModelError
from hetero.models.config import MlaConfig
from hetero.models.families.latent import turned_format
from hetero.models.float_codes import Fp8Rows, Grid
from hetero.models.formats import StoredTensor
from hetero.models.kv_b import split_kv_b
from hetero.models.matrices import Bytes, Found, Matrix, Rows
from hetero.native import FORMATS, Kernels

P = "model.layers.0.self_attn."
HEADS = 3


def config(nope: int, v: int, rank: int):
    return SimpleNamespace(n_heads=HEADS, mla=MlaConfig(None, rank, nope, 16, v))


def reader(arrays: dict[str, Bytes]):
    def read(t: StoredTensor, offset: int, out: Bytes) -> None:
        out.reshape(-1)[:] = arrays[t.name].reshape(-1)[offset : offset + out.size]

    return read


def halves(matrix: Matrix, nope: int, v: int) -> tuple[Matrix, Matrix]:
    whole = {P + "kv_b_proj.weight": Found((matrix.n, matrix.k), (matrix,))}
    found = split_kv_b(whole, config(nope, v, matrix.k), (Path("m"),))
    assert {name: tensor.shape for name, tensor in found.items()} == {
        P + "k_b_proj.weight": (HEADS, matrix.k, nope),
        P + "v_b_proj.weight": (HEADS, v, matrix.k),
    }
    (keys,), (values,) = (found[P + part].matrices for part in ("k_b_proj.weight", "v_b_proj.weight"))
    return keys, values


def numbers(matrix: Matrix, read, pieces: int) -> np.ndarray:
    """All rows as float32, read in so many pieces."""
    edges = [matrix.n * i // pieces for i in range(pieces + 1)]
    raw = np.concatenate([matrix.rows(read, a, b) for a, b in pairwise(edges)])
    assert raw.shape[0] == matrix.n
    return Kernels("generic").dequantize(matrix.format, np.ascontiguousarray(raw), matrix.n, matrix.k)


@pytest.mark.parametrize("pieces", [1, 7])
@pytest.mark.parametrize(
    ("fmt", "turned"), [("F32", "F32"), ("F16", "F16"), ("BF16", "BF16"), ("Q8_0", "F32"), ("Q4_K", "F32")]
)
def test_every_number_is_kept(fmt: str, turned: str, pieces: int) -> None:
    nope, v, rank = 32, 48, 256
    weights = np.random.default_rng(0).normal(size=(HEADS * (nope + v), rank)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[fmt]
    rows = q4_k_rows(len(weights)) if fmt == "Q4_K" else gguf.quants.quantize(weights, kind)
    rows = np.ascontiguousarray(rows).view(np.uint8)
    stored = StoredTensor("kv_b", weights.shape, fmt, 0, 0, rows.nbytes)
    keys, values = halves(Rows(stored, *weights.shape), nope, v)
    assert (keys.format, values.format) == (turned, fmt)
    whole = gguf.quants.dequantize(rows, kind).astype(np.float32).reshape(HEADS, nope + v, rank)
    read = reader({"kv_b": rows})
    assert np.array_equal(numbers(keys, read, pieces).reshape(HEADS, rank, nope), whole[:, :nope].swapaxes(1, 2))
    assert np.array_equal(numbers(values, read, pieces).reshape(HEADS, v, rank), whole[:, nope:])


def q4_k_rows(n: int) -> np.ndarray:
    rows = np.random.default_rng(1).integers(0, 256, (n, FORMATS["Q4_K"].block_bytes), dtype=np.uint8)
    rows[:, :4] = np.array([0.01, 0.02], np.float16).view(np.uint8)
    return rows


@pytest.mark.parametrize(
    ("nope", "v", "height", "turned"),
    [
        (128, 128, 128, "FP8_E4M3"),
        (192, 64, 128, "FP8_E4M3"),
        (128, 64, 128, "F32"),
        (128, 128, 1, "F32"),
        (32, 96, 0, "FP8_E4M3"),
    ],
)
def test_fp8_stays_where_its_scales_allow_it(nope: int, v: int, height: int, turned: str) -> None:
    rank, rng = 192, np.random.default_rng(2)
    n = HEADS * (nope + v)
    codes = rng.integers(0, 256, (n, rank), dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    columns = -(-rank // 128) if height == 128 else 1
    scales = rng.uniform(0.1, 2, (-(-n // height) if height else 1, columns)).astype(np.float32)
    grid = Grid(
        StoredTensor("scale", scales.shape, "F32", 0, 0, scales.nbytes), columns, 128 if height == 128 else rank, height
    )
    matrix = Fp8Rows(Path("m"), StoredTensor("kv_b", (n, rank), "F8_E4M3", 0, 0, codes.nbytes), grid, n, rank)
    read = reader({"kv_b": codes, "scale": scales.view(np.uint8)})
    keys, values = halves(matrix, nope, v)
    assert (keys.format, values.format) == (turned, "FP8_E4M3")
    whole = numbers(matrix, read, 1).reshape(HEADS, nope + v, rank)
    assert np.array_equal(numbers(keys, read, 5).reshape(HEADS, rank, nope), whole[:, :nope].swapaxes(1, 2))
    assert np.array_equal(numbers(values, read, 5).reshape(HEADS, v, rank), whole[:, nope:])


def test_rows_of_another_number_of_heads_are_named() -> None:
    matrix = Rows(StoredTensor("blk.0.attn_kv_b.weight", (64, 32), "F32", 0, 0, 8192), 64, 32)
    with pytest.raises(ModelError, match=r"attn_kv_b.*\[64, 32\].*\[96, 32\]"):
        split_kv_b({P + "kv_b_proj.weight": Found((64, 32), (matrix,))}, config(16, 16, 32), (Path("m"),))


def test_plain_types_keep_theirs() -> None:
    assert [turned_format(fmt, 256, square=False) for fmt in ("BF16", "FP8_E4M3", "Q8_0")] == ["BF16", "F32", "F32"]

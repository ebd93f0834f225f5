"""q, k and v, or gate and up, in one tensor: taken apart by rows where the family has them apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hetero.machine.types import ModelError
from hetero.models.assemble import whole
from hetero.models.families.common import Expected
from hetero.models.formats import StoredTensor
from hetero.models.joint import split_joint
from hetero.models.matrices import Bytes

P = "model.layers.0.self_attn."
FILES = (Path("m.gguf"),)
QKV = np.arange(16 * 64, dtype=np.float32).reshape(16, 64)


def expected(kind: str) -> dict[str, Expected]:
    rows = {"q_proj": 8, "k_proj": 4, "v_proj": 4}
    tail = (64,) if kind == "weight" else ()
    return {f"{P}{part}.{kind}": Expected((n, *tail), "dense") for part, n in rows.items()}


def stored(values: np.ndarray) -> StoredTensor:
    return StoredTensor("blk.0.attn_qkv.weight", values.shape, "F32", 0, 0, values.nbytes)


def reader(values: np.ndarray):
    raw = values.tobytes()

    def read(t: StoredTensor, offset: int, out: Bytes) -> None:
        out.reshape(-1)[:] = np.frombuffer(raw[offset : offset + out.size], np.uint8)

    return read


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_parts_are_the_rows_in_order(kind: str) -> None:
    values = QKV if kind == "weight" else np.ascontiguousarray(QKV[:, 0])
    found = split_joint({f"{P}qkv_proj.{kind}": whole(stored(values))}, expected(kind), FILES)
    assert set(found) == set(expected(kind))
    for part, rows in (("q_proj", slice(0, 8)), ("k_proj", slice(8, 12)), ("v_proj", slice(12, 16))):
        (matrix,) = found[f"{P}{part}.{kind}"].matrices
        got = matrix.rows(reader(values), 0, matrix.n).view(np.float32)
        np.testing.assert_array_equal(got.reshape(values[rows].shape), values[rows])
        assert found[f"{P}{part}.{kind}"].shape == values[rows].shape
    (keys,) = found[f"{P}k_proj.{kind}"].matrices
    if kind == "weight":
        np.testing.assert_array_equal(keys.rows(reader(values), 1, 3).view(np.float32), values[9:11])


def test_too_many_rows_are_named() -> None:
    tensor = stored(np.zeros((17, 64), np.float32))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_qkv\.weight.*\[17, 64\].*8 \+ 4 \+ 4 rows"):
        split_joint({f"{P}qkv_proj.weight": whole(tensor)}, expected("weight"), FILES)


def test_a_family_that_has_the_joint_tensor_keeps_it() -> None:
    name = f"{P}qkv_proj.weight"
    found = {name: whole(stored(QKV))}
    assert split_joint(found, expected("weight") | {name: Expected((16, 64), "dense")}, FILES) == found
    assert split_joint(found, {}, FILES) == found

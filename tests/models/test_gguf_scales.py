"""GGUF's NVFP4 under scale tensors: values are code * (scale * whole) in float32, by the codes of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hetero.machine.types import ModelError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.convert import convert
from hetero.models.store import open_store
from hetero.native import Kernels
from tests.models.gguf_maker import Shape, write
from tests.quantised import E2M1

KERNELS = Kernels("generic")
EXPERTS = 4


def shape(**extra: npt.NDArray[np.float32]) -> Shape:
    """A model whose experts and q projections are NVFP4, with these scale tensors (of layer 0, dots as __)."""
    named = {f"blk.0.{name.replace('__', '.')}": values for name, values in extra.items()}
    kinds: dict[str, Any] = {"gate": "NVFP4", "up": "NVFP4", "down": "NVFP4", "dense": "NVFP4"}
    return Shape(layers=1, hidden=192, inter=320, experts=EXPERTS, extra=named, **kinds)


def scales(n: int, seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(1e-4, 3, n).astype(np.float32)


def values(raw: npt.NDArray[np.uint8], wholes: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32 [rows, k] of ggml's rows by the definition of its blocks; `wholes` [rows]."""
    blocks = raw.reshape(len(raw), -1, 36)
    s = torch.from_numpy(blocks[..., :4].copy()).view(torch.float8_e4m3fn).float().numpy() * wholes[:, None, None]
    halves = blocks[..., 4:].reshape(len(raw), -1, 4, 8)
    codes = np.concatenate([halves & 15, halves >> 4], axis=3)
    return (E2M1[codes] * s[..., None]).reshape(len(raw), -1)


def test_values_are_those_of_the_formula_for_every_expert_and_in_a_store(tmp_path: Path) -> None:
    parts = {part: scales(EXPERTS, i) for i, part in enumerate(("gate", "up", "down"))}
    extra = {f"ffn_{part}_exps__scale": s for part, s in parts.items()}
    extra |= {"ffn_up_exps__input_scale": scales(EXPERTS, 7), "attn_q__scale": scales(1, 5)}
    made = shape(**extra)
    path = write(tmp_path / "m.gguf", made)
    with open_checkpoint(path) as c:
        for part, s in parts.items():
            raw = made.raw[f"blk.0.ffn_{part}_exps.weight"]
            truth = values(raw, np.repeat(s, len(raw) // EXPERTS)).reshape(EXPERTS, -1, 320 if part == "down" else 192)
            info = c.info(f"model.layers.0.mlp.experts.{part}.weight")
            assert (info.format, info.shape) == ("NVFP4_F32_64", truth.shape)
            for expert in range(EXPERTS):
                rows = c.read_rows(info.name, expert)
                np.testing.assert_array_equal(KERNELS.dequantize(info.format, rows, *truth.shape[1:]), truth[expert])
        q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
        assert (c.info(q).format, c.info(k).format) == ("NVFP4_F32_64", "NVFP4")
        truth = values(made.raw["blk.0.attn_q.weight"], np.full(64, extra["attn_q__scale"]))
        np.testing.assert_array_equal(KERNELS.dequantize("NVFP4_F32_64", c.read_rows(q), 64, 192), truth)
    store = open_store(convert(path, kernels=KERNELS).path)
    slot = store.manifest.layout.layers[0]
    data = np.fromfile(store.path / slot.file, np.uint8)[2 * slot.stride :][: slot.stride]
    down = KERNELS.unpack_expert(data, *slot.formats, slot.hidden, slot.inter)[2]
    raw = made.raw["blk.0.ffn_down_exps.weight"].reshape(EXPERTS, 192, -1)[2]
    truth = values(raw, np.full(192, parts["down"][2]))
    np.testing.assert_array_equal(KERNELS.dequantize("NVFP4_F32_64", down, 192, 320), truth)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"ffn_up_exps__scale": scales(3, 0)}, "ffn_up_exps.scale' has shape [3] and type F32; expected [4]"),
        ({"attn_q__scale": scales(4, 0)}, "attn_q.scale' has shape [4]"),
        ({"attn_output__scale": scales(1, 0)}, "attn_output.scale' is a scale of 'blk.0.attn_output.weight', which"),
        ({"attn_norms__scale": scales(1, 0)}, "no place in this architecture: 'blk.0.attn_norms.scale'"),
    ],
)
def test_scales_that_belong_to_nothing_are_refused(tmp_path: Path, extra: Any, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(write(tmp_path / "m.gguf", shape(**extra)))
    assert words in caught.value.message


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -1.0])
def test_a_scale_that_is_no_positive_number_is_named_before_it_is_used(tmp_path: Path, bad: float) -> None:
    path = write(tmp_path / "m.gguf", shape(ffn_up_exps__scale=np.array([1, 1, bad, 1], np.float32)))
    with pytest.raises(ModelError, match=r"ffn_up_exps\.scale' holds .*; expected a positive number"):
        convert(path, kernels=KERNELS)

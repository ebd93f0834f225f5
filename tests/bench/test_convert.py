"""The synthetic checkpoints of `make bench-convert` are sound, and its table says what was reached of which bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import convert
from bench import convert_sources as sources
from hetero.models.checkpoint import open_checkpoint
from hetero.native import Kernels

FORMATS = {
    "BF16": "BF16",
    "BF16, fused": "BF16",
    "BF16, fused, transposed, interleaved": "BF16",
    "FP8 128 x 128": "FP8_E4M3",
    "INT8 per row": "I8_128",
    "INT4 group 32": "I4_32",
    "INT4 group 128, zero points": "U4_128",
    "MXFP4": "MXFP4",
    "MXFP4, fused, interleaved": "MXFP4",
    "NVFP4": "NVFP4_F32_256",
    "GPTQ": "U4_128_F16",
    "AWQ": "U4_128_F16",
    "GGUF Q8_0": "Q8_0",
    "GGUF Q4_K and Q6_K": "Q4_K",
}


@pytest.mark.parametrize("kind", sources.KINDS)
def test_every_kind_is_a_checkpoint_whose_codes_can_be_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sources, "HIDDEN", 256)
    monkeypatch.setattr(sources, "INTER", 128)
    monkeypatch.setattr(sources, "GGUF_INTER", 256)
    kernels = Kernels("generic")
    with open_checkpoint(sources.make(kind, 1 << 20, tmp_path / "m")) as c:
        for part in ("gate", "up", "down"):
            info = c.info(f"model.layers.0.mlp.experts.{part}.weight")
            rows = c.read_rows(info.name, 15)
            other = {"GGUF Q4_K and Q6_K": "Q6_K", "NVFP4": "NVFP4_F32_128"} if part == "down" else {}
            assert info.format == other.get(kind, FORMATS[kind])
            assert kernels.check_scales(info.format, rows, len(rows), info.shape[-1]) == -1


def test_the_share_is_of_the_lower_bound() -> None:
    row = convert.Row("FP8", 8 * 10**9, 8 * 10**9, 600e6, 2000e6, 1000e6, 10**9, 2 * 10**9)
    assert row.share == 0.6
    assert "| FP8 | 8.0 | 600 | 2,000 | 1,000 | 60% | 1,000 | 2,000 |" in convert.table([row])
    assert "avx2" in convert.page([row], "avx2")


def test_a_page_keeps_the_rows_of_kinds_that_were_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "PAGE", tmp_path / "page.md")
    old, new = (convert.Row(kind, 10**9, 10**9, 5e8, 1e9, 1e9, 1, 1) for kind in ("AWQ", "BF16"))
    convert.PAGE.write_text(convert.page([old, convert.Row("BF16", 1, 1, 1, 1, 1, 1, 1)], "avx2"))
    lines = [line for line in convert.page([new], "avx2").splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0] for line in lines] == ["| experts", "| BF16", "| AWQ"]
    assert "50%" in lines[1]

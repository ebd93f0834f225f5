"""The generated models are ones that llama.cpp's tools would write and hetero runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from bench.shapes import MODELS
from bench.synthetic import FORMATS, kind_of, tensors, tiny, write
from hetero.engine import Engine


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["M", "D"])
def test_a_generated_model_runs_with_logits_of_a_sane_spread(name: str, fmt: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(tiny(name), "tiny", fmt, path)
    with contextlib.closing(Engine.load(path, context=64, threads=1)) as engine:
        logits = engine.logits(range(32))
    assert logits.shape == (32, 512)
    assert 1 < logits.std() < 10


def test_the_same_file_is_written_each_time(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write(tiny("M"), "tiny", "Q4_0", tmp_path / part)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("fmt", ["Q4_0", "Q8_0", "Q4_K_M"])
def test_weights_have_the_planned_deviation(fmt: str, tmp_path: Path) -> None:
    model = tiny("M")
    write(model, "tiny", fmt, tmp_path / "m.gguf")
    planned = {name: spread for name, _, spread in tensors(model)}
    for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(values).all()
        assert values.std() == pytest.approx(planned[tensor.name] or 0.05, rel=0.25), tensor.name


def test_parameters_are_those_of_the_real_layers() -> None:
    sizes = {name: sum(int(np.prod(shape)) for _, shape, _ in tensors(model)) for name, model in MODELS.items()}
    assert sizes["M"] == pytest.approx(5119e6, rel=1e-3)
    assert sizes["D"] == pytest.approx(3141e6, rel=1e-3)


def test_types_are_chosen_as_llama_quantize_does() -> None:
    assert kind_of("output.weight", (512, 256), "Q4_0", 8) == Type.Q6_K
    assert kind_of("blk.0.ffn_gate_inp.weight", (8, 256), "Q4_0", 8) == Type.F32
    downs = [kind_of(f"blk.{i}.ffn_down_exps.weight", (8, 256, 768), "Q4_K_M", 8) for i in range(8)]
    assert [i for i, kind in enumerate(downs) if kind == Type.Q6_K] == [0, 3, 6, 7]
    assert kind_of("blk.1.ffn_down_exps.weight", (8, 256, 1408), "Q4_K_M", 8) == Type.Q5_0
    assert kind_of("blk.0.ffn_down_exps.weight", (8, 256, 1408), "Q4_K_M", 8) == Type.Q8_0

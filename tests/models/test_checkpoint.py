"""Reading an opened checkpoint: little memory, clear errors, nothing held open."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from hetero.machine.types import ModelError, TierError
from hetero.models.checkpoint import open_checkpoint
from tests.tiny import tiny_gguf


def test_reading_an_expert_costs_an_experts_memory(tmp_path: Path) -> None:
    path = tiny_gguf("qwen3moe", tmp_path / "m.gguf", "F32", num_experts=64, moe_intermediate_size=256)
    name = "model.layers.1.mlp.experts.gate.weight"
    with open_checkpoint(path) as c:
        one = c.info(name).n_bytes // 64
        tracemalloc.start()
        for expert in range(64):
            c.read_rows(name, expert)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert one <= peak < 3 * one
    assert peak < path.stat().st_size / 20


def test_opening_reads_no_weights(tmp_path: Path) -> None:
    path = tiny_gguf("qwen3moe", tmp_path / "m.gguf", "F32", num_experts=64, moe_intermediate_size=256)
    tracemalloc.start()
    open_checkpoint(path).close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < path.stat().st_size / 5


def test_quantised_small_tensor_is_refused_by_name(tmp_path: Path) -> None:
    with open_checkpoint(tiny_gguf("llama", tmp_path / "m.gguf", "Q8_0")) as c:
        with pytest.raises(ModelError, match=r"q_proj\.weight.*Q8_0.*expected F32"):
            c.read_f32("model.layers.0.self_attn.q_proj.weight")
        assert c.read_f32("model.norm.weight").dtype == np.float32


def test_unknown_names_are_key_errors(tmp_path: Path) -> None:
    with open_checkpoint(tiny_gguf("llama", tmp_path / "m.gguf")) as c:
        assert "model.layers.9.mlp.up_proj.weight" not in c
        with pytest.raises(KeyError):
            c.info("model.layers.9.mlp.up_proj.weight")
        with pytest.raises(KeyError):
            c.read_rows("nothing")


def test_file_cut_after_opening_ends_in_one_sentence(tmp_path: Path) -> None:
    path = tiny_gguf("llama", tmp_path / "m.gguf")
    with open_checkpoint(path) as c:
        os.truncate(path, path.stat().st_size - 40_000)
        last = "model.layers.1.mlp.down_proj.weight"
        with pytest.raises(ModelError, match=r"m\.gguf: became shorter while it was read"):
            c.read_rows(last)


def test_file_gone_after_opening_is_a_disk_error(tmp_path: Path) -> None:
    path = tiny_gguf("llama", tmp_path / "m.gguf")
    with open_checkpoint(path) as c:
        path.unlink()
        with pytest.raises(TierError, match=r"m\.gguf: cannot be read"):
            c.read_rows("model.norm.weight")


def test_close_leaves_no_file_open_and_reading_goes_on(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    c = open_checkpoint(tiny_gguf("llama", tmp_path / "m.gguf", split=5))
    assert set(os.listdir("/proc/self/fd")) == before
    first = c.read_f32("model.norm.weight")
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    c.close()
    assert set(os.listdir("/proc/self/fd")) == before
    np.testing.assert_array_equal(c.read_f32("model.norm.weight"), first)
    c.close()

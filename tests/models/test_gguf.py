"""GGUF models are read with canonical names, shapes and rows, whatever their architecture, type and split."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hetero.models.checkpoint import open_checkpoint
from hetero.models.gguf_file import read_gguf
from tests.models import raw_gguf as raw
from tests.tiny import random_weights, tiny_config, tiny_gguf, write_gguf

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
ARCHS = ("llama", "qwen3moe", "deepseek2")


def stored_rows(path: Path) -> dict[str, Any]:
    """The raw bytes of each tensor as the gguf package reads them: an independent reader."""
    return {t.name: np.ascontiguousarray(t.data).view(np.uint8) for t in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("type_", TYPES)
def test_rows_of_every_type_are_those_in_the_file(tmp_path: Path, type_: str) -> None:
    path = tiny_gguf("qwen3moe", tmp_path / "m.gguf", type_)
    truth = stored_rows(path)
    with open_checkpoint(path) as c:
        for ours, theirs in (
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight"),
            ("model.layers.1.mlp.experts.gate.weight", "blk.1.ffn_gate_exps.weight"),
            ("model.layers.0.mlp.experts.down.weight", "blk.0.ffn_down_exps.weight"),
        ):
            rows = c.read_rows(ours)
            assert c.info(ours).format in (type_, "Q8_0", "F16")
            assert rows.tobytes() == truth[theirs].tobytes()
            assert c.info(ours).n_bytes == rows.nbytes


@pytest.mark.parametrize("arch", ARCHS)
def test_f32_model_gives_back_every_weight(tmp_path: Path, arch: str) -> None:
    config = tiny_config(arch)
    weights = random_weights(arch, config)
    path = write_gguf(tmp_path / "m.gguf", arch, config, weights, old_kv_b=True)
    expected = {name: w for name, w in weights.items() if "kv_b_proj" not in name}  # which is taken apart: see below
    with open_checkpoint(path) as c:
        assert {t.name for t in c.index.tensors if not t.name.endswith(("k_b_proj.weight", "v_b_proj.weight"))} == set(
            expected
        )
        for name, w in expected.items():
            assert c.info(name).shape == w.shape
            np.testing.assert_array_equal(c.read_f32(name), w)


@pytest.mark.parametrize("old_kv_b", [False, True])
def test_split_kv_b_holds_the_parts_of_the_whole(tmp_path: Path, old_kv_b: bool) -> None:
    config = tiny_config("deepseek2")
    weights = random_weights("deepseek2", config)
    path = write_gguf(tmp_path / "m.gguf", "deepseek2", config, weights, old_kv_b=old_kv_b)
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    with open_checkpoint(path) as c:
        p = "model.layers.1.self_attn."
        assert p + "kv_b_proj.weight" not in c
        whole = weights[p + "kv_b_proj.weight"].reshape(heads, -1, config["kv_lora_rank"])
        np.testing.assert_array_equal(c.read_f32(p + "k_b_proj.weight"), whole[:, :nope].swapaxes(1, 2))
        np.testing.assert_array_equal(c.read_f32(p + "v_b_proj.weight"), whole[:, nope:])
        assert c.read_rows(p + "k_b_proj.weight").shape == (heads * config["kv_lora_rank"], nope * 4)


@pytest.mark.parametrize(("start", "stop"), [(0, 64), (0, 1), (5, 6), (3, 37), (15, 17), (16, 32), (63, 64), (7, 7)])
def test_llama_query_rows_come_in_hugging_face_order(tmp_path: Path, start: int, stop: int) -> None:
    config = tiny_config("llama", attention_bias=True)
    weights = random_weights("llama", config)
    path = write_gguf(tmp_path / "m.gguf", "llama", config, weights)
    name = "model.layers.1.self_attn.q_proj.weight"
    with open_checkpoint(path) as c:
        assert c.config.attention_bias
        rows = c.read_rows(name, start=start, stop=stop)
        np.testing.assert_array_equal(rows.view("<f4"), weights[name][start:stop])
        bias = name.replace("weight", "bias")
        np.testing.assert_array_equal(c.read_f32(bias), weights[bias])


def test_llama_quantised_key_rows_are_permuted_whole(tmp_path: Path) -> None:
    config = tiny_config("llama")
    weights = random_weights("llama", config)
    name = "model.layers.0.self_attn.k_proj.weight"
    with open_checkpoint(write_gguf(tmp_path / "m.gguf", "llama", config, weights, type="Q8_0")) as c:
        expected = gguf.quants.quantize(weights[name], gguf.GGMLQuantizationType.Q8_0)
        np.testing.assert_array_equal(c.read_rows(name), expected)


def test_one_expert_is_a_slice_of_the_stack(tmp_path: Path) -> None:
    with open_checkpoint(tiny_gguf("qwen3moe", tmp_path / "m.gguf", "Q4_0")) as c:
        name = "model.layers.0.mlp.experts.up.weight"
        n, out, _ = c.info(name).shape
        everything = c.read_rows(name).reshape(n, out, -1)
        for expert in (0, 3, n - 1):
            np.testing.assert_array_equal(c.read_rows(name, expert), everything[expert])
            np.testing.assert_array_equal(c.read_rows(name, expert, 5, 9), everything[expert, 5:9])
        with pytest.raises(IndexError):
            c.read_rows(name, n)
        with pytest.raises(IndexError):
            c.read_rows(name, 0, 0, out + 1)


@pytest.mark.parametrize("part", [1, 2, 4])
def test_any_part_of_a_split_model_opens_the_whole(tmp_path: Path, part: int) -> None:
    first = tiny_gguf("qwen3moe", tmp_path / "m.gguf", "Q8_0", split=8)
    whole = tiny_gguf("qwen3moe", tmp_path / "whole.gguf", "Q8_0")
    with open_checkpoint(first.with_name(f"m-{part:05d}-of-00004.gguf")) as c, open_checkpoint(whole) as w:
        assert [f.name for f in c.files] == [f"m-{i:05d}-of-00004.gguf" for i in range(1, 5)]
        assert c.index == w.index
        assert c.config == w.config
        assert c.metadata["tokenizer.ggml.model"] == "gpt2"
        for t in c.index.tensors:
            assert c.read_rows(t.name).tobytes() == w.read_rows(t.name).tobytes()


def test_part_that_holds_only_metadata_is_fine(tmp_path: Path) -> None:
    whole = tiny_gguf("llama", tmp_path / "m.gguf")
    n = len(read_gguf(whole).tensors)
    header, data_at = whole.read_bytes(), min(t.offset for t in read_gguf(whole).tensors)
    n_kv = struct.unpack_from("<Q", header, 16)[0]
    kvs_end = header.index(raw.text("token_embd.weight"))

    def split(no: int) -> list[bytes]:
        return [raw.kv_u32("split.no", no), raw.kv_u32("split.count", 2), raw.kv_u32("split.tensors.count", n)]

    first = b"GGUF" + struct.pack("<IQQ", 3, 0, n_kv + 3) + header[24:kvs_end] + b"".join(split(0))
    infos = header[kvs_end:data_at]
    body = b"GGUF" + struct.pack("<IQQ", 3, n, 3) + b"".join(split(1)) + infos
    exact = len(body) - (len(infos) - _records_length(infos, n))
    body = body[:exact] + b"\0" * (-exact % 32)
    (tmp_path / "s-00001-of-00002.gguf").write_bytes(first)
    (tmp_path / "s-00002-of-00002.gguf").write_bytes(body + header[data_at:])
    with open_checkpoint(tmp_path / "s-00002-of-00002.gguf") as c, open_checkpoint(whole) as w:
        assert c.index == w.index
        np.testing.assert_array_equal(c.read_f32("model.norm.weight"), w.read_f32("model.norm.weight"))


def _records_length(infos: bytes, n: int) -> int:
    at = 0
    for _ in range(n):
        at += 8 + struct.unpack_from("<Q", infos, at)[0]
        at += 4 + 8 * struct.unpack_from("<I", infos, at)[0] + 12
    return at


def test_every_metadata_type_is_read(tmp_path: Path) -> None:
    scalars = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -300), 4: ("I", 4_000_000_000), 5: ("i", -70000)}
    scalars |= {6: ("f", 0.5), 7: ("B", 1), 10: ("Q", 1 << 60), 11: ("q", -(1 << 60)), 12: ("d", 0.1)}
    kvs = [raw.LLAMA]
    for kind, (code, value) in scalars.items():
        kvs.append(raw.kv(f"scalar.{kind}", kind, struct.pack("<" + code, value)))
        array = struct.pack("<IQ", kind, 2) + struct.pack(f"<2{code}", value, value)
        kvs.append(raw.kv(f"array.{kind}", raw.ARRAY, array))
    texts = struct.pack("<IQ", raw.STRING, 2) + raw.text("é") + raw.text("")
    kvs.append(raw.kv("texts", raw.ARRAY, texts))
    nested = struct.pack("<IQ", raw.ARRAY, 1) + texts
    kvs.append(raw.kv("nested", raw.ARRAY, nested))
    path = tmp_path / "m.gguf"
    path.write_bytes(raw.gguf(kvs))
    meta = read_gguf(path).metadata
    for kind, (_, value) in scalars.items():
        assert meta[f"scalar.{kind}"] == (True if kind == 7 else value)
        assert meta[f"array.{kind}"].tolist() == [meta[f"scalar.{kind}"]] * 2
    assert meta["texts"] == ["é", ""]
    assert meta["nested"] == [["é", ""]]


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_other_alignments_and_version_2_are_read(tmp_path: Path, alignment: int) -> None:
    data = np.arange(16, dtype="<f4").tobytes()
    kvs = [raw.LLAMA, raw.kv_u32("general.alignment", alignment)]
    content = raw.gguf(kvs, [raw.tensor("a", [16], 0, 0)], data, version=2, alignment=alignment)
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    file = read_gguf(path)
    assert file.version == 2
    assert file.tensors[0].offset == content.index(data)
    assert file.tensors[0].shape == (16,)


def test_directory_with_one_gguf_model_opens_it(tmp_path: Path) -> None:
    tiny_gguf("llama", tmp_path / "model.gguf", "Q8_0", split=7)
    (tmp_path / "mmproj-model.gguf").write_bytes(b"not looked at")
    with open_checkpoint(tmp_path) as c:
        assert c.index.name == "tiny llama"
        assert c.directory is None
        assert c.kind == "gguf"

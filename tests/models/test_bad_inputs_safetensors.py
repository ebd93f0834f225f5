"""Every damaged or foreign Hugging Face directory ends in one sentence that says what was found and what helps."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hetero.machine.types import HeteroError, ModelError, UsageError
from hetero.models.checkpoint import open_checkpoint
from tests.tiny import random_weights, tiny_config

INDEX = "model.safetensors.index.json"
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"]} | tiny_config("llama")
QWEN: dict[str, Any] = {"architectures": ["Qwen3MoeForCausalLM"]} | tiny_config("qwen3moe")


def unstacked(weights: Mapping[str, Any]) -> dict[str, Any]:
    """As Hugging Face stores it: one tensor per expert."""
    out: dict[str, Any] = {}
    for name, w in weights.items():
        if ".experts." not in name:
            out[name] = w
            continue
        stem, which = name.removesuffix(".weight").rsplit(".", 1)
        out |= {f"{stem}.{e}.{which}_proj.weight": np.ascontiguousarray(w[e]) for e in range(len(w))}
    return out


LLAMA_WEIGHTS = random_weights("llama", LLAMA)
QWEN_WEIGHTS = unstacked(random_weights("qwen3moe", QWEN))


def directory(path: Path, config: Any = LLAMA, weights: Mapping[str, Any] = LLAMA_WEIGHTS) -> Path:
    """A sound directory with one file of weights."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(dict(weights), path / "model.safetensors")
    return path


def sharded(path: Path) -> Path:
    """A sound directory with two shards."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA))
    weight_map = {n: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, n in enumerate(LLAMA_WEIGHTS)}
    for shard in sorted(set(weight_map.values())):
        save_file({n: LLAMA_WEIGHTS[n] for n, s in weight_map.items() if s == shard}, path / shard)
    (path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


def refuse(path: Path, *words: str, error: type[HeteroError] = ModelError) -> None:
    """Open it; the error must be of the type, one printable line with the words, and carry a hint."""
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    message = caught.value.message
    assert message.isprintable()
    for word in words:
        assert word in message
    assert caught.value.hint


def header(entries: Any, data: bytes = b"", length: int | None = None) -> bytes:
    raw = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: str = "F32", shape: Any = (2,), begin: int = 0, end: int = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


D8, D16 = b"\0" * 8, b"\0" * 16
HEADERS: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["empty"]),
    "html": (b"<!doctype html>", ["HTML"]),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", ["git-lfs"]),
    "pickle": (b"PK\x03\x04", ["zip archive or a PyTorch pickle"]),
    "length past the end": (header({"a": entry()}, D8, 10_000), ["header of 10000 bytes"]),
    "length 2^60": (header({}, D8, 1 << 60), [str(1 << 60)]),
    "not JSON": (header(b'{"a": oops}', D8), ["no JSON", "column 7"]),
    "not UTF-8": (header(b'{"\xff": 1}', D8), ["UTF-8"]),
    "cut JSON": (header(b'{"a": {"dtype"', D8), ["no JSON"]),
    "nested brackets": (header(b'{"a":' + b"[" * 100_000, D8), ["no usable JSON"]),
    "duplicate tensor": (
        header(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32"}}', D8), ["'a' occurs twice"],
    ),
    "entry is a number": (header({"a": 1}, D8), ["'a'", "malformed"]),
    "no dtype": (header({"a": {"shape": [2], "data_offsets": [0, 8]}}, D8), ["'a'", "malformed"]),
    "negative shape": (header({"a": entry(shape=[-2])}, D8), ["'a'", "malformed"]),
    "shape of texts": (header({"a": entry(shape=["2"])}, D8), ["'a'", "malformed"]),
    "huge shape": (header({"a": entry(shape=[1 << 61, 1 << 61])}, D8), ["'a'", "span 8"]),
    "one offset": (header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}, D8), ["'a'", "malformed"]),
    "backward offsets": (header({"a": entry(begin=8, end=0)}, D8), ["'a'", "span -8"]),
    "unknown dtype": (header({"a": entry("F3")}, D8), ["'a'", "unknown dtype 'F3'"]),
    "wrong size": (header({"a": entry(shape=[3])}, D8), ["'a'", "[3]", "F32", "12 bytes", "span 8"]),
    "overlap": (header({"a": entry(), "b": entry(begin=4, end=12)}, D16), ["'b'", "overlaps", "'a'"]),
    "gap": (header({"a": entry(), "b": entry(begin=9, end=17)}, D16 + D8), ["'b'", "leaves a gap after", "'a'"]),
    "gap at the start": (header({"a": entry(begin=8, end=16)}, D16), ["'a'", "gap", "the header"]),
    "trailing bytes": (header({"a": entry()}, D16), ["last tensor ends at"]),
    "truncated": (header({"a": entry(), "b": entry(begin=8, end=16)}, D16[:-1]), ["truncated", "damaged tensor 'b'"]),
    "no data": (header({"a": entry()}), ["truncated", "'a'"]),
    "escapes": (header({"\x1b[2J": entry("F3")}, D8), ["\\x1b[2J"]),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(HEADERS))
def test_bad_header_is_refused(tmp_path: Path, case: str) -> None:
    content, words = HEADERS[case]
    path = directory(tmp_path / "d")
    (path / "model.safetensors").write_bytes(content)
    refuse(path, "model.safetensors", *words)


def test_header_over_100_mb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = directory(tmp_path / "d")
    with (path / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", 150_000_000) + b"{")
        f.truncate(200_000_000)  # sparse
    refuse(path, "header of 150000000 bytes; at most 100000000")


CONFIGS: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["empty"]),
    "html": (b"<html>", ["HTML"]),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", ["git-lfs"]),
    "not JSON": (b'{"hidden_size": 64,', ["no JSON"]),
    "a list": (b"[1]", ["JSON"]),
    "duplicate key": (b'{"a": 1, "a": 2}', ["'a' occurs twice"]),
    "no architecture": (b"{}", ["neither architectures nor model_type"]),
    "other architecture": (b'{"architectures": ["BertModel"]}', ["'BertModel' is not supported"]),
    "remote code": (b'{"architectures": ["EvilForCausalLM"], "auto_map": {"AutoModel": "evil.Evil"}}', ["'EvilFor"]),
    "million digits": (b'{"hidden_size": 1' + b"0" * 10_000 + b"}", ["no usable JSON"]),
}


@pytest.mark.parametrize("case", sorted(CONFIGS))
def test_bad_config_is_refused(tmp_path: Path, case: str) -> None:
    content, words = CONFIGS[case]
    path = directory(tmp_path / "d")
    (path / "config.json").write_bytes(content)
    refuse(path, "config.json", *words)


def test_nan_in_an_unused_key_is_harmless(tmp_path: Path) -> None:
    path = directory(tmp_path / "d", LLAMA | {"loss": float("nan")})
    open_checkpoint(path).close()


BAD_NAMES = (
    "../x.safetensors",
    "/etc/x.safetensors",
    "a/b.safetensors",
    "a\\b.safetensors",
    "..",
    "",
    "x\0.safetensors",
)


@pytest.mark.parametrize("name", [*BAD_NAMES, "model.bin", 7, None])
def test_index_that_points_elsewhere_is_refused(tmp_path: Path, name: Any) -> None:
    path = sharded(tmp_path / "d")
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (path / INDEX).write_text(json.dumps(index))
    refuse(path, INDEX, "'model.norm.weight'", repr(name), "plain name")


@pytest.mark.parametrize("content", [b"{}", b'{"weight_map": []}', b'{"weight_map": {}}'])
def test_index_without_a_map_is_refused(tmp_path: Path, content: bytes) -> None:
    path = sharded(tmp_path / "d")
    (path / INDEX).write_bytes(content)
    refuse(path, INDEX, "weight_map")


def test_all_missing_shards_are_listed(tmp_path: Path) -> None:
    path = sharded(tmp_path / "d")
    for shard in path.glob("*.safetensors"):
        shard.unlink()
    refuse(path, "2 of 2 files", "'model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'")


def test_tensor_missing_in_its_shard_names_both(tmp_path: Path) -> None:
    path = sharded(tmp_path / "d")
    index = json.loads((path / INDEX).read_text())
    home = index["weight_map"]["model.norm.weight"]
    other = next(s for s in index["weight_map"].values() if s != home)
    index["weight_map"]["model.norm.weight"] = other
    (path / INDEX).write_text(json.dumps(index))
    refuse(path, other, "'model.norm.weight'")


def test_truncated_shard_tells_both_sizes(tmp_path: Path) -> None:
    path = sharded(tmp_path / "d")
    shard = path / "model-00002-of-00002.safetensors"
    size = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-100])
    refuse(path, shard.name, f"has {size - 100} of {size} bytes")


def test_second_copies_and_tensors_outside_the_index_are_noted(tmp_path: Path) -> None:
    path = sharded(tmp_path / "d")
    first = path / "model-00001-of-00002.safetensors"
    index = json.loads((path / INDEX).read_text())["weight_map"]
    mine = {n: LLAMA_WEIGHTS[n] for n, s in index.items() if s == first.name}
    twice = next(n for n, s in index.items() if s != first.name)
    save_file(mine | {twice: LLAMA_WEIGHTS[twice], "not.indexed": np.zeros(2, dtype=np.float32)}, first)
    with open_checkpoint(path) as c:
        assert sorted("second copy" in n or "not in the index" in n for n in c.notes) == [True, True]
        np.testing.assert_array_equal(c.read_f32(twice), LLAMA_WEIGHTS[twice])


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "x.pth"])
@pytest.mark.parametrize("with_config", [True, False])
def test_directories_of_pickles_are_refused(tmp_path: Path, name: str, with_config: bool) -> None:
    if with_config:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    refuse(tmp_path, "only PyTorch pickles", str(tmp_path))


def test_incomplete_directories_say_what_is_missing(tmp_path: Path) -> None:
    path = directory(tmp_path / "d")
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    refuse(path, INDEX, "is missing")
    (path / "model-00001-of-00002.safetensors").unlink()
    refuse(path, "has a config.json but no weights")
    (path / "config.json").unlink()
    refuse(path, "no model directory", error=UsageError)
    save_file(LLAMA_WEIGHTS, path / "model.safetensors")
    refuse(path, "config.json", "is missing")
    refuse(path / "model.safetensors", "config.json", "is missing")
    refuse(path / "model-00003-of-00003.safetensors", "no such file", error=UsageError)


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        ("F64", "reads F32, F16, BF16, FP8"),
        ("F8_E4M3", "has no scales; expected"),
        ("I8", "has no scales; expected"),
        ("F8_E5M2", "this version reads"),
    ],
)
def test_other_dtypes_are_named(tmp_path: Path, dtype: str, words: str) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    path = directory(tmp_path / "d")
    raw = (path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8 : 8 + length])
    begin, end = entries[name]["data_offsets"]
    per = {"F64": 8}.get(dtype, 1)
    entries[name] |= {"dtype": dtype, "shape": [(end - begin) // 64 // per, 64]}
    (path / "model.safetensors").write_bytes(header(entries, raw[8 + length :]))
    refuse(path, repr(name), dtype, words)


def test_a_norm_of_another_type_is_named(tmp_path: Path) -> None:
    name = "model.layers.1.input_layernorm.weight"
    path = directory(tmp_path / "d", weights=LLAMA_WEIGHTS | {name: np.ones(64, np.float64)})
    refuse(path, repr(name), "F64")


# --- sound files with the wrong contents


def without(name: str) -> dict[str, Any]:
    return {n: w for n, w in QWEN_WEIGHTS.items() if n != name}


EXPERT = "model.layers.1.mlp.experts.{}.up_proj.weight"
ROUTER = "model.layers.0.mlp.gate.weight"
CONTENTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "last expert missing": (without(EXPERT.format(7)), ["layer 1", "lacks experts 7", "0 to 7"]),
    "gap in the experts": (without(EXPERT.format(3)), ["layer 1", "lacks experts 3"]),
    "one expert too many": (
        QWEN_WEIGHTS | {EXPERT.format(8): QWEN_WEIGHTS[EXPERT.format(0)]}, ["layer 1", "has experts 8 too many"],
    ),
    "expert of another shape": (
        QWEN_WEIGHTS | {EXPERT.format(2): np.zeros((16, 64), np.float32)}, [EXPERT.format(2), "[16, 64]", "expert 0"],
    ),
    "expert of another dtype": (
        QWEN_WEIGHTS | {EXPERT.format(2): np.zeros((32, 64), np.float16)}, [EXPERT.format(2), "F16"],
    ),
    "no experts at all": (
        {n: w for n, w in QWEN_WEIGHTS.items() if ".layers.1.mlp.experts" not in n}, ["3 experts of the model are"],
    ),
    "router rows": (QWEN_WEIGHTS | {ROUTER: np.zeros((9, 64), np.float32)}, ["router of layer 0", "9 rows", "8"]),
    "router without dimensions": (
        QWEN_WEIGHTS | {ROUTER: np.zeros((), np.float32)}, [ROUTER, "has shape []; expected [8, 64]"],
    ),
    "missing norm": (without("model.norm.weight"), ["1 tensor of the model is missing", "'model.norm.weight'"]),
    "embedding of another width": (
        QWEN_WEIGHTS | {"model.embed_tokens.weight": np.zeros((QWEN["vocab_size"], 32), np.float32)},
        ["'model.embed_tokens.weight'", "32]; expected"],
    ),
    "vision tower": (
        QWEN_WEIGHTS | {"visual.blocks.0.attn.qkv.weight": np.zeros((4, 4), np.float32)}, ["no place", "'visual."],
    ),
    "layer too many": (
        QWEN_WEIGHTS | {"model.layers.2.input_layernorm.weight": np.zeros(64, np.float32)},
        ["no place", "'model.layers.2.input_layernorm.weight'"],
    ),
    "experts in a dense layer": (
        QWEN_WEIGHTS | {"model.layers.5.mlp.experts.0.up_proj.weight": np.zeros((4, 4), np.float32)},
        ["no place", "'model.layers.5.mlp.experts.0.up_proj.weight'"],
    ),
    "scalar": (QWEN_WEIGHTS | {"num_batches_tracked": np.zeros((), np.int64)}, ["'num_batches_tracked'"]),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(CONTENTS))
def test_wrong_contents_are_named(tmp_path: Path, case: str) -> None:
    weights, words = CONTENTS[case]
    refuse(directory(tmp_path / "d", QWEN, weights), *words)


def test_sound_directories_of_these_tests_open(tmp_path: Path) -> None:
    for path in (directory(tmp_path / "a", QWEN, QWEN_WEIGHTS), directory(tmp_path / "b"), sharded(tmp_path / "c")):
        open_checkpoint(path).close()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("notes.txt", b"hello world", ["notes.txt", "68 65 6c 6c 6f"]),
        ("pytorch_model.bin", b"\x80\x02}q", ["pickle"]),
        ("model.safetensors.incomplete", b"", ["empty"]),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, name: str, content: bytes, words: list[str]) -> None:
    (tmp_path / name).write_bytes(content)
    refuse(tmp_path / name, *words)


@pytest.mark.parametrize("name", ["config.json", INDEX, "model-00002-of-00002.safetensors"])
def test_pipes_and_devices_are_refused_unread(tmp_path: Path, name: str) -> None:
    path = sharded(tmp_path / "d")
    (path / name).unlink()
    os.mkfifo(path / name)
    refuse(path, name, "pipe or a device", error=UsageError)
    refuse(Path("/dev/zero"), "pipe or a device", error=UsageError)
    os.mkfifo(tmp_path / "m.gguf")
    refuse(tmp_path / "m.gguf", "pipe or a device", error=UsageError)


def test_paths_that_can_be_no_file_are_usage_errors(tmp_path: Path) -> None:
    refuse(Path("a" * 5000), "too long", error=UsageError)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refuse(tmp_path / "circle", "symbolic links", error=UsageError)
    (tmp_path / "file").touch()
    refuse(tmp_path / "file" / "model.gguf", "no such file", error=UsageError)


def test_a_shard_of_an_impossible_name_is_missing(tmp_path: Path) -> None:
    path = sharded(tmp_path / "d")
    (path / INDEX).write_text((path / INDEX).read_text().replace("model-00002", "m" * 300))
    refuse(path, "1 of 2 files of the model is missing")

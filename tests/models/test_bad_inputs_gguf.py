"""Every damaged or foreign GGUF file ends in one sentence that names the file, what was found and what helps."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from hetero.machine.types import HeteroError, ModelError, UsageError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.gguf_file import read_gguf
from tests.models import raw_gguf as raw
from tests.models.raw_gguf import LLAMA, gguf, kv, kv_text, kv_u32, tensor
from tests.tiny import random_weights, tiny_config, tiny_gguf, write_gguf

HUGE = 1 << 60
ROW = b"\0" * 128
ONE = [tensor("a", [32], 0, 0)]


def refuse(path: Path, *words: str, error: type[HeteroError] = ModelError) -> HeteroError:
    """Open it; the error must be of the type, one printable line with the words, and carry a hint."""
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    message = caught.value.message
    assert message.isprintable()
    assert str(path.name) in message
    for word in words:
        assert word in message
    assert caught.value.hint
    assert caught.value.hint.isprintable()
    return caught.value


ARRAY = struct.pack("<IQ", raw.U32, HUGE)
TEXTS = struct.pack("<IQ", raw.STRING, HUGE)
DEEP = b"".join(struct.pack("<IQ", raw.ARRAY, 1) for _ in range(100)) + struct.pack("<IQ", raw.U32, 0)

HEADERS: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["empty"]),
    "magic only": (b"GGUF", ["cut off", "the version"]),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>", ["HTML page"]),
    "html after blank lines": (b"\n\n  <html lang=en>", ["HTML page"]),
    "git-lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 123\n", ["git-lfs pointer"]),
    "zip": (b"PK\x03\x04rest", ["zip archive"]),
    "gzip": (b"\x1f\x8b\x08rest", ["gzip"]),
    "pickle": (b"\x80\x02}q\x00", ["pickle"]),
    "json error": (b'{"error": "Entry not found"}', ["JSON"]),
    "old ggml": (b"tjgg\x03\0\0\0", ["before GGUF"]),
    "swapped magic": (b"FUGG\0\0\0\x03", ["bytes swapped"]),
    "noise": (b"\x01\x02\x03\x04\x05\x06\x07\x08\x09", ["01 02 03 04"]),
    "version 1": (gguf(version=1), ["version 1", "2 or 3"]),
    "version 4": (gguf(version=4), ["version 4"]),
    "big-endian": (gguf(version=0x03000000), ["big-endian"]),
    "huge tensor count": (gguf(n_tensors=HUGE), [str(HUGE), "tensors"]),
    "huge key count": (gguf(n_kv=HUGE), [str(HUGE), "keys"]),
    "more keys than fit": (gguf(n_kv=90_000), ["90000 keys"]),
    "huge key name": (gguf([struct.pack("<Q", HUGE)], n_kv=1, data=ROW), ["name of key 0", str(HUGE)]),
    "huge text": (gguf([LLAMA, kv("t", raw.STRING, struct.pack("<Q", HUGE))]), ["'t'", str(HUGE)]),
    "huge array": (gguf([LLAMA, kv("t", raw.ARRAY, ARRAY)]), ["'t'", str(HUGE), "entries"]),
    "huge text array": (gguf([LLAMA, kv("t", raw.ARRAY, TEXTS)]), ["'t'", str(HUGE)]),
    "huge text in an array": (
        gguf([LLAMA, kv("t", raw.ARRAY, struct.pack("<IQQ", raw.STRING, 1, HUGE))]), ["entry 0 of 't'", str(HUGE)],
    ),
    "deep array": (gguf([LLAMA, kv("t", raw.ARRAY, DEEP)]), ["'t'", "deeper than 4"]),
    "unknown value type": (gguf([LLAMA, kv("t", 77, b"")]), ["'t'", "type 77"]),
    "unknown array type": (gguf([LLAMA, kv("t", raw.ARRAY, struct.pack("<IQ", 77, 0))]), ["'t'", "type 77"]),
    "duplicate key": (gguf([LLAMA, kv_u32("a", 1), kv_u32("a", 1)]), ["'a' occurs twice"]),
    "empty key": (gguf([LLAMA, kv_u32("", 1)]), ["key 1 has no name"]),
    "key not UTF-8": (gguf([LLAMA, kv(b"\xff\xfe", raw.U32, b"\0" * 4)]), ["name of key 1", "UTF-8", "\\xff\\xfe"]),
    "token not UTF-8": (
        gguf([LLAMA, kv("t", raw.ARRAY, struct.pack("<IQ", raw.STRING, 1) + raw.text(b"\xff"))]), ["entry 0 of 't'"],
    ),
    "alignment 0": (gguf([LLAMA, kv_u32("general.alignment", 0)]), ["general.alignment is 0"]),
    "alignment 24": (gguf([LLAMA, kv_u32("general.alignment", 24)]), ["24", "power of two"]),
    "alignment 2^31": (gguf([LLAMA, kv_u32("general.alignment", 1 << 31)]), ["general.alignment"]),
    "alignment is a text": (gguf([LLAMA, kv_text("general.alignment", "32")]), ["general.alignment is '32'"]),
    "no architecture": (gguf([kv_u32("a", 1)]), ["general.architecture is missing"]),
    "architecture is a number": (gguf([kv_u32("general.architecture", 1)]), ["general.architecture is 1"]),
    "unknown architecture": (
        gguf([kv_text("general.architecture", "sphinx")]), ["'sphinx' is not supported"],
    ),
    "terminal escapes": (gguf([kv_text("general.architecture", "\x1b]0;evil\x07")]), ["\\x1b]0;evil\\x07"]),
    "known architecture": (gguf([kv_text("general.architecture", "rwkv7")]), ["known but not", "recurrent"]),
    "LoRA": (gguf([LLAMA, kv_text("general.type", "adapter")]), ["LoRA adapter"]),
    "imatrix": (gguf([kv_text("general.type", "imatrix")]), ["importance matrix"]),
    "mmproj by type": (gguf([LLAMA, kv_text("general.type", "mmproj")]), ["mmproj"]),
    "mmproj by architecture": (gguf([kv_text("general.architecture", "clip")]), ["mmproj"]),
    "other kind": (gguf([LLAMA, kv_text("general.type", "poem")]), ["'poem'"]),
    "vocabulary only": (gguf(), ["vocabulary only"]),
    "no embedding": (gguf(tensors=ONE, data=ROW), ["lacks token_embd.weight"]),
    "draft model": (
        gguf(tensors=[tensor("blk.61.nextn.eh_proj.weight", [32], 0, 0)], data=ROW), ["multi-token prediction"],
    ),
    "no dimensions": (gguf(tensors=[tensor("a", [], 0, 0)]), ["'a' has 0 dimensions"]),
    "five dimensions": (gguf(tensors=[tensor("a", [1] * 5, 0, 0)]), ["'a' has 5 dimensions"]),
    "2^32-1 dimensions": (gguf(tensors=[tensor("a", [1], 0, 0, n_dims=0xFFFFFFFF)]), ["4294967295 dimensions"]),
    "dimension 0": (gguf(tensors=[tensor("a", [32, 0], 0, 0)]), ["'a'", "impossible shape [0, 32]"]),
    "negative dimension": (gguf(tensors=[tensor("a", [1 << 63], 0, 0)]), ["impossible shape"]),
    "product overflows": (gguf(tensors=[tensor("a", [1 << 33, 1 << 33], 0, 0)]), ["impossible shape"]),
    "row no multiple of the block": (gguf(tensors=[tensor("a", [33], 2, 0)]), ["'a'", "33", "Q4_0", "32"]),
    "K-quant row of 128": (gguf(tensors=[tensor("a", [128], 12, 0)]), ["Q4_K", "multiple of 256"]),
    "type Q8_K": (gguf(tensors=[tensor("a", [256], 15, 0)]), ["'a'", "Q8_K", "not supported"]),
    "removed type": (gguf(tensors=[tensor("a", [32], 4, 0)]), ["Q4_2", "removed"]),
    "newest type": (gguf(tensors=[tensor("a", [32], 42, 0)]), ["Q2_0"]),
    "ik_llama type": (gguf(tensors=[tensor("a", [256], 137, 0)]), ["number 137", "ik_llama.cpp"]),
    "type 2^32-1": (gguf(tensors=[tensor("a", [32], 0xFFFFFFFF, 0)]), ["number 4294967295"]),
    "tensor without name": (gguf(tensors=[tensor("", [32], 0, 0)]), ["tensor 0 has no name"]),
    "duplicate tensor": (gguf(tensors=[*ONE, *ONE], data=ROW * 2), ["'a' occurs twice"]),
    "escapes in a tensor name": (gguf(tensors=[tensor("\x1b[31m", [33], 2, 0)]), ["\\x1b[31m"]),
    "unaligned offset": (gguf(tensors=[tensor("a", [32], 0, 4)], data=ROW * 2), ["'a'", "offset 4", "32"]),
    "overlap": (
        gguf(tensors=[tensor("a", [64], 0, 0), tensor("b", [32], 0, 128)], data=ROW * 3), ["'b'", "overlaps", "'a'"],
    ),
    "same place": (gguf(tensors=[*ONE, tensor("b", [32], 0, 0)], data=ROW), ["overlaps"]),
    "past the end": (gguf(tensors=[tensor("a", [32], 0, 1 << 40)], data=ROW), ["truncated", "'a'"]),
    "offset 2^64-32": (gguf(tensors=[tensor("a", [32], 0, (1 << 64) - 32)], data=ROW), ["truncated", "'a'"]),
    "last byte missing": (gguf(tensors=ONE, data=ROW[:-1]), ["truncated", "first damaged tensor 'a'"]),
    "no data": (gguf(tensors=ONE), ["truncated"]),
    "infos cut": (gguf(tensors=ONE, data=ROW)[:70], ["cut off", "name of tensor 0"]),
    "joined with cat": (gguf(tensors=ONE, data=ROW) + gguf(tensors=ONE, data=ROW), ["second GGUF file", "cat"]),
    "joined after padding": (
        gguf(tensors=[tensor("a", [31], 0, 0)], data=ROW) + gguf(tensors=ONE, data=ROW), ["second GGUF file"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(HEADERS))
def test_bad_header_is_refused(tmp_path: Path, case: str) -> None:
    content, words = HEADERS[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    refuse(path, *words)


@pytest.mark.parametrize("arch", ["llama", "deepseek2"])
def test_file_cut_anywhere_is_refused(tmp_path: Path, arch: str) -> None:
    whole = tiny_gguf(arch, tmp_path / "whole.gguf", "Q4_0")
    content = whole.read_bytes()
    data = min(t.offset for t in read_gguf(whole).tensors)
    path = tmp_path / "m.gguf"
    # The file ends with up to a block of padding, which nobody misses.
    for cut in [*range(0, data, 397), data, data + 1, len(content) // 2, len(content) - 33]:
        path.write_bytes(content[:cut])
        refuse(path)


def test_flipped_header_bytes_never_crash(tmp_path: Path) -> None:
    """Any single damaged byte of the header is read or refused, but raises nothing else."""
    whole = tiny_gguf("llama", tmp_path / "whole.gguf", "Q4_0")
    content = bytearray(whole.read_bytes())
    data = min(t.offset for t in read_gguf(whole).tensors)
    rng = np.random.default_rng(5)
    path = tmp_path / "m.gguf"
    refused = 0
    for at in rng.choice(data, 300, replace=False):
        old, content[at] = content[at], int(rng.integers(256))
        path.write_bytes(content)
        try:
            open_checkpoint(path).close()
        except ModelError:
            refused += 1
        content[at] = old
    assert refused > 20


def test_missing_file_and_empty_directory_are_usage_errors(tmp_path: Path) -> None:
    refuse(tmp_path / "absent.gguf", "no such file", error=UsageError)
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", "no model directory", error=UsageError)


def test_several_models_in_a_directory_are_listed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.gguf").write_bytes(gguf())
    refuse(tmp_path, "2 models", "'a.gguf'", "'b.gguf'")


# --- split models


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    tiny_gguf("llama", tmp_path / "m.gguf", "Q8_0", split=6)
    found = sorted(tmp_path.glob("m-*.gguf"))
    assert len(found) == 4
    return found


def test_all_missing_parts_are_listed(parts: list[Path]) -> None:
    parts[0].unlink()
    parts[3].unlink()
    refuse(parts[1], "2 of 4 parts are missing", repr(parts[0].name), repr(parts[3].name))


def test_renamed_part_says_what_its_name_should_be(parts: list[Path]) -> None:
    renamed = parts[1].rename(parts[1].with_name("model.gguf"))
    refuse(renamed, "part 2 of 4", "-00002-of-00004.gguf")


def test_parts_of_different_uploads_are_refused(parts: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    tiny_gguf("llama", other / "m.gguf", "Q8_0", split=4, num_hidden_layers=1)
    foreign = other / "m-00002-of-00003.gguf"
    parts[1].write_bytes(foreign.read_bytes())
    with pytest.raises(ModelError, match=r"m-00002-of-00004\.gguf: says part 2 of 3 .*expected part 2 of 4"):
        open_checkpoint(parts[0])


def test_swapped_parts_are_refused(parts: list[Path]) -> None:
    a, b = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(b)
    parts[2].write_bytes(a)
    with pytest.raises(ModelError, match=r"says part 3 of 4 .*expected part 2 of 4"):
        open_checkpoint(parts[0])


def test_truncated_part_is_named_whichever_part_was_given(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-64])
    with pytest.raises(ModelError, match=r"m-00003-of-00004\.gguf: is truncated"):
        open_checkpoint(parts[0])


def _split_part(no: int, name: str, total: int) -> bytes:
    kvs = [kv_u32("split.no", no), kv_u32("split.count", 2), kv_u32("split.tensors.count", total)]
    return gguf([LLAMA, *kvs], [tensor(name, [32], 0, 0)], ROW)


@pytest.mark.parametrize(
    ("second", "total", "words"),
    [("token_embd.weight", 2, ["'token_embd.weight' is also in"]), ("output.weight", 3, ["2 tensors", "expected 3"])],
)
def test_parts_that_do_not_add_up_are_refused(tmp_path: Path, second: str, total: int, words: list[str]) -> None:
    (tmp_path / "s-00001-of-00002.gguf").write_bytes(_split_part(0, "token_embd.weight", total))
    (tmp_path / "s-00002-of-00002.gguf").write_bytes(_split_part(1, second, total))
    with pytest.raises(ModelError) as e:
        open_checkpoint(tmp_path / "s-00001-of-00002.gguf")
    for word in words:
        assert word in e.value.message


def test_claimed_part_counts_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "s-00001-of-99999.gguf"
    path.write_bytes(gguf([LLAMA, kv_u32("split.count", 99_999)]))
    refuse(path, "99999 parts")
    path.write_bytes(gguf([LLAMA, kv_text("split.count", "2")]))
    refuse(path, "split.count is '2'")


# --- whole headers with the wrong contents


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    config = tiny_config("qwen3moe")
    weights = random_weights("qwen3moe", config)
    lacking = {n: w for n, w in weights.items() if n != "model.layers.1.self_attn.k_norm.weight"}
    refuse(write_gguf(tmp_path / "a.gguf", "qwen3moe", config, lacking), "model.layers.1.self_attn.k_norm.weight")
    lacking = {n: w for n, w in weights.items() if ".layers.1.mlp.experts" not in n}
    refuse(
        write_gguf(tmp_path / "b.gguf", "qwen3moe", config, lacking),
        "3 experts of the model are missing",
        "model.layers.1.mlp.experts.gate.weight",
    )
    extra = {"blk.0.attn_sinks.weight": np.zeros(4), "v.patch_embd.weight": np.zeros(4)}
    path = write_gguf(tmp_path / "c.gguf", "qwen3moe", config, weights, extra=extra)
    refuse(path, "2 tensors have no place", "'blk.0.attn_sinks.weight'", "'v.patch_embd.weight'")


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("model.layers.1.mlp.gate.weight", (7, 64), ["router of layer 1", "7 rows", "8 experts"]),
        ("model.layers.0.mlp.experts.up.weight", (7, 32, 64), ["layer 0", "7 experts; expected 8"]),
        ("model.layers.0.mlp.experts.down.weight", (8, 64, 64), ["[8, 64, 64]; expected [8, 64, 32]"]),
        ("model.layers.0.self_attn.v_proj.weight", (32, 64), ["'blk.0.attn_v.weight'", "[32, 64]; expected [64, 64]"]),
        ("model.norm.weight", (65,), ["'output_norm.weight'", "[65]; expected [64]"]),
        ("lm_head.weight", (402, 64), ["'output.weight'", "[402, 64]"]),
    ],
)
def test_wrong_shapes_are_named(tmp_path: Path, name: str, shape: tuple[int, ...], words: list[str]) -> None:
    config = tiny_config("qwen3moe")
    weights = random_weights("qwen3moe", config) | {name: np.zeros(shape, dtype=np.float32)}
    refuse(write_gguf(tmp_path / "m.gguf", "qwen3moe", config, weights), *words)


@pytest.mark.parametrize(
    ("arch", "key", "value", "words"),
    [
        ("llama", "expert_count", 8, ["llama.expert_used_count is missing"]),
        ("llama", "rope.dimension_count", 8, ["llama.rope.dimension_count is 8", "16"]),
        ("llama", "block_count", 5000, ["llama.block_count is 5000", "4096"]),
        ("llama", "attention.head_count_kv", 3, ["head_count_kv is 3"]),
        ("llama", "attention.layer_norm_rms_epsilon", float("nan"), ["layer_norm_rms_epsilon is nan"]),
        ("llama", "rope.scaling.type", "longrope", ["'longrope'", "yarn"]),
        ("qwen3moe", "expert_used_count", 9, ["qwen3moe.expert_used_count is 9", "8"]),
        ("qwen3moe", "embedding_length", "wide", ["qwen3moe.embedding_length is 'wide'"]),
        ("deepseek2", "expert_gating_func", 3, ["expert_gating_func is 3", "sigmoid"]),
        ("deepseek2", "attention.q_lora_rank", 31, ["q_lora_rank is 31", "32"]),
        ("deepseek2", "nextn_predict_layers", 3, ["block_count is 3"]),
        ("deepseek2", "expert_group_count", 3, ["8 experts in 3 groups"]),
    ],
)
def test_impossible_metadata_is_named(tmp_path: Path, arch: str, key: str, value: object, words: list[str]) -> None:
    refuse(tiny_gguf(arch, tmp_path / "m.gguf", metadata={f"{arch}.{key}": value}), *words)


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "expert_count", "attention.layer_norm_rms_epsilon"])
def test_missing_required_keys_are_named(tmp_path: Path, key: str) -> None:
    path = tiny_gguf("qwen3moe", tmp_path / "m.gguf")
    content = path.read_bytes()
    whole = f"qwen3moe.{key}".encode()
    assert content.count(whole) == 1
    path.write_bytes(content.replace(whole, b"x" * len(whole)))
    refuse(path, f"the required key qwen3moe.{key} is missing")

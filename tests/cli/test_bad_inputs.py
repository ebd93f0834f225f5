"""The forty bad inputs, by number: what each is, what a user of the command line sees, and where the rest is tested.

`ROWS` is the table, with tests of tests/models. `CASES` are run through `hetero convert`, `inspect`, `plan` and `chat`:
each must end in the exit code, one line that names the file and what was found, a hint, and nothing under the name of
the store.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.cli.harness import Run
from tests.models import gguf_maker
from tests.models import test_bad_inputs_gguf as g
from tests.models import test_bad_inputs_safetensors as s
from tests.models import test_quantised as quantised
from tests.tiny import random_weights, tiny_config, tiny_gguf, write_gguf
from tests.tiny_tokenizer import save_tokenizer

G, S, Q = "test_bad_inputs_gguf.py", "test_bad_inputs_safetensors.py", "test_quantised.py"
ROWS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("the first part of a split GGUF is named", ("test_gguf.py::test_any_part_of_a_split_model_opens_the_whole",)),
    2: ("a later part is named", ("test_gguf.py::test_any_part_of_a_split_model_opens_the_whole",)),
    3: ("parts are missing or of two uploads", (f"{G}::test_all_missing_parts_are_listed",
        f"{G}::test_parts_of_different_uploads_are_refused", f"{G}::test_swapped_parts_are_refused")),
    4: ("parts joined with cat", (f"{G}::test_bad_header_is_refused",)),
    5: ("a GGUF file cut short", (f"{G}::test_file_cut_anywhere_is_refused",
        f"{G}::test_truncated_part_is_named_whichever_part_was_given")),
    6: ("no model at all: HTML, a git-lfs pointer, nothing, a zip", (f"{G}::test_bad_header_is_refused",
        f"{S}::test_other_files_are_told_apart")),
    7: ("bytes swapped", (f"{G}::test_bad_header_is_refused",)),
    8: ("versions and formats before and after", (f"{G}::test_bad_header_is_refused",)),
    9: ("counts and lengths that are not believed", (f"{G}::test_claimed_part_counts_are_not_believed",)),
    10: ("impossible shapes", (f"{G}::test_bad_header_is_refused",)),
    11: ("alignment and offsets", ("test_gguf.py::test_other_alignments_and_version_2_are_read",)),
    12: ("names twice, empty, not UTF-8, with escapes", (f"{G}::test_bad_header_is_refused",)),
    13: ("architectures unknown, and known but unsupported",
         ("test_config.py::test_unsupported_architectures_are_named",)),
    14: ("types unknown, removed and of ik_llama.cpp", (f"{G}::test_bad_header_is_refused",)),
    15: ("an old file with kv_b in one piece", ("test_gguf.py::test_split_kv_b_holds_the_parts_of_the_whole",)),
    16: ("hyper-parameters missing", (f"{G}::test_missing_required_keys_are_named",
         "test_config.py::test_gguf_gating_is_told_by_the_correction_bias_where_the_key_is_missing")),
    17: ("types mixed per tensor", ("test_gguf.py::test_rows_of_every_type_are_those_in_the_file",)),
    18: ("a projector, LoRA, imatrix or draft", (f"{G}::test_bad_header_is_refused",)),
    19: ("tokens and embeddings of different numbers", ("text/test_load_gguf.py::test_padding_at_the_end_is_masked",
         "text/test_load_gguf.py::test_an_id_without_embedding_is_an_error_and_not_an_index_out_of_range")),
    20: ("files that change while they are read",
         ("test_checkpoint.py::test_file_cut_after_opening_ends_in_one_sentence",
         "test_checkpoint.py::test_file_gone_after_opening_is_a_disk_error")),
    21: ("shards missing", (f"{S}::test_all_missing_shards_are_listed",
         "test_shards.py::test_a_missing_shard_of_prediction_layers_alone_is_noted")),
    22: ("an index that points elsewhere", (f"{S}::test_index_that_points_elsewhere_is_refused",)),
    23: ("an index and shards that disagree", (f"{S}::test_tensor_missing_in_its_shard_names_both",
         "test_shards.py::test_a_second_copy_that_is_alike_is_noted_and_one_that_is_not_is_refused")),
    24: ("bad safetensors headers", (f"{S}::test_bad_header_is_refused",
         f"{S}::test_header_over_100_mb_is_refused_before_it_is_read", f"{S}::test_other_dtypes_are_named")),
    25: ("a shard cut short", (f"{S}::test_truncated_shard_tells_both_sizes",)),
    26: ("pickles only", (f"{S}::test_directories_of_pickles_are_refused",)),
    27: ("config.json absent, damaged or with code", (f"{S}::test_bad_config_is_refused",
         f"{S}::test_incomplete_directories_say_what_is_missing")),
    28: ("FP8 without its scales", (f"{Q}::test_tensors_that_do_not_belong_together_are_refused_by_their_headers",)),
    29: ("scales and codes that are NaN, infinite or zero",
         (f"{Q}::test_damaged_contents_are_named_before_they_are_used",
          f"{Q}::test_a_zero_scale_of_codes_that_are_zero_is_sound")),
    30: ("INT4 whose parts do not fit", (f"{Q}::test_gptq_says_by_its_format_what_zero_points_mean",)),
    31: ("experts missing or unlike", (f"{S}::test_wrong_contents_are_named",)),
    32: ("fused experts in three layouts", ("test_fused.py::test_every_layout_gives_each_expert_its_rows",
         "test_fused.py::test_a_layout_that_the_family_has_not_declared_is_refused")),
    33: ("a head that contradicts tie_word_embeddings",
         ("test_safetensors.py::test_head_is_tied_where_the_file_has_none",
          "test_safetensors.py::test_head_in_the_file_is_used_whatever_the_config_says")),
    34: ("names with other prefixes", ("test_config.py::test_vision_tensors_are_skipped_by_name_and_counted",)),
    35: ("harmless and odd extra tensors",
         ("test_safetensors.py::test_stray_files_and_harmless_tensors_are_left_out",)),
    36: ("tensors that have no place", (f"{G}::test_missing_and_unknown_tensors_are_named",
         "test_keys.py::test_no_tensor_that_a_family_needs_is_on_its_skip_list")),
    37: ("labels of quantisation that are wrong",
         (f"{Q}::test_a_plain_checkpoint_that_calls_itself_quantised_is_read_as_it_is",)),
    38: ("a full disk, older stores, two converters, interruptions",
         ("test_convert.py::test_full_disk_keeps_finished_layers_and_the_rest_is_done_elsewhere",
          "test_convert.py::test_second_process_is_told_who_is_converting",
          "test_convert.py::test_killed_around_every_system_call_that_matters",
          "test_convert.py::test_existing_store_is_kept_unless_forced")),
    39: ("names of every kind, and the hub's links",
         ("test_safetensors.py::test_hub_cache_with_symlinks_works_and_gives_the_name",
          "test_safetensors.py::test_paths_with_spaces_and_other_scripts_work")),
    40: ("stacks larger than memory", ("test_fused.py::test_one_expert_is_read_without_the_others",
         "test_convert.py::test_peak_memory_is_a_few_experts_not_the_model")),
}  # fmt: skip

ALL = ("convert", "inspect", "plan", "chat")


@dataclass(frozen=True, slots=True)
class Case:
    """`make` writes the input into an empty folder and returns its path; `words` are parts of the line."""

    row: int
    name: str
    make: Callable[[Path], Path]
    words: tuple[str, ...]
    code: int = 4
    commands: tuple[str, ...] = ALL


def file(content: bytes, folder: Path, name: str = "m.gguf") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def split(folder: Path, change: Callable[[list[Path]], None]) -> Path:
    tiny_gguf("llama", folder / "m.gguf", "Q8_0", split=6)
    parts = sorted(folder.glob("m-*.gguf"))
    change(parts)
    return next(part for part in parts if part.exists())


def foreign(parts: list[Path]) -> None:
    (parts[0].parent / "other").mkdir()
    tiny_gguf("llama", parts[0].parent / "other" / "m.gguf", "Q8_0", split=4, num_hidden_layers=1)
    parts[1].write_bytes((parts[0].parent / "other" / "m-00002-of-00003.gguf").read_bytes())


def headers(row: int, *names: str) -> Iterator[Case]:
    """Cases of the GGUF table."""
    for name in names:
        content, words = g.HEADERS[name]
        yield Case(row, name, partial(file, content), ("m.gguf", *words))


def shard(folder: Path, content: bytes) -> Path:
    path = s.directory(folder / "d")
    (path / "model.safetensors").write_bytes(content)
    return path


def shards(row: int, *names: str) -> Iterator[Case]:
    for name in names:
        content, words = s.HEADERS[name]
        yield Case(row, name, partial(shard, content=content), ("model.safetensors", *words))


def configs(*names: str) -> Iterator[Case]:
    for name in names:
        content, words = s.CONFIGS[name]
        yield Case(27, name, partial(configured, content=content), ("config.json", *words))


def configured(folder: Path, content: bytes) -> Path:
    path = s.directory(folder / "d")
    (path / "config.json").write_bytes(content)
    return path


def contents(row: int, *names: str) -> Iterator[Case]:
    for name in names:
        weights, words = s.CONTENTS[name]
        make = partial(of_weights, weights=weights)
        yield Case(row, name, make, tuple(words))


def of_weights(folder: Path, weights: dict[str, Any], config: dict[str, Any] = s.QWEN) -> Path:
    return s.directory(folder / "d", config, weights)


def codes(row: int, table: dict[str, Any], *names: str) -> Iterator[Case]:
    for name in names:
        kind, change, config, words = table[name]
        # What lies in the data is seen by whoever reads it, not by its header.
        commands = ALL if table is quantised.HEADERS else ("convert", "chat")
        make = partial(of_codes, kind=kind, change=change, config=config)
        yield Case(row, name, make, ("model.safetensors", *words), commands=commands)


def of_codes(folder: Path, kind: str, change: Any, config: dict[str, Any] | None) -> Path:
    path = quantised.broken(folder, kind, change, config)
    save_tokenizer(path)
    return path


def mapped(folder: Path, edit: Callable[[dict[str, Any], Path], None]) -> Path:
    """Two shards after `edit(weight_map, folder)`."""
    path = s.sharded(folder / "d")
    index = json.loads((path / s.INDEX).read_text())
    edit(index["weight_map"], path)
    (path / s.INDEX).write_text(json.dumps(index))
    return path


def elsewhere(name: str, weight_map: dict[str, Any], folder: Path) -> None:
    weight_map["model.norm.weight"] = name


def outside(weight_map: dict[str, Any], folder: Path) -> None:
    shutil.copy(folder / "model-00002-of-00002.safetensors", folder.parent / "x.safetensors")
    weight_map["model.norm.weight"] = "../x.safetensors"


def cut(weight_map: dict[str, Any], folder: Path) -> None:
    last = folder / "model-00002-of-00002.safetensors"
    last.write_bytes(last.read_bytes()[:-100])


def absent(weight_map: dict[str, Any], folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def pickles(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(s.LLAMA))
    return file(b"PK\x03\x04", folder, "pytorch_model.bin").parent


def without_key(folder: Path, key: str) -> Path:
    path = tiny_gguf("qwen3moe", folder / "m.gguf")
    path.write_bytes(path.read_bytes().replace(key.encode(), b"x" * len(key)))
    return path


def extra_gguf(folder: Path) -> Path:
    config = tiny_config("qwen3moe")
    extra = {"blk.0.attn_sinks.weight": np.zeros(4)}
    return write_gguf(folder / "m.gguf", "qwen3moe", config, random_weights("qwen3moe", config), extra=extra)


def fused(folder: Path) -> Path:
    """Experts in one tensor whose rows are in the place of columns."""
    weights = {n: w for n, w in s.QWEN_WEIGHTS.items() if ".layers.0.mlp.experts." not in n}
    experts, hidden, inter = s.QWEN["num_experts"], s.QWEN["hidden_size"], s.QWEN["moe_intermediate_size"]
    stem = "model.layers.0.mlp.experts."
    weights[f"{stem}gate_up_proj"] = np.zeros((experts, hidden + 2, 2 * inter), np.float32)
    weights[f"{stem}down_proj"] = np.zeros((experts, inter, hidden), np.float32)
    return of_weights(folder, weights)


CASES = [
    Case(3, "one part missing", partial(split, change=lambda p: p[2].unlink()), ("1 of 4 parts is missing", "m-00003")),
    Case(3, "two parts missing", partial(split, change=lambda p: (p[0].unlink(), p[3].unlink())),
         ("2 of 4 parts are missing: 'm-00001-of-00004.gguf', 'm-00004-of-00004.gguf'",)),
    Case(3, "another upload", partial(split, change=foreign), ("says part 2 of 3", "expected part 2 of 4")),
    *headers(4, "joined with cat", "joined after padding"),
    *headers(5, "last byte missing", "no data", "infos cut", "magic only"),
    *headers(6, "empty", "html", "git-lfs pointer", "zip", "gzip", "json error"),
    Case(6, "unfinished download", partial(file, b"", name="m.gguf.incomplete"), ("m.gguf.incomplete", "empty")),
    *headers(7, "big-endian", "swapped magic"),
    *headers(8, "version 1", "version 4", "old ggml"),
    *headers(9, "huge tensor count", "huge key count", "huge text", "huge array", "huge key name", "deep array"),
    *headers(10, "no dimensions", "five dimensions", "dimension 0", "negative dimension", "product overflows",
             "row no multiple of the block"),
    *headers(11, "alignment 0", "alignment 24", "alignment 2^31", "unaligned offset", "overlap"),
    *headers(12, "duplicate tensor", "duplicate key", "empty key", "key not UTF-8", "escapes in a tensor name"),
    *headers(13, "unknown architecture", "known architecture"),
    *headers(14, "removed type", "newest type", "ik_llama type", "type 2^32-1"),
    Case(16, "no expert_count", partial(without_key, key="qwen3moe.expert_count"),
         ("the required key qwen3moe.expert_count is missing",)),
    *headers(18, "LoRA", "imatrix", "mmproj by type", "mmproj by architecture", "draft model", "vocabulary only"),
    Case(21, "one shard absent", partial(mapped, edit=absent), ("'model-00002-of-00002.safetensors'", "missing")),
    Case(22, "a folder above", partial(mapped, edit=outside), ("'../x.safetensors'", "plain name")),
    *(Case(22, repr(name), partial(mapped, edit=partial(elsewhere, name)), (repr(name), "plain name"))
      for name in ("/etc/x.safetensors", "a\\b.safetensors", "x\0.safetensors")),
    *shards(24, "length past the end", "length 2^60", "not JSON", "overlap", "gap", "wrong size", "unknown dtype",
            "duplicate tensor", "trailing bytes"),
    Case(25, "last shard cut", partial(mapped, edit=cut), ("model-00002-of-00002.safetensors: is truncated",)),
    Case(26, "pickle", pickles, ("only PyTorch pickles",), commands=("convert", "inspect", "chat")),
    *configs("empty", "not JSON", "remote code", "no architecture", "duplicate key"),
    Case(27, "NaN where it matters",
         partial(of_weights, weights=s.QWEN_WEIGHTS, config=s.QWEN | {"rms_norm_eps": float("nan")}),
         ("rms_norm_eps is nan",)),
    *codes(28, quantised.HEADERS, "fp8 without scales", "fp8 grid of another size"),
    *codes(29, quantised.CONTENTS, "fp8 code NaN", "fp8 scale NaN", "fp8 scale zero", "int4 scale NaN",
           "mxfp4 scale NaN"),
    *codes(30, quantised.HEADERS, "int4 group that divides nothing", "int4 zero points missing", "int4 permuted"),
    *codes(30, quantised.CONTENTS, "int4 shape", "gptq permuted"),
    *contents(31, "last expert missing", "gap in the experts", "one expert too many", "expert of another shape",
              "router rows"),
    Case(32, "impossible stack", fused, ("gate_up_proj",)),
    *contents(35, "scalar"),
    Case(35, "a tensor without values",
         partial(of_weights, weights=s.QWEN_WEIGHTS | {"model.norm.weight": np.zeros(0, np.float32)}),
         ("'model.norm.weight'", "[0]; expected [64]")),
    *contents(36, "vision tower", "layer too many"),
    Case(36, "of a GGUF file", extra_gguf, ("1 tensor has no place", "'blk.0.attn_sinks.weight'")),
]  # fmt: skip


def test_every_row_is_in_the_table_and_every_test_it_names_is_there() -> None:
    assert list(ROWS) == list(range(1, 41))
    folder = Path(__file__).parents[1] / "models"
    for _, tests in ROWS.values():
        assert tests
        for name in tests:
            module, _, function = name.partition("::")
            tree = ast.parse((folder / module).read_text(encoding="utf-8"))
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}: {case.name}")
def test_a_bad_input_ends_every_command_in_one_line(run: Run, tmp_path: Path, case: Case) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = case.make(folder)
    for command in case.commands:
        given = [path, tmp_path / "out.hetero"] if command == "convert" else [path]
        code, out, err = run(command, *given, *(["-p", "hi", "-n", "1"] if command == "chat" else []))
        assert code == case.code, (command, err)
        line = next(line for line in err.splitlines() if line.startswith("error: "))
        for word in (*case.words, str(folder)):
            assert word in line, (command, word)
        assert line.isprintable()
        assert err.splitlines()[err.splitlines().index(line) + 1].startswith("hint: ")
        assert not out or command == "inspect"
        assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("out")] in ([], ["out.hetero.tmp"])


@pytest.mark.parametrize("case", [c for c in CASES if "inspect" in c.commands][::7], ids=lambda c: f"{c.row}: {c.name}")
def test_with_json_the_same_is_one_object(run: Run, tmp_path: Path, case: Case) -> None:
    path = case.make(tmp_path)
    code, out, err = run("convert", path, tmp_path / "out.hetero", "--json")
    body = json.loads(out)
    assert (code, body["schema"], body["error"]["code"], err) == (case.code, "hetero.error", case.code, "")
    assert all(word in body["error"]["message"] for word in case.words)


# --- inputs that are odd and must work


def of_parts(folder: Path, number: int) -> Path:
    tiny_gguf("qwen3moe", folder / "m.gguf", "Q8_0", split=6)
    return sorted(folder.glob("m-*.gguf"))[number]


def joint_kv_b(folder: Path) -> Path:
    return tiny_gguf("deepseek2", folder / "m.gguf", "Q8_0")


def mixed(folder: Path) -> Path:
    """Rows of 352 in the down matrices: no multiple of 256, so they have another type than the others."""
    shape = gguf_maker.Shape(inter=352, gate="Q4_K", up="Q6_K", down="Q8_0", dense="Q5_K")
    return gguf_maker.write(folder / "m.gguf", shape)


def no_prefix(folder: Path) -> Path:
    weights = {n.removeprefix("model."): w for n, w in s.QWEN_WEIGHTS.items()}
    path = of_weights(folder, weights)
    save_tokenizer(path)
    return path


def regular(folder: Path) -> Path:
    path = quantised.make(folder / "d", quantised.KINDS["fp8 128x128"][0], quantised.ODD)[0]
    config = json.loads((path / "config.json").read_text())
    labels = {"quant_method": "fp8", "ignore": ["re:(a+)+$", "re:(", 7], "modules_to_not_convert": None}
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": labels}))
    save_tokenizer(path)
    return path


def odd_names(folder: Path) -> Path:
    """Names that differ in case only, spaces, other scripts, and the hub's own links."""
    path = folder / "Модель (1)" / "M"
    path.parent.mkdir()
    s.sharded(path)
    save_tokenizer(path)
    shutil.copytree(path, path.with_name("m"), copy_function=os.link)
    blobs = folder / "blobs"
    blobs.mkdir()
    for i, item in enumerate(sorted(path.iterdir())):
        item.rename(blobs / f"{i:040x}")
        item.symlink_to(f"../../blobs/{i:040x}")
    return path


def with_strays(folder: Path) -> Path:
    path = s.directory(folder / "d", s.QWEN, s.QWEN_WEIGHTS | {
        "model.rotary_emb.inv_freq": np.zeros(8, np.float64),
    })  # fmt: skip
    save_file({"a": np.zeros(2, np.float32)}, path / "consolidated.safetensors")
    save_tokenizer(path)
    return path


WORKS: dict[str, tuple[int, Callable[[Path], Path], str]] = {
    "first part": (1, partial(of_parts, number=0), "5 files"),
    "later part": (2, partial(of_parts, number=4), "5 files"),
    "joint kv_b": (15, joint_kv_b, "deepseek2"),
    "mixed types": (17, mixed, "Q6_K"),
    "padded vocabulary": (19, mixed, "tokens"),
    "a stray file": (23, with_strays, "consolidated.safetensors: is not part of the model and is ignored"),
    "no head": (33, no_prefix, "has no lm_head.weight; the embedding is used"),
    "no prefix": (34, no_prefix, "qwen3_moe"),
    "harmless tensors": (35, with_strays, "qwen3_moe"),
    "labels": (37, regular, "FP8_E4M3"),
    "odd names": (39, odd_names, "llama"),
}


@pytest.mark.parametrize("name", WORKS)
def test_an_odd_input_that_is_sound_is_converted_and_verified(run: Run, tmp_path: Path, name: str) -> None:
    _, make, words = WORKS[name]
    folder = tmp_path / "in"
    folder.mkdir()
    path = make(folder)
    if name == "no head":
        weights = {n: w for n, w in s.QWEN_WEIGHTS.items() if n != "lm_head.weight"}
        save_file(weights, path / "model.safetensors")
    code, out, err = run("inspect", path)
    assert code == 0, err
    assert words in out + err
    assert run("convert", path, tmp_path / "out.hetero", "--verify")[0] == 0
    assert (tmp_path / "out.hetero" / "manifest.json").exists()


def test_every_row_has_a_case_here_or_is_about_the_conversion_itself() -> None:
    seen = {case.row for case in CASES} | {row for row, _, _ in WORKS.values()}
    assert set(ROWS) - seen == {20, 38, 40}  # changes while reading, the disk, memory: tested where ROWS says


def test_a_source_that_is_written_to_meanwhile_leaves_nothing_behind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 20, with a file that keeps its size."""
    from hetero.models import conversion

    path = tiny_gguf("qwen3moe", tmp_path / "m.gguf", "Q8_0")
    inner = conversion.read_small

    def read_and_touch(*args: Any) -> Any:
        with path.open("r+b") as f:
            f.seek(-4, os.SEEK_END)
            f.write(struct.pack("<f", 1.0))
        os.utime(path, ns=(1, 1))
        return inner(*args)

    monkeypatch.setattr(conversion, "read_small", read_and_touch)
    code, _, err = run("convert", path, tmp_path / "out.hetero")
    assert code == 4
    assert f"{path}: was changed while it was read" in err
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("out")]
    monkeypatch.undo()


def test_a_source_that_goes_away_meanwhile_costs_no_finished_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 20, with a file on a disk that may come back."""
    from hetero.models import conversion

    path, away = tiny_gguf("qwen3moe", tmp_path / "m.gguf", "Q8_0"), tmp_path / "away.gguf"
    inner = conversion.read_small

    def read_and_move(*args: Any) -> Any:
        path.rename(away)
        return inner(*args)

    monkeypatch.setattr(conversion, "read_small", read_and_move)
    code, _, err = run("convert", path, tmp_path / "out.hetero")
    assert code == 5
    assert str(path) in err
    monkeypatch.undo()
    kept = {f: f.stat().st_ino for f in (tmp_path / "out.hetero.tmp").glob("experts-*.bin")}
    assert kept
    away.rename(path)
    assert run("convert", path, tmp_path / "out.hetero")[0] == 0
    assert {f.name: n for f, n in kept.items()} == {
        f.name: f.stat().st_ino for f in (tmp_path / "out.hetero").glob("experts-*.bin")
    }


def test_a_store_in_the_way_and_a_second_converter_have_their_codes(run: Run, tmp_path: Path) -> None:
    """Row 38 through the command line."""
    path = tiny_gguf("qwen3moe", tmp_path / "m.gguf", "Q8_0")
    out = tmp_path / "out.hetero"
    assert run("convert", path, out)[0] == 0
    code, _, err = run("convert", path, out, "--experts", "bf16")
    assert code == 2
    assert "exists and is not this model converted with --experts bf16" in err
    from hetero.models.lock import locked

    with locked(tmp_path / "other.hetero.lock"):
        code, _, err = run("convert", path, tmp_path / "other.hetero")
    assert code == 5
    assert f"is in use by pid {os.getpid()}" in err

"""A store is refused unless its manifest is sound and its files are whole, and `verify` finds every flipped bit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.machine.types import ModelError
from hetero.models.convert import convert
from hetero.models.layout import make_layout
from hetero.models.load import load_model, open_model
from hetero.models.store import open_store, verify
from hetero.native import Kernels
from tests.models.gguf_maker import Shape, write

KERNELS = Kernels("generic")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write(tmp_path_factory.mktemp("store") / "m.gguf", Shape(layers=2, up="Q4_K", vocab=301))
    return convert(source, kernels=KERNELS).path


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "m.hetero"))


def change(store: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = store / "manifest.json"
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))


def test_whole_store_verifies_and_counts_every_byte(store: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = verify(store, lambda done, total, what: seen.append((done, total)))
    assert seen[-1] == (report.bytes, report.bytes)
    assert report.bytes == sum(p.stat().st_size for p in store.rglob("*") if p.is_file() and p.name != "manifest.json")


def test_any_flipped_bit_is_found_and_named(store: Path) -> None:
    rng = np.random.default_rng(3)
    manifest = open_store(store).manifest
    for file in manifest.files:
        path = store / file
        whole = path.read_bytes()
        for place in (0, len(whole) - 1, *rng.integers(0, len(whole), 3)):
            data = bytearray(whole)
            data[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(data)
            with pytest.raises(ModelError, match=f"{file}.* damaged") as caught:
                verify(store)
            if file.startswith("experts"):
                layer = manifest.layout.layers[int(file[8:13])]
                assert f"expert {place // layer.stride} of layer {layer.layer}" in caught.value.message
        path.write_bytes(whole)


def test_extents_lie_on_pages(original: Path) -> None:
    layout = open_store(original).manifest.layout
    assert all(slot.stride % 4096 == 0 for slot in layout.layers)
    assert all(slot.offset % 4096 == 0 for slot in layout.dense)
    assert (original / "dense.bin").stat().st_size == layout.dense_bytes


def test_index_of_a_store_lays_out_as_the_store_does(original: Path) -> None:
    store = open_store(original)
    assert make_layout(store.index).layers == store.manifest.layout.layers
    assert make_layout(store.index).dense == store.manifest.layout.dense


def test_nothing_about_this_run_is_written(original: Path) -> None:
    text = (original / "manifest.json").read_text()
    assert str(original.parent) not in text
    assert not {"time", "date", "host", "pid", "path"} & json.loads(text).keys()


def test_newer_major_version_is_refused_and_newer_minor_read(store: Path) -> None:
    change(store, lambda data: data.update(version="2.7"))
    open_store(store)
    change(store, lambda data: data.update(version="3.0", writer="hetero 9.1"))
    with pytest.raises(ModelError, match=r"store format 3\.0") as caught:
        open_store(store)
    assert "hetero 9.1" in caught.value.hint


def blake(data: bytes) -> str:
    """A checksum of the first store format."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def test_a_store_of_the_first_format_is_still_read_and_verified(store: Path) -> None:
    change(store, lambda data: data.update(hash="md5"))
    with pytest.raises(ModelError, match="unknown kind 'md5'"):
        open_store(store)

    def as_of_old(data: dict[str, Any]) -> None:
        data.update(version="1.1")
        del data["hash"]
        for name, file in data["files"].items():
            if "checksum" in file:
                file["checksum"] = blake((store / name).read_bytes())
        for entry in [*data["layers"].values(), *data["tensors"].values()]:
            if "checksums" not in entry:
                continue
            start, size = entry.get("offset", 0), entry.get("stride", entry.get("piece"))
            whole = (store / entry["file"]).read_bytes()
            last = len(entry["checksums"]) - 1
            length = entry.get("length", len(whole))
            ends = [start + size * i for i in range(1, last + 1)] + [start + -(-length // 4096) * 4096]
            entry["checksums"] = [blake(whole[a:b]) for a, b in zip([start, *ends], ends, strict=False)]

    change(store, as_of_old)
    assert verify(store).files == len(open_store(store).manifest.files)
    with (store / "experts-00001.bin").open("r+b") as file:
        file.write(b"x")
    with pytest.raises(ModelError, match="expert 0 of layer 1 is damaged"):
        verify(store)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.update(complete=False), "not complete"),
        (lambda d: d.update(kind="zip"), "not the manifest"),
        (lambda d: d.update(version=3), "no version"),
        (lambda d: d.pop("config"), "no 'config'"),
        (lambda d: d["config"].update(hidden_size="256"), "hidden_size"),
        (lambda d: d["config"].update(surprise=1), "surprise"),
        (lambda d: d["config"].update(n_layers=3), r"layers\.2\..* is missing"),
        (lambda d: d["config"].update(n_layers=1), r"layers\.1\..* no place"),
        (lambda d: d["config"].update(n_layers=1 << 40), "layers is not known"),
        (lambda d: d["config"].update(n_heads=1), r"q_proj.* has shape \["),
        (lambda d: d["config"].update(moe=None), "config lacks a part"),
        (lambda d: d["config"].update(family="bogus"), "'bogus'"),
        (lambda d: d["tensors"].pop("model.norm.weight"), r"model\.norm\.weight is missing"),
        (lambda d: d["tensors"].pop("model.embed_tokens.weight"), r"embed_tokens\.weight is missing"),
        (lambda d: d["config"]["moe"].update(scoring="guess"), "scoring"),
        (lambda d: d["files"].update({"../evil": {"bytes": 1}}), "evil"),
        (lambda d: d["files"].update({"tokenizer/../../evil": {"bytes": 1}}), "evil"),
        (lambda d: d["files"].update({"/etc/passwd": {"bytes": 1}}), "passwd"),
        (lambda d: d.update(files=[]), "list"),
        (lambda d: d["tensors"]["model.embed_tokens.weight"].update(offset=1 << 60), "outside"),
        (lambda d: d["tensors"]["model.embed_tokens.weight"].update(offset=-64), "outside"),
        (lambda d: d["tensors"]["model.embed_tokens.weight"].update(format="Q9_9"), "Q9_9"),
        (lambda d: d["tensors"]["model.embed_tokens.weight"].update(shape=[1 << 60, 256]), "outside|length"),
        (lambda d: d["tensors"]["model.embed_tokens.weight"].update(shape=[]), "shape"),
        (lambda d: d["tensors"]["model.embed_tokens.weight"].update(checksums=[]), "checksums"),
        (lambda d: d["layers"]["0"].update(stride=4096), "stride"),
        (lambda d: d["layers"]["0"].update(n_experts=1 << 40), "bytes, expected|checksums"),
        (lambda d: d["layers"]["1"].update(up_format="Q5_1"), "stride|down_offset"),
    ],
)
def test_unsound_manifest_is_refused_in_one_sentence(
    store: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    change(store, edit)
    with pytest.raises(ModelError, match=message) as caught:
        open_store(store)
    assert str(store) in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'"text"'])
def test_manifest_that_is_no_object_is_refused(store: Path, content: bytes) -> None:
    (store / "manifest.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"manifest\.json"):
        open_model(store)


def test_a_pipe_in_the_manifests_place_is_refused_unread(store: Path) -> None:
    (store / "manifest.json").unlink()
    os.mkfifo(store / "manifest.json")
    with pytest.raises(ModelError, match=r"manifest\.json is not a file"):
        open_store(store)


def test_missing_and_cut_files_are_named_before_weights_are_read(store: Path) -> None:
    path = store / "experts-00001.bin"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(ModelError, match=rf"experts-00001\.bin has {size - 1} bytes, expected {size}"):
        open_store(store)
    path.unlink()
    with pytest.raises(ModelError, match=r"experts-00001\.bin is missing"):
        open_store(store)


def test_file_that_shrinks_after_opening_is_an_error_not_a_crash(store: Path) -> None:
    source = open_model(store)
    with (store / "experts-00000.bin").open("r+b") as file:
        file.truncate(5000)
    with pytest.raises(ModelError, match=r"experts-00000\.bin ends at 5000 bytes"):
        load_model(source, KERNELS)


def test_store_moves_and_opens_through_links(store: Path, tmp_path: Path) -> None:
    (tmp_path / "käse und brot").symlink_to(store)
    assert open_model(tmp_path / "käse und brot").index.vocab_size == 301
    assert open_model(store / "manifest.json").index.vocab_size == 301


def test_a_store_without_its_manifest_is_named_as_one(store: Path) -> None:
    (store / "manifest.json").unlink()
    with pytest.raises(ModelError, match=r"has no manifest\.json") as caught:
        open_model(store)
    assert "hetero convert" in caught.value.hint

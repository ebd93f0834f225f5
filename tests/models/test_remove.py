"""A store is deleted whole or not at all, and nothing but a store ever is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero.machine.types import TierError, UsageError
from hetero.models import remove as module
from hetero.models.convert import convert
from hetero.models.destination import Destination
from hetero.models.lock import locked
from hetero.models.remove import remove
from hetero.native import Kernels
from tests.models.gguf_maker import Shape, write


@pytest.fixture
def store(tmp_path: Path) -> Path:
    source = write(tmp_path / "m.gguf", Shape(layers=2))
    return convert(source, tmp_path / "m.hetero", kernels=Kernels("generic")).path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_store_is_deleted_whole_and_its_bytes_are_told(store: Path) -> None:
    size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    assert remove(store) == size
    assert names(store.parent) == ["m.gguf"]


def _foreign(store: Path) -> None:
    (store / "notes.txt").write_text("mine")


def _inside_tokenizer(store: Path) -> None:
    (store / "tokenizer" / "mine").mkdir()


def _link(store: Path) -> None:
    (store / "dense.bin").unlink()
    (store / "dense.bin").symlink_to(store.parent / "m.gguf")


def _linked_folder(store: Path) -> None:
    (store / "tokenizer").rename(store.parent / "elsewhere")
    (store / "tokenizer").symlink_to(store.parent / "elsewhere")


def _no_manifest(store: Path) -> None:
    (store / "manifest.json").unlink()


def _other_manifest(store: Path) -> None:
    (store / "manifest.json").write_text(json.dumps({"kind": "web app", "files": {"dense.bin": 1}}))


def _linked_manifest(store: Path) -> None:
    (store / "manifest.json").rename(store.parent / "manifest.json")
    (store / "manifest.json").symlink_to(store.parent / "manifest.json")


def _pipe(store: Path) -> None:
    (store / "manifest.json").unlink()
    os.mkfifo(store / "manifest.json")


@pytest.mark.parametrize(
    "change",
    [_foreign, _inside_tokenizer, _link, _linked_folder, _no_manifest, _other_manifest, _linked_manifest, _pipe],
)
def test_a_folder_that_is_not_just_a_store_is_left_alone(store: Path, change: Callable[[Path], None]) -> None:
    change(store)
    before = sorted(store.parent.rglob("*"))
    with pytest.raises(UsageError) as caught:
        remove(store)
    assert str(store) in caught.value.message
    assert sorted(store.parent.rglob("*")) == before


def test_a_link_to_a_store_or_above_it_is_refused(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link.hetero").symlink_to(store)
    (tmp_path / "folder").symlink_to(tmp_path)
    for path in (tmp_path / "link.hetero", tmp_path / "folder" / "m.hetero"):
        with pytest.raises(UsageError, match="through a link"):
            remove(path)
    assert (store / "manifest.json").exists()


def test_a_link_that_appears_after_the_first_look_is_not_followed(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link.hetero").symlink_to(store)
    monkeypatch.setattr("os.path.realpath", str)
    with pytest.raises(UsageError, match="is no folder"):
        remove(tmp_path / "link.hetero")
    assert (store / "manifest.json").exists()


def test_what_is_put_in_its_place_meanwhile_survives(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is exchanged for another after it was checked: only the checked one may lose files."""
    other = store.parent / "other"
    other.mkdir()
    (other / "precious").write_text("x")
    check = module._check

    def exchanged(path: Path, folder: int, named: set[str]) -> int:
        found = check(path, folder, named)
        path.rename(store.parent / "aside")
        other.rename(path)
        return found

    monkeypatch.setattr(module, "_check", exchanged)
    with pytest.raises(TierError):
        remove(store)
    assert [path.name for path in store.parent.rglob("precious")] == ["precious"]


def test_a_store_that_a_conversion_holds_is_left_alone(store: Path) -> None:
    with locked(Destination(store).lock), pytest.raises(TierError, match="in use by pid"):
        remove(store)
    assert (store / "manifest.json").exists()


@pytest.mark.parametrize("name", ["nosuch.hetero", "m.gguf"])
def test_what_is_no_folder_is_a_usage_error(store: Path, name: str) -> None:
    with pytest.raises(UsageError):
        remove(store.parent / name)
    assert (store.parent / "m.gguf").exists()

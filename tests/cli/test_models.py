"""`hetero models`: what was used here, and deleting a store of it."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest

from hetero.cli import known
from tests.cli.harness import Run, terminal


@pytest.fixture
def store(run: Run, model: Path, tmp_path: Path) -> Path:
    assert run("convert", model, tmp_path / "tiny.hetero")[0] == 0
    return tmp_path / "tiny.hetero"


def test_nothing_used_yet_is_a_note(run: Run) -> None:
    code, out, err = run("models")
    assert (code, out) == (0, "")
    assert "no model has been used here yet" in err
    assert run.json("models")["models"] == []


def test_stores_and_checkpoints_are_listed_with_size_and_fit(run: Run, model: Path, store: Path) -> None:
    rows = run.json("models")["models"]
    assert [(row["name"], row["kind"], row["state"]) for row in rows] == [
        ("tiny", "store", "fits"),
        ("tiny.gguf", "checkpoint", "fits"),
    ]
    assert rows[0]["bytes"] > sum(path.stat().st_size for path in store.glob("*.bin"))
    assert rows[1]["bytes"] == model.stat().st_size
    out = run("models")[1].splitlines()
    assert out[1].split()[:2] == ["tiny", "store"]


def test_a_model_that_was_used_comes_first_and_a_private_one_leaves_no_trace(
    run: Run, model: Path, store: Path, tmp_path: Path
) -> None:
    assert run("chat", model, "-n", "1", "--private", text="hi")[0] == 0
    assert run.json("models")["models"][0]["kind"] == "store"
    assert run("chat", model, "-n", "1", text="hi")[0] == 0
    assert run.json("models")["models"][0]["kind"] == "checkpoint"
    assert stat.S_IMODE((tmp_path / "state" / "hetero" / "models.json").stat().st_mode) == 0o600


def test_what_is_gone_or_damaged_is_shown_as_such(run: Run, store: Path) -> None:
    (store / "dense.bin").write_bytes(b"")
    assert "damaged" in run("models")[1]
    store.rename(store.with_name("away"))
    assert run.json("models")["models"][0]["state"] == "gone"
    code, _, err = run("models", "rm", "tiny", "--yes")
    assert code == 0
    assert "off the list" in err
    assert [row["kind"] for row in run.json("models")["models"]] == ["checkpoint"]


def test_a_model_that_does_not_answer_holds_the_list_up_for_a_while_only(
    run: Run, model: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hetero.cli import models

    hung, inner = threading.Event(), models._look
    monkeypatch.setattr(models, "_PATIENCE", 3.0)
    monkeypatch.setattr(models, "_look", lambda row, m: inner(row, m) if "hetero" in row.path else hung.wait(60))
    try:
        rows = run.json("models")["models"]
        assert [(row["kind"], row["state"], row["fits"]) for row in rows] == [
            ("store", "fits", True),
            ("unknown", "not looked at", None),
        ]
        _, out, err = run("models")
        assert "tiny.gguf" in out
        assert "damaged" not in out
        assert "1 model not looked at" in err
    finally:
        hung.set()


def test_a_bug_while_looking_is_told_as_one(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hetero.cli import models

    monkeypatch.setattr(models, "_look", lambda row, machine: 1 / 0)
    code, _, err = run("models")
    assert code == 1
    assert "bug: ZeroDivisionError" in err


@pytest.mark.parametrize("columns", [12, 30, 60, 120])
def test_the_list_fits_every_terminal(columns: int, run: Run, store: Path, env: dict[str, str]) -> None:
    with terminal("models", env=env, columns=columns) as screen:
        assert screen.wait() == 0
        lines = screen.text.splitlines()
    assert max(len(line) for line in lines) <= columns
    assert any(line.startswith("tiny") for line in lines)
    assert "store" in " ".join(lines)


def test_rm_of_what_is_gone_answers_in_json_too(run: Run, store: Path) -> None:
    store.rename(store.with_name("away"))
    body = run.json("models", "rm", "tiny", "--yes")
    assert (body["path"], body["bytes"]) == (str(store), 0)


def test_rm_asks_and_without_a_terminal_wants_yes(run: Run, store: Path) -> None:
    code, _, err = run("models", "rm", "tiny")
    assert code == 2
    assert "--yes" in err
    assert store.exists()
    body = run.json("models", "rm", "tiny", "--yes")
    assert body["bytes"] > 0
    assert not store.exists()
    assert [row["kind"] for row in run.json("models")["models"]] == ["checkpoint"]


@pytest.mark.parametrize(("answer", "gone"), [("n", False), ("", False), ("y", True)])
def test_rm_takes_an_answer_at_the_terminal(
    answer: str, gone: bool, run: Run, store: Path, env: dict[str, str]
) -> None:
    with terminal("models", "rm", str(store), env=env) as screen:
        screen.expect(r"\[y/N\] ")
        screen.send(answer + "\r")
        assert screen.wait() == 0
    assert store.exists() is not gone


def test_rm_deletes_only_listed_stores(run: Run, model: Path, store: Path, tmp_path: Path) -> None:
    unlisted = tmp_path / "other.hetero"
    store.rename(unlisted)
    for name, words in (
        (str(unlisted), "is listed"),
        ("..", "is listed"),
        ("/", "is listed"),
        ("tiny.gguf", "is a checkpoint"),
        (str(model), "is a checkpoint"),
        ("tyni", "did you mean tiny?"),
    ):
        code, _, err = run("models", "rm", name, "--yes")
        assert code == 2
        assert words in err
    assert unlisted.exists()
    assert model.exists()


def test_rm_deletes_nothing_in_the_place_of_a_link(run: Run, store: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.hetero"
    link.symlink_to(store)
    for name in (f"{link}", f"{link}/"):
        code, _, err = run("models", "rm", name, "--yes")
        assert code == 2
        assert f"is a link to {store}, which would be deleted in its place" in err
        assert f"hetero models rm {store} deletes the store" in err
    assert store.exists()
    (tmp_path / "folder").symlink_to(tmp_path)  # a folder on the way may be a link, as home folders are
    assert run("models", "rm", tmp_path / "folder" / "tiny.hetero", "--yes")[0] == 0
    assert not store.exists()


def test_json_before_rm_counts_too(run: Run, store: Path) -> None:
    code, out, err = run("models", "--json", "rm", "tiny", "--yes")
    assert (code, err) == (0, "")
    assert json.loads(out)["path"] == str(store)


def test_two_stores_of_one_name_want_a_path(run: Run, model: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    run("convert", model, tmp_path / "b" / "tiny.hetero")
    code, _, err = run("models", "rm", "tiny", "--yes")
    assert code == 2
    assert "names 2 models" in err
    assert run("models", "rm", tmp_path / "b" / "tiny.hetero", "--yes")[0] == 0
    assert store.exists()


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}', '[{"path": "rel", "when": 1}]', "[" * 100_000])
def test_a_foreign_list_counts_as_none_and_is_replaced(content: str, run: Run, store: Path, tmp_path: Path) -> None:
    path = tmp_path / "state" / "hetero" / "models.json"
    path.write_text(content)
    assert run.json("models")["models"] == []
    known.remember(store)
    assert json.loads(path.read_text())[0]["path"] == str(store)


def test_many_at_once_lose_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    threads = [threading.Thread(target=known.remember, args=(Path(f"/m/{i}"),)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {row.path for row in known.known()} == {f"/m/{i}" for i in range(20)}


def test_a_state_folder_that_cannot_be_written_fails_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    known.remember(tmp_path)
    assert known.known() == []

"""`hetero convert` as a user reads it: what a store lacks of its source is told before the source may go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.harness import Run
from tests.tiny import tiny_hf

LEFT = "unless you want its 2 tensors of the vision parts, which the store does not keep"


@pytest.fixture(scope="module")
def with_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hf("kimi_k25", tmp_path_factory.mktemp("images"))


def test_the_source_may_be_deleted_except_for_what_the_store_does_not_keep(
    run: Run, with_images: Path, tmp_path: Path
) -> None:
    code, _, err = run("convert", with_images, tmp_path / "m.hetero", "--verify")
    assert code == 0
    assert "leaves out 2 tensors of the vision parts" in err
    assert f"{with_images} may be deleted {LEFT}\n" in err
    again = run("convert", tmp_path / "m.hetero", "--verify")[2]
    assert f"may be deleted {LEFT}\n" in again
    body = run.json("convert", with_images, tmp_path / "m.hetero")
    assert body["left_out"] == "2 tensors of the vision parts"
    assert body["already_converted"]


def test_a_treatment_and_left_out_parts_are_both_told(run: Run, with_images: Path, tmp_path: Path) -> None:
    err = run("convert", with_images, tmp_path / "m.hetero", "--experts", "q8", "--verify")[2]
    assert "unless you want its weights as they were before q8 or its 2 tensors of the vision parts" in err


def test_a_store_that_keeps_everything_says_no_more(run: Run, model: Path, tmp_path: Path) -> None:
    err = run("convert", model, tmp_path / "m.hetero", "--verify")[2]
    assert f"{model} may be deleted\n" in err

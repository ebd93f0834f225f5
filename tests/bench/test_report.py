"""The page and the JSON of `make bench-peers`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import report
from bench.report import Record

RECORD = Record(
    setup="A CPU, 2 threads",
    commit="abc1234",
    model="m.gguf",
    peer="llama.cpp",
    version="1.0",
    what="decode 64",
    unit="tok/s",
    hetero=(30.0, 20.0, 40.0, 30.0, 31.0),
    other=(20.0, 20.0, 16.0, 21.0, 10.0),
    bandwidth=(45e9, 82e9, 50e9, 60e9, 61e9),
)


def test_the_ratio_is_that_of_medians_and_above_one_where_hetero_is_faster() -> None:
    assert RECORD.ratio() == 1.5
    assert RECORD.ratios() == [1.5, 1.0, 2.5, 30 / 21, 3.1]
    assert replace(RECORD, unit="ms").ratio() == pytest.approx(1 / 1.5)


def test_a_row_has_medians_ratio_spread_and_bandwidth() -> None:
    page = report.render([RECORD], "benchmarks.json", ["A note."])
    row = next(line for line in page.splitlines() if line.startswith("| m.gguf"))
    assert row == (
        "| m.gguf | decode 64 | llama.cpp (1.0) | 30.0 tok/s | 20.0 tok/s | **1.50** (1.00 to 3.10) | 45 to 82 | 5 "
        "| abc1234 |"
    )
    assert "## A CPU, 2 threads" in page
    assert "A note." in page


def test_each_setup_has_a_table_of_its_own() -> None:
    other = replace(RECORD, setup="Another CPU")
    page = report.render([RECORD, other, replace(RECORD, what="prefill 512")], "x.json")
    assert page.count("\n## ") == 2
    first, second = page.split("## Another CPU")
    assert (first.count("| m.gguf"), second.count("| m.gguf")) == (2, 1)


def test_a_new_measurement_replaces_its_old_one_and_no_other() -> None:
    kept = [RECORD, replace(RECORD, what="prefill 512"), replace(RECORD, peer="ik_llama.cpp")]
    new = replace(RECORD, commit="def5678", version="2.0")
    merged = report.merge(kept, [new])
    assert merged == [new, *kept[1:]]


def test_runs_of_the_same_commit_are_pooled() -> None:
    later = replace(RECORD, hetero=(1.0,), other=(2.0,), bandwidth=(3.0,))
    (merged,) = report.merge([RECORD], [later])
    assert merged.hetero == (*RECORD.hetero, 1.0)
    assert merged.other == (*RECORD.other, 2.0)
    assert merged.bandwidth == (*RECORD.bandwidth, 3.0)


def test_json_keeps_every_sample(tmp_path: Path) -> None:
    path = tmp_path / "new" / "b.json"
    assert report.load(path) == []
    report.save([RECORD], path)
    assert report.load(path) == [RECORD]


def test_a_file_of_another_kind_is_not_overwritten_as_if_it_were_ours(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"schema": "hetero.bench", "version": 1}')
    with pytest.raises(ValueError, match=r"bench-peers"):
        report.load(path)


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (99.96, "100.0"), (12.34, "12.3"), (0.391, "0.39")])
def test_numbers_have_three_digits_that_mean_something(value: float, text: str) -> None:
    assert report.number(value) == text

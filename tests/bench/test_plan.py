"""The table of predicted and measured."""

from __future__ import annotations

from bench import plan

PREDICTED = {
    "prefill_tps": {"low": 80.0, "likely": 110.0, "high": 120.0},
    "decode_tps": {"low": 8.0, "likely": 9.0, "high": 11.0},
    "total_bytes": 2_000_000_000,
}
MEASURED = {"prefill_tps": {"median": 100.0}, "decode_tps": {"median": 12.0}, "peak_rss_bytes": 2_000_000_000}


def test_errors_are_shares_of_what_was_measured() -> None:
    rows = plan.rows_of("m.gguf", PREDICTED, MEASURED, 512)
    assert [round(r.error, 3) for r in rows] == [0.1, -0.25, 0.0]
    assert plan.worst(rows) == 0.25
    lines = plan.table(rows).splitlines()
    assert lines[2] == "| m.gguf | prefill 512 | 110 (80 to 120) | 100 | +10% |"
    assert lines[4] == "| m.gguf | memory, MB | 2000 | 2000 | +0% |"


def test_memory_does_not_count_as_a_rate_and_skipped_figures_are_left_out() -> None:
    rows = plan.rows_of("m", PREDICTED, MEASURED | {"decode_tps": None, "peak_rss_bytes": 1}, 512)
    assert [r.what for r in rows] == ["prefill 512", "memory, MB"]
    assert round(plan.worst(rows), 3) == 0.1

"""The table of predicted and measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import plan
from bench.plan import Row
from hetero.machine.types import Measured, RateAt, Rates
from tests.machine.test_plan import MACHINE, moe_index

READ = RateAt(4, Measured(20e9, "B/s"))
PROBED = replace(MACHINE, rates=Rates(stream_read=(READ,), gather_read=(READ,)))
FOUND = {
    "turns": {
        "prefill": [{"tps": 100.0 * n, "stream": n * 1e9, "gather": n * 1e9} for n in (1, 2, 3)],
        "decode": [{"tps": 10.0, "stream": 2e9, "gather": 2e9}],
    },
    "peak_bytes": 300_000_000,
    "memory": [{"predicted": 250_000_000}, {"predicted": 50_000_000}],
}


def test_each_run_is_predicted_with_the_reads_around_it() -> None:
    rows = plan.rows_of(moe_index(), PROBED, "m.gguf", FOUND, 512)
    assert [r.what for r in rows] == ["prefill 512", "decode 64", "memory, MB"]
    assert rows[0].measured == 200.0
    assert (rows[0].slowest, rows[0].fastest) == (1.0, 3.0)
    assert rows[1].predicted == plan.predict(moe_index(), PROBED, FOUND["turns"]["decode"][0], 512)[1]  # type: ignore[index]
    faster = {"stream": 40e9, "gather": 40e9}
    assert plan.predict(moe_index(), PROBED, faster, 512)[1] > rows[1].predicted
    assert rows[2].error == pytest.approx(0)


def test_errors_are_shares_of_what_was_measured() -> None:
    rows = [Row("m", "prefill 512", 110, 100, 44, 46), Row("m", "decode 64", 9, 12), Row("m", "memory, MB", 2, 1)]
    assert [round(r.error, 3) for r in rows] == [0.1, -0.25, 1.0]
    assert plan.worst(rows) == 0.25
    lines = plan.table(rows).splitlines()
    assert lines[2] == "| m | prefill 512 | 110 | 100 | +10% | 44 to 46 |"
    assert lines[3] == "| m | decode 64 | 9 | 12 | -25% |  |"

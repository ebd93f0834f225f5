"""Rates that are kept: found again by the same machine only, private, and measured again when damaged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from hetero.machine.rates import load_rates, store_rates, with_rates
from hetero.machine.types import Gpu, KernelRate, Machine, Measured, RateAt, Rates

GIB = 1 << 30
MACHINE = Machine(
    cpu_model="Fixture CPU",
    cpus=(0, 1),
    visible_cpus=2,
    cpu_reason="",
    memory_bytes=20 * GIB,
    memory_total_bytes=32 * GIB,
    memory_reason="",
    tiers=(),
    isa_tier="avx2",
    kernel="6.1.0",
)
RATES = Rates(
    stream_read=(RateAt(1, Measured(2e10, "B/s", "measured", 0.1, 5)),),
    gather_read=(RateAt(1, Measured(1e10, "B/s", "measured", 0.1, 5)),),
    node_reads=(RateAt(1, Measured(1e10, "B/s"), 0, 1),),
    knee_threads=1,
    int8_ops=Measured(1e12, "op/s"),
    kernels=(KernelRate("Q4_0", 128, Measured(5e11, "op/s")),),
    pcie=Measured(2.5e10, "B/s"),
    notes=("note",),
)


def stored(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_kept_rates_come_back_whole_with_their_age(tmp_path: Path) -> None:
    store_rates(MACHINE, RATES, tmp_path)
    kept = load_rates(MACHINE, tmp_path)
    assert kept.rates == RATES
    assert 0 <= kept.age < 3600
    assert stored(tmp_path).stat().st_mode & 0o777 == 0o600


def test_storing_again_replaces_what_was_kept(tmp_path: Path) -> None:
    store_rates(MACHINE, RATES, tmp_path)
    store_rates(MACHINE, Rates(), tmp_path)
    assert load_rates(MACHINE, tmp_path).rates == Rates()
    assert stored(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"cpu_model": "Other"}, {"cpus": (0,)}, {"memory_total_bytes": 64 * GIB}, {"isa_tier": None}, {"kernel": "6.2.0"}],
)
def test_another_machine_does_not_find_them(tmp_path: Path, change: dict[str, Any]) -> None:
    store_rates(MACHINE, RATES, tmp_path)
    kept = load_rates(dataclasses.replace(MACHINE, **change), tmp_path)
    assert (kept.rates, kept.note) == (None, "")


@pytest.mark.parametrize("change", [{"memory_bytes": GIB}, {"memory_total_bytes": 32 * GIB - 5000}, {"notes": ("x",)}])
def test_what_changes_from_minute_to_minute_does_not_matter(tmp_path: Path, change: dict[str, Any]) -> None:
    store_rates(MACHINE, RATES, tmp_path)
    assert load_rates(dataclasses.replace(MACHINE, **change), tmp_path).rates == RATES


def damaged(body: dict[str, Any], change: dict[str, Any]) -> str:
    return json.dumps(body | change)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "other"},
        {"version": 2},
        {"fingerprint": {}},
        {"measured_at": "yesterday"},
        {"measured_at": None},
        {"rates": []},
        {"rates": {"int8_ops": {"value": -1.0, "unit": "op/s"}}},
        {"rates": {"stream_read": [{"threads": 1}]}},
    ],
)
def test_damaged_rates_are_left_with_a_note(tmp_path: Path, change: dict[str, Any]) -> None:
    store_rates(MACHINE, RATES, tmp_path)
    path = stored(tmp_path)
    path.write_text(damaged(json.loads(path.read_text()), change))
    kept = load_rates(MACHINE, tmp_path)
    assert kept.rates is None
    assert str(path) in kept.note


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_other_content_is_left_with_a_note(tmp_path: Path, content: bytes) -> None:
    store_rates(MACHINE, RATES, tmp_path)
    stored(tmp_path).write_bytes(content)
    kept = load_rates(MACHINE, tmp_path)
    assert kept.rates is None
    assert "damaged" in kept.note


def test_a_measured_link_replaces_the_nominal_one_of_the_first_gpu() -> None:
    gpu = Gpu("A", GIB, GIB, "8.6", Measured(1.0, "B/s", "assumed"), True, "", "file")
    machine = with_rates(dataclasses.replace(MACHINE, devices=(gpu, gpu)), RATES)
    assert [device.pcie_bytes_per_s for device in machine.devices] == [RATES.pcie, gpu.pcie_bytes_per_s]
    assert machine.rates == RATES
    assert with_rates(machine, None).rates is None

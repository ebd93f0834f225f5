"""Machines that are only described, quantities as people type them, and the questions around a plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hetero.machine import quantities
from hetero.machine.advice import Case, advice, remedy, sweep, target
from hetero.machine.plan import plan
from hetero.machine.serialize import from_json, to_json
from hetero.machine.types import HeteroError, KernelRate, Measured, PlanRequest, RateAt, Rates, UsageError
from hetero.machine.whatif import BLANK, WhatIf, imagine
from hetero.models.card import cards

GIB = 1 << 30
XEON = imagine(BLANK, WhatIf(ram=512 * GIB, bandwidth=200e9, isa="avx512", cores=32, vram=0))
CASE = Case(cards()["qwen3-235b-a22b"].index, XEON, PlanRequest(experts="Q8_0", dense="Q8_0", context=4096))


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24G", 24 * GIB),
        ("24GiB", 24 * GIB),
        ("24 g", 24 * GIB),
        ("24GB", 24 * 10**9),
        ("1.5T", 3 << 39),
        ("64M", 1 << 26),
    ],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert quantities.parse_bytes(text, "--ram") == n_bytes


@pytest.mark.parametrize(
    ("text", "rate"), [("400GB/s", 400e9), ("400 gb/s", 400e9), ("25G/s", 25e9), ("1GiB/s", GIB), ("0.5TB/s", 5e11)]
)
def test_rates(text: str, rate: float) -> None:
    assert quantities.parse_rate(text, "--bandwidth") == rate


@pytest.mark.parametrize("text", ["", "G", "-1G", "0", "0G", "24X", "24GB/s", "1e9", "nan", "inf", "24 G B", "9" * 400])
def test_what_is_no_size_is_a_usage_error_naming_the_option(text: str) -> None:
    with pytest.raises(UsageError, match="--ram is") as caught:
        quantities.parse_bytes(text, "--ram")
    assert caught.value.code == 2


@pytest.mark.parametrize("text", ["", "400", "0GB/s", "-5GB/s", "400GB/m", "400X/s", "GB/s", "400GB/s/s"])
def test_what_is_no_rate_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="--pcie is"):
        quantities.parse_rate(text, "--pcie")


def test_tokens_count_in_1024s() -> None:
    assert quantities.parse_tokens("128k", "--context") == 131072
    assert quantities.parse_bytes_or_zero("0", "--vram") == 0


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (WhatIf(isa="sse9"), "unknown ISA tier"),
        (WhatIf(ram_speed=4800), "belong together"),
        (WhatIf(channels=8), "belong together"),
        (WhatIf(bandwidth=1e9, ram_speed=4800, channels=8), "contradicts"),
        (WhatIf(vram=0, gpu="RTX 4090"), "there is none"),
        (WhatIf(pcie=1e9, vram=0), "without a GPU"),
        (WhatIf(pcie=1e9), "without a GPU"),
        (WhatIf(cores=1, sockets=2), "cannot fill"),
    ],
)
def test_contradictions_are_usage_errors(what: WhatIf, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        imagine(BLANK, what)


def test_memory_speed_and_channels_say_bandwidth() -> None:
    one = imagine(BLANK, WhatIf(ram_speed=4800, channels=8))
    assert one.rates is not None
    assert one.rates.stream_read[0].rate.value == pytest.approx(4800e6 * 8 * 8 * 0.8)
    two = imagine(BLANK, WhatIf(ram_speed=4800, channels=8, sockets=2, cores=16))
    assert two.rates is not None
    assert one.rates.stream_read[0].rate.value < two.rates.stream_read[0].rate.value
    assert len(two.cpus) == 32


def test_rates_of_another_cpu_are_dropped_and_the_disks_are_kept() -> None:
    rates = Rates(
        stream_read=(RateAt(16, Measured(1e10, "B/s")),),
        int8_ops=Measured(1e12, "op/s"),
        ssd_read=Measured(3e9, "B/s"),
        kernels=(KernelRate("Q4_0", 1, Measured(1e11, "op/s")),),
    )
    base = replace(BLANK, rates=rates)
    other = imagine(base, WhatIf(cores=64))
    assert other.rates == Rates(ssd_read=rates.ssd_read)
    tier = imagine(base, WhatIf(isa="amx")).rates
    assert tier is not None
    assert (tier.stream_read, tier.int8_ops, tier.kernels) == (rates.stream_read, None, ())
    more = imagine(base, WhatIf(ram=GIB)).rates
    assert more == rates


def test_an_imagined_machine_goes_through_json() -> None:
    machine = imagine(BLANK, WhatIf(ram=GIB, vram=GIB, bandwidth=1e11, pcie=1e10, isa="amx", cores=4, ssd=1e9))
    assert from_json(to_json(machine)) == machine


def test_a_tier_without_kernels_here_says_so() -> None:
    machine = imagine(BLANK, WhatIf(isa="amx"), built=("avx2",))
    assert machine.isa_tier == "amx"
    assert "no kernels for it yet" in machine.isa_reason


def test_advice_is_faster_and_best_first() -> None:
    made = CASE.plan()
    assert made.decode is not None
    found = advice(CASE, made)
    assert found
    assert [c.decode_tps for c in found] == sorted((c.decode_tps for c in found), reverse=True)
    assert all(c.decode_tps > made.decode.likely for c in found)


@pytest.mark.parametrize("wanted", [8.0, 12.0, 20.0])
def test_a_target_is_reached_by_each_change_that_is_named(wanted: float) -> None:
    found = target(CASE, wanted)
    assert found
    assert all(change.decode_tps >= wanted for change in found)
    assert [c.factor for c in found] == sorted(c.factor for c in found)


def test_the_bandwidth_named_for_a_target_is_the_smallest() -> None:
    change = next(c for c in target(CASE, 12.0) if c.option.startswith("--bandwidth"))
    assert change.decode_tps == pytest.approx(12.0, rel=0.02)


def test_a_target_beyond_every_change_has_none() -> None:
    assert target(CASE, 1e6) == ()
    for wanted in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError):
            target(CASE, wanted)


def test_decoding_falls_along_the_context_and_rises_with_bandwidth() -> None:
    by_context = sweep(CASE, "context", 4096, 131072)
    assert [p.value for p in by_context] == [4096 << i for i in range(6)]
    assert [p.decode_tps for p in by_context] == sorted((p.decode_tps for p in by_context), reverse=True)
    by_rate = sweep(CASE, "bandwidth", 1e11, 8e11)
    assert [p.decode_tps for p in by_rate] == sorted(p.decode_tps for p in by_rate)
    by_memory = sweep(CASE, "ram", 64 * GIB, 512 * GIB)
    assert [p.fits for p in by_memory] == sorted(p.fits for p in by_memory)
    assert not by_memory[0].fits


@pytest.mark.parametrize(
    ("name", "low", "high"), [("colour", 1, 2), ("context", 8, 8), ("context", 8, 4), ("ram", 0, 8)]
)
def test_a_sweep_of_nothing_is_a_usage_error(name: str, low: float, high: float) -> None:
    with pytest.raises(UsageError):
        sweep(CASE, name, low, high)


def test_what_does_not_fit_has_a_remedy_that_fits() -> None:
    small = replace(CASE, machine=imagine(XEON, WhatIf(ram=180 * GIB)))
    assert "Q4_0 version fits" in remedy(small)
    fixed: Any = replace(small, request=replace(small.request, experts="Q4_0"))
    assert plan(fixed.index, fixed.machine, fixed.request).fits
    assert remedy(fixed) == ""


def broken_machines() -> list[dict[str, Any]]:
    """A machine file with each of its values, also nested ones, replaced by what does not belong there."""
    machine = imagine(BLANK, WhatIf(ram=64 * GIB, vram=GIB, bandwidth=1e11, pcie=1e10, isa="amx", ssd=1e9))
    kernels = (KernelRate("Q4_0", 1, Measured(1e11, "op/s")),)
    whole = to_json(replace(machine, rates=replace(machine.rates or Rates(), kernels=kernels)))
    text = json.dumps(whole)
    made: list[dict[str, Any]] = []

    def places(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        inner = (
            list(value.items())
            if isinstance(value, dict)
            else list(enumerate(value))
            if isinstance(value, list)
            else []
        )
        return [path, *(found for key, item in inner for found in places(item, (*path, key)))]

    for path in places(json.loads(text), ())[1:]:
        for bad in (0, -1, 1e300, None, [], {}, "", "x", True, float("nan"), float("inf")):
            copy = json.loads(text)
            home = copy
            for key in path[:-1]:
                home = home[key]
            home[path[-1]] = bad
            made.append(copy)
    return made


def test_no_machine_file_ends_in_a_bug() -> None:
    index = cards()["qwen3-30b-a3b"].index
    small = replace(
        index, tensors=tuple(t for t in index.tensors if ".layers." not in t.name or ".layers.1." in t.name)
    )
    planned = 0
    for data in broken_machines():
        try:
            plan(small, from_json(data), PlanRequest(force=True))
            planned += 1
        except HeteroError as error:
            assert error.code in (2, 3)
    assert planned > 20


@pytest.mark.parametrize("request_", [PlanRequest(depth=5000, context=4096), PlanRequest(prompt=5000, context=4096)])
def test_more_tokens_than_the_context_holds_are_a_usage_error(request_: PlanRequest) -> None:
    with pytest.raises(UsageError, match="do not fit in a context"):
        plan(CASE.index, XEON, replace(request_, experts="Q4_0"))

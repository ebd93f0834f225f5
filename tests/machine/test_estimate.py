"""Tokens per second: sums done by hand, what doubling a rate changes, and published figures within their ranges."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.machine import assumptions as assumed
from hetero.machine.plan import plan
from hetero.machine.traffic import attention_products, traffic, with_formats
from hetero.machine.types import Estimate, KernelRate, Machine, Measured, Plan, PlanRequest, RateAt, Rates, UsageError
from hetero.machine.whatif import BLANK, WhatIf, imagine
from hetero.models.card import cards
from tests.machine.test_plan import MACHINE, moe_index

GIB = 1 << 30
MEASURED = Rates(
    stream_read=(RateAt(1, Measured(10e9, "B/s")), RateAt(4, Measured(40e9, "B/s"))),
    gather_read=(RateAt(1, Measured(8e9, "B/s")), RateAt(4, Measured(20e9, "B/s"))),
    int8_ops=Measured(1e12, "op/s"),
    f32_flops=Measured(2e11, "op/s"),
    ssd_read=Measured(2e9, "B/s"),
)
PROBED = replace(MACHINE, rates=MEASURED)


def decode(made: Plan) -> Estimate:
    assert made.decode is not None
    return made.decode


def prefill(made: Plan) -> Estimate:
    assert made.prefill is not None
    return made.prefill


def seconds(found: Estimate, name: str) -> float:
    return sum(t.likely for t in found.terms if t.name == name)


def test_a_token_reads_its_experts_at_the_gather_rate() -> None:
    index = moe_index(n_experts=64)
    found = decode(plan(index, PROBED, PlanRequest(depth=0)))
    # Two layers, two experts of 4096 bytes each, at 85 % of 20 GB/s; too small for arithmetic to matter.
    assert seconds(found, "experts") == pytest.approx(2 * 2 * 4096 / (20e9 * 0.85))
    # (2 x 96) rows x 64 x 2 B at the linear rate, or their products; the tied embedding is the head.
    dense = max(2 * 96 * 64 * 2 / (40e9 * 0.80), 2 * 2 * 96 * 64 / (2e11 * 0.45))
    assert seconds(found, "dense") == pytest.approx(dense)
    assert seconds(found, "overhead") == pytest.approx(2 * assumed.REPEATED_LAYER.likely)


def test_total_is_the_sum_of_the_terms_in_every_column() -> None:
    for made in (plan(moe_index(), PROBED, PlanRequest()), plan(moe_index(), BLANK, PlanRequest())):
        for found in (prefill(made), decode(made)):
            for rate, column in ((found.low, "slow"), (found.likely, "likely"), (found.high, "fast")):
                assert rate == pytest.approx(found.tokens / sum(getattr(t, column) for t in found.terms))
            assert 0 < found.low < found.likely < found.high


def test_twice_the_bandwidth_halves_what_memory_bounds_and_nothing_else() -> None:
    index = cards()["qwen3-235b-a22b"].index
    machine = imagine(BLANK, WhatIf(ram=512 * GIB, bandwidth=200e9, isa="avx512", cores=32))
    slow = decode(plan(index, machine, PlanRequest(experts="Q4_0", dense="Q4_0")))
    fast = decode(plan(index, imagine(machine, WhatIf(bandwidth=400e9)), PlanRequest(experts="Q4_0", dense="Q4_0")))
    assert seconds(fast, "experts") == pytest.approx(seconds(slow, "experts") / 2)
    assert seconds(fast, "overhead") == seconds(slow, "overhead")


def test_measured_rates_are_those_of_the_threads_that_run() -> None:
    index = moe_index(n_experts=64)
    one = decode(plan(index, PROBED, PlanRequest(threads=1, depth=0)))
    all_ = decode(plan(index, PROBED, PlanRequest(depth=0)))
    assert seconds(one, "experts") == pytest.approx(seconds(all_, "experts") * 20 / 8)


def test_a_measured_kernel_goes_before_the_units_rate() -> None:
    kernels = tuple(KernelRate("Q4_0", tokens, Measured(rate, "op/s")) for tokens, rate in ((1, 1e6), (128, 4e6)))
    machine = replace(PROBED, rates=replace(MEASURED, kernels=kernels))
    found = decode(plan(moe_index(), machine, PlanRequest(depth=0)))
    ops = 2 * 2 * 2 * (3 * 32 * 64)  # a multiply-add is two; two layers, two experts of three 32 x 64 matrices
    # What reads hide of the products, and the reads themselves: from the caches, as the model is so small.
    reads = 2 * 2 * 4096 / (20e9 * assumed.CACHED_READ * assumed.MEASURED_READ.likely)
    assert seconds(found, "experts") == pytest.approx(ops / (1e6 * assumed.HIDDEN_OPS.likely) + reads)
    assert found.bound == "arithmetic"


def test_layers_whose_weights_leave_the_caches_cost_more_and_read_from_memory() -> None:
    kernels = tuple(KernelRate("Q4_0", tokens, Measured(1e12, "op/s")) for tokens in (1, 128))
    machine = replace(PROBED, rates=replace(MEASURED, kernels=kernels))
    small, large = (decode(plan(moe_index(), replace(machine, cache_bytes=n), PlanRequest())) for n in (1 << 30, 1))
    assert seconds(small, "cold caches") == 0
    assert seconds(large, "cold caches") == pytest.approx(2 * assumed.CPU_COLD_LAYER.likely)
    assert seconds(large, "experts") > 2 * seconds(small, "experts")


def test_a_prompt_needs_no_experts_of_the_last_layer() -> None:
    made = plan(moe_index(), PROBED, PlanRequest(context=512, prompt=512))
    term = next(t for t in prefill(made).terms if t.name == "experts")
    assert term.amount == pytest.approx(2 * 512 * 2 * 3 * 32 * 64)  # one of two layers, two experts a token


def test_a_longer_context_costs_its_keys_and_values() -> None:
    index = moe_index(kv=100_000)
    near, far = (decode(plan(index, PROBED, PlanRequest(context=4096, depth=depth))) for depth in (1000, 3000))
    assert seconds(far, "attention") == pytest.approx(3 * seconds(near, "attention"))
    by_default = decode(plan(index, PROBED, PlanRequest(context=2000)))
    assert seconds(by_default, "attention") == pytest.approx(seconds(near, "attention"))


def test_a_chunk_touches_most_experts_and_reads_each_once() -> None:
    made = plan(moe_index(n_experts=400), PROBED, PlanRequest(context=512, prompt=512))
    term = next(t for t in prefill(made).terms if t.name == "experts")
    touched = 400 * (1 - (1 - 2 / 400) ** 512)
    assert f"{touched:.0f} of 400 experts touched" in term.formula


def test_experts_that_do_not_fit_come_from_the_disk() -> None:
    index = moe_index(n_experts=200_000)
    small = replace(PROBED, memory_bytes=GIB)
    made = plan(index, small, PlanRequest(context=64, force=True))
    missing = dict(made.missing)["cpu"]
    found = decode(made)
    share = missing / made.ledger[0].bytes
    assert seconds(found, "experts from disk") == pytest.approx(2 * 2 * 4096 * share / (2e9 * 0.8))


def test_formats_that_are_asked_for_change_bytes_and_time() -> None:
    index = moe_index("BF16", n_experts=400)
    before, after = (plan(index, PROBED, PlanRequest(experts=fmt)) for fmt in (None, "Q4_0"))
    assert after.ledger[0].bytes < 0.5 * before.ledger[0].bytes
    assert decode(after).likely > decode(before).likely
    odd = tuple(replace(t, shape=(t.shape[0], 24, 24)) if t.role == "expert" else t for t in index.tensors)
    with pytest.raises(UsageError, match="Q4_0 cannot hold"):
        plan(replace(index, tensors=odd), PROBED, PlanRequest(experts="Q4_0"))


def test_reserve_is_left_alone_on_every_device() -> None:
    fits = plan(moe_index(), MACHINE, PlanRequest())
    spare = MACHINE.memory_bytes - fits.total_bytes
    assert plan(moe_index(), MACHINE, PlanRequest(reserve=spare)).fits
    assert not plan(moe_index(), MACHINE, PlanRequest(reserve=spare + 1, context=fits.context, force=True)).fits


def test_calibration_scales_the_rates_and_is_told() -> None:
    before = plan(moe_index(), PROBED, PlanRequest())
    after = plan(moe_index(), PROBED, PlanRequest(calibration=(2.0, 0.5)))
    assert prefill(after).likely == pytest.approx(2 * prefill(before).likely)
    assert decode(after).high == pytest.approx(0.5 * decode(before).high)
    assert any("prefill x 2.00, decode x 0.50" in note for note in after.notes)


def test_a_gpu_takes_the_dense_part_and_the_links_are_counted() -> None:
    machine = imagine(PROBED, WhatIf(vram=24 * GIB, pcie=10e9))
    found = decode(plan(moe_index(), machine, PlanRequest()))
    assert {t.device for t in found.terms if t.name in ("dense", "attention")} == {"cuda"}
    assert seconds(found, "PCIe") > 4 * assumed.TRANSFER.likely


def test_spare_gpu_memory_is_told_in_experts() -> None:
    machine = imagine(PROBED, WhatIf(vram=GIB))
    made = plan(moe_index(n_experts=1_000_000 // 8), replace(machine, memory_bytes=64 * GIB), PlanRequest())
    assert made.hot_experts is not None
    assert 0 < made.hot_experts.share < 1
    on_gpu = sum(line.bytes for line in made.ledger if line.device == "cuda")
    assert on_gpu + made.hot_experts.bytes <= GIB < on_gpu + made.hot_experts.bytes + 4096


def test_dense_traffic_counts_the_embedding_only_as_a_head() -> None:
    tied = traffic(moe_index())
    assert tied.head["BF16"].parameters == 160 * 64
    assert tied.dense["BF16"].parameters == 2 * 96 * 64
    quantised = traffic(with_formats(moe_index(), None, "Q8_0"))
    assert set(quantised.dense) == {"Q8_0"}


# Published points. Each is (what was published, model, formats, machine): the range must hold it, and the likely
# value must be within the stated factor. docs/planning.md says why the larger differences are there.
XEON_AMX = WhatIf(ram=512 * GIB, vram=24 * GIB, bandwidth=400e9, pcie=25e9, isa="amx", cores=36)
DUAL_6454S = WhatIf(ram=1024 * GIB, gpu="RTX 4090", vram=24 * GIB, isa="amx", cores=32, sockets=2, ram_speed=4800)
DUAL_6454S = replace(DUAL_6454S, channels=8)
ONE_6454S = replace(DUAL_6454S, sockets=1, isa="avx512")
DUAL_9355 = WhatIf(ram=1024 * GIB, gpu="RTX 5090", vram=32 * GIB, isa="avx512", cores=32, sockets=2, ram_speed=6000)
DUAL_9355 = replace(DUAL_9355, channels=12)
DUAL_8488C = replace(DUAL_6454S, cores=48, vram=48 * GIB, isa="avx512")
XEON_6960P = WhatIf(ram=1024 * GIB, gpu="RTX PRO 6000", vram=96 * GIB, isa="avx512", cores=72, ram_speed=8800)
XEON_6960P = replace(XEON_6960P, channels=12)
EPYC_9135 = WhatIf(ram=768 * GIB, vram=0, isa="avx512", cores=16, ram_speed=5600, channels=12)


def planned(card: str, fmt: str | None, what: WhatIf, prompt: int = 512) -> Plan:
    machine: Machine = imagine(BLANK, what)
    request = PlanRequest(experts=fmt, dense=fmt, context=4096, prompt=prompt, depth=512, force=True)
    return plan(cards()[card].index, machine, request)


@pytest.mark.parametrize(
    ("published", "card", "fmt", "what", "factor"),
    [
        (12.2, "deepseek-r1", "Q4_K", DUAL_6454S, 1.25),
        (8.7, "deepseek-r1", "Q4_K", ONE_6454S, 1.25),
        (32.1, "minimax-m2", "FP8_E4M3", DUAL_9355, 1.35),
        (21.8, "minimax-m2", "FP8_E4M3", DUAL_8488C, 1.25),
        (9.5, "kimi-k2.6", None, XEON_6960P, 1.45),
        (17.0, "deepseek-r1", "Q4_K", replace(XEON_6960P, vram=24 * GIB, gpu="RTX 4090", cores=64), 1.35),
        (7.17, "deepseek-r1", "Q8_0", EPYC_9135, 1.25),
    ],
)
def test_published_decode_rates(published: float, card: str, fmt: str | None, what: WhatIf, factor: float) -> None:
    found = decode(planned(card, fmt, what))
    assert found.low <= published <= found.high
    assert published / factor <= found.likely <= published * factor


@pytest.mark.parametrize(
    ("published", "card", "fmt", "what", "prompt"),
    [
        (255.0, "deepseek-r1", "Q8_0", DUAL_6454S, 2048),
        (347.0, "qwen3-235b-a22b", "Q8_0", DUAL_6454S, 512),
        (408.0, "minimax-m2", "FP8_E4M3", DUAL_9355, 2048),
    ],
)
def test_published_prefill_rates_are_within_the_range(
    published: float, card: str, fmt: str, what: WhatIf, prompt: int
) -> None:
    found = prefill(planned(card, fmt, what, prompt))
    assert found.low <= published <= found.high


def test_one_xeon_of_400_gb_s_with_amx_and_a_consumer_gpu_runs_deepseek_r1() -> None:
    made = planned("deepseek-r1", "Q4_0", XEON_AMX, 2048)
    assert made.placement.dense == "cuda"
    assert decode(made).likely >= 20
    assert decode(made).ceiling == pytest.approx(35, rel=0.03)
    assert prefill(made).likely >= 500
    assert prefill(made).low < 500 < prefill(made).high


def test_a_machine_without_enough_memory_is_bound_by_its_disk() -> None:
    made = planned("deepseek-r1", "Q4_0", replace(XEON_AMX, ram=128 * GIB, ssd=6e9))
    assert not made.fits
    assert decode(made).bound == "SSD"
    assert decode(made).likely < 1


def test_sparse_attention_reads_what_is_chosen_and_the_indexers_keys() -> None:
    index = cards()["glm-5.1"].index
    made, latent, key, top = traffic(index), 78 * 576, 78 * 128, 2048
    assert (index.attended, index.index_elements) == (top, key)
    assert index.cache_read(top) == top * latent
    assert index.cache_read(100_000) == top * latent + 100_000 * key
    assert made.index_width == 78 * 32 * 128
    few, many = (sum(max(0, n - top > 0) * n for n in range(end + 1)) for end in (top, 3000))
    assert attention_products(index, made, 0, top) == made.query_width * top * (top + 1) // 2
    seen = sum(min(n, top) for n in range(1, 3001))
    assert attention_products(index, made, 0, 3000) == made.query_width * seen + made.index_width * (many - few)
    assert index.pairs(2900, 100) == (100 * top, sum(range(2901, 3001)))
    assert replace(index, attended=0).pairs(2900, 100) == (sum(range(2901, 3001)), 0)

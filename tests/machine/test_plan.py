"""The plan: a ledger checked against sums done by hand, and refusals before anything is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hetero.machine.plan import PREFILL_CHUNK, plan
from hetero.machine.types import (
    HardwareError,
    LedgerLine,
    Machine,
    ModelError,
    ModelIndex,
    PlanRequest,
    TensorInfo,
    UsageError,
)

GIB = 1 << 30
MIB = 1 << 20
HIDDEN, INTER, VOCAB, EXPERTS, LAYERS, TOP_K = 64, 32, 160, 4, 2, 2
MLA_KV = LAYERS * (512 + 64)

MACHINE = Machine(
    cpu_model="fixture",
    cpus=(0, 2, 4, 6),
    visible_cpus=12,
    cpu_reason="4 of 8 cores usable (performance cores 0-7, /sys/devices/cpu_core/cpus)",
    memory_bytes=8 * GIB,
    memory_total_bytes=16 * GIB,
    memory_reason="8.0 GiB of 16.0 GiB usable (MemAvailable in /proc/meminfo)",
    tiers=(),
    isa_tier="generic",
    spare_cpus=(8, 9, 10, 11),
)


def moe_index(
    experts: str = "Q4_0", dense: str = "BF16", n_experts: int = EXPERTS, kv: int = MLA_KV, max_context: int = 4096
) -> ModelIndex:
    """Two layers of attention (q only) and routed experts, a tied head."""
    tensors = [TensorInfo("model.embed_tokens.weight", (VOCAB, HIDDEN), dense, 0, "dense")]
    for layer in range(LAYERS):
        base = f"model.layers.{layer}"
        shapes = {"gate": (n_experts, INTER, HIDDEN), "up": (n_experts, INTER, HIDDEN)}
        shapes["down"] = (n_experts, HIDDEN, INTER)
        tensors += [TensorInfo(f"{base}.mlp.experts.{k}.weight", v, experts, 0, "expert") for k, v in shapes.items()]
        tensors += [
            TensorInfo(f"{base}.self_attn.q_proj.weight", (96, HIDDEN), dense, 0, "dense"),
            TensorInfo(f"{base}.mlp.gate.weight", (n_experts, HIDDEN), "BF16", 0, "small"),
            TensorInfo(f"{base}.input_layernorm.weight", (HIDDEN,), "F32", 0, "small"),
        ]
    return ModelIndex("tiny", "test", tuple(tensors), LAYERS, HIDDEN, VOCAB, max_context, n_experts, TOP_K, kv)


def test_ledger_equals_the_sums_done_by_hand() -> None:
    ledger = plan(moe_index(), MACHINE, PlanRequest(context=1000)).ledger
    # Q4_0: a block of 16 rows x 32 inputs is 256 B of codes and 32 B of fp16 scales; tiles are padded to 64 B,
    # an expert to 4096 B. gate and up: 2 tiles x 2 blocks; down: 4 tiles x 1 block (288 -> 320 B).
    expert = 2 * (2 * 2 * 288) + 4 * 320
    assert expert == 3584
    # (160 + 2 x 96) rows x 64 x 2 B; router and norm of two layers as float32.
    dense, small = 352 * 64 * 2, 2 * 4 * (4 * 64 + 64)
    # 1000 tokens are 16 pages of 64, two bytes each of 2 x (512 + 64) values.
    kv = 1024 * 1152 * 2
    # 512 tokens x (4 hidden + 4 router scores as float32), half as much again and a bit for gaps; the kernels' codes of
    # one hidden and two gated vectors (1.5 bytes a value and 64) with 8 bytes to sort each route; a row of logits.
    live = 512 * 4 * (4 * 64 + 4)
    scratch = 512 * (1.5 * 64 + 64 + 2 * (1.5 * 32 + 64 + 8))
    activations = live + int(0.55 * live) + int(scratch) + 4 * 160
    # The libraries, a tokenizer of 160 tokens, and half a huge page for each layer's experts.
    framework = 258 * MIB + 800 * 160 + 2 * MIB
    assert ledger == (
        LedgerLine("cpu", "experts", 2 * 4 * 4096, "file"),
        LedgerLine("cpu", "dense", dense, "file"),
        LedgerLine("cpu", "small", small, "file"),
        LedgerLine("cpu", "kv cache", kv, "file"),
        LedgerLine("cpu", "activations", activations, "assumed"),
        LedgerLine("cpu", "attention", 4 * MIB, "assumed"),
        LedgerLine("cpu", "framework", framework, "assumed"),
    )


def test_every_expert_counts_not_only_the_active_ones() -> None:
    few, many = (plan(moe_index(n_experts=n), MACHINE, PlanRequest()).ledger[0].bytes for n in (4, 400))
    assert many == 100 * few


def test_embedding_is_counted_once_and_an_own_head_once_more() -> None:
    tied = moe_index()
    head = TensorInfo("lm_head.weight", (VOCAB, HIDDEN), "BF16", 0, "dense")
    untied = replace(tied, tensors=(*tied.tensors, head))
    before, after = (plan(index, MACHINE, PlanRequest()).ledger[1].bytes for index in (tied, untied))
    assert after - before == VOCAB * HIDDEN * 2


def test_rows_for_amx_tiles_are_counted_with_each_thread_s_copies() -> None:
    amx = replace(MACHINE, isa_tier="amx")
    one, two = (
        {line.part: line.bytes for line in plan(moe_index(), amx, PlanRequest(threads=n)).ledger} for n in (1, 2)
    )
    assert two["tile rows"] - one["tile rows"] == 256 * 2 * (HIDDEN + 32)
    assert one["tile rows"] > (PREFILL_CHUNK + 256) * 2 * HIDDEN
    assert all(line.part != "tile rows" for line in plan(moe_index(), MACHINE, PlanRequest()).ledger)


def test_expert_without_its_companions_is_a_model_error() -> None:
    index = moe_index()
    broken = replace(index, tensors=tuple(t for t in index.tensors if not t.name.endswith("1.mlp.experts.up.weight")))
    with pytest.raises(ModelError, match="no companion"):
        plan(broken, MACHINE, PlanRequest())


@pytest.mark.parametrize(
    ("experts", "dense", "wanted", "chosen"),
    [
        ("F32", "F32", "auto", "f32"),
        ("Q4_0", "F32", "auto", "bf16"),
        ("Q4_0", "BF16", "f16", "f16"),
        ("Q4_0", "BF16", "q8", "q8"),
    ],
)
def test_kv_type(experts: str, dense: str, wanted: str, chosen: str) -> None:
    made = plan(moe_index(experts, dense), MACHINE, PlanRequest(kv_dtype=wanted, context=64))
    assert made.kv_dtype == chosen
    assert made.ledger[3].bytes == 64 * MLA_KV * {"f32": 4, "q8": 34 / 32}.get(chosen, 2)


def test_what_is_asked_of_the_kernels_is_in_the_plan() -> None:
    assert plan(moe_index(), MACHINE, PlanRequest(deterministic=True)).deterministic
    assert not plan(moe_index(), MACHINE, PlanRequest()).deterministic


def test_context_defaults_to_the_models_or_8192() -> None:
    assert plan(moe_index(max_context=4000), MACHINE, PlanRequest()).context == 4000
    assert plan(moe_index(max_context=131072), MACHINE, PlanRequest()).context == 8192


def room_for(index: ModelIndex, context: int) -> Machine:
    """A machine with just the memory that `context` tokens need."""
    needed = plan(index, MACHINE, PlanRequest(context=context)).total_bytes
    return replace(MACHINE, memory_bytes=needed, memory_reason="the test's limit")


def test_default_context_shrinks_to_what_fits_and_says_so() -> None:
    index = moe_index(kv=10_000)
    made = plan(index, room_for(index, 3008), PlanRequest())
    assert (made.context, made.fits) == (3008, True)
    assert any("context 3008 instead of 4096" in note for note in made.notes)


def test_context_asked_for_that_does_not_fit_is_refused_with_the_one_that_does() -> None:
    index = moe_index(kv=10_000)
    with pytest.raises(HardwareError) as caught:
        plan(index, room_for(index, 3008), PlanRequest(context=4096))
    assert caught.value.code == 3
    assert "the test's limit" in caught.value.message
    assert "MiB of memory" in caught.value.message
    assert caught.value.hint == "--context 3008 fits"


def test_refusal_names_the_quantisation_that_fits() -> None:
    index = moe_index("BF16", n_experts=20_000)
    with pytest.raises(HardwareError) as caught:
        plan(index, room_for(moe_index("Q8_0", n_experts=20_000), 4096), PlanRequest())
    assert "Q8_0 version fits" in caught.value.hint
    assert "--experts q8" in caught.value.hint


def test_refusal_suggests_no_quantisation_that_the_widths_do_not_allow() -> None:
    index = moe_index("BF16", n_experts=20_000)
    odd = tuple(replace(t, shape=(t.shape[0], 24, 24)) if t.role == "expert" else t for t in index.tensors)
    with pytest.raises(HardwareError) as caught:
        plan(replace(index, tensors=odd), replace(MACHINE, memory_bytes=370 * MIB), PlanRequest())
    assert "--experts" not in caught.value.hint


def test_hopeless_case_names_the_missing_bytes() -> None:
    with pytest.raises(HardwareError, match="tiny does not fit") as caught:
        plan(moe_index(), replace(MACHINE, memory_bytes=100 * MIB), PlanRequest())
    assert "free 1" in caught.value.hint
    assert "--force" in caught.value.hint


def test_force_turns_the_refusal_into_a_note() -> None:
    made = plan(moe_index(), replace(MACHINE, memory_bytes=100 * MIB), PlanRequest(force=True))
    assert not made.fits
    assert made.notes[-1].startswith("needs ")
    assert "of memory" in made.notes[-1]


def test_context_beyond_the_models_needs_force() -> None:
    with pytest.raises(UsageError, match="4096"):
        plan(moe_index(), MACHINE, PlanRequest(context=5000))
    assert plan(moe_index(), MACHINE, PlanRequest(context=5000, force=True)).context == 5000


@pytest.mark.parametrize(
    ("threads", "cpus"), [(None, (0, 2, 4, 6)), (1, (0,)), (4, (0, 2, 4, 6)), (6, (0, 2, 4, 6, 8, 9))]
)
def test_threads_take_usable_cores_first(threads: int | None, cpus: tuple[int, ...]) -> None:
    made = plan(moe_index(), MACHINE, PlanRequest(threads=threads))
    assert made.cpus == cpus
    assert made.threads == len(cpus)
    assert any("performance cores" in note for note in made.notes) == (len(cpus) > 4)


@pytest.mark.parametrize("threads", [0, -1, 9])
def test_impossible_thread_counts_are_usage_errors(threads: int) -> None:
    with pytest.raises(UsageError, match="threads"):
        plan(moe_index(), MACHINE, PlanRequest(threads=threads))


@pytest.mark.parametrize("request_", [PlanRequest(device="tpu"), PlanRequest(kv_dtype="q3"), PlanRequest(context=0)])
def test_unknown_words_are_usage_errors(request_: PlanRequest) -> None:
    with pytest.raises(UsageError):
        plan(moe_index(), MACHINE, request_)


def test_cuda_without_a_usable_gpu_is_refused_with_the_reason() -> None:
    broken = replace(MACHINE, gpu_reason="NVIDIA GPU present (PCI 0000:01:00.0) but unusable: Error 804")
    with pytest.raises(HardwareError, match="Error 804") as caught:
        plan(moe_index(), broken, PlanRequest(device="cuda"))
    assert "--device cpu" in caught.value.hint


def test_gpu_takes_the_dense_parts_and_leaves_the_experts() -> None:
    with_gpu = replace(MACHINE, gpus=("Fixture GPU",), gpu_memory_bytes=(24 * GIB,))
    made = plan(moe_index(), with_gpu, PlanRequest())
    assert (made.placement.dense, made.placement.experts) == ("cuda", "cpu")
    on_cpu = {line.part: line.bytes for line in made.ledger if line.device == "cpu"}
    assert set(on_cpu) == {"experts", "framework", "dense, packed"}
    assert on_cpu["dense, packed"] == next(line.bytes for line in made.ledger if line.part == "dense")
    assert plan(moe_index(), with_gpu, PlanRequest(device="cpu")).placement.dense == "cpu"


def test_small_gpu_is_passed_over_by_auto_and_refused_when_asked_for() -> None:
    small = replace(MACHINE, gpus=("Fixture GPU",), gpu_memory_bytes=(100 * MIB,))
    made = plan(moe_index(), small, PlanRequest())
    assert made.placement.dense == "cpu"
    assert any("GPU memory" in note for note in made.notes)
    with pytest.raises(HardwareError, match="cuda memory"):
        plan(moe_index(), small, PlanRequest(device="cuda"))


def test_no_kernels_is_a_hardware_error_with_the_reason() -> None:
    with pytest.raises(HardwareError, match="no compiler"):
        plan(moe_index(), replace(MACHINE, isa_tier=None, isa_reason="no compiler"), PlanRequest())


@pytest.mark.parametrize(("cuda", "expected"), [(False, 258 * MIB), (True, 736 * MIB)])
def test_the_libraries_of_a_torch_with_cuda_are_counted_even_on_the_cpu(cuda: bool, expected: int) -> None:
    machine = replace(MACHINE, torch_cuda=cuda, gpus=())
    parts = {line.part: line.bytes for line in plan(moe_index(), machine, PlanRequest()).ledger}
    assert parts["framework"] == expected + 800 * VOCAB + LAYERS * MIB

"""Dense parts in torch with experts on the CPU, and every ISA tier, agree with the native run."""

import numpy as np
import pytest
import torch

from hetero.engine import Engine, Sampling, Token
from hetero.engine.attention import NativeAttention, TorchAttention
from hetero.engine.owners import TorchOwner
from hetero.machine.plan import plan as make_plan
from hetero.machine.probe import probe
from hetero.machine.types import PlanRequest
from hetero.models.load import load_model, open_model
from hetero.native import Kernels, cpu_tiers
from tests.engine.reference import relative
from tests.tiny import tiny_gguf, tiny_hf
from tests.tiny_moe import MOE_FAMILIES

IDS = np.random.default_rng(0).integers(0, 256, 150).tolist()
SHORT = Sampling(max_tokens=12, ignore_eos=True)


def tokens(engine):
    return [e.id for e in engine.generate(IDS[:40], SHORT, reuse=False) if isinstance(e, Token)]


def two_owners(path, dtype, kv_dtype="auto"):
    """An engine whose dense parts belong to torch and whose experts belong to the native kernels, both on the CPU."""
    source = open_model(path)
    plan = make_plan(source.index, probe(device="cpu"), PlanRequest("cpu", 2, 256, kv_dtype))
    model = load_model(source, Kernels(plan.isa_tier))
    engine = Engine(model, plan, TorchOwner(model, torch.device("cpu"), dtype))
    engine._runtime.attention = TorchAttention(engine._kv)
    return engine


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v2_lite", "deepseek_v3", "glm4_moe"])
def test_torch_and_native_owners_agree_in_exact_mode(family, tmp_path):
    path = tiny_hf(family, tmp_path)
    native, split = Engine.load(path, device="cpu", threads=2), two_owners(path, torch.float32)
    try:
        assert isinstance(native._runtime.attention, NativeAttention)
        assert relative(split.logits(IDS), native.logits(IDS)) < 1e-4
        assert tokens(split) == tokens(native)
    finally:
        native.close()
        split.close()


@pytest.mark.parametrize("family", [*sorted(MOE_FAMILIES), "deepseek_v4", "qwen3_5"])
def test_torch_owners_have_the_later_families(family, tmp_path):
    path = tiny_hf(family, tmp_path)
    native, split = Engine.load(path, device="cpu", threads=2), two_owners(path, torch.float32)
    try:
        assert relative(split.logits(IDS), native.logits(IDS)) < 1e-4
    finally:
        native.close()
        split.close()


@pytest.mark.parametrize("arch", ["qwen3moe", "deepseek2"])
def test_owners_of_quantised_models_differ_by_the_rounding_of_activations_only(arch, tmp_path):
    path = tiny_gguf(arch, tmp_path / "m.gguf", type="Q8_0")
    native, split = Engine.load(path, device="cpu", threads=2), two_owners(path, torch.float32)
    try:
        difference = split.logits(IDS) - native.logits(IDS)
        assert 0 < np.sqrt((difference**2).mean()) < 0.1 * native.logits(IDS).std()
    finally:
        native.close()
        split.close()


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "f16", "q8"])
def test_the_cache_type_costs_what_its_rounding_costs(kv_dtype, tmp_path):
    path = tiny_hf("qwen3_moe", tmp_path)
    exact, other = (Engine.load(path, device="cpu", threads=2, kv_dtype=d) for d in ("f32", kv_dtype))
    try:
        limit = {"f32": 1e-6, "f16": 2e-2, "bf16": 2e-1, "q8": 5e-2}[kv_dtype]
        assert relative(other.logits(IDS), exact.logits(IDS)) < limit
    finally:
        exact.close()
        other.close()


@pytest.mark.parametrize("fmt", ["F32", "Q4_0", "Q6_K"])
def test_every_usable_tier_gives_the_same_model(fmt, tmp_path, monkeypatch):
    path = tiny_gguf("qwen3moe", tmp_path / "m.gguf", type=fmt)
    results = {}
    for tier in (t.name for t in cpu_tiers() if t.built and t.usable):
        monkeypatch.setenv("HETERO_ISA", tier)
        engine = Engine.load(path, device="cpu", threads=2)
        assert engine.plan.isa_tier == tier
        results[tier] = engine.logits(IDS[:60])
        engine.close()
    assert "generic" in results
    for found in results.values():
        assert np.median(np.abs(found - results["generic"])) < 1e-4 * results["generic"].std()


@pytest.mark.parametrize("arch", ["qwen3moe", "deepseek2"])
@pytest.mark.parametrize(("fmt", "kv_dtype"), [("F32", "auto"), ("Q8_0", "auto"), ("Q8_0", "q8")])
def test_a_tokens_bits_do_not_depend_on_the_size_of_a_chunk(arch, fmt, kv_dtype, tmp_path, monkeypatch):
    """One token at a time is what decoding does."""
    monkeypatch.setenv("HETERO_DETERMINISTIC", "1")
    path = tiny_gguf(arch, tmp_path / "m.gguf", type=fmt)
    engine = Engine.load(path, device="cpu", threads=2, kv_dtype=kv_dtype)
    try:
        whole = engine.logits(IDS)
        for chunk in (1, 7, 64, 100):
            monkeypatch.setattr(engine._schedule, "_chunk", chunk)
            assert np.array_equal(engine.logits(IDS), whole)
    finally:
        engine.close()

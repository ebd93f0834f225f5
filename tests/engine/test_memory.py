"""What a loaded model holds is what the plan's ledger says, part by part."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hetero.engine import Engine
from hetero.models import demo
from hetero.models.convert import convert
from hetero.native import Kernels, choose_tier
from tests.tiny import FAMILIES, tiny_hf
from tests.tiny_gguf import tiny_gguf

MIB = 1 << 20


def assert_held_as_planned(path: Path) -> None:
    with contextlib.closing(Engine.load(path, device="cpu", threads=2, context=256)) as engine:
        planned = {line.part: line.bytes for line in engine.plan.ledger}
        for part, held in engine.held_bytes().items():
            wanted = planned.get(part, 0)
            assert abs(held - wanted) <= max(0.05 * wanted, MIB // 2), (part, held, wanted)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_holds_what_its_ledger_says(family: str, tmp_path: Path) -> None:
    assert_held_as_planned(tiny_hf(family, tmp_path))


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "deepseek2"])
def test_gguf_models_hold_what_their_ledger_says(arch: str, tmp_path: Path) -> None:
    assert_held_as_planned(tiny_gguf(arch, tmp_path / "m.gguf", type="Q4_K"))


def test_a_checkpoint_and_its_store_hold_what_the_ledger_says(tmp_path: Path) -> None:
    assert_held_as_planned(demo.path())
    kernels = Kernels(choose_tier(None))
    assert_held_as_planned(convert(Path(demo.path()), tmp_path / "demo.hetero", kernels=kernels).path)

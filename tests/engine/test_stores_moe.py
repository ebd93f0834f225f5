"""Stores of Mixtral and the families after it give the very logits of the checkpoints they were made from."""

import numpy as np
import pytest

from hetero.engine import Engine
from hetero.models.convert import convert
from hetero.native import Kernels, choose_tier
from tests.moe_gguf import gguf_of
from tests.tiny import tiny_hf
from tests.tiny_moe import MOE_FAMILIES

IDS = np.random.default_rng(4).integers(0, 400, 90).tolist()


def logits(path):
    engine = Engine.load(path, device="cpu", threads=2, context=128, kv_dtype="f32")
    try:
        return engine.logits(IDS)
    finally:
        engine.close()


FROM_GGUF = ["bailing_moe_v2", "gpt_oss", "mixtral"]  # q, k and v in one tensor; biases and sinks; permuted q and k


@pytest.mark.parametrize(
    ("family", "kind"), [(f, "safetensors") for f in sorted(MOE_FAMILIES)] + [(f, "gguf") for f in FROM_GGUF]
)
def test_a_store_gives_the_checkpoints_logits(family, kind, tmp_path):
    source = tiny_hf(family, tmp_path)
    source = gguf_of(source, tmp_path / "model.gguf") if kind == "gguf" else source
    report = convert(source, tmp_path / "model.hetero", kernels=Kernels(choose_tier(None)))
    assert np.array_equal(logits(report.path), logits(source))

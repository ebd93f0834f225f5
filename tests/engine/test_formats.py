"""Every weight format of GGUF files from the file to the logits, against llama.cpp on the same file.

Both round activations to 8 bits, in their own ways (llama.cpp's per 256 for K-quants moves these logits by 5 %), and a
route that is nearly undecided may then go the other way. Wrongly decoded weights would give other logits altogether.
"""

import numpy as np
import pytest

from hetero.engine import Engine
from hetero.models.iquants import FOREIGN
from tests.engine.llamacpp import LlamaCpp
from tests.models.gguf_maker import ALL_FORMATS, REPACKED, Shape, write


@pytest.mark.parametrize("fmt", [*ALL_FORMATS, *REPACKED])
def test_logits_are_those_of_llama_cpp_but_for_the_rounding_of_activations(fmt, tmp_path):
    path = write(tmp_path / "m.gguf", Shape(gate=fmt, up=fmt, down=fmt, dense=fmt, seed=3))
    ids = np.random.default_rng(0).integers(0, 256, 40).tolist()
    engine, peer = Engine.load(path, device="cpu", threads=2, context=64, kv_dtype="f32"), LlamaCpp(path)
    try:
        found, expected = engine.logits(ids), peer.logits(ids)
    finally:
        engine.close()
        peer.close()
    far = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.median(far) <= 0.1 + (2 * FOREIGN[fmt].loss if fmt in FOREIGN else 0)

"""The same GGUF file in llama.cpp: equal argmax wherever it is clear, teacher-forced and running free.

Quantised weights make llama.cpp round activations, and then it does not agree with itself: with its default attention
and with float32 attention, SmolLM2 in Q4_1 gives logits that differ by 0.2 rms, and greedy texts part after 1 to 40
tokens. So the strict comparison is on float32 copies of the files; on the files as shipped, hetero must be no farther
from llama.cpp than llama.cpp is from itself.
"""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize

from hetero.engine import Engine, Sampling, Token
from hetero.models import demo
from tests.engine.llamacpp import LlamaCpp
from tests.models.text.oracle import smollm_path
from tests.tiny import tiny_gguf

QUESTIONS = ["What is a mixture of experts?", "Tell me a short story.", "What does hetero probe do?"]
LENGTH = 100


def float_copy(source: Path, target: Path) -> Path:
    """The same model with every quantised tensor as F32, through the gguf package."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture", "general.quantization", "general.file_type")):
            sub = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        plain = tensor.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
        data = tensor.data if plain else dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(data, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.fixture(scope="module", params=["demo", "smollm2"])
def trained(request):
    return demo.path() if request.param == "demo" else smollm_path()


@pytest.fixture(scope="module")
def trained_f32(trained, tmp_path_factory):
    return float_copy(trained, tmp_path_factory.mktemp("f32") / "model.gguf")


def load(path):
    return Engine.load(path, device="cpu", threads=2, context=256, kv_dtype="f32")


def chat_ids(engine, question):
    return engine.text.encode_chat([{"role": "user", "content": question}]).ids


def excused(engine, peer, ids):
    """Teacher-force hetero on llama.cpp's own text; the share of positions whose gap is below 4 x max difference."""
    text = ids + peer.greedy(ids, LENGTH)
    expected, found = peer.logits(text)[len(ids) - 1 :], engine.logits(text)[len(ids) - 1 :]
    difference = float(np.abs(found - expected).max())
    top = np.sort(expected, axis=1)
    clear = top[:, -1] - top[:, -2] > 4 * difference
    assert np.array_equal(found.argmax(1)[clear], expected.argmax(1)[clear])
    print(f"max |difference| {difference:.2e}, {1 - clear.mean():.1%} of positions excused")
    return 1 - clear.mean()


@pytest.mark.parametrize("fmt", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "deepseek2"])
def test_tiny_models_agree_at_every_clear_position(arch, fmt, tmp_path):
    source = tiny_gguf(arch, tmp_path / f"{arch}.gguf", type=fmt)
    path = source if fmt == "F32" else float_copy(source, tmp_path / "f32.gguf")
    engine, peer = load(path), LlamaCpp(path)
    try:
        assert excused(engine, peer, np.random.default_rng(0).integers(0, 256, 40).tolist()) <= 0.05
    finally:
        engine.close()
        peer.close()


def test_trained_models_agree_teacher_forced(trained_f32):
    engine, peer = load(trained_f32), LlamaCpp(trained_f32)
    try:
        for question in QUESTIONS:
            assert excused(engine, peer, chat_ids(engine, question)) <= 0.05
    finally:
        engine.close()
        peer.close()


def test_trained_models_agree_running_free_for_100_tokens(trained_f32):
    engine, peer = load(trained_f32), LlamaCpp(trained_f32)
    try:
        for question in QUESTIONS:
            ids = chat_ids(engine, question)
            events = engine.generate(ids, Sampling(max_tokens=LENGTH, ignore_eos=True))
            assert [e.id for e in events if isinstance(e, Token)] == peer.greedy(ids, LENGTH)
    finally:
        engine.close()
        peer.close()


def test_as_shipped_hetero_is_no_farther_from_llama_cpp_than_llama_cpp_is_from_itself(trained):
    engine, peer, itself = load(trained), LlamaCpp(trained), LlamaCpp(trained, float_attention=False)
    try:
        ours, own = [], []
        for question in QUESTIONS:
            ids = chat_ids(engine, question)
            excused(engine, peer, ids)
            text = ids + peer.greedy(ids, LENGTH)
            expected = peer.logits(text)
            ours.append(rms(engine.logits(text) - expected))
            own.append(rms(itself.logits(text) - expected))
        print(f"rms from llama.cpp: hetero {ours}, llama.cpp {own}")
        assert np.mean(ours) <= 1.25 * np.mean(own)
    finally:
        for one in (engine, peer, itself):
            one.close()


def rms(x):
    return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))

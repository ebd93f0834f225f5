"""Tokens are llama.cpp's, for a real vocabulary, for every kind of pre-tokenizer and for scored vocabularies."""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hetero.models.checkpoint import open_checkpoint
from hetero.models.text import load_text
from hetero.models.text.bpe_gguf import known_pretokenizers, pretokenizer
from hetero.models.text.pieces import byte_characters
from tests.models.text.lines import mixed_lines
from tests.models.text.oracle import LlamaCpp, smollm_metadata, smollm_path, write_vocab

LINES = mixed_lines(300, seed=3)
MANY = mixed_lines(1500, seed=3)

_CASED = "llama.cpp cannot tell upper from lower case nor marks outside ASCII; the model's own pattern, used here, can"
_SPACES = "llama.cpp takes every space outside ASCII for a vertical tab; in the model's own pattern it is a symbol"
APPROXIMATED_THERE = {
    "gpt-4o": _CASED,
    "llama4": _CASED,
    "minimax-m2": _CASED,
    "kanana2": _CASED,
    "talkie": _CASED,
    "tekken": _CASED,
    "kimi-k2": _CASED + "; nor does it cut before a capital inside a word",
    "youtu": _CASED,
    "deepseek-llm": _SPACES,
    "deepseek-coder": _SPACES,
}


def comparable(kind: str, line: str) -> bool:
    """Whether llama.cpp applies the kind's true pattern to a line."""
    reason = APPROXIMATED_THERE.get(kind)
    if reason is None:
        return True
    if kind == "kimi-k2" and re.search("[a-z][A-Z]", line):
        return False
    others = [char for char in line if ord(char) > 127]
    if any(char.isspace() for char in others) and kind not in ("gpt-4o", "tekken", "kimi-k2"):
        return False
    return reason == _SPACES or not any(unicodedata.category(char)[0] in "LM" for char in others)


@pytest.fixture(scope="module")
def pair_vocabulary() -> dict[str, Any]:
    """Every byte and every pair of bytes is a token: a word cut elsewhere always shows in the ids."""
    chars = sorted(byte_characters(), key=lambda char: byte_characters()[char])
    used = sorted({byte for line in MANY for byte in line.encode()})
    pairs = [(chars[left], chars[right]) for left in used for right in used]
    tokens = [*chars, *(left + right for left, right in pairs)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in pairs],
        "tokenizer.ggml.bos_token_id": 5,
        "tokenizer.ggml.eos_token_id": 6,
    }


def test_smollm2_tokens_equal_llamacpp_on_2000_lines() -> None:
    with open_checkpoint(smollm_path()) as checkpoint:
        model = load_text(directory=None, metadata=checkpoint.metadata, vocab_size=checkpoint.config.vocab_size)
    oracle = LlamaCpp(smollm_path())
    lines = mixed_lines(2000)
    wrong = [line for line in lines if oracle.encode(line) != model.tokenizer.encode(line)]
    assert not wrong, wrong[:3]
    assert len(set(lines)) > 1800
    assert oracle.ends() == set(model.stop_ids)
    oracle.close()


def test_smollm2_decodes_what_it_encoded() -> None:
    tokenizer = load_text(directory=None, metadata=smollm_metadata(), vocab_size=49152).tokenizer
    for line in mixed_lines(500, seed=5):
        assert tokenizer.decode(tokenizer.encode(line), skip_special=False) == line


def test_smollm2_chat_is_rendered_and_encoded_as_transformers_and_llamacpp_do() -> None:
    utils = pytest.importorskip(
        "transformers.utils.chat_template_utils", reason="TEMPLATES NOT COMPARED: no transformers"
    )
    metadata = smollm_metadata()
    messages = [
        {"role": "user", "content": "Hi <b> 😀"},
        {"role": "assistant", "content": "Ünï"},
        {"role": "user", "content": "And\n\tnow?"},
    ]
    expected, _ = utils.render_jinja_template(
        [messages], chat_template=metadata["tokenizer.chat_template"], add_generation_prompt=True
    )
    prompt = load_text(directory=None, metadata=metadata, vocab_size=49152).encode_chat(messages)
    assert prompt.text == expected[0]
    oracle = LlamaCpp(smollm_path())
    assert prompt.ids == oracle.encode(prompt.text, add_special=True)
    oracle.close()


@pytest.mark.parametrize(
    "kind", sorted({pretokenizer(name).patterns: name for name in reversed(known_pretokenizers())}.values())
)
def test_each_kind_of_split_equals_llamacpp(kind: str, pair_vocabulary: dict[str, Any], tmp_path: Path) -> None:
    compare(kind, pair_vocabulary, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kind", known_pretokenizers())
def test_every_name_equals_llamacpp_on_2000_lines(kind: str, pair_vocabulary: dict[str, Any], tmp_path: Path) -> None:
    """Besides the split, each name's own flags: begin token and whole words."""
    compare(kind, pair_vocabulary, tmp_path, mixed_lines(2000, seed=3))


@pytest.mark.parametrize("kind", ["llama-bpe", "glm4", "tekken", "qwen2", "deepseek-v3", "chatglm-bpe", "smollm"])
def test_begin_token_and_whole_words_equal_llamacpp(kind: str, tmp_path: Path) -> None:
    """A vocabulary with words that no merge makes: only kinds with `ignore_merges` find them."""
    source = dict(smollm_metadata())
    keep = [merge for index, merge in enumerate(source["tokenizer.ggml.merges"]) if index % 3]
    compare(kind, {**source, "tokenizer.ggml.merges": keep} | {"tokenizer.ggml.add_bos_token": None}, tmp_path)


def compare(kind: str, vocabulary: dict[str, Any], folder: Path, lines: Sequence[str] = ()) -> None:
    metadata = {key: value for key, value in vocabulary.items() if value is not None and "pre" not in key}
    metadata["tokenizer.ggml.pre"] = kind
    write_vocab(folder / "v.gguf", metadata)
    oracle = LlamaCpp(folder / "v.gguf")
    tokenizer = load_text(
        directory=None, metadata=metadata, vocab_size=len(metadata["tokenizer.ggml.tokens"])
    ).tokenizer
    lines = lines or (MANY if kind in APPROXIMATED_THERE else LINES)
    lines = [line for line in lines if comparable(kind, line)]
    assert len(lines) >= 280
    for line in lines:
        assert tokenizer.encode(line, add_special=True) == oracle.encode(line, add_special=True), (kind, line)
    oracle.close()


def spm_vocabulary(seed: int, *, crossing: bool) -> dict[str, Any]:
    """A scored vocabulary made of frequent pieces of the lines, with ties among the scores."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for line in mixed_lines(400, seed=seed):
        text = "▁" + line.replace(" ", "▁")
        for start in range(len(text)):
            for length in (1, 2, 3, 4, 6):
                counts[text[start : start + length]] += 1
    pieces = [text for text, _ in counts.most_common(3000) if crossing or "▁" not in text.lstrip("▁")]
    pieces = [text for text in pieces if text not in ("<s>", "</s>", "<unk>")]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<|user|>", "<sep>"]
    tokens = list(dict.fromkeys(tokens))
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 261), 3, 4]
    scores = [0.0] * 259 + [-float(index // 3 + rng.randint(0, 5)) for index in range(len(tokens) - 259)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.mark.parametrize(("crossing", "space"), [(False, None), (True, None), (False, False), (True, True)])
def test_scored_vocabularies_equal_llamacpp(crossing: bool, space: bool | None, tmp_path: Path) -> None:
    metadata = spm_vocabulary(11, crossing=crossing)
    if space is not None:
        metadata["tokenizer.ggml.add_space_prefix"] = space
    write_vocab(tmp_path / "v.gguf", metadata)
    oracle = LlamaCpp(tmp_path / "v.gguf")
    model = load_text(directory=None, metadata=metadata, vocab_size=len(metadata["tokenizer.ggml.tokens"]))
    extra = ["a<sep>b <s> c</s>", "<|user|>hi<|user|> ho", " ", "", "   x", "x   ", "▁a▁", "<0x41>"]
    for line in [*mixed_lines(500, seed=4), *extra]:
        assert model.tokenizer.encode(line, add_special=True) == oracle.encode(line, add_special=True), line
        if "<" not in line and "▁" not in line:
            assert model.tokenizer.decode(model.tokenizer.encode(line)) == line
    oracle.close()

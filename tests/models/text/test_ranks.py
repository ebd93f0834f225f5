"""Rank files of Kimi's directories give the tokens that the `tiktoken` package gives."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from hetero.machine.types import ModelError
from hetero.models.text import TextModel, load_text
from hetero.models.text.bpe_gguf import pretokenizer
from hetero.models.text.pieces import byte_characters
from hetero.models.text.ranks import RESERVED, merge
from tests.models.text.lines import mixed_lines

PATTERN = pretokenizer("kimi-k2").patterns[0]


def trained() -> list[bytes]:
    """Tokens by rank as training gives them: the bytes, then merges in their order."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(byte_characters())
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(mixed_lines(800, seed=9), trainer)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [bytes(byte_characters()[char] for char in text) for text, _ in vocab]


def scattered() -> list[bytes]:
    """Bytes, then pieces of lines in random order: many are reached over several pairs, or never."""
    rng = random.Random(4)
    pieces: set[bytes] = set()
    for line in mixed_lines(60, seed=9):
        data = line.encode()
        pieces |= {data[i : i + n] for i in range(len(data)) for n in (2, 3, 4, 5)}
    rest = sorted(piece for piece in pieces if len(piece) > 1 and rng.random() < 0.5)  # so that some have no way there
    rng.shuffle(rest)
    return [bytes([byte]) for byte in range(256)] + rest


def write(folder: Path, tokens: list[bytes], **settings: Any) -> Path:
    lines = [base64.b64encode(token) + f" {rank}".encode() for rank, token in enumerate(tokens)]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    n = len(tokens)
    added = {n: "[BOS]", n + 1: "[EOS]", n + 2: "<|im_end|>", n + 3: "<|im_user|>", n + 4: "<think>"}
    body = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "added_tokens_decoder": {str(i): {"content": text, "special": True} for i, text in added.items()},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(body | settings))
    return folder


def load(folder: Path, vocab_size: int = 1 << 18) -> TextModel:
    return load_text(directory=folder, metadata={}, vocab_size=vocab_size)


@pytest.mark.parametrize("make", [trained, scattered])
def test_tokens_equal_tiktoken_on_2000_lines(make: Any, tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken", reason="TIKTOKEN NOT COMPARED: install the test extra (tiktoken)")
    tokens = make()
    model = load(write(tmp_path, tokens))
    special = {model.tokenizer.token(i): i for i in range(len(tokens), len(tokens) + RESERVED)}
    reference = tiktoken.Encoding(
        "kimi",
        pat_str=PATTERN,
        mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens=special,
    )
    lines = [*mixed_lines(2000, seed=11), "a<|im_end|>b<think>[BOS]", "x" * 5000, " " * 300, "漢" * 400]
    for line in lines:
        ids = model.tokenizer.encode(line)
        assert ids == reference.encode(line, allowed_special="all"), line
        assert model.tokenizer.decode(ids, skip_special=False) == line
    assert model.n_tokens == len(tokens) + RESERVED


def test_special_tokens_end_an_answer_and_are_hidden(tmp_path: Path) -> None:
    model = load(write(tmp_path, trained()))
    encode, decode = model.tokenizer.encode, model.tokenizer.decode
    (eos,) = encode("[EOS]")
    assert {eos, *encode("<|im_end|>")} <= model.stop_ids
    assert decode(encode("a<|im_user|>b<think>")) == "ab<think>"
    assert encode("a", add_special=True) == encode("a")
    assert model.tokenizer.bos_id == encode("[BOS]")[0]


def test_a_saved_text_side_is_the_same(tmp_path: Path) -> None:
    source, copy = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    model = load(write(source, trained()))
    model.save(copy)
    line = "Hello 世界 [BOS]<|reserved_token_1600|>"
    assert load(copy).tokenizer.encode(line) == model.tokenizer.encode(line)


def test_ids_beyond_the_embedding_are_masked_and_noted(tmp_path: Path) -> None:
    model = load(write(tmp_path, trained()), vocab_size=1600)
    assert model.n_tokens == 1600
    assert "only 1600 embeddings" in model.notes[0]
    assert load(tmp_path, vocab_size=2000).n_tokens == 1500 + RESERVED


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "lacks a token for one of the 256 bytes"),
        (b"AA== 0\n!!!! 1\n", "line 2"),
        (b"AA== 0\nAQ== 5\n", "line 2 has the rank 5; expected 1"),
        (b"AA== 0\nAA== 1\n", "a new token"),
        (b"AA==\n", "line 1"),
        (b"<!DOCTYPE html>\n", "line 1"),
    ],
)
def test_a_damaged_rank_file_is_refused_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    write(tmp_path, trained())
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(ModelError, match=words) as caught:
        load(tmp_path)
    assert "tiktoken.model" in caught.value.message
    assert "\n" not in caught.value.message


def test_added_tokens_outside_the_reserved_ids_are_refused(tmp_path: Path) -> None:
    write(tmp_path, trained(), added_tokens_decoder={"5": {"content": "x"}})
    with pytest.raises(ModelError, match=r"added_tokens_decoder has the id 5; expected 1500 to 1755"):
        load(tmp_path)
    write(tmp_path, trained(), added_tokens_decoder={"1500": {"content": "x"}, "1501": {"content": "x"}})
    with pytest.raises(ModelError, match="two ids the same text"):
        load(tmp_path)


def test_a_rank_file_of_an_unknown_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path, trained(), auto_map=None)
    with pytest.raises(ModelError, match="a model that is not known"):
        load(tmp_path)


def test_a_word_without_end_takes_no_quadratic_time() -> None:
    """Counted, not timed: look-ups per byte stay few."""
    looked = 0

    class Counted(dict[bytes, int]):
        def get(self, key: Any, default: Any = None) -> Any:
            nonlocal looked
            looked += 1
            return super().get(key, default)

    ranks = Counted({bytes([byte]): byte for byte in range(256)} | {b"aa": 256, b"aaaa": 257})
    assert merge(b"a" * 40_000, ranks) == (257,) * 10_000
    assert looked < 4 * 40_000

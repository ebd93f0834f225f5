"""The text side of GGUF metadata: begin tokens, stops, templates, saving, and files that are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.machine.types import ModelError, UsageError
from hetero.models.text import TextModel, load_text
from hetero.models.text.bpe_gguf import known_pretokenizers
from hetero.models.text.pieces import byte_characters

CHARS = sorted(byte_characters(), key=lambda char: byte_characters()[char])
WORDS = ["he", "ll", "hell", "<s>", "<|im_end|>", "<|eot_id|>", "</s>", "<|user|>", "<tool>", "[PAD265]", "[PAD266]"]
TOKENS = CHARS + WORDS
BOS, IM_END, EOT, EOS, USER = 259, 260, 261, 262, 263


def metadata(**changes: Any) -> dict[str, Any]:
    """A small byte-level BPE vocabulary; keyword names are keys below `tokenizer.ggml.`, None removes one."""
    keys: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": TOKENS,
        "token_type": np.array([1] * 259 + [3, 3, 3, 3, 3, 4, 5, 5], np.int32),
        "merges": ["h e", "l l", "he ll"],
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "add_bos_token": True,
    } | changes
    found = {f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None}
    return {"general.architecture": "llama", "general.sampling.temp": np.float32(0.7), **found}


def load(vocab_size: int = 300, template: str | None = None, **changes: Any) -> TextModel:
    keys = metadata(**changes)
    if template is not None:
        keys["tokenizer.chat_template"] = template
    return load_text(directory=None, metadata=keys, vocab_size=vocab_size)


def test_begin_and_end_tokens_follow_the_flags() -> None:
    assert load().tokenizer.encode("hello", add_special=True) == [BOS, 258, ord("o")]
    assert load().tokenizer.encode("hello") == [258, ord("o")]
    assert load(add_bos_token=False).tokenizer.encode("", add_special=True) == []
    assert load(add_eos_token=True).tokenizer.encode("", add_special=True) == [BOS, EOS]


def test_without_a_begin_token_in_the_file_none_is_invented() -> None:
    """llama.cpp falls back to id 11 for byte-level vocabularies, which is a comma (USERS E12)."""
    model = load(bos_token_id=None, eos_token_id=None)
    assert model.tokenizer.bos_id is None
    assert model.tokenizer.encode("a", add_special=True) == [ord("a")]
    assert 11 not in model.stop_ids


def test_a_begin_token_outside_the_vocabulary_is_ignored_with_a_note() -> None:
    model = load(bos_token_id=5000)
    assert model.tokenizer.bos_id is None
    assert any("bos_token_id = 5000" in note for note in model.notes)


@pytest.mark.parametrize("template", ["{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"])
def test_a_chat_begins_with_exactly_one_begin_token(template: str) -> None:
    prompt = load(template=template).encode_chat([{"role": "user", "content": "o<|im_end|>"}])
    assert prompt.ids == [BOS, ord("o"), IM_END]
    assert prompt.text.endswith("o<|im_end|>")


def test_plain_text_begins_with_exactly_one_begin_token() -> None:
    assert load().encode_text("o").ids == load().encode_text("<s>o").ids == [BOS, ord("o")]
    with pytest.raises(UsageError, match="no chat template"):
        load().encode_chat([{"role": "user", "content": "o"}])


def test_tokens_of_user_defined_kind_are_matched_and_shown() -> None:
    tokenizer = load().tokenizer
    assert tokenizer.encode("o<tool>") == [ord("o"), 264]
    assert tokenizer.decode([ord("o"), 264, IM_END]) == "o<tool>"


def test_stops_are_the_union_of_ids_and_known_texts() -> None:
    assert load().stop_ids == {EOS, IM_END, EOT}
    assert load(eos_token_id=65, eot_token_id=66, eom_token_id=67, eos_token_ids=[68, 69]).stop_ids == {
        *range(65, 70),
        IM_END,
        EOT,
    }
    # a plain vocabulary entry is no stop, whatever it spells
    assert load(token_type=np.array([1] * 262 + [3, 3, 4, 5, 5])).stop_ids == {EOS}


def test_user_turns_stop_glm_only() -> None:
    assert USER not in load().stop_ids
    assert USER in load(tokens=[*CHARS, *WORDS[:8], "[gMASK]", *WORDS[9:]]).stop_ids


def test_the_message_end_of_harmony_is_no_stop() -> None:
    tokens = [*CHARS, "he", "ll", "hell", "<|return|>", "<|call|>", "<|end|>", *WORDS[6:]]
    assert load(tokens=tokens).stop_ids == {259, 260, EOS}


def test_padding_at_the_end_is_masked() -> None:
    assert load().n_tokens == 265
    assert load(vocab_size=262).n_tokens == 262


def test_an_id_without_embedding_is_an_error_and_not_an_index_out_of_range() -> None:
    model = load(vocab_size=260)
    assert any("265 tokens" in note for note in model.notes)
    assert model.tokenizer.encode("o") == [ord("o")]
    with pytest.raises(ModelError, match=r"id 260 .* 260 embeddings"):
        model.tokenizer.encode("<|im_end|>")


def test_an_unknown_pretokenizer_is_an_error_and_an_absent_one_is_noted() -> None:
    with pytest.raises(ModelError, match="'no-such-pre'") as caught:
        load(pre="no-such-pre")
    assert caught.value.hint
    assert any("'default'" in note for note in load(pre=None).notes)
    assert load().notes == ()
    assert len(known_pretokenizers()) > 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "no tokenizer"),
        ({"model": "bert"}, "'bert'"),
        ({"tokens": None}, "list of tokens"),
        ({"tokens": "abc"}, "array is expected"),
        ({"tokens": [1, 2]}, "list of tokens"),
        ({"tokens": ["a", "a"]}, "'a' twice"),
        ({"token_type": [1, 2]}, "only 2 token types"),
        ({"token_type": ["x"] * 267}, "token_type holds 'x'"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_ids": [1.5]}, "eos_token_ids holds '1.5'"),
        ({"merges": [1, 2]}, "merges holds '1'"),
        ({"model": "llama", "scores": ["x"] * 267}, "scores holds 'x'"),
        ({"merges": None}, "no merges"),
        ({"model": "llama", "scores": [0.0]}, "1 scores"),
        ({"model": "llama", "scores": [float("nan")] * 267}, "NaN"),
    ],
)
def test_wrong_metadata_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load(**changes)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_merges_that_make_no_token_are_left_out_with_a_note() -> None:
    model = load(merges=["h e", "l l", "he ll", "o o", "x"])
    assert model.tokenizer.encode("hello") == [258, ord("o")]
    assert any("2 of 5 merges" in note for note in model.notes)


def test_a_saved_model_is_loaded_equal(tmp_path: Path) -> None:
    model = load(template="{{ bos_token }}{{ messages[0].content }}")
    model.save(tmp_path / "text")
    again = load_text(directory=tmp_path / "text", metadata={}, vocab_size=300)
    text = "hello wörld <|im_end|>漢\n"
    assert again.tokenizer.encode(text) == model.tokenizer.encode(text)
    assert (again.stop_ids, again.n_tokens, again.notes) == (model.stop_ids, model.n_tokens, model.notes)
    assert again.tokenizer.edges == model.tokenizer.edges
    assert again.generation == model.generation == {"temperature": pytest.approx(0.7)}
    assert again.template is not None
    assert again.template.source == "{{ bos_token }}{{ messages[0].content }}"
    again.save(tmp_path / "twice")
    names = [path.name for path in (tmp_path / "twice").iterdir()]
    assert names == ["gguf_tokenizer.json"]
    assert (tmp_path / "twice" / names[0]).read_bytes() == (tmp_path / "text" / names[0]).read_bytes()


def test_scores_survive_saving_bit_for_bit(tmp_path: Path) -> None:
    scores = np.random.default_rng(1).standard_normal(len(TOKENS)).astype(np.float32)
    load(model="llama", scores=scores).save(tmp_path)
    kept = json.loads((tmp_path / "gguf_tokenizer.json").read_text())["tokenizer.ggml.scores"]
    assert np.array_equal(np.array(kept, np.float32), scores)


def test_a_damaged_saved_file_is_an_error(tmp_path: Path) -> None:
    for content in ("{", "[]", "\xff"):
        (tmp_path / "gguf_tokenizer.json").write_text(content, encoding="latin-1")
        with pytest.raises(ModelError):
            load_text(directory=tmp_path, metadata={}, vocab_size=300)


def test_loading_text_imports_neither_torch_nor_transformers() -> None:
    code = "import sys, hetero.models.text; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_ordinary_token_that_begins_or_ends_texts_is_noted() -> None:
    notes = load(eos_token_id=11, bos_token_id=12).notes
    assert len(notes) == 2
    assert notes[0].startswith(f"the token 12 ({TOKENS[12]!r}) begins every text although it is an ordinary one")
    assert notes[1].startswith(f"the token 11 ({TOKENS[11]!r}) ends every answer although it is an ordinary one")
    assert load(bos_token_id=12, add_bos_token=False).notes == ()
    assert load().notes == ()

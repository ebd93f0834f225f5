"""The text side of a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from hetero.machine.types import ModelError
from hetero.models.text import TextModel, load_text
from hetero.models.text.pieces import byte_characters
from tests.models.text.lines import mixed_lines

CHARS = sorted(byte_characters(), key=lambda char: byte_characters()[char])


def byte_level(begin: bool = False) -> Tokenizer:
    """256 byte tokens and three added ones (256 begin, 257 end, 258 a tag that is shown)."""
    tokenizer = Tokenizer(models.BPE({char: byte for byte, char in enumerate(CHARS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 256)]
        )
    return tokenizer


def scored(tokens: list[str], decoder: Any, prepend: bool) -> Tokenizer:
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *tokens]
    tokenizer = Tokenizer(
        models.BPE({text: index for index, text in enumerate(vocab)}, [], unk_token="<unk>", byte_fallback=True)
    )
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if prepend else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def write(folder: Path, tokenizer: Tokenizer | None, **files: Any) -> Path:
    """A directory with tokenizer.json and JSON files by their names without ending."""
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def load(folder: Path, vocab_size: int = 300) -> TextModel:
    return load_text(directory=folder, metadata={}, vocab_size=vocab_size)


def test_text_survives_and_special_tokens_are_hidden(tmp_path: Path) -> None:
    tokenizer = load(write(tmp_path, byte_level())).tokenizer
    for line in mixed_lines(200):
        assert tokenizer.decode(tokenizer.encode(line), skip_special=False) == line
    assert tokenizer.decode(tokenizer.encode("a<tool>b<|im_end|>")) == "a<tool>b"


@pytest.mark.parametrize(
    ("decoder", "prepend"),
    [
        ([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)], True),
        ([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()], False),
    ],
)
def test_scored_vocabularies_decode_as_the_library_does(tmp_path: Path, decoder: Any, prepend: bool) -> None:
    letters = [*"▁abcdefghijklmnopqrstuvwxyz"]
    source = scored(letters, decoders.Sequence(decoder), prepend)
    tokenizer = load(write(tmp_path, source)).tokenizer
    for text in ("hello world", " hello", "  two", "naïve 漢字 😀", "", " "):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == source.decode(ids) == text


def test_a_metaspace_decoder_drops_the_first_space_unless_never_prepended(tmp_path: Path) -> None:
    for scheme, expected in (("always", "a b"), ("never", " a b")):
        source = scored([*"▁ab"], decoders.Metaspace(prepend_scheme=scheme), prepend=False)
        ids = [source.token_to_id(char) for char in "▁a▁b"]
        assert load(write(tmp_path, source)).tokenizer.decode(ids) == source.decode(ids) == expected


def test_begin_tokens_follow_the_flag_or_else_the_post_processor(tmp_path: Path) -> None:
    names = {"bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}
    cases = [(False, None, []), (True, None, [256]), (False, True, [256]), (True, False, [])]
    for post_processor, flag, expected in cases:
        config = {**names, "add_bos_token": flag} if flag is not None else names
        tokenizer = load(write(tmp_path, byte_level(post_processor), tokenizer_config=config)).tokenizer
        assert tokenizer.encode("", add_special=True) == expected
        assert tokenizer.encode("<s>") == [256]
        assert (tokenizer.bos_id, tokenizer.eos_id) == (256, 257)


def test_special_tokens_map_fills_what_the_configuration_lacks(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), special_tokens_map={"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}})
    assert load(tmp_path).tokenizer.bos_id == 256


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {257}),
        ({"config": {"eos_token_id": 7}}, {7, 257}),
        ({"config": {"text_config": {"eos_token_id": [7, 8]}}}, {7, 8, 257}),
        ({"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": [9, 10]}}, {7, 9, 10, 257}),
        ({"tokenizer_config": {"eos_token": "<tool>"}}, {257, 258}),
        ({"generation_config": {"eos_token_id": None}}, {257}),
        ({"generation_config": {"eos_token_id": [True, 9999]}}, {257}),
        ({"config": {"eos_token_id": [[7], {}, "x", 8]}}, {8, 257}),
    ],
)
def test_stops_are_the_union_of_all_files(tmp_path: Path, files: dict[str, Any], expected: set[int]) -> None:
    assert load(write(tmp_path, byte_level(), **files)).stop_ids == expected


def test_templates_and_which_of_them_wins(tmp_path: Path) -> None:
    user = [{"role": "user", "content": "x"}]
    write(tmp_path, byte_level(), tokenizer_config={"chat_template": "config {{ bos_token }}", "bos_token": "<s>"})
    assert load(tmp_path).encode_chat(user).text == "config <s>"
    listed = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    write(tmp_path, None, tokenizer_config={"chat_template": listed})
    assert load(tmp_path).encode_chat(user).text == "default"
    assert load(tmp_path).encode_chat(user, tools=[{}]).text == "tools"
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert load(tmp_path).encode_chat(user).text == "file"
    assert load(tmp_path).encode_chat(user, tools=[{}]).text == "file"


def test_sampling_that_the_makers_recommend(tmp_path: Path) -> None:
    write(tmp_path, byte_level(), generation_config={"temperature": 0.6, "top_k": 20, "do_sample": True, "x": 1})
    found = load(tmp_path).generation
    assert found == {"temperature": 0.6, "top_k": 20}
    assert type(found["top_k"]) is int, "a sampler indexes with it"


def test_impossible_recommendations_are_ignored(tmp_path: Path) -> None:
    for odd in (-1, float("nan"), float("inf"), 1 << 2000, "hot", [1], None, True):
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        write(tmp_path, byte_level(), generation_config=dict.fromkeys(names, odd))
        assert load(tmp_path).generation == {}


def test_padding_rows_are_masked_and_missing_rows_are_noted(tmp_path: Path) -> None:
    write(tmp_path, byte_level())
    assert load(tmp_path, 300).n_tokens == 259
    small = load(tmp_path, 257)
    assert small.n_tokens == 257
    assert "259 tokens" in small.notes[0]
    with pytest.raises(ModelError, match="257 embeddings"):
        small.tokenizer.encode("<|im_end|>")


def test_truncation_and_padding_kept_in_the_file_are_switched_off(tmp_path: Path) -> None:
    source = byte_level()
    source.enable_truncation(4)
    source.enable_padding(length=50)
    assert len(load(write(tmp_path, source)).tokenizer.encode("0123456789")) == 10


def test_a_saved_model_is_loaded_equal(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    folder = write(
        tmp_path / "a",
        byte_level(),
        config={"eos_token_id": 7},
        generation_config={"top_p": 0.5},
        tokenizer_config={"bos_token": "<s>", "add_bos_token": True},
    )
    (folder / "chat_template.jinja").write_text("hi", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"not text")
    first = load(folder)
    first.save(tmp_path / "b")
    second = load(tmp_path / "b")
    assert not (tmp_path / "b" / "model.safetensors").exists()
    assert (second.stop_ids, second.generation, second.n_tokens) == (first.stop_ids, first.generation, first.n_tokens)
    assert second.encode_text("abc") == first.encode_text("abc")
    assert second.encode_chat([]).text == "hi"


def test_absent_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json") as caught:
        load(tmp_path)
    assert "GGUF" in caught.value.hint
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ModelError, match=r"tokenizer\.model, which this version does not read"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("<html>")
    with pytest.raises(ModelError, match="not a usable"):
        load(tmp_path)
    write(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: holds list"):
        load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        load(tmp_path)
    for name in ("tokenizer_config.json", "generation_config.json"):
        write(tmp_path, byte_level())
        (tmp_path / name).write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}")
        with pytest.raises(ModelError, match=name):
            load(tmp_path)
        (tmp_path / name).unlink()
    with pytest.raises(ModelError, match="no such directory"):
        load(tmp_path / "absent")


def test_a_decoder_that_is_not_known_is_refused(tmp_path: Path) -> None:
    source = byte_level()
    source.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        load(write(tmp_path, source))

"""The text side of a model from the `tokenizer.*` keys of a GGUF file alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hetero.machine.types import ModelError
from hetero.models.text.bpe_gguf import build_bpe, encoder_of, pretokenizer
from hetero.models.text.deepseek import built_in
from hetero.models.text.model import TextModel, odd_ends, recognised, recommended
from hetero.models.text.pieces import Pieces, Style
from hetero.models.text.spm_gguf import SpmEncoder
from hetero.models.text.stops import stop_set
from hetero.models.text.template import ChatTemplate
from hetero.models.text.tokenizer import Edges, Tokenizer

SAVED_NAME = "gguf_tokenizer.json"
_PREFIX = "tokenizer."
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.top_k": "top_k",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_HINT = "the file is damaged or was converted wrongly; download it again or convert it with a newer converter"
_STOP_KEYS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The checked arrays of a GGUF vocabulary."""

    tokens: list[str]
    types: list[int]
    notes: list[str]

    def added(self) -> dict[int, bool]:
        """Ids matched whole in any text -> whether decoded text leaves them out."""
        return {
            token: kind != _USER_DEFINED
            for token, kind in enumerate(self.types)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        }

    def used(self) -> int:
        """The number of tokens without the unused ones that only pad the end."""
        count = len(self.tokens)
        while count and self.types[count - 1] == _UNUSED:
            count -= 1
        return count


def load(metadata: Mapping[str, Any], vocab_size: int) -> TextModel:
    """The text side of a GGUF file. Raises ModelError naming the key that is wrong or not supported."""
    kind = metadata.get("tokenizer.ggml.model")
    builders: dict[str, Callable[[Mapping[str, Any], _Vocabulary], tuple[Callable[[str], list[int]], Pieces, bool]]]
    builders = {"gpt2": _bpe, "llama": _spm}
    if kind is None:
        raise ModelError("the GGUF file holds no tokenizer (tokenizer.ggml.model is absent)", _HINT)
    if kind not in builders:
        raise ModelError(
            f"the GGUF file's tokenizer kind {kind!r} (tokenizer.ggml.model) is not supported; supported: gpt2, llama",
            "use the model's Hugging Face directory, which has a tokenizer.json",
        )
    vocabulary = _vocabulary(metadata)
    encoder, pieces, add_bos = builders[kind](metadata, vocabulary)
    bos = _special_id(metadata, "bos", vocabulary, default=1 if kind == "llama" else None)
    eos = _special_id(metadata, "eos", vocabulary, default=2 if kind == "llama" else None)
    edges = Edges(
        bos,
        eos,
        bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
        bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    )
    used = vocabulary.used()
    if used > vocab_size:
        vocabulary.notes.append(f"the vocabulary has {used} tokens, the model only {vocab_size} embeddings")
    stops = stop_set(pieces.added, pieces.token_of, _declared_stops(metadata, vocabulary, eos))
    vocabulary.notes.extend(odd_ends(pieces, edges, stops))
    template = _template(metadata, vocabulary, edges) or built_in(str(metadata.get("general.architecture", "")))
    return TextModel(
        Tokenizer(encoder, pieces, edges, vocab_size),
        template,
        stops,
        recommended({name: metadata.get(key) for key, name in _SAMPLING.items()}),
        min(used, vocab_size),
        recognised(template, pieces),
        tuple(vocabulary.notes),
        _save=partial(_write, _kept(metadata)),
    )


def _array(metadata: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> list[Any]:
    """An array key as a list, its entries of `kind`; [] where it is absent."""
    value = metadata.get(key)
    if value is None:
        return []
    if isinstance(value, str | bytes | int | float):
        raise ModelError(f"the GGUF key {key} is {type(value).__name__}, an array is expected", _HINT)
    entries = list(value.tolist() if hasattr(value, "tolist") else value)
    odd = next((entry for entry in entries if not isinstance(entry, kind)), None)
    if odd is not None:
        raise ModelError(f"the GGUF key {key} holds {str(odd)[:40]!r}, which has no place there", _HINT)
    return entries


def _vocabulary(metadata: Mapping[str, Any]) -> _Vocabulary:
    tokens = _array(metadata, "tokenizer.ggml.tokens", object)
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise ModelError("the GGUF file has no usable list of tokens (tokenizer.ggml.tokens)", _HINT)
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        twice = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
        raise ModelError(f"the GGUF file's vocabulary has the token {twice!r} twice", _HINT)
    types = _array(metadata, "tokenizer.ggml.token_type", int) or [1] * len(tokens)
    if len(types) < len(tokens):
        raise ModelError(f"the GGUF vocabulary has {len(tokens)} tokens but only {len(types)} token types", _HINT)
    return _Vocabulary(tokens, types[: len(tokens)], [])


def _pieces(vocabulary: _Vocabulary, style: Style, strip_first: bool) -> Pieces:
    tokens = vocabulary.tokens

    def token_of(token: int) -> str | None:
        return tokens[token] if 0 <= token < len(tokens) else None

    return Pieces(token_of, style, vocabulary.added(), strip_first)


def _bpe(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[Callable[[str], list[int]], Pieces, bool]:
    name = metadata.get("tokenizer.ggml.pre")
    if name is None:
        vocabulary.notes.append(
            "the GGUF file names no pre-tokenizer (tokenizer.ggml.pre): using 'default', answers may be worse"
        )
    pre = pretokenizer("default" if name is None else str(name))
    merges = _array(metadata, "tokenizer.ggml.merges", str)
    if not merges:
        raise ModelError("the GGUF file has no merges (tokenizer.ggml.merges) for its byte-level BPE", _HINT)
    pieces = _pieces(vocabulary, "byte-level", strip_first=False)
    tokenizer, dropped = build_bpe(vocabulary.tokens, merges, pieces.added, pre)
    if dropped:
        vocabulary.notes.append(f"{dropped} of {len(merges)} merges make no token of the vocabulary and are left out")
    return encoder_of(tokenizer), pieces, pre.add_bos


def _spm(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tuple[Callable[[str], list[int]], Pieces, bool]:
    scores = [float(score) for score in _array(metadata, "tokenizer.ggml.scores", (int, float))]
    scores = scores or [0.0] * len(vocabulary.tokens)
    if any(math.isnan(score) for score in scores):
        raise ModelError("the GGUF file's token scores hold NaN (tokenizer.ggml.scores)", _HINT)
    add_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    pieces = _pieces(vocabulary, "spm", strip_first=add_space)
    unknown = _special_id(metadata, "unknown", vocabulary, default=0)
    return SpmEncoder(vocabulary.tokens, scores, tuple(pieces.added), add_space, unknown), pieces, True


def _special_id(metadata: Mapping[str, Any], name: str, vocabulary: _Vocabulary, default: int | None) -> int | None:
    """`tokenizer.ggml.NAME_token_id`; one outside the vocabulary is left out with a note."""
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key, default)
    if value is None:
        return None
    if not isinstance(value, int):
        raise ModelError(f"the GGUF key {key} is {str(value)[:40]!r}; expected a token's number", _HINT)
    if not 0 <= int(value) < len(vocabulary.tokens):
        if key in metadata:
            vocabulary.notes.append(f"{key} = {value} is outside the vocabulary and is ignored")
        return None
    return int(value)


def _declared_stops(metadata: Mapping[str, Any], vocabulary: _Vocabulary, eos: int | None) -> set[int]:
    found = {_special_id(metadata, name, vocabulary, default=None) for name in _STOP_KEYS}
    found.add(eos)
    listed = set(_array(metadata, "tokenizer.ggml.eos_token_ids", int))
    return {token for token in found | listed if token is not None and 0 <= token < len(vocabulary.tokens)}


def _template(metadata: Mapping[str, Any], vocabulary: _Vocabulary, edges: Edges) -> ChatTemplate | None:
    prefix = "tokenizer.chat_template."
    named = {
        key[len(prefix) :]: value
        for key, value in metadata.items()
        if key.startswith(prefix) and isinstance(value, str)
    }
    source = metadata.get("tokenizer.chat_template", named.get("default"))
    if not isinstance(source, str) or not source.strip():
        return None
    ids = {"bos_token": edges.bos_id, "eos_token": edges.eos_id}
    for name in ("padding", "unknown"):
        ids[{"padding": "pad_token", "unknown": "unk_token"}[name]] = _special_id(metadata, name, vocabulary, None)
    special = {name: vocabulary.tokens[token] for name, token in ids.items() if token is not None}
    # templates concatenate these two without asking whether they exist
    return ChatTemplate(source, named=named, special={"bos_token": "", "eos_token": "", **special})


def _kept(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that make this TextModel, as plain lists and numbers."""
    wanted = {key: value for key, value in metadata.items() if _is_kept(key)}
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in wanted.items()}


def _is_kept(key: str) -> bool:
    return key.startswith(_PREFIX) or key in _SAMPLING or key == "general.architecture"


def _write(kept: Mapping[str, Any], directory: Path) -> None:
    text = json.dumps(kept, ensure_ascii=True, sort_keys=True)
    (directory / SAVED_NAME).write_text(text + "\n", encoding="ascii")


def read_saved(path: Path) -> dict[str, Any]:
    """The keys that `TextModel.save` wrote."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as JSON ({error})", "convert the model again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: a JSON object is expected", "convert the model again")
    return found

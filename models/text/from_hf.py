"""The text side of a model from the files of a Hugging Face directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HfTokenizer

from hetero.machine.types import ModelError
from hetero.models.text.bpe_gguf import encoder_of
from hetero.models.text.deepseek import built_in
from hetero.models.text.model import TextModel, odd_ends, recognised, recommended
from hetero.models.text.pieces import SPACE_MARK, Pieces, Style
from hetero.models.text.ranks import RANK_FILE, RankEncoder, read_ranks, special_tokens, visible_tokens
from hetero.models.text.stops import stop_set
from hetero.models.text.template import ChatTemplate
from hetero.models.text.tokenizer import Edges, Tokenizer

FILES = (
    "tokenizer.json",
    RANK_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "config.json",
)
"""All that is read, and all that `TextModel.save` copies."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """What either kind of file gives: an encoder without begin and end tokens, and all tokens."""

    encode: Callable[[str], list[int]]
    pieces: Pieces
    id_of: Callable[[str], int | None]
    around: list[int]
    """The tokens that the file itself puts around a text."""
    n_tokens: int


def load(directory: Path, vocab_size: int) -> TextModel:
    """The text side of a Hugging Face directory. Raises ModelError for absent, damaged or unsupported files."""
    config, generation, settings, specials = (
        _read_json(directory / name)
        for name in ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
    )
    vocabulary = _vocabulary(directory, config, settings)
    pieces = vocabulary.pieces
    names = _special_names(settings, specials)
    edges = _edges(vocabulary, settings, names)
    notes = []
    if vocabulary.n_tokens > vocab_size:
        notes.append(f"the tokenizer has {vocabulary.n_tokens} tokens, the model only {vocab_size} embeddings")
    declared = _ids(config) | _ids(generation) | ({edges.eos_id} if edges.eos_id is not None else set())
    stops = stop_set(pieces.added, pieces.token_of, {token for token in declared if 0 <= token < vocab_size})
    notes += odd_ends(pieces, edges, stops)
    template = _template(directory, settings, names) or built_in(_architecture(config))
    return TextModel(
        Tokenizer(vocabulary.encode, pieces, edges, vocab_size),
        template,
        stops,
        recommended({key: generation.get(key) for key in _SAMPLING}),
        min(vocabulary.n_tokens, vocab_size),
        recognised(template, pieces),
        tuple(notes),
        _save=partial(_copy, directory),
    )


def _vocabulary(directory: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> _Vocabulary:
    """From tokenizer.json, or for Kimi from its rank file."""
    if (directory / RANK_FILE).is_file() and not (directory / "tokenizer.json").is_file():
        return _ranked(directory, config, settings)
    hf = _read_tokenizer(directory)
    style, strip_first = _decoder_style(hf)
    added = {token: entry.special for token, entry in hf.get_added_tokens_decoder().items()}
    n_tokens = max([hf.get_vocab_size(with_added_tokens=True), *(token + 1 for token in added)])
    around = list(hf.encode("", add_special_tokens=True).ids)
    return _Vocabulary(
        encoder_of(hf), Pieces(hf.id_to_token, style, added, strip_first), hf.token_to_id, around, n_tokens
    )


def _ranked(directory: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> _Vocabulary:
    if "kimi" not in json.dumps([config, settings]).lower():
        raise ModelError(
            f"{directory / RANK_FILE}: is of a model that is not known, and a rank file does not say how text is cut",
            "use a GGUF file of the model, which says so",
        )
    ranks = read_ranks(directory / RANK_FILE)
    special = special_tokens(settings, len(ranks), directory / "tokenizer_config.json")
    texts = visible_tokens(ranks, special)
    ids = {text: token for token, text in special.items()}
    pieces = Pieces(texts.get, "byte-level", dict.fromkeys(special, True), strip_first=False)
    return _Vocabulary(RankEncoder(ranks, special), pieces, ids.get, [], len(texts))


def _read_tokenizer(directory: Path) -> HfTokenizer:
    path = directory / "tokenizer.json"
    if not path.is_file():
        other = [name for name in ("tokenizer.model", "hy.tiktoken") if (directory / name).is_file()]
        has = f"only {other[0]}, which this version does not read" if other else "no tokenizer.json"
        raise ModelError(
            f"{directory}: the model's directory has {has}",
            "put the model's tokenizer.json into it, or use a GGUF file of the model, which holds its tokenizer",
        )
    try:
        tokenizer = HfTokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every fault of the file
        raise ModelError(f"{path}: not a usable tokenizer.json ({error})", "download the file again") from error
    # training settings that some files keep; they would cut or pad prompts
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object, {} where the file is absent."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:  # also a file of nothing but brackets
        raise ModelError(f"{path}: cannot be read as JSON ({error})", "download the file again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path}: holds {type(found).__name__}, a JSON object is expected", "download the file again")
    return found


def _decoder_style(tokenizer: HfTokenizer) -> tuple[Style, bool]:
    """How tokens spell bytes, and whether decoding drops a leading space, from the file's decoder."""
    if tokenizer.decoder is None:
        return "words", True
    state = json.loads(tokenizer.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = {step["type"] for step in steps}
    strips = any(step["type"] == "Strip" and step.get("start", 0) > 0 for step in steps)
    if "ByteLevel" in kinds:
        return "byte-level", strips
    for step in steps:
        if step["type"] == "Metaspace" and step.get("replacement") == SPACE_MARK:
            return "spm", strips or step.get("prepend_scheme", "always") != "never"
        if step["type"] == "Replace" and step.get("pattern") == {"String": SPACE_MARK} and step.get("content") == " ":
            return "spm", strips
    raise ModelError(
        f"tokenizer.json's decoder ({', '.join(sorted(kinds))}) is not supported",
        "supported are byte-level BPE and SentencePiece-style tokenizers",
    )


def _token_text(value: Any) -> str | None:
    """A special token's text: files hold it as a string or as {"content": ...}."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _special_names(settings: Mapping[str, Any], specials: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and so on -> text; tokenizer_config.json wins over special_tokens_map.json."""
    found = {}
    for name in _SPECIAL_NAMES:
        text = _token_text(settings.get(name))
        text = text if text is not None else _token_text(specials.get(name))
        if text is not None:
            found[name] = text
    return found


def _edges(vocabulary: _Vocabulary, settings: Mapping[str, Any], names: Mapping[str, str]) -> Edges:
    """Begin and end tokens: explicit flags win, else what the tokenizer's own post-processor adds."""
    bos = vocabulary.id_of(names["bos_token"]) if "bos_token" in names else None
    eos = vocabulary.id_of(names["eos_token"]) if "eos_token" in names else None
    around = vocabulary.around
    add_bos, add_eos = settings.get("add_bos_token"), settings.get("add_eos_token")
    if not isinstance(add_bos, bool):
        add_bos = bos is not None and bos in around[:1]
    if not isinstance(add_eos, bool):
        add_eos = eos is not None and eos in around[1 if add_bos else 0 :][-1:]
    return Edges(bos, eos, add_bos, add_eos)


def _ids(config: Mapping[str, Any]) -> set[int]:
    """`eos_token_id` of a configuration, one or several, also that of a nested text model."""
    value = config.get("eos_token_id")
    found = _token_ids(value if isinstance(value, list) else [value])
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        found |= _ids(nested)
    return found


def _token_ids(values: list[Any]) -> set[int]:
    return {token for token in values if isinstance(token, int) and not isinstance(token, bool)}


def _template(directory: Path, settings: Mapping[str, Any], names: Mapping[str, str]) -> ChatTemplate | None:
    """chat_template.jinja, else tokenizer_config.json's `chat_template`: a string or a list of named ones."""
    value = settings.get("chat_template")
    named: dict[str, str] = {}
    if isinstance(value, list):
        entries = [entry for entry in value if isinstance(entry, Mapping)]
        named = {str(entry.get("name")): str(entry.get("template")) for entry in entries}
        value = named.get("default", next(iter(named.values()), None))
    file = directory / "chat_template.jinja"
    if file.is_file():
        try:
            value, named = file.read_text(encoding="utf-8"), {}
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{file}: cannot be read as text ({error})", "download the file again") from error
    if not isinstance(value, str) or not value.strip():
        return None
    return ChatTemplate(value, named=named, special={"bos_token": "", "eos_token": "", **names})


def _architecture(config: Mapping[str, Any]) -> str:
    """What config.json calls the model."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else config.get("model_type")
    return first if isinstance(first, str) else ""


def _copy(source: Path, directory: Path) -> None:
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)

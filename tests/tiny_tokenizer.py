"""A tiny byte-level BPE tokenizer with ChatML tokens, the same for Hugging Face directories and GGUF files."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_TEXT = [
    "A mixture of experts is a model in which each token uses only a few of many small networks.",
    "The router scores the experts of a layer, takes the best of them and adds up their weighted outputs.",
    "What is a mixture of experts? The weights of the experts lie in memory and are read once for every token.",
    "user assistant system hello world this and that these those there where when what which while with without",
    "one two three four five six seven eight nine ten 0 1 2 3 4 5 6 7 8 9 10 100 1000 2024",
]


@functools.cache
def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    text: str = tokenizer.to_str()
    return text


@functools.cache
def tokens_and_merges() -> tuple[list[str], list[str], tuple[str, ...]]:
    """(tokens by id, merges as `left right`, the special tokens among them)."""
    data = json.loads(_tokenizer_json())
    vocab = dict(data["model"]["vocab"]) | {t["content"]: t["id"] for t in data["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    return sorted(vocab, key=lambda t: vocab[t]), merges, SPECIALS


def save_tokenizer(directory: Path) -> None:
    """tokenizer.json, tokenizer_config.json with the chat template, and generation_config.json."""
    (directory / "tokenizer.json").write_text(_tokenizer_json(), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    tokens = tokens_and_merges()[0]
    generation = {"eos_token_id": [tokens.index("<|im_end|>"), tokens.index("<|endoftext|>")], "temperature": 0.7}
    (directory / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")

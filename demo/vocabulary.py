"""The demo model's tokenizer: byte-level BPE learnt from the training texts, cut as Qwen2 cuts (digits one by one)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = SPECIALS
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pre-tokenizer that GGUF calls `qwen2`."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Messages = list[dict[str, str]]


def render(messages: Messages, generation_prompt: bool = False) -> str:
    """What the chat template makes of the messages."""
    text = "".join(f"{IM_START}{m['role']}\n{m['content']}{IM_END}\n" for m in messages)
    return text + (f"{IM_START}assistant\n" if generation_prompt else "")


def read_dialogues(path: Path) -> list[Messages]:
    """The dialogues of a file that make_data.py wrote."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def learn(dialogues: list[Messages], size: int) -> Tokenizer:
    """A byte-level BPE with `size` tokens, the special ones last."""
    tokenizer = Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(QWEN2), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_texts(dialogues), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def _texts(dialogues: list[Messages]) -> Iterator[str]:
    for messages in dialogues:
        for message in messages:
            yield message["content"]
            yield message["role"] + "\n"

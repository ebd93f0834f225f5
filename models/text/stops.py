"""Which tokens end an answer: everything that any of the model's files says ends one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

END_OF_TURN = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)
"""Texts that end a turn in the models that have them, as in llama.cpp's list."""

END_OF_FILE = frozenset(
    {
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    }
)
"""Padding and file boundaries of code models: nothing that belongs to the answer follows them."""

_GLM_MARK = "[gMASK]"
_GLM_TURNS = frozenset({"<|user|>", "<|observation|>"})


def stop_set(added: Iterable[int], token_of: Callable[[int], str | None], declared: Iterable[int]) -> frozenset[int]:
    """The union of `declared` ids and of the `added` tokens whose text is known to end a turn.

    Plain vocabulary entries never count by text, so that an answer may spell such a word out.
    """
    by_text = {text: token for token in added if (text := token_of(token)) is not None}
    names = END_OF_TURN | END_OF_FILE
    if _GLM_MARK in by_text:
        names |= _GLM_TURNS  # GLM ends a turn by beginning the next one
    found = {by_text[name] for name in names if name in by_text}
    # in the harmony format <|end|> closes one message of an answer and another follows
    ends_otherwise = {"<|return|>", "<|call|>"} <= by_text.keys() or {"<|calls|>", "<|flush|>"} <= by_text.keys()
    if ends_otherwise and "<|end|>" in by_text:
        found.discard(by_text["<|end|>"])
    return frozenset(found | set(declared))

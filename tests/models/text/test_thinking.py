"""Thinking and answer come apart whatever way the text is cut up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hetero.models.text.thinking import TAGS, ThinkingSplitter


def split(prompt: str, pieces: list[str]) -> tuple[str, str]:
    """All thinking and all answer text; asserts that no answer comes before the last of the thinking."""
    splitter = ThinkingSplitter(prompt)
    parts = [part for piece in pieces for part in splitter.feed(piece)] + splitter.finish()
    kinds = [kind for kind, _ in parts]
    assert kinds == sorted(kinds, reverse=True)
    assert all(text for _, text in parts)
    return (
        "".join(text for kind, text in parts if kind == "thinking"),
        "".join(text for kind, text in parts if kind == "answer"),
    )


CASES = [
    ("<|im_start|>assistant\n", "<think>\nhm\n</think>\n\nyes", "hm\n", "yes"),
    ("<|im_start|>assistant\n<think>\n", "hm\n</think>\n\nyes", "hm\n", "yes"),
    ("<｜Assistant｜><think>", "hm</think>yes </think> no", "hm", "yes </think> no"),
    ("assistant\n<think>\n", "never closed </thin", "never closed </thin", ""),
    ("assistant\n<think>\n\n</think>\n\n", "yes", "", "yes"),
    ("old <think>a</think> b. assistant\n", "plain", "", "plain"),
    ("user\nWhat is <think>?\nassistant\n", "a tag", "", "a tag"),
    ("assistant\n", "plain <think> is a tag", "", "plain <think> is a tag"),
    ("assistant\n", "\n <think>a</think>b", "a", "b"),
    ("assistant\n", "\n\nplain", "", "\n\nplain"),
    ("assistant\n", "<thi", "", "<thi"),
    ("", "<seed:think>x</seed:think>\ny", "x", "y"),
    ("[THINK]", "x</think>[/THINK]y", "x</think>", "y"),
    ("<think>", "</think>", "", ""),
    ("", "", "", ""),
]


def test_known_outputs_in_one_piece_and_letter_by_letter() -> None:
    for prompt, output, thinking, answer in CASES:
        assert split(prompt, [output]) == (thinking, answer), (prompt, output)
        assert split(prompt, list(output)) == (thinking, answer), (prompt, output)


_WORDS = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "think", ">", "\n", "a", "[THINK]", "</", " "]), max_size=12
)


@given(_WORDS, st.lists(st.integers(0, 60)), st.sampled_from(["", "<think>\n", "<seed:think>"]))
def test_where_the_text_is_cut_makes_no_difference(words: list[str], cuts: list[int], prompt: str) -> None:
    text = "".join(words)
    ends = [*sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    assert split(prompt, pieces) == split(prompt, [text])


def test_an_answer_is_not_held_back_longer_than_a_tag() -> None:
    splitter = ThinkingSplitter("")
    longest = max(len(opening) for opening, _ in TAGS)
    assert splitter.feed("<" * longest) == [("answer", "<" * longest)]
    assert splitter.feed("x<think") == [("answer", "x<think")]

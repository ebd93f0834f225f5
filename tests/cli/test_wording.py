from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from hetero.cli import wording
from hetero.cli.wrap import WordWrap

fixed = settings(derandomize=True, deadline=None, database=None, max_examples=300)
TEXTS = st.text(alphabet=st.sampled_from("ab  \n漢é-"), max_size=200)


@fixed
@given(st.text())
def test_clean_text_cannot_drive_a_terminal(text: str) -> None:
    assert not any((ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) < 0xA0 for char in wording.clean(text))


def test_clean_text_keeps_what_is_not_a_control() -> None:
    assert wording.clean("a\tb\r\nc\x1b[31m漢") == "a\tb\nc\ufffd[31m漢"


def test_a_misspelt_word_finds_the_nearest_and_an_odd_one_none() -> None:
    assert wording.nearest("/hlep", ["/help", "/clear"]) == "/help"
    assert wording.nearest("zzzz", ["chat", "bench"]) is None


def test_rates_without_time_or_tokens_are_unknown() -> None:
    assert wording.per_second(0, 1.0) is None
    assert wording.per_second(5, 0.0) is None
    assert wording.per_second(10, 2.0) == 5.0


def wrapped(text: str, width: int, step: int) -> str:
    wrap = WordWrap(width)
    pieces = [wrap.feed(text[i : i + step]) for i in range(0, len(text), step)]
    return "".join(pieces) + wrap.finish()


@fixed
@given(TEXTS, st.integers(8, 30), st.integers(1, 7))
def test_wrapping_keeps_every_character_but_spaces_and_stays_inside_the_width(text: str, width: int, step: int) -> None:
    out = wrapped(text, width, step)
    assert "".join(out.split()) == "".join(text.split())
    assert all(cell_len(line) <= width for line in out.split("\n"))


@fixed
@given(TEXTS, st.integers(8, 30), st.integers(1, 7))
def test_wrapping_does_not_depend_on_how_the_text_arrives(text: str, width: int, step: int) -> None:
    assert wrapped(text, width, step) == wrapped(text, width, 1)


def test_a_wide_character_breaks_by_itself() -> None:
    assert wrapped("aaaaaaa漢", 8, 1) == "aaaaaaa\n漢"


@fixed
@given(st.text(alphabet=st.sampled_from("ab  \n"), max_size=200), st.integers(8, 30))
def test_wrapping_keeps_words_apart(text: str, width: int) -> None:
    words = [word for word in text.split() if len(word) < width]
    text = " ".join(words)
    assert wrapped(text, width, 1).split() == words


def test_small_counts_of_parameters_are_grouped_as_other_counts_are() -> None:
    assert [wording.amount(n) for n in (895_232, 2_182_656, 671e9)] == ["895,232", "2.18 M", "671 B"]


def test_a_word_after_a_space_in_the_last_column_starts_a_line() -> None:
    assert wrapped("wait, said a", 11, 4) == "wait, said\na"


def test_words_are_not_cut_when_a_line_is_full() -> None:
    assert wrapped("the quick brown fox", 10, 3) == "the quick\nbrown fox"


def test_a_word_that_is_complete_is_shown_at_once() -> None:
    wrap = WordWrap(20)
    assert wrap.feed("one two") == "one "
    assert wrap.feed(" ") == "two "
    assert wrap.feed("漢字") == "漢字"

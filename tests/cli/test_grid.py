"""Tables on screens of any width: aligned, never wider, and nothing of a cell is lost."""

from __future__ import annotations

import random

import pytest

from hetero.cli.grid import cells, fold, grid

ROWS = [["model", "bytes", "what"], ["a", "1", "long text that is so long that it folds"], ["日本語モデル", "22", "x"]]


def shown(rows: list[list[str]], room: int, right: tuple[int, ...] = ()) -> list[str]:
    return ["  ".join(line) for _, line in grid(rows, right, room)]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert shown(ROWS, 80, (1,)) == [
        "model         bytes  what",
        "a                 1  long text that is so long that it folds",
        "日本語モデル     22  x",
    ]


@pytest.mark.parametrize("room", [*range(8, 60)])
def test_no_line_is_wider_than_the_screen_and_no_word_is_lost(room: int) -> None:
    lines = shown(ROWS, room)
    assert all(cells(line) <= room for line in lines)
    assert all(line == line.rstrip() for line in lines)
    letters = "".join("".join(row) for row in ROWS).replace(" ", "")
    assert sorted("".join(lines).replace(" ", "")) == sorted(letters)


def test_folding_keeps_words_whole_where_they_fit() -> None:
    assert fold("one two three", 7) == ["one two", "three"]
    assert fold("abcdefgh", 3) == ["abc", "def", "gh"]
    assert fold("モデルの名前", 5) == ["モデ", "ルの", "名前"]
    assert fold("two\nlines", 9) == ["two", "lines"]


def test_a_random_table_keeps_its_rows_apart() -> None:
    draw = random.Random(1)
    rows = [["x" * draw.randrange(9) for _ in range(draw.randrange(1, 5))] for _ in range(40)]
    found = list(grid(rows, (0,), 20))
    assert [number for number, _ in found] == sorted(number for number, _ in found)
    for number, row in enumerate(rows):
        assert sum(cell.count("x") for at, line in found if at == number for cell in line) == sum(map(len, row))


def test_combining_marks_take_no_column_and_wide_letters_two() -> None:
    assert cells("e\u0301") == 1
    assert cells("語") == 2

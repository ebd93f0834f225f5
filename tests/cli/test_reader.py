from __future__ import annotations

import io

import pytest

from hetero.cli.reader import LineReader, is_open, unblock


def test_a_block_of_three_quotes_is_its_inside() -> None:
    assert unblock('"""a\n b"""') == "a\n b"
    assert unblock('"""\na\n"""') == "a"
    assert unblock('say """ twice') == 'say """ twice'
    assert unblock('"""') == '"""'


def test_a_block_is_open_until_its_second_quotes() -> None:
    assert is_open('"""a')
    assert not is_open('"""a"""')
    assert not is_open('a """')


def test_plain_lines_join_inside_a_block(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('one\n"""two\nthree"""\n'))
    reader = LineReader()
    assert [reader.read(), reader.read()] == ["one", "two\nthree"]
    with pytest.raises(EOFError):
        reader.read()
    assert capsys.readouterr().out == ">>> >>> ... >>> "

"""Nothing that a node says drives the terminal, begins a line of fleet's, or reads backwards."""

from __future__ import annotations

import io
import os

import pytest

from fleet.cli.screen.folded import shown
from fleet.cli.screen.output import clean, clean_lines, clean_output, without_colours


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nerror: host x: b", "a\\nerror: host x: b"),
        ("a\rb", "a\\rb"),
        ("a\tb", "a b"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("\u2066x\u2069\u200f", "\\u2066x\\u2069\\u200f"),
        ("a\u2028b\x85c\x9bd", "a\\u2028b\\x85c\\x9bd"),
        ("naïve 宽 👩‍🔬", "naïve 宽 👩‍🔬"),
        ("\udcff", "\\udcff"),
    ],
)
def test_a_message_is_one_plain_line(text: str, said: str) -> None:
    assert clean(text) == said
    assert clean_lines(f"{text}\n2").split("\n")[-1] == "2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\x1b[1;32mok\x1b[0m done", "\x1b[1;32mok\x1b[0m done\x1b[0m"),
        ("\x1b[31mred\nplain", "\x1b[31mred\x1b[0m\nplain"),
        ("a\tb\n", "a\tb\n"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x1b[38:2:1:2:3mx", "\x1b[38:2:1:2:3mx\x1b[0m"),
        ("\x1b[?25l", "\\x1b[?25l"),
        ("\u202ex", "\\u202ex"),
    ],
)
def test_output_on_a_terminal_keeps_lines_tabs_and_colours(text: str, said: str) -> None:
    assert clean_output(text, True) == said
    assert "\x1b" not in clean_output(text, False) and "\x1b" not in without_colours(text)


def test_what_goes_to_a_terminal_in_pieces_is_cleaned_and_a_pipe_has_every_byte() -> None:
    data = b"\x1b[2Jone\n" + b"x" * 3_000_000 + b"\ntwo\xff"
    assert b"".join(shown(data, io.TextIOWrapper(io.BytesIO()))) == data
    head, terminal = os.openpty()
    with os.fdopen(terminal, "w") as out:
        said = b"".join(shown(data, out))
    os.close(head)
    assert said.startswith(b"\\x1b[2Jone\n") and said.count(b"x") > 3_000_000 and said.endswith("\ntwo\ufffd".encode())

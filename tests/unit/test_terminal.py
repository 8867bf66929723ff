"""What a stream may show, and text laid out for it."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.cli.screen import terminal
from fleet.cli.screen.layout import table, wrap
from fleet.cli.screen.output import echo, inform


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("NO_COLOR", "CI", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return monkeypatch


@pytest.mark.parametrize(
    "env, colored, live",
    [
        ({}, True, True),
        ({"NO_COLOR": "1"}, False, True),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": ""}, False, False),
        ({"CI": "true"}, True, False),
        ({"CI": "false"}, True, True),
    ],
)
def test_what_a_terminal_may_show(env: dict[str, str], colored: bool, live: bool, plain: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        plain.setenv(name, value)
    assert (terminal.colored(Tty()), terminal.live(Tty())) == (colored, live)
    assert terminal.interactive(Tty()), "somebody looks, whatever it can do"


def test_a_pipe_has_no_colours_no_live_line_and_no_width(plain: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    assert not terminal.colored(pipe) and not terminal.live(pipe) and terminal.width(pipe) is None
    plain.setenv("COLUMNS", "100")
    assert terminal.width(pipe) is None and terminal.width(Tty()) == 100


@pytest.mark.parametrize(
    "env, shown",
    [({}, "\x1b[31merror:\x1b[0m x\n"), ({"NO_COLOR": "1"}, "error: x\n"), ({"TERM": "dumb"}, "error: x\n")],
)
def test_colours_reach_only_who_wants_them(env: dict[str, str], shown: str, plain: pytest.MonkeyPatch) -> None:
    out = Tty()
    plain.setattr("sys.stderr", out)
    for name, value in env.items():
        plain.setenv(name, value)
    inform("\x1b[31merror:\x1b[0m x")
    assert out.getvalue() == shown


def test_nothing_else_in_cli_asks_a_stream() -> None:
    for path in Path(terminal.__file__).parents[1].glob("*.py"):
        asked = {node.attr for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)}
        if path.stem != "terminal":
            assert not asked & {"isatty", "get_terminal_size", "is_terminal"}, path


def test_wide_letters_count_as_the_cells_they_take() -> None:
    assert [terminal.cells(text) for text in ("abc", "漢字", "e\u0301", "🚀")] == [3, 4, 1, 2]
    assert terminal.cut("漢字漢字", 5) == "漢字" and terminal.cut("漢字", 4) == "漢字"
    assert terminal.cut("x" * 20, 10, "...") == "xxxxxxx..."
    assert terminal.pad("漢字", 6) + "|" == "漢字  |" and terminal.pad("7", 3, right=True) == "  7"


def test_the_live_lines_are_cut_to_the_screen(plain: pytest.MonkeyPatch) -> None:
    out = Tty()
    plain.setattr("sys.stderr", out)
    plain.setenv("COLUMNS", "20")
    plain.setenv("LINES", "5")
    terminal.draw(["訓練" * 10, *map(str, range(9))])
    terminal.draw([])
    lines, erased = out.getvalue().split("\r")
    assert lines.split("\n") == ["訓練訓練訓練訓練訓", "0", "1", "... and 7 more"]
    assert erased == "\x1b[2K" + 3 * "\x1b[A\x1b[2K"


def test_a_terminal_that_was_made_narrower_has_broken_the_live_lines_anew(plain: pytest.MonkeyPatch) -> None:
    out = Tty()
    plain.setattr("sys.stderr", out)
    plain.setenv("COLUMNS", "60")
    terminal.draw(["x" * 50, "y" * 10, ""])
    plain.setenv("COLUMNS", "20")
    terminal.draw(["z" * 50])
    terminal.draw([])
    assert out.getvalue().split("\r")[1:] == ["\x1b[2K" + 4 * "\x1b[A\x1b[2K" + "z" * 17, "\x1b[2K"], (
        "three, one, and an empty one"
    )


def test_what_is_written_stands_above_the_live_lines_and_alone_at_a_prompt(plain: pytest.MonkeyPatch) -> None:
    out = Tty()
    plain.setattr("sys.stderr", out)
    terminal.draw(["1 of 2 hosts"])
    inform("a remark")
    terminal.draw(["1 of 2 hosts"])
    with terminal.prompt():
        terminal.draw(["2 of 2 hosts"])
        out.write("password: ")
        inform("still heard")
    terminal.draw(["2 of 2 hosts"])
    terminal.draw([])
    assert out.getvalue() == (
        "1 of 2 hosts\r\x1b[2Ka remark\n1 of 2 hosts\r\x1b[2Kpassword: still heard\n2 of 2 hosts\r\x1b[2K"
    )


def test_a_line_from_a_signal_handler_takes_no_lock(plain: pytest.MonkeyPatch) -> None:
    out, (reader, writer) = Tty(), os.pipe()
    plain.setattr("sys.stderr", out)
    terminal.draw(["1 of 2 hosts"])
    plain.setattr("os.write", lambda fd, data, write=os.write: write(writer, data))
    with terminal._bottom.lock:
        terminal.note("interrupted: stopping")
    assert os.read(reader, 100) == b"\r\x1b[2Kinterrupted: stopping\n"
    terminal.draw([])
    assert out.getvalue() == "1 of 2 hosts", "and what it wiped is not wiped again"


@pytest.mark.parametrize(
    "line, pieces",
    [
        (
            "error: host gpu[01-04,07]: the script is not there",
            ["error: host gpu[01-04,07]:", "       the script is not", "       there"],
        ),
        (
            "  hint: say 'fleet launch --sync' to bring it there",
            ["  hint: say", "        'fleet launch --sync'", "        to bring it there"],
        ),
        (
            "  hint: fleet exec -w gpu[01-04,07] -- sh -c 'sleep 1; echo ready'",
            [
                "  hint: fleet exec -w \\",
                "        gpu[01-04,07] -- \\",
                "        sh -c \\",
                "        'sleep 1; echo ready'",
            ],
        ),
        ("  FLEET_LAB=x fleet -i lab exec -- hostname", ["  FLEET_LAB=x fleet -i \\", "    lab exec -- hostname"]),
        ("the user's own, or the hosts' own", ["the user's own, or the", "  hosts' own"]),
        (
            "SHA256:FJUQcwDMcN1AeXGEwkFJUQcwDMcN1AeXGEwk is new",
            ["SHA256:FJUQcwDMcN1AeXGEwkFJUQcwDMcN1AeXGEwk", "  is new"],
        ),
        ("漢字漢字 漢字漢字 漢字漢字訓", ["漢字漢字 漢字漢字", "  漢字漢字訓"]),
        ("\x1b[31merror:\x1b[0m one two three 4 five", ["\x1b[31merror:\x1b[0m one two three 4", "       five"]),
        ("short", ["short"]),
        ("", [""]),
    ],
)
def test_lines_break_between_words(line: str, pieces: list[str]) -> None:
    assert wrap(line, 26) == pieces
    assert wrap(line, None) == [line]


def test_only_a_terminal_breaks_lines(plain: pytest.MonkeyPatch) -> None:
    line = "error: " + "word " * 40
    for out, lines in ((io.StringIO(), 1), (Tty(), 3)):
        plain.setattr("sys.stdout", out)
        echo(line)
        assert out.getvalue().count("\n") == lines


ROWS = [
    ["0", "gpu01", "10.0.0.1", "root", "/opt/conda/envs/train/bin/python"],
    ["1", "計算機2", "10.0.0.20", "root", ""],
]
TITLES = ("rank", "host", "address", "user", "python")


def test_a_table_says_once_what_repeats() -> None:
    assert table(TITLES, ROWS, 80, keys=2, right=("rank",), once="all hosts") == [
        "rank  host     address    python",
        "   0  gpu01    10.0.0.1   /opt/conda/envs/train/bin/python",
        "   1  計算機2  10.0.0.20",
        "all hosts: user root",
    ]
    assert table(TITLES, ROWS[:1], 80, keys=2, once="all hosts")[0] == "rank  host   address   user  python"
    assert "gpu01    10.0.0.1   root" in table(TITLES, ROWS)[1], "in a pipe a row is whole"


def test_a_table_that_does_not_fit_becomes_a_paragraph_a_row() -> None:
    assert table(TITLES, ROWS, 46, keys=2, once="all hosts") == [
        "0  gpu01",
        "    address 10.0.0.1,",
        "    python /opt/conda/envs/train/bin/python",
        "1  計算機2",
        "    address 10.0.0.20",
        "all hosts: user root",
    ]


@pytest.mark.parametrize("kind", ["terminal", "file"])
def test_lines_of_exec_reach_a_terminal_without_control_characters(tmp_path: Path, kind: str) -> None:
    (tmp_path / "hostfile").write_text("gpu1\n")
    reader, writer = os.openpty() if kind == "terminal" else (-1, os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT))
    line = "import sys; from fleet.cli.main import run; sys.exit(run(sys.argv[1:]))"
    words = ["-i", f"{tmp_path}/hostfile", "--transport", "local", "exec", "--no-fold", "--", "printf"]
    said = "one\x1b]0;title\x07 two\n"
    subprocess.run([sys.executable, "-c", line, *words, said], stdout=writer, stderr=subprocess.DEVNULL, check=True)
    if kind == "file":
        assert (tmp_path / "f").read_text() == f"gpu1: {said}"
    else:
        shown = os.read(reader, 4096)
        assert b"gpu1: one" in shown and b"two" in shown and not {0x1B, 0x07} & set(shown), shown
        os.close(reader)
    os.close(writer)

"""Outputs that differ in a few lines show the difference, all others are shown whole."""

from __future__ import annotations

import random

import pytest

from fleet.cli.screen.folded import WORK, Hunk, compare, lines_of, write_folded
from fleet.model import Result


def text(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


TEN = [f"line {n}" for n in range(1, 11)]


def shown(outputs: dict[str, bytes], capfdbinary: pytest.CaptureFixture[bytes]) -> list[str]:
    write_folded([Result(name, True, 0, data) for name, data in outputs.items()], "stdout")
    return capfdbinary.readouterr().out.decode().splitlines()


def test_one_odd_host_is_told_as_a_difference(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    odd = [*TEN[:2], "LINE 3", *TEN[3:6], *TEN[7:], "more"]
    assert shown({**{f"gpu{n:02}": text(*TEN) for n in range(1, 8)}, "gpu08": text(*odd)}, capfdbinary) == [
        "--- gpu[01-07] (7) ---",
        *TEN,
        "--- gpu08, where it differs from gpu[01-07] ---",
        "line 3:",
        "  gpu[01-07]: line 3",
        "  gpu08:      LINE 3",
        "line 7:",
        "  gpu[01-07]: line 7",
        "  gpu08 has nothing there",
        "after line 10:",
        "  gpu[01-07] have nothing there",
        "  gpu08:      more",
    ]


def test_a_line_that_is_each_hosts_own_is_listed_by_host(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    outputs = {f"n{n}": text("a", "b", f"I am n{n}", "c", "d") for n in range(1, 9)}
    lines = shown(outputs, capfdbinary)
    assert lines == [
        "--- n1 ---",
        "a",
        "b",
        "I am n1",
        "c",
        "d",
        "--- n[2-8] (7), where they differ from n1 ---",
        "line 3:",
        *(f"  n{n}: I am n{n}" for n in range(1, 9)),
    ]


def test_what_is_short_or_quite_different_is_shown_whole(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert shown({"a": b"a\n", "b": b"b\n"}, capfdbinary) == ["--- a ---", "a", "--- b ---", "b"]
    lines = shown(
        {"a": text(*TEN), "b": text(*TEN), "c": text(*map(str, range(10))), "d": text(*TEN[:9], "x")}, capfdbinary
    )
    assert lines[0] == "--- a-b (2) ---" or lines[0] == "--- a,b (2) ---"
    assert lines[11:15] == ["--- d, where it differs from a,b ---", "line 10:", "  a,b: line 10", "  d:   x"]
    assert lines[15:] == ["--- c ---", *map(str, range(10))]


def test_bytes_stay_what_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    odd = b"\xff\x1b[31m\r\n"
    write_folded([Result("a", True, 0, text(*TEN)), Result("b", True, 0, text(*TEN) + odd)], "stdout")
    out = capfdbinary.readouterr().out
    assert out.startswith(b"--- a ---\n" + text(*TEN)) and out.endswith(b"  b: \xff\x1b[31m\r\n")
    binary = [b"\0" + text(*TEN), text(*TEN)]
    assert compare(binary) == ([1], []) or compare(list(reversed(binary)))[0] == []


def rebuilt(first: bytes, number: int, hunks: list[Hunk]) -> list[bytes]:
    lines, at = [], 0
    for hunk in hunks:
        lines += [*lines_of(first)[at : hunk.first], *hunk.texts[number]]
        at = hunk.last
    return [*lines, *lines_of(first)[at:]]


def test_the_difference_says_it_all() -> None:
    dice = random.Random(7)
    for _ in range(300):
        first = [str(dice.randrange(6)) for _ in range(dice.randrange(1, 30))]
        others = []
        for _ in range(dice.randrange(1, 5)):
            other = list(first)
            for _ in range(dice.randrange(4)):
                at = dice.randrange(len(other) + 1)
                other[at : at + dice.randrange(3)] = [str(dice.randrange(9)) for _ in range(dice.randrange(3))]
            others.append(text(*other) if other else b"x\n")
        near, hunks = compare([text(*first), *others])
        for number in near:
            assert rebuilt(text(*first), number, hunks) == lines_of(others[number - 1])


def test_outputs_too_large_to_compare_are_shown_whole() -> None:
    size = int(WORK**0.5) + 10
    one, other = text(*map(str, range(size))), text(*(str(-n) for n in range(size)))
    assert compare([one, other]) == ([], [])
    assert compare([one, one + b"x\n"])[0] == [1], "a long output with one line more costs nothing"

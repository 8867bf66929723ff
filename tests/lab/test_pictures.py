"""The pictures of docs/pictures/: each is played again, and has the text that it shows."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tools.pictures import Frame, Play, last_screen, plays, stage

pytestmark = [pytest.mark.slow, pytest.mark.real]

# lines that are there or not by the machine's speed, and facts of the machine
SPEED = r"imports: did not answer|importing torch takes|silent for 5 s|^connecting:|^waiting|^\[gpu01:0\] step|^\[W"
FACTS = r"^(system|kernel|architecture|glibc|CPUs|memory|CUDA|gcc|ninja|free in|numpy|clock)\b"
# what differs from run to run, and from machine to machine
VARIES = {
    r"\d{8}-\d{6}-[0-9a-f]{4}": "ID",
    r"\d[\d.]*( (GiB|MiB|KiB|kB|MB|min|h|ms|s)\b|%|step/s)?": "N",
    r"[█▏▎▍▌▋▊▉ ]+\|": "|",
    r"[━─]+": "-",
    r"root@\S+": "OWNER",
    r"weights: \w+": "weights",
    r"warnings": "warning",
    r" +": " ",
}


def lines(text: str) -> set[str]:
    kept = (line for line in text.splitlines() if not re.search(f"{SPEED}|{FACTS}", line))
    normal = set[str]()
    for line in kept:
        for pattern, instead in VARIES.items():
            line = re.sub(pattern, instead, line)
        normal.add(line.strip())
    return normal


@pytest.fixture(scope="module")
def act() -> Iterator[Callable[[Play], list[Frame]]]:
    with stage() as act:
        yield act


@pytest.mark.parametrize("play", plays(), ids=lambda play: play.name)
def test_the_picture_shows_what_is_there(play: Play, act: Callable[[Play], list[Frame]]) -> None:
    picture = play.picture.read_text("utf-8")
    assert len(picture.encode()) < 150_000
    shown = html.unescape(picture.partition("<desc>")[2].partition("</desc>")[0])
    higher = replace(play, rows=play.rows + 8)  # so that a line more, on a slow machine, pushes none out
    assert lines(last_screen(act(higher))) == lines(shown)

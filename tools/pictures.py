"""Draws docs/pictures/*.svg: plays each *.play next to them in a pseudo-terminal, on a lab of four hosts.

    python -m tools.pictures [NAME...]

A .play file has settings (`rows: 20`, `columns: 100`, `moving: yes`), lines that are typed before the picture begins
(`> ...`), lines that it shows (`$ ...`), and lines that clear up after it (`< ...`). The picture is an SVG whose text
can be searched; a moving one repeats itself. Its `<desc>` holds the last screen.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures"
LONGEST_STILL = 1.2  # seconds; longer pauses of the screen are cut to this
HOME = "/home/ada"  # is shown in the place of the home folder of a play
END = 4.0  # seconds for which the last screen stands
LONGEST = 24.0  # seconds; what took longer is shown faster
WIDTH, HEIGHT, MARGIN = 8.05, 18, 14  # of a cell, in pixels
STYLE = """
:root{--back:#fbfbfa;--text:#24292f;--red:#b3261e;--green:#1a7f37;--brown:#8a5a00;
--blue:#0550ae;--magenta:#8250df;--cyan:#1b6f85}
@media (prefers-color-scheme:dark){:root{--back:#15181c;--text:#d7dde4;--red:#ff8078;--green:#5ac46e;
--brown:#e0ae55;--blue:#79b8ff;--magenta:#d2a8ff;--cyan:#66c7dc}}
rect{fill:var(--back)}
text{fill:var(--text);font:13.4px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;
white-space:pre}
.b{font-weight:bold}.d{opacity:.65}
"""


@dataclass(frozen=True)
class Play:
    name: str
    prepared: tuple[str, ...]
    typed: tuple[str, ...]
    cleared: tuple[str, ...]
    rows: int
    columns: int
    moving: bool

    @classmethod
    def read(cls, path: Path) -> Play:
        lines = path.read_text("utf-8").splitlines()
        settings = dict(line.split(": ", 1) for line in lines if line[:1].isalpha())
        before, shown, after = (tuple(line[2:] for line in lines if line[:2] == mark) for mark in ("> ", "$ ", "< "))
        rows, columns = int(settings.get("rows", 24)), int(settings.get("columns", 100))
        return cls(path.stem, before, shown, after, rows, columns, settings.get("moving") == "yes")

    @property
    def picture(self) -> Path:
        return PICTURES / f"{self.name}.svg"


Row = tuple[tuple[str, str], ...]  # pieces of one line: text, classes
Frame = tuple[float, tuple[Row, ...]]  # seconds since the beginning, the screen


def plays() -> list[Play]:
    return [Play.read(path) for path in sorted(PICTURES.glob("*.play"))]


def rows_of(screen: pyte.Screen, home: str) -> tuple[Row, ...]:
    rows = (row_of(screen, y) for y in range(screen.lines))
    return tuple(tuple((text.replace(home, HOME), style) for text, style in row) for row in rows)


def row_of(screen: pyte.Screen, y: int) -> Row:
    pieces = list[list[str]]()
    for x in range(screen.columns):
        char = screen.buffer[y][x]
        style = " ".join(filter(None, ["b" * char.bold, "" if char.fg == "default" else char.fg]))
        if pieces and pieces[-1][1] == style:
            pieces[-1][0] += char.data
        else:
            pieces.append([char.data, style])
    if pieces[-1][0].isspace():
        pieces.pop()
    return tuple((text, style) for text, style in pieces)


def frames_of(command: str, screen: pyte.Screen, env: dict[str, str], cwd: Path) -> Iterator[Frame]:
    """Types `command` into a terminal that shows `screen`. Yields what it shows, ten times a second."""
    stream = pyte.ByteStream(screen)
    stream.feed(b"\x1b[1m$ " + command.encode() + b"\x1b[0m\r\n")
    yield 0.0, rows_of(screen, env["HOME"])
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe("sh", ["sh", "-c", command], env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", screen.lines, screen.columns, 0, 0))
    begin = shown = time.monotonic()
    while True:
        ready, _, _ = select.select([terminal], [], [], 0.1)
        try:
            data = os.read(terminal, 65536) if ready else b""
        except OSError:
            break
        stream.feed(data)
        if time.monotonic() - shown >= 0.1:
            shown = time.monotonic()
            yield shown - begin, rows_of(screen, env["HOME"])
    os.close(terminal)
    os.waitpid(pid, 0)
    yield time.monotonic() - begin, rows_of(screen, env["HOME"])


def typed(lines: tuple[str, ...], env: dict[str, str], cwd: Path) -> None:
    for line in lines:
        with tempfile.TemporaryFile() as output:  # a pipe would wait for what goes on in the background
            script, nothing = ["sh", "-c", line], subprocess.DEVNULL
            done = subprocess.run(script, cwd=cwd, env=env, stdin=nothing, stdout=output, stderr=output, timeout=300)
            if done.returncode:
                output.seek(0)
                raise SystemExit(f"$ {line}\n{output.read().decode(errors='replace')}")


def played(play: Play, env: dict[str, str], cwd: Path) -> list[Frame]:
    """Returns the screens of a play, each once, with pauses cut."""
    typed(play.prepared, env, cwd)
    screen = pyte.Screen(play.columns, play.rows)
    frames = list[Frame]()
    now = 0.0
    for command in play.typed:
        last = 0.0
        for at, rows in frames_of(command, screen, env, cwd):
            now += min(at - last, LONGEST_STILL)
            last = at
            if not frames or frames[-1][1] != rows:
                frames.append((now, rows))
        now += LONGEST_STILL
    typed(play.cleared, env, cwd)
    return frames if play.moving else [(0.0, frames[-1][1])]


def last_screen(frames: list[Frame]) -> str:
    return "\n".join("".join(text for text, _ in row).rstrip() for row in frames[-1][1]).rstrip()


def drawn(frames: list[Frame], rows: int, columns: int) -> str:
    """Returns the SVG: each line of the screen once for each time that it stands there unchanged."""
    length = frames[-1][0] + END
    spans = dict[tuple[float, float], list[str]]()
    for y in range(rows):
        begin, row = 0.0, frames[0][1][y]
        for at, screen in [*frames[1:], (length, ())]:
            if not screen or screen[y] != row:
                if row:
                    spans.setdefault((begin, at), []).append(_text(row, y))
                begin, row = at, screen[y] if screen else ()
    keyframes, groups = list[str](), list[str]()
    for n, ((begin, end), texts) in enumerate(sorted(spans.items())):
        whole = begin == 0 and end == length
        if not whole:
            first, then = (f"{100 * at / length:.2f}%" for at in (begin, end))
            start = "0%{opacity:0}" if begin else ""
            keyframes.append(f"@keyframes k{n}{{{start}{first}{{opacity:1}}{then}{{opacity:{int(end == length)}}}}}")
        style = "" if whole else f' style="animation:k{n} {min(length, LONGEST):.1f}s step-end infinite"'
        groups.append(f"<g{style}>{''.join(texts)}</g>")
    size = f"{columns * WIDTH + 2 * MARGIN:.0f} {rows * HEIGHT + 2 * MARGIN}"
    colours = "".join(f".{name}{{fill:var(--{name})}}" for name in ("red", "green", "brown", "blue", "magenta", "cyan"))
    text = html.escape(last_screen(frames))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}"><desc>{text}</desc>\n'
        f"<style>{STYLE}{colours}\n{''.join(keyframes)}</style>\n"
        '<rect width="100%" height="100%" rx="8"/>\n' + "\n".join(groups) + "\n</svg>\n"
    )


def _text(row: Row, y: int) -> str:
    pieces, x = list[str](), 0
    for text, style in row:
        if not text.isspace():
            kind = f' class="{style}"' if style else ""
            shown = html.escape(text.rstrip(), quote=False)
            pieces.append(f'<tspan x="{MARGIN + x * WIDTH:.1f}"{kind}>{shown}</tspan>')
        x += len(text)
    return f'<text y="{MARGIN + (y + 0.75) * HEIGHT:.1f}">{"".join(pieces)}</text>'


@contextmanager
def stage() -> Iterator[Callable[[Play], list[Frame]]]:
    """Yields what plays a play: in a home folder and a lab of its own, whose hosts are gpu01 to gpu04."""
    with tempfile.TemporaryDirectory(prefix="fleet-pictures.") as home:
        env = {"HOME": home, "FLEET_LAB": "gpu", "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        lab, project, venv = f"{home}/.fleet/lab/gpu", Path(home, "project"), Path(sys.executable).parents[1]
        project.mkdir()
        shutil.copy(ROOT / "examples/digits.py", project)
        try:
            typed(
                (
                    "fleet lab up 4 -q",
                    # the training interpreter is shown by a path of the hosts, and not by one of this machine
                    f"sed 's|{venv}|/opt/train|' {lab}/inventory.yaml > fleet.yaml",
                    f"fleet -q setup-ssh --tofu --password-file {lab}/password",
                    f"fleet exec -- ln -s {venv} /opt/train",
                    # torch comes from the disk once, and is known to work: no launch waits for it, nor warns
                    "fleet exec --timeout 240 --env-of python -- python -c 'import torch.distributed.run, sklearn'",
                    "for n in 1 2 3 4 5; do fleet check | grep -q hangs-imports || break; done",
                ),
                env,
                project,
            )
            yield lambda play: played(play, env, project)
        finally:
            subprocess.run(["fleet", "lab", "down", "-q"], env=env, stdin=subprocess.DEVNULL)


def main() -> None:
    with stage() as act:
        for play in plays():
            if play.name in sys.argv[1:] or not sys.argv[1:]:
                frames = act(play)
                picture = drawn(frames, play.rows, play.columns)
                play.picture.write_text(picture, "utf-8")
                print(f"docs/pictures/{play.name}.svg: {len(frames)} frames, {len(picture) / 1024:.0f} KiB", flush=True)


if __name__ == "__main__":
    main()

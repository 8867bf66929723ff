"""What a terminal really shows while fleet works: fleet in a pty on the local transport, read by an emulator."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyte
import pytest

FLEET = [sys.executable, "-c", "from fleet.cli.main import main; main()"]
ESCAPE = b"\x1b"


class Terminal:
    """A terminal of some size that fleet runs in; its screen is what a person would see."""

    def __init__(self, home: Path, *argv: str, columns: int = 80, rows: int = 24, **env: str) -> None:
        self.screen, self.raw = pyte.Screen(columns, rows), b""
        self._stream = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        clean = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*FLEET, *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=home,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # keys and ^C reach it
            env={**clean, "HOME": str(home), "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), **env},
        )
        os.close(slave)

    def read(self, seconds: float) -> bool:
        """Take in what comes; False when fleet has ended and all of it was read."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def lines(self) -> list[str]:
        """Lines that are not blank, as they stand there now."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def until(self, shown: Callable[[list[str]], bool]) -> list[str]:
        """The screen as soon as it shows this."""
        deadline = time.monotonic() + 60
        while not shown(self.lines):
            assert self.read(0.2) and time.monotonic() < deadline, self.lines
        return self.lines

    def end(self) -> list[str]:
        """The screen when fleet has ended."""
        while self.read(60):
            pass
        self.process.wait(60)
        return self.lines

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Opens terminals in a folder with an inventory of three hosts of which the last one takes its time ($LATE)."""
    hosts = {f"n{n}": {"env": {"LATE": "1" if n == 3 else ""}} for n in (1, 2, 3)}
    (tmp_path / "fleet.yaml").write_text(json.dumps({"hosts": hosts}))
    opened: list[Terminal] = []

    def make(*argv: str, columns: int = 80, rows: int = 24, **env: str) -> Terminal:
        opened.append(Terminal(tmp_path, "--transport", "local", *argv, columns=columns, rows=rows, **env))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


SLOW = ("exec", "--shell", "echo same; [ -z $LATE ] || until [ -e go ]; do sleep 0.1; done")


def go(home: Path) -> None:
    (home / "go").touch()


def test_exec_names_who_it_waits_for_and_leaves_no_trace(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    screen = terminal(*SLOW, "--timeout", "600")
    # what is at work shows how far it is
    shown = screen.until(lambda lines: lines[1:] == ["[n3] same"] and lines[0].startswith("waiting for n3 (1 of 3) "))
    assert shown[0].endswith(" s")
    go(tmp_path)
    assert screen.end() == ["--- n[1-3] (3) ---", "same"]


def test_the_last_lines_of_hosts_at_work_have_a_third_of_the_screen(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    say = "seq 30; printf 'a\\tb \\033[31mred\\033[0m 40%%\\r50%%'; until [ -e go ]; do sleep 0.1; done"
    screen = terminal("exec", "-w", "n1,n2", "--shell", say, rows=12)
    last = ["[n1] 30", "[n1] 50%", "[n2] 30", "[n2] 50%"]
    screen.until(lambda lines: lines[1:] == last and lines[0].startswith("waiting for n[1-2] (2 of 2)"))
    go(tmp_path)
    assert screen.end()[-1].startswith("a       b red 40%")


def test_at_its_end_exec_counts_the_hosts_that_did_well(terminal: Callable[..., Terminal]) -> None:
    shown = terminal("exec", "--shell", "[ -z $LATE ]").end()
    assert shown == ["error: host n3: exit status 1", "2 of 3 hosts ok"]
    assert terminal("exec", "-w", "n3", "--shell", "[ -z $LATE ]").end() == ["error: host n3: exit status 1"]
    assert terminal("exec", "--", "true").end() == []


def test_lines_as_they_come_stand_above_the_live_line(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    screen = terminal("exec", "--no-fold", *SLOW[1:])
    shown = screen.until(lambda lines: len(lines) == 4 and lines[-1].startswith("waiting for n3"))
    assert sorted(shown[:3]) == ["n1: same", "n2: same", "n3: same"]
    go(tmp_path)
    assert sorted(screen.end()) == ["n1: same", "n2: same", "n3: same"]


def test_ps_draws_its_table_anew_until_it_is_enough(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = ["launch", "--detach", "--no-preflight", "--engine", "command", "--workdir", str(tmp_path)]
    fleet = partial(subprocess.run, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    say = "echo one; until [ -e go ]; do sleep 0.1; done; echo two; sleep 600"
    watching = terminal("-w", "n1", "ps", "--watch", "0.5", columns=160)
    watching.until(lambda lines: len(lines) == 2 and lines[0].startswith("no live run"))
    fleet([*FLEET, "--transport", "local", "-w", "n1", *run, "sh", "-c", say], check=True, timeout=60)
    shown = watching.until(lambda lines: len(lines) == 3 and lines[1].endswith(" one"))
    assert shown[0].startswith("RUN ") and shown[2].endswith(", every 0.5 s; q ends it")
    go(tmp_path)
    watching.until(lambda lines: len(lines) == 3 and lines[1].endswith(" two"))
    watching.type("q")
    shown = watching.end()
    assert len(shown) == 2 and shown[1].endswith(" two"), "the last one stays"
    assert watching.process.returncode == 0
    watching = terminal("-w", "n1", "ps", "--watch")
    watching.until(lambda lines: bool(lines) and lines[-1].endswith(", every 5 s; q ends it"))
    watching.type("\x03")
    assert watching.end()[-1].endswith("interrupted") and watching.process.returncode == 130
    fleet([*FLEET, "--transport", "local", "-w", "n1", "stop", "latest"], check=True, timeout=60)


def test_top_goes_on_until_it_is_enough(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    for key, code in (("q", 0), ("\x03", 130)):
        screen = terminal("-w", "n1", "top", "--every", "0.5", columns=160)
        shown = screen.until(lambda lines: len(lines) == 3 and lines[2].startswith("n1 "))
        assert shown[0].endswith("1 host, 0 GPUs; q ends it") and shown[1].startswith("HOST ")
        screen.type(key)
        assert any(line.startswith("n1 ") for line in screen.end()) and screen.process.returncode == code


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_ps_watches_on_a_terminal_alone(more: list[str], tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a\n")
    argv = [*FLEET, "ps", "--watch", "2", *more]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "--watch draws on a terminal" in done.stdout + done.stderr


def test_nothing_of_a_live_line_stays_above_an_interrupt(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    """A line that is as wide as the terminal, and the ^C that a terminal shows behind it."""
    (tmp_path / "many.yaml").write_text(json.dumps({"hosts": {f"gpu{n:02}": {} for n in range(1, 60, 2)}}))
    screen = terminal("-i", "many.yaml", "exec", "--shell", "trap '' INT TERM; until [ -e go ]; do sleep 0.1; done")
    screen.until(lambda lines: any(line.startswith("waiting for") and len(line) > 75 for line in lines))
    screen.type("\x03")
    note = "interrupted: stopping; once more to leave at once"
    shown = screen.until(lambda lines: len(lines) >= 2 and lines[0] == note)
    assert all(line.startswith("waiting for") for line in shown[1:])
    screen.type("\x03")
    assert screen.end() == [note] and screen.process.returncode == 130
    go(tmp_path)


def test_a_terminal_that_wants_no_colours_gets_none(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    """Which of them have a live line: test_terminal.py."""
    screen = terminal(*SLOW, NO_COLOR="1")
    screen.until(lambda lines: any("waiting for n3" in line for line in lines))
    go(tmp_path)
    assert screen.end() == ["--- n[1-3] (3) ---", "same"]
    assert b"\x1b[1m" not in screen.raw and ESCAPE in screen.raw


def test_a_dumb_terminal_gets_no_escapes(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    go(tmp_path)
    screen = terminal(*SLOW, TERM="dumb")
    assert screen.end() == ["--- n[1-3] (3) ---", "same"] and ESCAPE not in screen.raw


def test_a_question_stands_alone(terminal: Callable[..., Terminal]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        holder = subprocess.Popen(["sleep", "1000"], pass_fds=[server.fileno()], start_new_session=True)
        port = server.getsockname()[1]
    try:
        screen = terminal("-w", "n1", "kill-port", str(port))
        shown = screen.until(lambda lines: any(line.startswith("End 1 process? [y/N]:") for line in lines))
        assert [line.split()[0] for line in shown] == ["HOST", "end", "End"]
        os.write(screen._master, b"n\n")
        assert "left alone" in " ".join(screen.end())
    finally:
        holder.kill()
        holder.wait()


def test_launch_tells_its_steps_then_shows_the_bars(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    bar = "import os, sys, time\nsys.stderr.write('10%\\r50%\\r')\nsys.stderr.flush()\n"
    bar += "while not os.path.exists('go'): time.sleep(0.1)\nprint('done')"
    (tmp_path / "bar.py").write_text(bar)
    screen = terminal(
        "-w",
        "n1",
        "launch",
        "--no-preflight",
        "--engine",
        "command",
        "--workdir",
        str(tmp_path),
        sys.executable,
        "bar.py",
    )
    screen.until(lambda lines: lines[-1:] == ["[n1:0] 50%"])
    go(tmp_path)
    shown = screen.end()
    assert shown[0] == f"launching {sys.executable} on n1"
    assert [line.split(":")[0] for line in shown[1:3]] == ["preflight", "start"]
    assert ": 1 rank on 1 node, logs in runs/" in " ".join(map(str.strip, shown))
    assert "[n1:0] done" in shown and "[n1:0] 50%" in shown[:-1], "a bar that never ended stays, as its last state"


@pytest.mark.parametrize("piped", [False, True])
def test_launch_speaks_before_it_asks_anybody(piped: bool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        (tmp_path / "fleet.yaml").write_text(
            json.dumps({"hosts": {"mute": {"address": "127.0.0.1", "port": mute.getsockname()[1]}}})
        )
        words = ["--connect-timeout", "60", "launch", "train.py"]
        if piped:
            process = subprocess.Popen([*FLEET, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
            assert process.stderr and process.stderr.readline() == "launching train.py on mute\n"
            assert process.poll() is None
            process.kill()
            process.wait()
            process.stderr.close()
        else:
            screen = Terminal(tmp_path, *words)
            shown = screen.until(lambda lines: len(lines) == 2 and "waiting for mute" in lines[1])
            assert shown[0] == "launching train.py on mute" and shown[1].startswith("preflight: waiting for mute ... ")
            screen.close()


def test_the_first_words_wait_for_no_import() -> None:
    code = (
        "import sys; from fleet.cli.run import launch\n"
        "def remark(text):\n"
        "    print(text, 'fleet.ops.run' in sys.modules, 'paramiko' in sys.modules); sys.exit(0)\n"
        "launch.remark = remark; from fleet.cli.main import run; run(['-i', 'h', 'launch', 'train.py'])"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "h").write_text("n1\nn2\n")
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert done.stdout == "launching train.py on n[1-2] (2 hosts) False False\n", done.stderr


def test_a_sync_over_another_projects_files_asks_once(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(name)
    work = tmp_path / "work"
    terminal("sync", "a", "--to", str(work)).end()
    for answer, left, code in (("\n", ["a.py"], 123), ("y\n", ["b.py"], 0)):
        asking = terminal("sync", "b", "--to", str(work), columns=400)
        shown = asking.until(lambda lines: bool(lines) and lines[-1].endswith("[y/N]:"))
        assert len(shown) == 2 and f":{tmp_path / 'a'}: 1 of its files would be deleted, 0 replaced" in shown[0]
        assert shown[1].endswith(f":{tmp_path / 'b'} there all the same? [y/N]:")
        assert [p.name for p in work.iterdir()] == ["a.py"]
        asking.type(answer)
        asking.end()
        assert asking.process.returncode == code and [p.name for p in work.iterdir()] == left

"""The rank wrapper, alone: output into the rank's own files, the true end on record and passed on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.node.run.rank import drain
from tests.clock import HandClock
from tests.node.nodes import PYTHON, alive, read_json, until, with_variable

RANK = Path(fleet.__file__).parent / "node/run/rank/rank.py"


def start(folder: Path, *argv: str, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [PYTHON, "-I", "-S", str(RANK), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "FLEET_RUN_DIR": str(folder), "RANK": "5", "LOCAL_RANK": "1", **env},
    )


def outcome(folder: Path, *argv: str, **env: str) -> tuple[int, dict[str, Any]]:
    """(what the engine sees, the record)."""
    code = start(folder, *argv, **env).wait(60)
    return code, read_json(folder / "rank5.json")


@pytest.mark.parametrize(
    ("line", "seen", "status", "signum"),
    [
        ("exit 0", 0, 0, None),
        ("exit 3", 3, 3, None),
        ("exit 255", 255, 255, None),
        ("kill -9 $$", -9, None, 9),
        ("kill -SEGV $$", -11, None, 11),
        ("kill -TERM $$", -15, None, 15),
    ],
)
def test_it_ends_as_the_rank_ended(
    tmp_path: Path, line: str, seen: int, status: int | None, signum: int | None
) -> None:
    before = time.time()
    code, record = outcome(tmp_path, "sh", "-c", line, TORCHELASTIC_RESTART_COUNT="2")
    assert code == seen
    assert {k: record[k] for k in ("rank", "local_rank", "status", "signal", "attempt")} == {
        "rank": 5,
        "local_rank": 1,
        "status": status,
        "signal": signum,
        "attempt": 2,
    }
    assert before - 1 < record["started"] <= record["time"] < time.time() + 1
    assert not list(tmp_path.glob("core*")) and not list(tmp_path.glob("*.new"))


def test_output_is_appended_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "rank5.out").write_bytes(b"attempt 0\n")
    outcome(tmp_path, "printf", r"10%%\r\377\001no newline")
    _, record = outcome(tmp_path, "sh", "-c", "echo bad >&2")
    assert record["begins"] == [len(b"attempt 0\n10%\r\xff\x01no newline"), 0]
    assert (tmp_path / "rank5.out").read_bytes() == b"attempt 0\n10%\r\xff\x01no newline"
    assert (tmp_path / "rank5.err").read_bytes() == b"bad\n"


def test_who_opens_stdout_or_stderr_cuts_no_log(tmp_path: Path) -> None:
    """They are pipes, as under ssh."""
    program = """if 1:
        import logging, sys
        print("first", flush=True)
        log = logging.FileHandler("/dev/stdout", "w")
        log.emit(logging.makeLogRecord({"msg": "second"}))
        open("/proc/self/fd/2", "w").write("from python\\n")
        print("last")
    """
    line = f"echo begin >&2; {sys.executable} -c '{program}'; echo x > /dev/stderr; test -p /dev/stdout; echo $?"
    outcome(tmp_path, "bash", "-c", line)
    assert (tmp_path / "rank5.out").read_text() == "first\nsecond\nlast\n0\n"
    assert (tmp_path / "rank5.err").read_text() == "begin\nfrom python\nx\n"


def test_what_a_rank_leaves_behind_still_reaches_the_log(tmp_path: Path) -> None:
    process = start(
        tmp_path, "sh", "-c", "(until [ -e go ]; do sleep 0.1; done; echo late; echo later >&2) & echo early"
    )
    assert process.wait(60) == 0
    assert read_json(tmp_path / "rank5.json")["status"] == 0, "nobody waits for them"
    assert (tmp_path / "rank5.out").read_text() == "early\n"
    (tmp_path / "go").touch()
    until(lambda: not with_variable("FLEET_RUN_DIR", str(tmp_path)))
    assert (tmp_path / "rank5.out").read_text() == "early\nlate\n"
    assert (tmp_path / "rank5.err").read_text() == "later\n"


FLOOD = "head -c 9000000 /dev/zero; echo full >&2; until [ -e ../go ]; do sleep 0.1; done; echo; echo last"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_ends_no_rank_and_each_byte_is_here_or_named(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        process = start(disk, "sh", "-c", FLOOD)
        (tmp_path / "go").touch()
        assert process.wait(60) == 0
        record, text = read_json(disk / "rank5.json"), (disk / "rank5.out").read_bytes()
        lost = record["lost"][0]
        assert len(text) + lost == 9_000_000 + len("\nlast\n") and lost > 1_000_000
    finally:
        until(lambda: subprocess.run(["umount", str(disk)], check=False).returncode == 0)


def test_a_disk_that_hangs_holds_up_no_rank_for_long(tmp_path: Path) -> None:
    """What is opened as its log takes some bytes, and then none."""
    os.mkfifo(tmp_path / "rank5.out")
    reader = os.open(tmp_path / "rank5.out", os.O_RDWR)
    try:
        code, record = outcome(
            tmp_path, "sh", "-c", "trap 'echo stopped; exit 4' TERM; head -c 9000000 /dev/zero; kill $$"
        )
        assert code == 4
        assert 8_000_000 < record["lost"][0] <= 9_000_000 + len("stopped\n") and record["lost"][1] == 0
    finally:
        os.close(reader)


class Disk:
    """What a log's file lies on. room: bytes that it takes before it raises `then`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, then: Exception) -> None:
        self.clock, self.room, self.then = HandClock(), 0, then
        self.log = drain.Log(str(path), self.clock.monotonic)
        self._write = os.write
        monkeypatch.setattr(drain.os, "write", self._take)

    def _take(self, fd: int, data: memoryview) -> int:
        if not self.room and fd == self.log.fd:
            raise self.then
        count = self._write(fd, data[: self.room] if fd == self.log.fd else data)
        self.room -= count * (fd == self.log.fd)
        return count

    def say(self, data: bytes) -> None:
        """As the rank does, whose pipe is read where that is due."""
        for at in range(0, len(data), 1 << 16):
            assert self.log.is_due(), "the rank is held up"
            self._write(self.log.writer, data[at : at + (1 << 16)])
            self.log.read()


def test_a_disk_that_is_full_for_long_names_the_gap_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "rank5.out", monkeypatch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    log = disk.log
    disk.say(b"x" * drain.MOST)
    log.write()
    disk.clock.now += drain.PATIENCE - 0.1
    assert log.trouble and not log.is_due(), "the rank waits for the disk"
    disk.clock.now += 0.2
    disk.say(b"y" * 1_000_000)
    disk.room = 64 << 20
    log.write()
    disk.say(b"\nlast\n")
    log.write()
    gap = b"\n[fleet: 1000000 bytes lost here: No space left on device]\n"
    assert (tmp_path / "rank5.out").read_bytes() == b"x" * drain.MOST + gap + b"\nlast\n" and log.lost == 1_000_000


def test_a_slow_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes for all: it takes some bytes in time."""

    class Blocked(Exception):
        """The thread that writes is in the kernel."""

    disk, text = Disk(tmp_path / "rank5.out", monkeypatch, Blocked()), os.urandom(1 << 16) * 80
    for at in range(0, len(text), 1 << 16):
        while not disk.log.is_due():
            disk.clock.now += drain.PATIENCE - 0.1
            disk.room = 1 << 16
            with contextlib.suppress(Blocked):
                disk.log.write()
        disk.say(text[at : at + (1 << 16)])
    disk.room = len(text)
    disk.log.write()
    assert (tmp_path / "rank5.out").read_bytes() == text and disk.log.lost == disk.log.gap == 0


def test_argv_and_environment_pass_untouched(tmp_path: Path) -> None:
    argv = ["it's", "$(id)", "*", "", "a\nb", "é\udcff"]
    code = "import os,sys;sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode,sys.argv[1:]+[os.environ['V']])))"
    outcome(tmp_path, sys.executable, "-c", code, *argv, V="x\udcfe", LC_ALL="C")
    assert (tmp_path / "rank5.out").read_bytes() == b"\0".join(os.fsencode(item) for item in [*argv, "x\udcfe"])


@pytest.mark.parametrize(("argv", "status"), [(["no-such-program"], 127), (["/etc/passwd"], 126)])
def test_what_cannot_be_started(tmp_path: Path, argv: list[str], status: int) -> None:
    code, record = outcome(tmp_path, *argv)
    assert code == record["status"] == status
    assert f"cannot start {argv[0]}" in (tmp_path / "rank5.err").read_text()


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("#!/bin/sh\necho $0 $1", 0o755, "./job.sh a b"),
        ('#!/usr/bin/env -S bash -e\nwords=(x "$1"); echo ${words[1]}', 0o644, "a b"),
        ('words=(x "$1"); echo ${words[1]}', 0o755, "a b"),
        ("echo $1", 0o644, "a b"),
    ],
)
def test_a_shell_script_needs_neither_a_mode_nor_a_first_line(tmp_path: Path, text: str, mode: int, said: str) -> None:
    (tmp_path / "job.sh").write_text(text)
    (tmp_path / "job.sh").chmod(mode)
    assert outcome(tmp_path, "job.sh", "a b")[0] == 0
    assert (tmp_path / "rank5.out").read_text().strip() == said


@pytest.mark.parametrize(
    ("data", "status", "why"),
    [
        (b"#!/no/such/sh\r\nid", 127, r"its first line names no program: '/no/such/sh'"),
        (b"\x7fBAD\0\0", 127, "Exec format error"),
    ],
)
def test_a_script_that_cannot_be_started(tmp_path: Path, data: bytes, status: int, why: str) -> None:
    (tmp_path / "job").write_bytes(data)
    (tmp_path / "job").chmod(0o755)
    assert outcome(tmp_path, "./job")[0] == status
    assert f"cannot start ./job: {why}" in (tmp_path / "rank5.err").read_text()


def test_the_rank_starts_with_ordinary_signals(tmp_path: Path) -> None:
    show = ["grep", "Sig[BI]", "/proc/self/status"]
    outcome(tmp_path, *show)

    def masks(text: bytes) -> list[int]:
        return [int(word, 16) for word in text.split()[1::2]]

    blocked, ignored = masks((tmp_path / "rank5.out").read_bytes())
    # what started pytest may ignore signals itself: a background job of a shell does
    _, inherited = masks(subprocess.run(show, capture_output=True, check=True).stdout)
    assert blocked == 0 and ignored & ~inherited == 0


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_to_its_group_reaches_the_rank_once(tmp_path: Path, signum: signal.Signals) -> None:
    name = signum.name[3:]
    line = f"trap 'echo {name} >> got' {name}; touch up; until [ -s got ]; do sleep 0.1; done; sleep 0.5; exit 9"
    process = start(tmp_path, "sh", "-c", line)
    until((tmp_path / "up").exists)
    os.killpg(process.pid, signum)  # as torchrun does
    assert process.wait(60) == 9
    assert (tmp_path / "got").read_text() == f"{name}\n"
    assert read_json(tmp_path / "rank5.json")["signalled"] == (signum == signal.SIGTERM), "so an engine ends its ranks"


@pytest.mark.parametrize("apart", [True, False])
def test_a_signal_from_outside_is_a_stop_in_the_runs_own_container_alone(tmp_path: Path, apart: bool) -> None:
    """Its sender has number 0 in a pid namespace, whoever it is."""
    line = ["unshare", "--pid", "--fork", "--kill-child", PYTHON, "-I", "-S", str(RANK)]
    script = "trap 'exit 9' TERM; touch up; while :; do sleep 0.1; done"
    env = {"PATH": os.environ["PATH"], "FLEET_RUN_DIR": str(tmp_path), "RANK": "5"}
    env["FLEET_PLAN"] = json.dumps({"apart": True} if apart else {})
    with subprocess.Popen([*line, "sh", "-c", script], cwd=tmp_path, env=env) as process:
        until((tmp_path / "up").exists)
        (wrapper,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        os.kill(wrapper, signal.SIGTERM)
        record = until(lambda: (tmp_path / "rank5.json").exists() and read_json(tmp_path / "rank5.json"))
        process.kill()
    assert (record["status"], record["signalled"]) == (9, not apart)


def test_a_stop_reaches_the_rank_once_whoever_repeats_it(tmp_path: Path) -> None:
    """It ends when the supervisor, which this process is, has it end: what its rank has left may save its work."""
    (tmp_path / "pid").write_text(json.dumps({"pid": os.getpid(), "guardian": {"pid": 1}}))
    line = "trap 'echo TERM >> got' TERM; touch up; until [ -e go ]; do sleep 0.1; done; exit 9"
    process = start(tmp_path, "sh", "-c", line)
    until((tmp_path / "up").exists)
    process.terminate()
    until((tmp_path / "got").exists)
    for _ in range(2):
        subprocess.run(["kill", "-TERM", str(process.pid)], check=True)  # as a launcher does
    (tmp_path / "go").touch()
    record = until(lambda: (tmp_path / "rank5.json").exists() and read_json(tmp_path / "rank5.json"))
    assert (record["status"], record["signalled"]) == (9, False) and (tmp_path / "got").read_text() == "TERM\n"
    subprocess.run(["kill", "-TERM", str(process.pid)], check=True)
    assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 9


@pytest.mark.parametrize(("restarts", "holds"), [("0", True), ("3", False)])
def test_its_launcher_sees_no_end_before_all_ranks_of_the_node_have_ended(
    tmp_path: Path, restarts: str, holds: bool
) -> None:
    """One that starts ranks again sees it at once."""
    (tmp_path / "spec.json").write_text(json.dumps({"ranks": [5, 6]}))
    process = start(tmp_path, "sh", "-c", "exit 3", TORCHELASTIC_MAX_RESTARTS=restarts)
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "fleet-ended\n" or process.poll() is not None)
    assert read_json(tmp_path / "rank5.json")["status"] == 3
    if holds:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
    (tmp_path / "rank6.json").touch()
    assert process.wait(60) == 3


def test_a_killed_wrapper_takes_the_rank_with_it(tmp_path: Path) -> None:
    process = start(tmp_path, "sh", "-c", "trap '' TERM HUP; echo $$ > pid5; while :; do sleep 0.1; done")
    pid = int(until(lambda: (tmp_path / "pid5").exists() and (tmp_path / "pid5").read_text()))
    process.kill()
    process.wait()
    until(lambda: not alive(pid))


def test_what_is_started_once_a_node_has_a_number_that_it_does_not_find(tmp_path: Path) -> None:
    """Its node's session may set what it likes."""
    process = subprocess.Popen(
        [PYTHON, "-I", "-S", str(RANK), "sh", "-c", "echo $FLEET_FIRST_RANK $RANK $LOCAL_RANK"],
        env={
            "PATH": os.environ["PATH"],
            "FLEET_RUN_DIR": str(tmp_path),
            "FLEET_FIRST_RANK": "6",
            "RANK": "9",
            "LOCAL_RANK": "1",
        },
    )
    assert process.wait(60) == 0
    assert read_json(tmp_path / "rank6.json")["local_rank"] == 0
    assert (tmp_path / "rank6.out").read_text() == "9 1\n"


SPAWNS = """
import os, signal, time
child = os.fork()
name = "rank" if child else "child"
def note(*_):
    with open(name, "a") as f:
        f.write("INT")
signal.signal(signal.SIGINT, note)
open(name + "-up", "w").close()
while not os.path.exists("go"):
    time.sleep(0.05)
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("env", [{"FLEET_FIRST_RANK": "5"}, {}], ids=["once a node", "a rank"])
def test_an_interrupt_is_also_for_ranks_that_a_program_starts_itself(tmp_path: Path, env: dict[str, str]) -> None:
    """As Lightning does, which leaves it to the terminal. What is below a rank, as a worker, gets none."""
    process = start(tmp_path, PYTHON, "-c", SPAWNS, **env)
    until(lambda: (tmp_path / "rank-up").exists() and (tmp_path / "child-up").exists())
    process.send_signal(signal.SIGINT)
    names = {"rank", "child"} if env else {"rank"}
    until(lambda: all((tmp_path / name).exists() for name in names))
    (tmp_path / "go").touch()
    assert process.wait(60) == 0
    found = {name: (tmp_path / name).read_text() for name in ("rank", "child") if (tmp_path / name).exists()}
    assert found == dict.fromkeys(names, "INT")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, for whom not every file is readable")
def test_a_program_that_may_be_executed_but_not_read(tmp_path: Path) -> None:
    (tmp_path / "arm").mkdir()
    program = tmp_path / "echo"
    shutil.copy(shutil.which("echo") or "/bin/echo", program)
    program.chmod(0o711)
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    become = "import os, sys; os.setgid(65534); os.setuid(65534); os.execv(sys.argv[1], sys.argv[1:])"
    argv = [PYTHON, "-c", become, PYTHON, "-I", "-S", shutil.copy(RANK, tmp_path), str(program), "said"]
    for part in ("drain.py", "watch.py"):
        shutil.copy(RANK.with_name(part), tmp_path)
    env = {"FLEET_RUN_DIR": str(tmp_path), "RANK": "5", "PATH": os.environ["PATH"]}
    subprocess.run(argv, env=env, cwd="/", timeout=300, check=False)
    assert (tmp_path / "rank5.out").read_text() == "said\n", (tmp_path / "rank5.err").read_text()

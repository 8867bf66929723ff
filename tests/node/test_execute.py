"""The exec program and its op on the local transport: bytes are exact, and nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import ConnectError, DeadlineError, HostFailed
from fleet.events import Output
from fleet.model import Host, Inventory, Report
from fleet.ops import execute
from fleet.ops.execute import _cut_short
from fleet.requests.hosts import Exec
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Completed
from fleet.transport.command import LEFT, NODE_SILENCE_SECONDS, READONLY, Command, CommandSpec, _Stream, command_line
from fleet.transport.local import LocalTransport
from fleet.transport.program import call
from fleet.transport.shell import run_line

HOST = Host("n1", "127.0.0.1")
NAP = os.getpid()  # the fraction of a second that tells our sleeps from those of another run of these tests
ODD = ["it's", '72" tall', "$(id)", "a\nb", "*", "%n", "", "x" * 100_000, "-n", "\\", "`id`", "é", "!!"]
TRUE = CommandSpec(["true"], None, {})
SHOW = ["/usr/bin/python3", "-c", "import json,sys; print(json.dumps(sys.argv[1:]))"]


class Wrapped:
    """A session on this machine whose command lines go through something first."""

    host = HOST

    def __init__(self, wrap: Callable[[str], str]) -> None:
        self._session, self._wrap = LocalTransport().connect(HOST, Cancel()), wrap

    def start(self, command: str) -> object:
        return self._session.start(self._wrap(command))


def new_mark() -> str:
    """Other tests run at the same time: nobody is to be taken for another's."""
    return f"exec-{uuid.uuid4().hex}"


def run(options: Exec, host: Host = HOST, **kw: object) -> Report:
    inventory = Inventory((host,), env={"SHARED": "a b"})
    return execute.run(execute.plan(inventory, options), Runtime(LocalTransport(), **kw))  # type: ignore[arg-type]


def alive(needle: str) -> list[str]:
    """Command lines of live processes that hold `needle`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if needle in line and int(entry.name) != os.getpid():
                found.append(line)
    return found


def wait_gone(needle: str) -> None:
    deadline = time.monotonic() + 300
    while alive(needle):
        assert time.monotonic() < deadline, alive(needle)
        time.sleep(0.05)


def test_arguments_arrive_byte_for_byte() -> None:
    result = run(Exec((*SHOW, *ODD))).results[0]
    assert json.loads(bytes(result.stdout)) == ODD


@pytest.mark.parametrize("activate", [None, "export FROM_ACTIVATE=1"])
def test_activate_leaves_arguments_alone(activate: str | None) -> None:
    result = run(Exec((*SHOW, *ODD)), Host("n1", "x", activate=activate)).results[0]
    assert json.loads(bytes(result.stdout)) == ODD


def test_cut_short_its_status_is_told_however_slowly_the_node_says_it() -> None:
    slow = Wrapped(lambda line: line.replace('tell "exit $status";', 'sleep 1; tell "exit $status";', 1))
    trap = "trap 'echo bye >&2; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    for line, status, said in (("echo up; exec sleep 1000", 143, b""), (trap, 7, b"bye\n")):
        stderr = b""
        with Command(slow, CommandSpec(["sh", "-c", line], None, {}), new_mark(), 60) as command:  # type: ignore[arg-type]
            for number, data in command.output(silence=300, timeout=None, patience=300):
                if number:
                    stderr += data
                elif b"up" in data:
                    command.end()
        assert (command.status, command.left, stderr[-4:]) == (status, [], said)


def test_environment_values_are_data() -> None:
    host = Host("n1", "x", env={"ODD": "x; echo INJECTED $(id) 'q'"})
    result = run(Exec(shell='printf "%s|%s" "$ODD" "$SHARED"'), host).results[0]
    assert result.stdout == b"x; echo INJECTED $(id) 'q'|a b"


@pytest.mark.parametrize(
    ("line", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("nope-nope", 127)]
)
def test_true_exit_codes(line: str, status: int) -> None:
    report = run(Exec(shell=line))
    assert report.exit_code == report.results[0].exit_status == status


def test_what_cannot_be_started_says_so_as_a_shell_would() -> None:
    result = run(Exec(("/no/such/program",))).results[0]
    assert result.exit_status == 127 and b"No such file" in result.stderr
    assert run(Exec(("/etc/passwd",))).results[0].exit_status == 126


def test_streams_stay_apart_and_megabytes_arrive_whole() -> None:
    seen: list[Output] = []
    report = run(
        Exec(shell="head -c 20000000 /dev/zero; echo err >&2"),
        emit=lambda e: seen.append(e) if isinstance(e, Output) else None,
    )
    result = report.results[0]
    assert len(result.stdout) == 20_000_000 and result.stderr == b"err\n"
    assert sum(len(e.data) for e in seen) == 20_000_004


def test_timeout_ends_the_whole_tree() -> None:
    options = Exec(
        shell=f"setsid sleep 4217.{NAP} & (trap '' TERM; sleep 4218.{NAP}) & sleep 4219.{NAP}", timeout=0.7, grace=0.3
    )
    report = run(options)
    assert isinstance(report.results[0].error, DeadlineError) and report.exit_code == 124
    for number in (4217, 4218, 4219):
        wait_gone(f"sleep {number}.{NAP}")


def test_cancel_ends_the_whole_tree() -> None:
    cancel = Cancel()
    import threading

    threading.Timer(0.7, cancel.set).start()
    report = run(Exec(shell=f"setsid sleep 4317.{NAP} & sleep 4318.{NAP}"), cancel=cancel)
    assert report.exit_code == 130
    wait_gone(f"sleep 4317.{NAP}")
    wait_gone(f"sleep 4318.{NAP}")


# sets all its user ids to root's, as su and sudo do
ROOT_FOR_GOOD = "import os, time; os.setresuid(0, 0, 0); time.sleep(4521)"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach into, as one in TMPDIR need not be."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def pids(program: Path) -> Iterator[int]:
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if line.read_bytes().startswith(bytes(program)):
                yield int(line.parent.name)


def status(program: Path) -> list[str]:
    """What the kernel tells of the processes that run it."""
    return [Path(f"/proc/{pid}/status").read_text() for pid in pids(program)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_what_could_not_be_ended_is_named(open_folder: Path) -> None:
    """By a user who may not end it: nobody, whose command became root."""
    sudo = Path(shutil.copy(Path("/usr/bin/python3").resolve(), open_folder / "sudo"))
    sudo.chmod(0o4755)
    spec = CommandSpec([str(sudo), "-I", "-S", "-c", ROOT_FOR_GOOD], None, {})
    node = subprocess.Popen(
        ["/bin/sh", "-c", command_line()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        user=65534,
        group=65534,
        extra_groups=[],
        cwd="/",
        start_new_session=True,
    )
    try:
        assert node.stdin and node.stdout
        node.stdin.write(spec.script("KEY", new_mark(), 0.2))
        node.stdin.flush()
        deadline = time.monotonic() + 300
        while "\nUid:\t0\t0\t0\t" not in "".join(status(sudo)):
            assert time.monotonic() < deadline, status(sudo)
            time.sleep(0.05)
        node.stdin.write(b"end\n")
        node.stdin.flush()
        said = b""
        while not said.endswith(b"\0KEYended\n"):
            said += (line := node.stdout.readline())
            assert line
        found = LEFT.search(said)
        assert found and found[2].startswith(f"{sudo} -I -S -c".encode())
        error = _cut_short([(int(found[1]), found[2].decode())], Exec(["true"], timeout=1.0), "n1", interrupted=False)
        assert isinstance(error, DeadlineError) and "there is left: pid" in error.message and "sudo" in error.message
        assert error.hint and "ended there" not in error.message
        assert len(status(sudo)) == 1
    finally:
        for pid in pids(sudo):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        node.communicate()


def test_ended_there_is_true() -> None:
    """Also of what has another environment, session and parent by then."""
    line = f"env -i sh -c 'sleep 4531.{NAP} & setsid sleep 4532.{NAP}' & sleep 4533.{NAP}"
    error = run(Exec(shell=line, timeout=0.7, grace=0.3)).results[0].error
    assert error and error.message == "still running after 0.7 s; ended there"
    assert [alive(f"sleep {number}.{NAP}") for number in (4531, 4532, 4533)] == [[], [], []]


def test_a_daemon_that_keeps_the_pipe_does_not_hold_the_command() -> None:
    begun = time.monotonic()
    result = run(Exec(shell="setsid sleep 4541 & echo $!")).results[0]
    os.kill(int(result.stdout), signal.SIGKILL)
    assert time.monotonic() - begun < 200


def test_chatty_login_shell_is_skipped() -> None:
    session = LocalTransport().connect(HOST, Cancel())

    class Chatty:
        host = HOST

        def start(self, command: str) -> object:
            return session.start("echo welcome to gpu01; echo; echo oh >&2; " + command)

    with Command(Chatty(), CommandSpec(["echo", "hi"], None, {}), new_mark(), 0) as command:  # type: ignore[arg-type]
        assert list(command.output(silence=120, timeout=None, patience=0)) == [(0, b"hi\n")]
    assert command.status == 0 and command.left is None


@pytest.mark.parametrize(
    ("command", "kind", "text"),
    [
        ("echo 'This account is currently not available.'; exit 1", "protocol", "not available"),
        ("echo no such thing >&2; exit 127", "no-python", "no python3"),
        ("head -c 100000 /dev/zero", "protocol", "login shell"),  # looked through once, whatever it is
        ("echo 'WARNING: Your password has expired.'; exit 1", "auth", "password has expired"),
    ],
)
def test_a_node_that_cannot_start_programs_says_why(command: str, kind: str, text: str) -> None:
    session = LocalTransport().connect(HOST, Cancel())

    class Broken:
        host = HOST

        def start(self, _command: str) -> object:
            return session.start(command)

    with pytest.raises(ConnectError) as caught:
        call(Broken(), "run.stop", {}, dict[str, object], timeout=120)  # type: ignore[arg-type]
    assert caught.value.kind == kind and text in caught.value.message
    if kind == "protocol":
        with pytest.raises(ConnectError) as caught, Command(Broken(), TRUE, new_mark(), 0) as running:  # type: ignore[arg-type]
            list(running.output(silence=120, timeout=None, patience=0))
        assert caught.value.kind == kind and text in caught.value.message


def test_a_program_that_takes_its_time_to_end_is_not_lost() -> None:
    """Its last word is said; on a machine that does much else the end may come seconds later."""
    session = LocalTransport().connect(HOST, Cancel())

    class Slow:
        host = HOST

        def start(self, _command: str) -> object:
            return session.start(r"printf '\000FLEET1\n'; echo oh no >&2; exec >&- 2>&-; sleep 3; exit 5")

    with pytest.raises(HostFailed, match="oh no"):
        call(Slow(), "run.stop", {}, dict[str, object], timeout=60)  # type: ignore[arg-type]


def test_a_program_that_crashes_names_its_error() -> None:
    session = LocalTransport().connect(HOST, Cancel())
    with pytest.raises(HostFailed, match="KeyError"):
        call(session, "run.stop", {}, dict[str, object], timeout=120)


def test_run_line() -> None:
    session = LocalTransport().connect(HOST, Cancel())
    assert run_line(session, "cat; echo e >&2; exit 3", b"data") == Completed(3, b"data", b"e\n")
    with pytest.raises(DeadlineError):
        run_line(session, "sleep 30", timeout=0.3)


ALL_BYTES = bytes(range(1, 256)).decode("utf-8", "surrogateescape")
LOGIN_SHELLS = ["sh", "bash", "dash", "zsh", "fish", "tcsh", "busybox sh"]


@pytest.mark.parametrize("shell", LOGIN_SHELLS)
def test_every_login_shell_reads_the_same(shell: str) -> None:
    line = command_line()
    # what csh would take for history, and fish for an escape; and lines are not for either
    assert not re.search(r"![^ =(]|\\['\\]|\n", line)
    session = Wrapped(lambda line: f"exec {shell} -c {shlex.quote(line)}")
    spec = CommandSpec([*SHOW, *ODD, ALL_BYTES], None, {"A": "x; 'q'\n$(id)", "UID": "7"})
    with Command(session, spec, new_mark(), 0) as command:  # type: ignore[arg-type]
        said = b"".join(data for _, data in command.output(silence=120, timeout=None, patience=0))
    assert json.loads(said) == [*ODD, ALL_BYTES] and command.status == 0


def test_nothing_is_started_but_sh_and_the_command(tmp_path: Path) -> None:
    """On a node without python3; what ends a command there is sh, grep and awk."""
    for tool in ("sh", "sleep", "grep", "awk", "cat", "tr", "cut", "printf"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool, path="/usr/bin:/bin")))
    session = Wrapped(lambda line: f"PATH={tmp_path}; {line}")
    with Command(session, CommandSpec(["sh", "-c", "echo $0; exit 3"], None, {}), new_mark(), 0) as command:  # type: ignore[arg-type]
        assert list(command.output(silence=120, timeout=None, patience=0)) == [(0, b"sh\n")]
    assert command.status == 3
    spec = CommandSpec(["sh", "-c", f"sleep 4611.{NAP} & sleep 4611.{NAP}"], None, {})
    with Command(session, spec, new_mark(), 0.5) as command:  # type: ignore[arg-type]
        list(command.output(silence=120, timeout=0.5, patience=120))
    assert command.left == [] and not alive(f"sleep 4611.{NAP}")
    assert command.status in (None, 143)  # whether it tells how it ended before the connection is closed


@contextlib.contextmanager
def on_its_own(spec: CommandSpec, silence: int) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A command as a node runs it, and its head's two ends. silence: seconds after which it gives that up."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    node = subprocess.Popen(["/bin/sh", "-c", command_line()], **pipes, start_new_session=True)  # type: ignore[call-overload]
    assert node.stdin and node.stdout
    usual = f"fleet_silence={NODE_SILENCE_SECONDS}".encode()
    assert usual in (script := spec.script("KEY", new_mark(), 0.2))
    node.stdin.write(script.replace(usual, b"fleet_silence=%d" % silence))
    node.stdin.flush()
    try:
        yield node.stdin, node.stdout
    finally:
        node.kill()
        node.communicate()


def test_a_silent_head_ends_it() -> None:
    """Behind a cut link nothing but its silence tells that it is gone."""
    spec = CommandSpec(["sh", "-c", f"setsid sleep 4621.{NAP} & echo up; exec sleep 4621.{NAP}"], None, {})
    with on_its_own(spec, 2) as (_, stdout):
        while b"up" not in (line := stdout.readline()):
            assert line
        wait_gone(f"sleep 4621.{NAP}")


def test_a_head_that_talks_keeps_it() -> None:
    """For longer than its silence is borne."""
    with on_its_own(CommandSpec(["sleep", f"4622.{NAP}"], None, {}), 4) as (stdin, stdout):
        for _ in range(30):
            stdin.write(b"ping\n")
            stdin.flush()
            time.sleep(0.2)
        assert alive(f"sleep 4622.{NAP}")
        stdin.write(b"end\n")
        stdin.flush()
        assert b"\0KEYexit 143\n" in stdout.read()


def test_a_command_that_signals_its_group_is_told_of_all_the_same() -> None:
    assert run(Exec(shell="trap : TERM; kill 0; exit 9")).results[0].exit_status == 9
    assert run(Exec(shell="kill -KILL 0")).results[0].exit_status == 137
    assert run(Exec(shell="kill -WINCH 0; exit 6", timeout=20)).results[0].exit_status == 6


@pytest.mark.parametrize("behind", ["", "env -i "])
def test_the_end_of_what_tells_of_the_command_is_its_end(behind: str) -> None:
    """The shell around it killed, by it or for memory: the head does not wait for word from nobody. Nor where no mark
    is seen of the command: while it calls exec, and for good where it clears its environment."""
    begun = time.monotonic()
    line = f"kill -KILL $PPID; exec {behind}sleep 4631.{NAP}"
    assert run(Exec(shell=line, grace=0)).results[0].exit_status == 137
    assert time.monotonic() - begun < 200
    wait_gone(f"sleep 4631.{NAP}")


def test_what_is_exported_there_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under whatever name: nothing of command.sh's is seen by the command, nor taken from it."""
    names = re.findall(r"\b([a-z]\w*)=", command_line()) + ["key", "mark", "grace", "spec", "ending"]
    for name in (names := [name for name in names if not name.startswith("fleet_")]):
        monkeypatch.setenv(name, "theirs")
    argv = ("/usr/bin/python3", "-c", "import os,sys; print({os.environ.get(n) for n in sys.argv[1:]})", *names)
    assert run(Exec(argv)).results[0].stdout == b"{'theirs'}\n"


@pytest.mark.parametrize("sh", ["dash", "bash"])
def test_every_variable_arrives_as_it_was_given(sh: str, tmp_path: Path) -> None:
    """Also those that a shell keeps for itself."""
    (tmp_path / "sh").symlink_to(str(shutil.which(sh)))
    session = LocalTransport().connect(HOST, Cancel())

    class Other:
        host = HOST

        def start(self, command: str) -> object:
            return session.start(f"PATH={tmp_path}:$PATH; {command}")

    env = dict.fromkeys(READONLY | {"IFS", "PS1", "HOME", "PWD", "HOSTNAME", "key", "status"}, "x y")
    argv = ["/usr/bin/python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    with Command(Other(), CommandSpec(argv, None, env), new_mark(), 0) as command:  # type: ignore[arg-type]
        seen = json.loads(b"".join(data for _, data in command.output(silence=120, timeout=None, patience=0)))
    assert {name: seen.get(name) for name in env} == env


def test_a_startup_file_that_closes_stderr_does_not_make_a_quiet_command_lost() -> None:
    session = Wrapped(lambda line: f"exec 2>/dev/null; {line}")
    spec = CommandSpec(["sh", "-c", "sleep 8; echo hi"], None, {})
    with Command(session, spec, new_mark(), 0) as command:  # type: ignore[arg-type]
        assert list(command.output(silence=6, timeout=None, patience=0)) == [(0, b"hi\n")]
    assert command.status == 0


def test_a_startup_file_that_makes_both_outputs_one_adds_nothing_to_them() -> None:
    session = Wrapped(lambda line: f"echo noise; exec 2>&1; {line}")
    with Command(session, CommandSpec(["sh", "-c", "echo o; echo e >&2; exit 3"], None, {}), new_mark(), 0) as running:  # type: ignore[arg-type]
        said = [data for _, data in running.output(silence=60, timeout=60, patience=60)]
    assert (b"".join(said), running.status) == (b"o\ne\n", 3)


def test_a_head_that_is_gone_with_a_ping_unanswered_ends_it() -> None:
    node = subprocess.Popen(
        ["/bin/sh", "-c", command_line()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert node.stdin and node.stdout and node.stderr
    node.stdin.write(CommandSpec(["sleep", f"4651.{NAP}"], None, {}).script("KEY", new_mark(), 0.2))
    node.stdin.flush()
    deadline = time.monotonic() + 300
    while not alive(f"sleep 4651.{NAP}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    node.stdout.close()
    node.stderr.close()
    node.stdin.write(b"ping\n")
    node.stdin.flush()
    time.sleep(0.5)
    node.stdin.close()
    wait_gone(f"sleep 4651.{NAP}")
    node.wait(300)


# a process may have a line end in its name
NAMES_A_VICTIM = """
import ctypes, os, sys, time
while not str(os.getpid()) > sys.argv[1]:
    if os.fork():
        os.wait()
        os._exit(0)
if not os.fork():
    while not str(os.getpid()) > sys.argv[1]:
        if os.fork():
            time.sleep(4641)
    ctypes.CDLL(None).prctl(15, b") S 1 1\\n" + sys.argv[1].encode())
time.sleep(4641)
"""


def test_no_name_of_a_process_has_another_ended() -> None:
    victim = subprocess.Popen(["sleep", "4641"], start_new_session=True)
    # the next pids stand behind its own, as words: not where a digit is added, nor where they begin anew
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    while str(victim.pid + 500) < str(victim.pid) or victim.pid + 500 > most:
        victim.kill()
        victim.wait()
        victim = subprocess.Popen(["sleep", "4641"], start_new_session=True)
    try:
        argv = ("/usr/bin/python3", "-c", NAMES_A_VICTIM, str(victim.pid))
        error = run(Exec(argv, timeout=1.5, grace=0.3)).results[0].error
        assert error and error.message.endswith("ended there")
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_a_full_pipe_that_the_command_made_nonblocking_loses_no_word() -> None:
    fill = "import os, time\nos.set_blocking(1, False); os.write(1, b'x'); time.sleep(.5)\n"
    fill += "try:\n  while 1: os.write(1, b'y' * 4096)\nexcept BlockingIOError: os._exit(7)"
    result = run(Exec(("/usr/bin/python3", "-c", fill)), emit=lambda e: time.sleep(1.5)).results[0]
    assert result.error is None and result.exit_status == 7


def test_what_the_command_prints_is_never_taken_for_word_of_its_end() -> None:
    lines = "env; printf '\\000K'; printf '\\000Kabc exit 7\\n'; printf '\\000FLEET1\\n'; printf '\\000'"
    result = run(Exec(shell=lines)).results[0]
    assert bytes(result.stdout).endswith(b"\0K\0Kabc exit 7\n\0FLEET1\n\0") and result.exit_status == 0


@given(st.lists(st.sampled_from([b"\0", b"\0K", b"\0KEY", b"KEY", b"ab", b"\n", b"exit", b"\0KEX"])), st.integers(1, 9))
def test_pieces_of_any_size_are_put_together(parts: list[bytes], size: int) -> None:
    key, told = b"\0KEY!", list[bytes]()
    stream, whole = _Stream(key), b"".join(parts)
    data = b"noise\0FLEET1\n" + whole + key + b"\n" + whole + key + b"exit 0\n" + b"behind it"
    got = b""
    for at in range(0, len(data), size):
        if not stream.ended:
            got += b"".join(stream.feed(data[at : at + size], told.append))
    assert got == whole * 2 and told == [b"", b"exit 0"] and stream.ended

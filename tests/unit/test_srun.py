"""The transport of an allocation, over an srun that starts its tasks on this machine; the real one runs in the
lab's tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.errors import ConnectError, UsageError
from fleet.model import Inventory
from fleet.ops.run.plan.plan import Plan, plan_of
from fleet.ops.run.start.preflight import spec_for
from fleet.ops.run.start.start import contained, supervise_spec
from fleet.requests.launch import Launch
from fleet.transport import srun
from fleet.transport.base import Cancel, ConnectOptions, Session
from fleet.transport.srun import SrunTransport
from tests.in_process import command_line
from tests.node.nodes import until
from tests.sessions import hosts_here, shell

HOSTS = hosts_here("a", "b")
LONG = f"600.{os.getpid()}"
SRUN = f"""#!{sys.executable}
import contextlib, json, os, signal, subprocess, sys, threading
json.dump([sys.argv, dict(os.environ)], open(os.path.dirname(__file__) + "/asked", "w"))
names = sys.argv[sys.argv.index("--nodelist") + 1].split(",")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
tasks = []
def label(number, lines):
    for line in lines:
        os.write(1, b"%d: %s" % (number, line))
for number, name in enumerate(names):
    env = {{**os.environ, "SLURMD_NODENAME": name, "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}}
    ordinary = lambda: signal.signal(15, signal.SIG_DFL)
    played = os.path.dirname(__file__) + "/played-" + name
    argv = ["sh", played] if os.path.exists(played) else sys.argv[-3:]
    tasks.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, preexec_fn=ordinary))
    threading.Thread(target=label, args=(number, tasks[-1].stdout), daemon=True).start()
open(os.path.dirname(__file__) + "/pids", "w").write(" ".join(str(task.pid) for task in tasks))
def broadcast():
    with open(os.path.dirname(__file__) + "/said", "wb", 0) as said:
        while data := os.read(0, 65536):
            said.write(data)
            for task in tasks:
                with contextlib.suppress(OSError):
                    task.stdin.write(data)
                    task.stdin.flush()
    for task in tasks:
        with contextlib.suppress(OSError):
            task.stdin.close()
threading.Thread(target=broadcast, daemon=True).start()
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where that srun stands."""
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "99")
    return tmp_path


@pytest.fixture
def transport(folder: Path) -> Iterator[SrunTransport]:
    made = SrunTransport(ConnectOptions(30.0), hosts=HOSTS)
    yield made
    made.close()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids(folder)))


def pids(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "pids").read_text().split()]


@pytest.fixture
def session(transport: SrunTransport) -> Session:
    return transport.connect(HOSTS[1], Cancel())


def test_streams_and_ends(session: Session) -> None:
    done = shell(session, "cat; echo $SLURMD_NODENAME$SLURM_PROCID; echo wrong >&2; exit 7", b"in\n")
    assert (done.status, done.stdout, done.stderr) == (7, b"in\nb\n", b"wrong\n")
    assert shell(session, "kill -9 $$").status == 137
    assert shell(session, "sleep 60 & echo over").stdout == b"over\n", "what it leaves behind holds nobody up"
    assert session.address == "127.0.0.1"


def test_much_both_ways_on_many_channels(session: Session) -> None:
    def one(number: int) -> bytes:
        return shell(session, f"echo {number}; cat", b"x" * 3_000_000).stdout

    with ThreadPoolExecutor(6) as pool:
        for number, out in enumerate(pool.map(one, range(6))):
            assert out == b"%d\n" % number + b"x" * 3_000_000


def test_a_process_that_writes_before_it_reads(session: Session) -> None:
    done = shell(session, "head -c 4000000 /dev/zero; cat | wc -c", b"y" * 4_000_000)
    assert done.stdout[4_000_000:].split() == [b"4000000"]


def test_programs_of_the_node_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "hostfile").write_text("a\nb\n")
    document = command_line(["--json", "ps"], SrunTransport(ConnectOptions(30.0), hosts=HOSTS)).document()
    assert document["ok"] and document["hosts"].keys() == {"a", "b"}


def test_one_step_for_all_that_is_given_none_of_its_options(transport: SrunTransport, folder: Path) -> None:
    for host in HOSTS:
        assert shell(transport.connect(host, Cancel()), "echo ok").stdout == b"ok\n"
    argv, environ = json.loads((folder / "asked").read_text())
    assert argv[1:7] == ["--jobid", "7", "--overlap", "--nodes", "2", "--ntasks-per-node"]
    assert not any(name.startswith("SLURM") for name in environ)
    assert "PRIVATE KEY" not in json.dumps([argv, environ])
    assert len(pids(folder)) == 2


def planned(workdir: Path | str, container: str = "train:1") -> Plan:
    request = Launch("t.py", workdir=str(workdir), container=container, container_args=("--container-writable",))
    return plan_of(Inventory(HOSTS), request)


def test_all_of_a_run_is_in_the_container_of_its_step(
    transport: SrunTransport, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The golden argv of srun. Nothing on a node starts another container."""
    monkeypatch.setenv("HOME", str(folder / "home"))
    for name in ("home", "scratch"):
        (folder / name).mkdir()
    plan = contained(planned(folder / "scratch"), transport)
    assert shell(transport.connect(HOSTS[1], Cancel()), "echo ok").stdout == b"ok\n"
    argv, _ = json.loads((folder / "asked").read_text())
    assert argv[1:-3] == [
        *("--jobid", "7", "--overlap", "--nodes", "2", "--ntasks-per-node", "1", "--nodelist", "a,b"),
        *("--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none", "--mpi=none", "--chdir=/", "--quiet"),
        *("--job-name=fleet", "--label", "--distribution=arbitrary"),
        *("--container-image=train:1", "--container-mount-home", "--container-workdir=/"),
        *("--no-container-remap-root", f"--container-mounts={folder}/scratch:{folder}/scratch:nofail"),
        "--container-writable",
    ]
    refined = plan.refine({})
    assert supervise_spec(refined, refined.node("a"), refined.record(0.0))["container"] is None
    assert spec_for(refined, HOSTS[0], ("127.0.0.1", 1), "")["container"] is None
    assert refined.describe()["hosts"]["a"]["container"] == "train:1"


@pytest.mark.parametrize(
    ("workdir", "image", "options"),
    [
        ("~/work", "train:1", ["--container-image=train:1"]),
        ("~/work", "images/train.sqsh", ["--container-image=HOME/work/images/train.sqsh"]),
        ("/no/such", "/images/train.sqsh", ["--container-image=/images/train.sqsh"]),
    ],
)
def test_the_home_folder_is_mounted_as_a_whole(
    workdir: str, image: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is below it, or not there, is not mounted by itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    given: list[str] = []
    contained(planned(workdir, image), cast(Any, SimpleNamespace(contain=given.extend)))
    own = ["--container-mount-home", "--container-workdir=/", "--no-container-remap-root", "--container-writable"]
    assert given == [option.replace("HOME", str(tmp_path)) for option in options] + own


@pytest.mark.parametrize(
    ("printed", "why", "hint"),
    [
        (
            "echo \"/usr/bin/srun: unrecognized option '--container-image=train:1'\" >&2; exit 1",
            "srun: unrecognized option '--container-image=train:1'",
            "this Slurm has no pyxis, or another one: srun --help | grep -A 2 container",
        ),
        (
            "echo pyxis: importing >&2; echo '0: slurmstepd: error: pyxis: failed to import train:1' >&2; exec sleep 9",
            "srun: pyxis: failed to import train:1",
            "srun --jobid 7 --overlap --container-image=train:1 true",
        ),
    ],
)
def test_a_container_that_does_not_start_is_refused_at_once(printed: str, why: str, hint: str, folder: Path) -> None:
    """Also if srun goes on with the tasks of other nodes."""
    (folder / "srun").write_text(f"#!/bin/sh\n{printed}\n")
    transport = SrunTransport(ConnectOptions(0.3), hosts=HOSTS)
    transport.contain(["--container-image=train:1"])
    with contextlib.closing(transport), pytest.raises(ConnectError) as caught:
        transport.connect(HOSTS[0], Cancel())
    assert (caught.value.message, caught.value.hint) == (why, hint)


def test_an_agent_that_dies_is_a_lost_host(session: Session, transport: SrunTransport, folder: Path) -> None:
    channel = session.start(f"echo begun; sleep {LONG}")
    assert channel.recv(30.0) == b"begun\n"
    os.kill(pids(folder)[1], signal.SIGKILL)
    with pytest.raises(ConnectError, match="lost"):
        while channel.recv(30.0) != b"":
            pass
    assert channel.wait(0.1) is None
    channel.close()
    assert shell(transport.connect(HOSTS[0], Cancel()), "echo ok").stdout == b"ok\n"
    (left,) = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if sleeps(pid)]
    os.kill(left, signal.SIGKILL)


def sleeps(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00%s\x00" % LONG.encode()
    except OSError:
        return False


def test_slurm_ends_the_job(transport: SrunTransport, folder: Path) -> None:
    cancel = Cancel()
    session = transport.connect(HOSTS[0], cancel)
    os.kill(pids(folder)[0], signal.SIGUSR1)
    assert shell(session, "echo ok").stdout == b"ok\n"
    assert not cancel.is_set() and cancel.within == 25.0
    os.kill(pids(folder)[0], signal.SIGTERM)
    until(cancel.is_set)
    assert cancel.count == 0, "a user who presses Ctrl-C then asks for the first time"
    assert shell(session, "echo ok").stdout == b"ok\n", "there is time to stop ranks"


def test_signals_for_ranks_reach_each_once(folder: Path) -> None:
    """From the head, and from Slurm, which signals each node's task; both at once are one."""
    transport = SrunTransport(ConnectOptions(30.0), hosts=HOSTS[:1])
    rank = folder / "fleet-rank"
    traps = "trap 'echo USR1' USR1; trap 'echo USR2' USR2"
    rank.write_text(f"#!/bin/sh\n{traps}\necho ready\nfor i in $(seq 600); do sleep 0.1; done\n")
    rank.chmod(0o755)
    channel = transport.connect(HOSTS[0], Cancel()).start(str(rank))
    assert channel.recv(30.0) == b"ready\n"
    transport.pass_on(signal.SIGUSR1)
    assert channel.recv(30.0) == b"USR1\n"
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(pids(folder)[0], signum)
    assert channel.recv(30.0) == b"USR2\n"
    assert channel.recv(0.3) is None
    channel.close()
    transport.close()


def test_who_does_not_hold_the_certificate_gets_nothing(transport: SrunTransport, session: Session) -> None:
    (step,) = transport._steps.all()
    port = step._server.getsockname()[1]
    for said in (b"", b'{"host": "a"}\n', b"\x16\x03\x01" + b"x" * 500, b"GET / HTTP/1.0\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 5.0) as stranger, contextlib.suppress(OSError):
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(10.0)
            assert stranger.recv(4096)[:1] in (b"", b"\x15"), "an alert, or nothing"
    assert shell(session, "echo ok").stdout == b"ok\n"


@pytest.mark.parametrize(
    "said, why",
    [
        (
            "srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
            "srun: Unable to confirm allocation for job 7: Invalid job id",
        ),
        (
            " 1: b: its python3 has no TLS 1.3: no\nsrun: error: b: task 1: Exited",
            "srun: b: its python3 has no TLS 1.3",
        ),
    ],
    ids=["srun", "agent"],
)
def test_slurms_own_words(folder: Path, said: str, why: str) -> None:
    (folder / "srun").write_text(f"#!/bin/sh\necho '{said}' >&2; exit 1\n")
    transport = SrunTransport(ConnectOptions(30.0), hosts=HOSTS)
    with pytest.raises(ConnectError, match=f"host a: {why}") as caught:
        transport.connect(HOSTS[0], Cancel())
    assert caught.value.host == "a" and caught.value.hint
    transport.close()


def test_without_an_allocation_or_srun(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "srun").unlink()
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(UsageError, match="srun is not on this machine"):
        SrunTransport(ConnectOptions(), hosts=HOSTS).connect(HOSTS[0], Cancel())
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UsageError, match="no allocation"):
        SrunTransport(ConnectOptions(), hosts=HOSTS)


def test_no_agent_in_time(folder: Path) -> None:
    (folder / "srun").write_text("#!/bin/sh\nexec sleep 300\n")
    transport = SrunTransport(ConnectOptions(0.3), hosts=HOSTS)
    began = time.monotonic()
    with pytest.raises(ConnectError, match="no agent of Slurm's step within 0.3 s"):
        transport.connect(HOSTS[0], Cancel())
    closer = threading.Thread(target=transport.close)
    closer.start()
    closer.join(60.0)
    assert not closer.is_alive() and time.monotonic() - began < 60.0


def test_a_step_that_is_made_while_the_transport_is_closed_is_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after Ctrl-C, while srun does not read what it is sent."""
    transport = SrunTransport(ConnectOptions(), hosts=HOSTS)
    began, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        unanswered = False

        def __init__(self, *_: object) -> None:
            began.set()
            go_on.wait(10.0)

        def agent(self, *_: object) -> None:
            raise ConnectError("no agent", kind="refused")

        def close(self) -> None:
            closed.set()

    monkeypatch.setattr(srun, "Step", Slow)
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(transport.connect, HOSTS[0], Cancel())
        assert began.wait(10.0)
        threading.Timer(0.2, go_on.set).start()
        transport.close()
        with pytest.raises(ConnectError):
            connecting.result(10.0)
    assert closed.is_set()

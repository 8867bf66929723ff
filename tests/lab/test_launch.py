"""`fleet launch` on real sshd: true codes, first failure, nothing left, every byte. torch is not the point here."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.lab.processes import namespace
from fleet.node.base.processes import with_env
from tests.lab.virtual_lab import VirtualLab

SCRIPT = """#!/usr/bin/python3
import json, os, signal, sys, time
how, who = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
if how == "show":
    print(json.dumps([sys.argv[3:], {k: os.fsencode(os.environ.get(k, "-")).decode("utf-8", "surrogateescape")
                                     for k in ("V", "W", "X", "HEAD_ONLY", "GLOO_SOCKET_IFNAME")}]))
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if how == "flood":
    block = b"".join(b"rank %d line %d\\rbar \\xff\\xfe\\n" % (rank, i) for i in range(who)) + b"no newline at the end"
    os.write(2, block[:1000])
    while block:
        block = block[os.write(1, block):]
if how == "ticks":
    while sys.argv[3:] and not os.path.exists(sys.argv[3]):
        time.sleep(0.1)
    for i in range(who if who > 0 else 100000):
        print("tick", i, flush=True)
        time.sleep(0.1)
if rank == who:
    print("about to", how, file=sys.stderr, flush=True)
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise RuntimeError("boom %d" % rank)
if how in ("exit", "kill", "raise", "sleep", "stubborn"):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def ready(lab: VirtualLab) -> Iterator[VirtualLab]:
    """Three of the session's hosts, enrolled, with the script of these tests on each."""
    with lab.enrol().narrowed(3) as three:
        for host in three.names:
            line = "cd && mkdir -p work && cat > work/s.py && chmod +x work/s.py"
            three.inside(host, "sh", "-c", line, stdin=SCRIPT.encode())
        yield three


Launch = Callable[..., subprocess.CompletedProcess[str]]
COMMON = ("-i", "lab", "launch", "--engine", "command", "--nproc-per-node", "2")


@pytest.fixture
def launch(ready: VirtualLab, tmp_path: Path) -> Iterator[Launch]:
    def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return ready.fleet(*COMMON, *args, cwd=tmp_path, **options)

    yield run
    end_all(ready, tmp_path)


@pytest.fixture
def background(ready: VirtualLab, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def run(*args: str, folder: Path = tmp_path, count: int = 6) -> subprocess.Popen[bytes]:
        process = ready.popen(*COMMON, *args, cwd=folder)
        started.append(process)
        outs = "runs/*-*/*/rank*.out"
        until(lambda: len([p for p in folder.glob(outs) if p.stat().st_size]) >= count or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    end_all(ready, tmp_path)


def end_all(lab: VirtualLab, folder: Path) -> None:
    """What a failed test leaves running would fail the next ones, too."""
    for run in folder.glob("**/runs/*-*"):
        if not (run / "summary.json").exists():
            lab.fleet("-i", "lab", "stop", run.name, cwd=run.parent.parent)


def until(
    condition: Callable[[], Any], seconds: float = 300.0, *, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait; a process that is to bring it about, and has not, is killed, and its output shown."""
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        over = process is not None and process.poll() is not None
        if over or time.monotonic() > deadline:
            if process is None:
                raise AssertionError("it did not happen")
            process.kill()
            out, err = process.communicate()
            detail = f"{err.decode(errors='replace')}\n{out.decode(errors='replace')[-5000:]}"
            raise AssertionError(f"it did not happen; exit code {process.returncode}: {detail}")
        time.sleep(max(0.05, time.monotonic() - began))  # what is dear to look at is looked at half of the time


def text(path: Path) -> str:
    """What a log has; "" where another attempt sets it aside just now."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def summary(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("runs/*-*/summary.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    lines = [line for path in folder.glob("runs/*-*/events.jsonl") for line in path.read_text().splitlines(True)]
    return [e for e in (json.loads(line) for line in lines if line.endswith("\n")) if e["event"] == name]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def left_on(lab: VirtualLab, folder: Path) -> dict[str, str]:
    """host -> pids that still carry the run's id."""
    (run,) = [p.name for p in folder.glob("runs/*-*")]
    left = [(pid, namespace(pid)) for pid in with_env("FLEET_RUN_ID", run)]
    found = {host: [str(pid) for pid, own in left if own == namespace(lab.hosts[host]["pid"])] for host in lab.names}
    return {host: " ".join(pids) for host, pids in found.items() if pids}


def test_all_well_is_0_and_logs_are_there(launch: Launch, tmp_path: Path) -> None:
    done = launch("--json", "./s.py", "show", "-1")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "summary" and last["ok"] and last["exit_code"] == 0 and len(last["hosts"]) == 3
    assert len(list(tmp_path.glob("runs/*-*/*/rank*.out"))) == 6


@pytest.mark.parametrize(
    "how, code",
    [
        ("raise", 1),
        pytest.param("exit", 3, marks=pytest.mark.slow),
        pytest.param("kill", 137, marks=pytest.mark.slow),
    ],
)
def test_the_first_failure_ends_all_and_is_named(
    how: str, code: int, launch: Launch, ready: VirtualLab, tmp_path: Path
) -> None:
    done = launch("./s.py", how, "5")
    assert done.returncode == code, done.stderr
    host = ready.names[2]
    assert f"rank 5 on {host} (node rank 2) failed" in done.stderr
    first = summary(tmp_path)["first_failure"]
    assert (first["host"], first["node_rank"], first["rank"], first["exit_code"]) == (host, 2, 5, code)
    assert ("RuntimeError: boom 5" in (first["traceback"] or "")) == (how == "raise")
    assert done.stderr.count("RuntimeError: boom 5") == done.stderr.count("Traceback (most") == (how == "raise")
    (failed,) = [e for e in events(tmp_path, "rank") if e["rank"] == 5]
    assert events(tmp_path, "summary")[0]["time"] - failed["time"] < 200, "they would go on for 600 s"
    assert left_on(ready, tmp_path) == {}


@pytest.mark.slow
def test_another_run_on_the_same_nodes_goes_on(
    launch: Launch, background: Callable[..., subprocess.Popen[bytes]], ready: VirtualLab, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = background("./s.py", "sleep", "-1", folder=tmp_path / "other")
    (run,) = [path.name for path in (tmp_path / "other/runs").glob("*-*")]
    refused = launch("./s.py", "exit", "5")
    assert refused.returncode == 123 and f"run {run} of " in refused.stderr and "6 ranks on 3 nodes" in refused.stderr
    assert f"'fleet -i lab stop {run}' ends it; 'fleet -i lab launch " in refused.stderr
    assert "' starts alongside it" in refused.stderr and " --share " in refused.stderr
    assert launch("--share", "./s.py", "exit", "5").returncode == 3
    assert (tmp_path / "runs/latest").samefile(next((tmp_path / "runs").glob("*-*")))
    assert other.poll() is None and len(left_on(ready, tmp_path / "other")) == 3
    other.send_signal(signal.SIGINT)
    assert other.wait(300) == 130
    assert left_on(ready, tmp_path / "other") == {}


def test_arguments_and_values_arrive_byte_for_byte(launch: Launch, tmp_path: Path) -> None:
    odd = ["it's", '72" tall', "$(id)", "a\nb", "*", "%n", "", "$$", "-w", "--help", "é", "\udcff"]
    value = "".join(odd)
    done = launch(
        "--env",
        f"V={value}",
        "--env",
        "W",
        "--env-expand",
        "X=$HOME/${USER}x",
        "./s.py",
        "show",
        "-1",
        *odd,
        env={"W": "of the head", "HEAD_ONLY": "leak"},
    )
    assert done.returncode == 0, done.stderr
    for path in tmp_path.glob("runs/*-*/*/rank*.out"):
        args, env = json.loads(path.read_text())
        assert args == odd
        assert (env["V"], env["W"], env["HEAD_ONLY"]) == (value, "of the head", "-")
        assert env["X"].startswith("/root/") and env["GLOO_SOCKET_IFNAME"] not in ("-", "lo")


def test_a_secret_stays_where_it_belongs(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "env").write_text("TOKEN=hunter2\n")
    done = launch("--json", "--env", "V=hunter3", "--env-file", "env", "./s.py", "exit", "5")
    assert done.returncode == 3
    texts = [done.stdout, done.stderr, *(p.read_text() for p in tmp_path.glob("runs/**/*") if p.is_file())]
    assert not [t for t in texts if "hunter" in t]


def test_every_byte_is_on_the_head(launch: Launch, tmp_path: Path) -> None:
    done = launch("-q", "./s.py", "flood", "20000")
    assert done.returncode == 0, done.stderr
    for rank in range(6):
        lines = b"".join(b"rank %d line %d\rbar \xff\xfe\n" % (rank, i) for i in range(20000))
        block = lines + b"no newline at the end"
        (out,), (err,) = tmp_path.glob(f"runs/*-*/*/rank{rank}.out"), tmp_path.glob(f"runs/*-*/*/rank{rank}.err")
        assert hashlib.sha256(out.read_bytes()).digest() == hashlib.sha256(block).digest()
        assert err.read_bytes() == block[:1000]


@pytest.mark.parametrize("transport", ["ssh", pytest.param("openssh", marks=pytest.mark.slow)])
def test_a_dropped_connection_costs_no_line(
    transport: str, background: Callable[..., subprocess.Popen[bytes]], ready: VirtualLab, tmp_path: Path
) -> None:
    process = background("--transport", transport, "./s.py", "ticks", "150")

    def dropped() -> bool:
        drop = ready.inside(ready.names[1], "pkill", "-f", "^sshd: root@notty", check=False)
        return drop.returncode == 0 or process.poll() is not None

    for _ in range(2):
        until(dropped)  # on a busy machine the connection after the first cut takes its time, or the run ends before
        until(lambda: events(tmp_path, "resumed") or process.poll() is not None)
    assert process.wait(300) == 0
    for path in tmp_path.glob("runs/*-*/*/rank*.out"):
        assert path.read_text() == "".join(f"tick {i}\n" for i in range(150))
    breaks = events(tmp_path, "dropped")
    assert breaks and all(event["reason"] for event in breaks) and events(tmp_path, "resumed"), breaks


@pytest.mark.parametrize(
    "how, times, grace",
    [("sleep", 1, "900"), ("stubborn", 1, "2"), pytest.param("stubborn", 2, "900", marks=pytest.mark.slow)],
)
def test_ctrl_c_ends_all(
    how: str,
    times: int,
    grace: str,
    background: Callable[..., subprocess.Popen[bytes]],
    ready: VirtualLab,
    tmp_path: Path,
) -> None:
    process = background("--grace", grace, "./s.py", how, "-1")
    for before in range(times):  # one that comes before the last was heard is the same
        process.send_signal(signal.SIGINT)
        until(lambda before=before: len(events(tmp_path, "stop")) > before or process.poll() is not None)  # type: ignore[misc]
    assert process.wait(300) == 130
    assert left_on(ready, tmp_path) == {} and summary(tmp_path)["first_failure"] is None


def test_a_killed_head_costs_the_nodes_their_lease(
    background: Callable[..., subprocess.Popen[bytes]], ready: VirtualLab, tmp_path: Path
) -> None:
    process = background("--lease", "12", "./s.py", "sleep", "-1")
    process.kill()
    process.wait()
    until(lambda: not left_on(ready, tmp_path))
    (run,) = [path.name for path in tmp_path.glob("runs/*-*")]
    for host in ready.names:
        status = json.loads(ready.sh(host, f"cat ~/.fleet/runs/{run}/status.json"))
        assert status["cause"] == "lease", status  # so they lived on for as long


@pytest.mark.parametrize(
    "how, transport",
    [
        ("cut", "ssh"),
        pytest.param("freeze", "ssh", marks=pytest.mark.slow),
        pytest.param("cut", "openssh", marks=pytest.mark.slow),
    ],
)
def test_a_silent_node_is_named_and_cleaned_when_it_is_back(
    how: str, transport: str, background: Callable[..., subprocess.Popen[bytes]], ready: VirtualLab, tmp_path: Path
) -> None:
    limits = ("--node-timeout", "10", "--lease", "900", "--grace", "2")
    process = background("--transport", transport, *limits, "./s.py", "ticks", "-1")
    victim = ready.names[2]
    try:
        ready.fleet("lab", how, victim, check=True)
        assert process.wait(300) == 122  # the lease is 900 s
        first = summary(tmp_path)["first_failure"]
        assert (first["what"], first["host"]) == ("node", victim)
        assert set(left_on(ready, tmp_path)) <= {victim}
        assert summary(tmp_path)["incomplete_logs"] == [victim]
    finally:
        ready.fleet("lab", "heal", victim, check=True)
    # long before the lease of 900 s is over
    until(lambda: not left_on(ready, tmp_path))
    until(lambda: events(tmp_path, "cleaned"))
    assert events(tmp_path, "cleaned")[0]["complete"]
    (run,) = tmp_path.glob("runs/*-*")
    for log in (run / victim).glob("rank*.out"):
        assert ready.sh(victim, f"sha256sum < ~/.fleet/runs/{run.name}/{log.name}").split()[0] == sha256(log)
    until(lambda: summary(tmp_path)["incomplete_logs"] == [])


def preflight_refuses(done: subprocess.CompletedProcess[str], tmp_path: Path, code: int, *said: str) -> None:
    assert done.returncode == code, done.stderr
    for text in said:
        assert text in done.stderr
    assert not list(tmp_path.glob("runs/*-*"))


def test_preflight_names_everything_at_once_and_starts_nothing(
    launch: Launch, ready: VirtualLab, tmp_path: Path
) -> None:
    ready.sh(ready.names[1], "cd && mv work/s.py work/gone.py")
    ready.sh(ready.names[2], "cd && echo >> work/s.py")
    try:
        done = launch("./s.py", "sleep", "-1")
    finally:
        ready.sh(ready.names[1], "cd && mv work/gone.py work/s.py")
        ready.sh(ready.names[2], "cd && cp work/s.py x && head -c -1 x > work/s.py && rm x")
    preflight_refuses(
        done,
        tmp_path,
        123,
        f"{ready.names[1]}: the script /root/work/./s.py does not exist",
        "no agreement on the script's content: ",
    )


def test_a_busy_port_is_named_with_its_holder(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:
    master = ready.names[0]
    listener = "import socket, time; s = socket.socket(); s.bind(('', 29500)); s.listen(); time.sleep(600)"
    ready.sh(master, f'python3 -c "{listener}" > /dev/null 2>&1 & echo $! > /run/listener')
    ready.sh(master, "until ss -ltnH | grep -q ':29500 '; do sleep 0.05; done")
    try:
        pid = ready.sh(master, "cat /run/listener")
        done = launch("--master-port", "29500", "./s.py", "sleep", "-1")
        preflight_refuses(done, tmp_path, 123, f"{master}: port 29500", f"pid {pid}", "kill-port 29500")
    finally:
        ready.sh(master, "kill $(cat /run/listener)")


def test_an_unreachable_host_starts_nothing(launch: Launch, ready: VirtualLab, tmp_path: Path) -> None:
    ready.stop_sshd(ready.names[2])
    try:
        done = launch("./s.py", "sleep", "-1")
        last = json.loads(launch("--json", "./s.py", "sleep", "-1").stdout.splitlines()[-1])
    finally:
        ready.start_sshd(ready.names[2])
    assert last["event"] == "summary" and last["exit_code"] == 122 and last["hosts"].keys() == set(ready.names)
    assert [name for name, host in last["hosts"].items() if host["error"]] == [ready.names[2]]
    preflight_refuses(done, tmp_path, 122, ready.names[2], "nothing was started")


def test_a_full_disk_on_the_head_pauses_logs_and_loses_none(ready: VirtualLab, tmp_path: Path) -> None:
    disk, told = tmp_path / "runs", tmp_path / "told"  # its events may have no room, either
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    with told.open("wb") as stderr:
        words = (*COMMON, "./s.py", "flood", "20000")
        process = ready.popen(*words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        until(lambda: b"logs cannot be written here" in told.read_bytes() or process.poll() is not None)
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        assert process.wait(300) == 0, told.read_bytes()[-3000:]
        for path in tmp_path.glob("runs/*-*/*/rank*.out"):
            assert path.read_bytes().endswith(b"line 19999\rbar \xff\xfe\nno newline at the end")
        assert events(tmp_path, "unblocked") and events(tmp_path, "summary")
        assert summary(tmp_path)["incomplete_logs"] == []
    finally:
        process.kill()
        subprocess.run(["umount", "-l", disk], check=True)


def test_dry_run_asks_nobody(ready: VirtualLab, tmp_path: Path) -> None:
    done = ready.fleet(
        "-i",
        "lab",
        "launch",
        "--dry-run",
        "--json",
        "--env",
        "K=hunter2",
        "train.py",
        "--help",
        "-w",
        cwd=tmp_path,
        env={"SSH_AUTH_SOCK": os.devnull},
    )
    assert done.returncode == 0 and "hunter2" not in done.stdout
    plan = json.loads(done.stdout)["plan"]
    assert [n["command"][2:] for n in plan["hosts"].values()] == [["train.py", "--help", "-w"]] * 3
    assert not list(tmp_path.iterdir())

"""What befalls exec and kill-port: what was started is ended, and the cause is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.ground import Ground, said, until, wait
from tests.chaos.sync_faults import errors
from tests.chaos.table import Fault, Seen

SLEEP = "setsid sleep 997 & sleep 997"
PORT = "29543"
LISTEN = (
    f"import signal, socket, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); s = socket.socket(); "
    f"s.bind(('', {PORT})); s.listen(); time.sleep(600)"
)


def sleeping(ground: Ground, *options: str) -> object:
    """`exec` of a line that leaves a child in a session of its own, too; it runs on all hosts."""
    process = ground.start("-i", "lab", "exec", *options, "--shell", SLEEP)
    until(
        lambda: (
            process.poll() is not None
            or all(sum(line.startswith("sleep 997") for line in ground.processes(h)) for h in ground.names)
        ),
        "sleeps",
    )
    return process


def amid(act: Callable[[Ground, int], None], *options: str) -> Callable[[Ground], Seen]:
    def go(ground: Ground) -> Seen:
        process = sleeping(ground, *options)
        act(ground, process.pid)  # type: ignore[attr-defined]
        return Seen(wait(process), errors(said(process)))  # type: ignore[arg-type]

    return go


def twice(ground: Ground, pid: int) -> None:
    os.kill(pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(pid, signal.SIGINT)


def lame(how: str) -> Callable[[Ground], Seen]:
    """A host falls silent while a command runs; the others end well."""

    def go(ground: Ground) -> Seen:
        process = ground.start("-i", "lab", "exec", "--", "sleep", "25")
        until(lambda: all("sleep 25" in ground.processes(host) for host in ground.names), "sleeps")
        ground.lame(how, ground.names[1])
        return Seen(wait(process), errors(said(process)))

    return go


def endless(ground: Ground) -> Seen:
    """Output without end for some seconds: the head's memory is bounded."""
    process = ground.start("-i", "lab", "exec", "--timeout", "6", "--shell", "yes | head -c 300000000; sleep 100")
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak = max(peak, int(status.split("VmHWM:")[1].split()[0]) >> 10)
        except (OSError, IndexError):
            pass
        time.sleep(0.1)
    tail_of = "\n".join(said(process).splitlines()[-20:])
    process.said.unlink()  # type: ignore[attr-defined]
    return Seen(process.returncode, errors(tail_of), "memory bounded" if peak < 200 else f"{peak} MiB of memory")


def stubborn_port(ground: Ground) -> Seen:
    """A listener that ignores SIGTERM is ended, and only it."""
    host = ground.names[1]
    ground.lab.inside(
        host, "sh", "-c", 'setsid python3 -c "$0" >/dev/null 2>&1 & setsid sleep 996 >/dev/null 2>&1 &', LISTEN
    )
    ground.undo.callback(ground.lab.sh, host, "pkill -9 -x sleep", check=False)
    until(lambda: f":{PORT}" in ground.lab.sh(host, "ss -tln"), "a listener")
    done = ground.fleet("-i", "lab", "kill-port", "-y", "--grace", "0.5", PORT)
    rest = [line for line in ground.processes(host) if PORT in line or line.startswith("sleep 996")]
    return Seen(done.returncode, errors(done.stdout + done.stderr), "only it" if rest == ["sleep 996"] else str(rest))


FAULTS = (
    Fault("exec: --timeout", amid(lambda g, pid: None, "--timeout", "3"), 124, "still running after 3 s"),
    Fault("exec: Ctrl-C", amid(lambda g, pid: os.kill(pid, 2)), 130, "interrupted"),
    Fault("exec: Ctrl-C twice", amid(twice), 130, "interrupted"),
    Fault("exec: SIGTERM to the head", amid(lambda g, pid: os.kill(pid, 15)), 130, "interrupted"),
    Fault("exec: the head is killed -9", amid(lambda g, pid: os.kill(pid, 9)), -9, "^$"),
    Fault("exec: a host is frozen", lame("freeze"), 122, "host lab02: "),
    Fault("exec: a host is cut", lame("cut"), 122, "host lab02: "),
    Fault("exec: output without end", endless, 124, "still running after 6 s", "memory bounded"),
    Fault("kill-port: a stubborn process", stubborn_port, 0, "lab02", "only it"),
)

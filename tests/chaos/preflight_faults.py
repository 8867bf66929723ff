"""What preflight must find: nothing is started anywhere."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.ground import COMMON, Ground
from tests.chaos.table import Fault, Seen

LISTENER = "import socket, time; s = socket.socket(); s.bind(('', 29500)); s.listen(); time.sleep(600)"


def refused(ground: Ground, *args: str) -> Seen:
    """A launch's words, and whether anything was started."""
    done = ground.fleet(*COMMON, *args, "./ranks.py", "sleep")
    ran = [host for host in ground.names if any("ranks.py" in line for line in ground.processes(host))]
    words = [line for line in done.stderr.splitlines() if "hint:" not in line]
    return Seen(
        done.returncode,
        " ".join(words),
        "nothing started" if not ran and not list(ground.folder.glob("runs/*-*")) else f"started on {ran}",
    )


def after(node: int, line: str, undo: str, *args: str) -> Callable[[Ground], Seen]:
    """A shell line on a node, then a launch."""

    def go(ground: Ground) -> Seen:
        host = ground.names[node]
        ground.undo.callback(ground.lab.sh, host, undo)
        ground.lab.sh(host, line)
        return refused(ground, *args)

    return go


def port_busy(ground: Ground) -> Seen:
    host = ground.names[0]
    ground.undo.callback(ground.lab.sh, host, "kill $(cat /run/listener); rm /run/listener")
    ground.lab.sh(host, f'python3 -c "{LISTENER}" >/dev/null 2>&1 & echo $! >/run/listener; sleep 1')
    return refused(ground, "--master-port", "29500")


def unreachable(ground: Ground) -> Seen:
    host = ground.names[2]
    ground.undo.callback(ground.lab.start_sshd, host)
    ground.lab.stop_sshd(host)
    return refused(ground)


def cut_off(ground: Ground) -> Seen:
    ground.lame("cut", ground.names[1])
    return refused(ground, "--connect-timeout", "3")


def wrong_key(ground: Ground) -> Seen:
    """The host answers with another key than the one that was enrolled."""
    host, lab = ground.names[2], ground.lab

    def back() -> None:
        lab.stop_sshd(host)
        lab.sh(host, "cp -p /mnt/keys/* /etc/ssh/")
        lab.start_sshd(host)

    lab.sh(host, "mkdir -p /mnt/keys && cp -p /etc/ssh/ssh_host_* /mnt/keys")
    ground.undo.callback(back)
    lab.swap_host_key(host)
    return refused(ground)


NOTHING = "nothing started"
HERE = "cd ~/work && "
FAULTS = (
    Fault(
        "the script is missing on a node",
        after(1, f"{HERE}mv ranks.py gone.py", f"{HERE}mv gone.py ranks.py"),
        123,
        "lab02: the script /root/work/./ranks.py does not exist",
        NOTHING,
    ),
    Fault(
        "the script differs on a node",
        after(3, f"{HERE}cp -p ranks.py x && echo >>ranks.py", f"{HERE}mv x ranks.py"),
        123,
        "lab04: the script's content differs",
        NOTHING,
    ),
    Fault("the master port is busy", port_busy, 123, r"lab01: port 29500.* pid \d+", NOTHING),
    Fault(
        "a host refuses the connection", unreachable, 122, "lab03.*refused the connection.*nothing was started", NOTHING
    ),
    Fault("a host is cut off before the launch", cut_off, 122, "lab02.*(reached|answer).*nothing was started", NOTHING),
    Fault("a host has another key", wrong_key, 122, "lab03.*SHA256:.*SHA256:.*nothing was started", NOTHING),
)

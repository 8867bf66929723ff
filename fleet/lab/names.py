"""/etc/hosts: a marked block a lab on this machine, put in and taken out to the byte; and what its hosts resolve."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from fleet.lab.state import exclusive
from fleet.lab.switch import run
from fleet.node.base.files import replace_file

HOSTS_FILE = Path("/etc/hosts")
LOCK = Path("/run/lock/fleet-lab.lock")  # what all labs of this machine share: /etc/hosts and the address range


def machine_lock() -> AbstractContextManager[None]:
    folder = LOCK.parent if LOCK.parent.is_dir() else Path("/tmp")
    return exclusive(folder / LOCK.name, 120.0, "another lab is being changed on this machine")


def lines(names: Mapping[str, str]) -> str:
    return "".join(f"{address}\t{name}\n" for name, address in names.items())


def with_block(text: str, state_dir: Path, names: Mapping[str, str]) -> str:
    """`text` with the lab's block at its end, without it when `names` is empty: every byte that others wrote stays."""
    begin, end = f"\n# fleet lab {state_dir}: begin\n", f"# fleet lab {state_dir}: end\n"
    others = re.sub(f"{re.escape(begin)}(?:[0-9.]+\t.*\n)*{re.escape(end)}", "", text)
    return others + begin + lines(names) + end if names else others


def update(file: Path, state_dir: Path, names: Mapping[str, str]) -> None:
    """Put the lab's block into `file`, or take it out; in place only where it is a mount of its own, as in containers.
    The caller holds machine_lock."""
    file.touch()
    old = file.read_bytes()
    new = with_block(old.decode("utf-8", "surrogateescape"), state_dir, names).encode("utf-8", "surrogateescape")
    if new == old:
        return
    mode, temporary = file.stat().st_mode & 0o7777, file.with_name(f"{file.name}.new")
    try:
        replace_file(os.fsencode(file), new, mode)
        file.chmod(mode)  # whatever the umask
    except OSError as e:
        temporary.unlink(missing_ok=True)
        if e.errno not in (errno.EBUSY, errno.EXDEV, errno.EROFS):
            raise
        file.write_bytes(new)


def inside(names: Mapping[str, str]) -> str:
    """Lines for a virtual host: names, and their addresses back to names.

    torch's sockets are IPv6 ones whose peers have mapped addresses (::ffff:198.18.0.11); libc finds these under a
    line of their own only. That line has a name of its own, so that a look-up of the plain one gives one address.
    """
    return lines({**names, **{f"{name.split()[0]}.lab": f"::ffff:{address}" for name, address in names.items()}})


def hosts_text(head: str, names: Mapping[str, str]) -> str:
    """The whole /etc/hosts of a virtual host, in which the head and all hosts are."""
    own = {"localhost": "127.0.0.1", f"{socket.gethostname()} head": head, **names}
    return inside(own) + lines({"localhost ip6-localhost ip6-loopback": "::1"})


def tell(pid: int, names: Mapping[str, str]) -> None:
    """Add names to those of a host that runs, from inside of it: links that its users have made lead nowhere else."""
    run(["nsenter", f"--target={pid}", "--all", "tee", "--append", "/etc/hosts"], "\n" + inside(names))

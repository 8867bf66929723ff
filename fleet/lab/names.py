"""Adds a lab's marked block to this machine's /etc/hosts, and removes exactly that block. Makes /etc/hosts of the lab's
hosts."""

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
LOCK = Path("/run/lock/fleet-lab.lock")  # protects what all labs of this machine share: /etc/hosts, address range


def machine_lock() -> AbstractContextManager[None]:
    folder = LOCK.parent if LOCK.parent.is_dir() else Path("/tmp")
    return exclusive(folder / LOCK.name, 120.0, "another lab is being changed on this machine")


def lines(names: Mapping[str, str]) -> str:
    return "".join(f"{address}\t{name}\n" for name, address in names.items())


def with_block(text: str, state_dir: Path, names: Mapping[str, str]) -> str:
    """Returns `text` with the lab's block at its end, or without it if `names` is empty. No other byte changes."""
    begin, end = f"\n# fleet lab {state_dir}: begin\n", f"# fleet lab {state_dir}: end\n"
    others = re.sub(f"{re.escape(begin)}(?:[0-9.]+\t.*\n)*{re.escape(end)}", "", text)
    return others + begin + lines(names) + end if names else others


def update(file: Path, state_dir: Path, names: Mapping[str, str]) -> None:
    """Adds the lab's block to `file`, or removes it. Writes in place only if the file is a mount of its own, as in
    containers. The caller holds machine_lock()."""
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
    """Returns lines of /etc/hosts for names and for mapped addresses (::ffff:198.18.0.11).

    torch's sockets are IPv6 ones, whose peers have mapped addresses. libc needs a separate line for each. That line has
    another name, so that the lookup of the plain name returns one address.
    """
    return lines({**names, **{f"{name.split()[0]}.lab": f"::ffff:{address}" for name, address in names.items()}})


def hosts_text(head: str, names: Mapping[str, str]) -> str:
    """Returns /etc/hosts of a virtual host, with the head and all hosts."""
    own = {"localhost": "127.0.0.1", f"{socket.gethostname()} head": head, **names}
    return inside(own) + lines({"localhost ip6-localhost ip6-loopback": "::1"})


def append_names(pid: int, names: Mapping[str, str]) -> None:
    """Adds names to /etc/hosts of a running host. It writes inside the host's namespaces: a symbolic link in the host
    cannot lead to a file of this machine."""
    run(["nsenter", f"--target={pid}", "--all", "tee", "--append", "/etc/hosts"], "\n" + inside(names))

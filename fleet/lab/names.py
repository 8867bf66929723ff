"""/etc/hosts: a marked block a lab, put in and taken out to the byte."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from fleet.lab.state import exclusive
from fleet.lab.switch import run

HOSTS_FILE = Path("/etc/hosts")
LOCK = Path("/run/lock/fleet-lab.lock")  # what all labs of this machine share: /etc/hosts and the address range


@contextlib.contextmanager
def machine_lock() -> Iterator[None]:
    folder = LOCK.parent if LOCK.parent.is_dir() else Path("/tmp")
    with exclusive(folder / LOCK.name, 60.0, "another lab is being changed on this machine"):
        yield


def marks(state_dir: Path) -> tuple[str, str]:
    return f"\n# fleet lab {state_dir}: begin\n", f"# fleet lab {state_dir}: end\n"


def without_block(text: str, state_dir: Path) -> str:
    """`text` as it was before with_block: every byte that others wrote stays."""
    begin, end = marks(state_dir)
    while (start := text.find(begin)) >= 0:
        stop = text.find(end, start)
        if stop < 0:  # the end was cut off by hand: take our opening line only
            return text[:start] + text[start + len(begin) :]
        text = text[:start] + text[stop + len(end) :]
    return text


def with_block(text: str, state_dir: Path, names: Mapping[str, str]) -> str:
    begin, end = marks(state_dir)
    lines = "".join(f"{address}\t{name}\n" for name, address in names.items())
    return without_block(text, state_dir) + begin + lines + end


def update(file: Path, state_dir: Path, names: Mapping[str, str]) -> None:
    """Put the lab's block into `file`, or take it out when `names` is empty. The caller holds machine_lock."""
    old = file.read_bytes().decode("utf-8", "surrogateescape") if file.exists() else ""
    new = with_block(old, state_dir, names) if names else without_block(old, state_dir)
    if new != old:
        overwrite(file, new.encode("utf-8", "surrogateescape"))


def update_inside(pid: int, state_dir: Path, names: Mapping[str, str]) -> None:
    """The same in a host that runs, from inside of it: links that its users have made lead nowhere else."""
    enter = ["nsenter", f"--target={pid}", "--all"]
    text = run([*enter, "sh", "-c", "cat /etc/hosts 2>/dev/null; true"])
    run([*enter, "tee", "/etc/hosts"], with_block(text, state_dir, names))


def overwrite(file: Path, content: bytes) -> None:
    """Atomically, with mode and owner kept; in place where the file is a mount of its own (containers)."""
    info = file.stat()
    temporary = file.with_name(f".{file.name}.fleet-lab.{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            out.write(content)
            out.flush()
            os.fchmod(out.fileno(), info.st_mode & 0o7777)
            os.fchown(out.fileno(), info.st_uid, info.st_gid)
            os.fsync(out.fileno())
        temporary.replace(file)
    except OSError as e:
        if e.errno not in (errno.EBUSY, errno.EXDEV, errno.EROFS):
            raise
        file.write_bytes(content)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def inside(head: str, names: Mapping[str, str]) -> dict[str, str]:
    """What a virtual host resolves: the head and all hosts, and their addresses back to names.

    torch's sockets are IPv6 ones whose peers have mapped addresses (::ffff:198.18.0.11); libc finds these under a
    line of their own only. That line has a name of its own, so that a look-up of the plain one gives one address.
    """
    known = {f"{socket.gethostname()} head": head, **names}
    mapped = {f"{name.split()[0]}.lab": f"::ffff:{address}" for name, address in known.items()}
    return {**known, **mapped}


def hosts_text(head: str, names: Mapping[str, str], state_dir: Path) -> str:
    """The whole /etc/hosts of a virtual host."""
    own = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n::ffff:127.0.0.1\tlocalhost.lab\n"
    return with_block(own, state_dir, inside(head, names))

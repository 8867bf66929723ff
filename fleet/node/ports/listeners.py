"""Finds who listens on a port: /proc/net/tcp{,6} -> socket -> /proc/*/fd -> process."""

import os
import re
import socket
import sys
from contextlib import suppress

from fleet.node.base.processes import environment, pids, read_file, start_time
from fleet.node.base.types import Any
from fleet.protocol.state import is_run_id

TCP_IS_OPEN, TCP_LISTENS, UDP_LISTENS = "01", "0A", "07"  # of UDP what is bound, but not connected to one peer alone
TEXT_LIMIT = 4096  # of what is reported of a process: the head takes no longer text


def parse_listeners(
    table: str, ports: "set[int] | None", state: str = TCP_LISTENS
) -> "list[tuple[int, str, int, int]]":
    """[(port, address, uid, inode)] of a /proc/net/tcp, tcp6, udp or udp6 text; lines that make no sense are passed
    over. ports: None for all."""
    found = []
    for line in table.splitlines():
        fields = line.split()
        try:
            if fields[3] != state:
                continue
            address, _, number = fields[1].partition(":")
            port, uid, inode = int(number, 16), int(fields[7]), int(fields[9])
            raw = bytes.fromhex(address)
            if len(raw) not in (4, 16):
                continue
        except (IndexError, ValueError):
            continue
        if ports is None or port in ports:
            # 32-bit integers in the machine's byte order
            raw = b"".join(
                raw[i : i + 4][::-1] if sys.byteorder == "little" else raw[i : i + 4] for i in range(0, len(raw), 4)
            )
            family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
            found.append((port, socket.inet_ntop(family, raw), uid, inode))
    return found


def holders(inodes: "list[int]") -> "dict[int, list[int]]":
    """{socket inode: [pid]} as far as /proc shows it."""
    wanted = {"socket:[%d]" % inode: inode for inode in inodes}
    found: dict[int, list[int]] = {}
    for pid in pids():
        folder = "/proc/%d/fd/" % pid
        try:
            descriptors = os.listdir(folder)
        except OSError:
            continue  # gone, or not ours to see
        links = set()
        for descriptor in descriptors:
            with suppress(OSError):  # closed under our eyes
                links.add(os.readlink(folder + descriptor))
        for link in links & set(wanted):
            found.setdefault(wanted[link], []).append(pid)
    return found


def status_number(pid: int, field: bytes) -> "int | None":
    """The first number after `field` in /proc/PID/status: a real uid, a parent's pid; None when it is gone."""
    found = re.search(rb"^%s:\s*(\d+)" % field, read_file("/proc/%d/status" % pid), re.M)
    return int(found.group(1)) if found else None


def age(start: int) -> "float | None":
    uptime = read_file("/proc/uptime").split()
    return max(0.0, round(float(uptime[0]) - start / os.sysconf("SC_CLK_TCK"), 1)) if uptime else None


def describe(pid: int) -> "dict[str, Any]":
    """Returns what is known of a process: {} when it is gone."""
    born, uid = start_time(pid), status_number(pid, b"Uid")
    if born is None or uid is None:
        return {}
    command = read_file("/proc/%d/cmdline" % pid).rstrip(b"\0").replace(b"\0", b" ")
    run = environment(pid).get(b"FLEET_RUN_ID", b"").decode("utf-8", "replace")
    return {
        "pid": pid,
        "start": born,
        "uid": uid,
        "age": age(born),
        "command": (command or read_file("/proc/%d/comm" % pid).strip()).decode("utf-8", "replace")[:TEXT_LIMIT],
        "run_id": run if is_run_id(run) else None,  # any user's process may have any text there
    }

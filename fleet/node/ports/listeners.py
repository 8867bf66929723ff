"""Listens on ports, and finds the processes that listen: /proc/net/tcp{,6} -> socket -> /proc/*/fd -> process."""

import os
import socket
import sys

from fleet.node.base.errors import on_failure
from fleet.node.base.processes import environment, open_files, pids, read_file, start_time, status_of
from fleet.node.base.types import Any
from fleet.node.base.wire import grouped
from fleet.protocol.state import is_run_id

# states of sockets in /proc/net; UDP_LISTENS is that of a socket which is bound, and not connected
TCP_IS_OPEN, TCP_LISTENS, UDP_LISTENS = "01", "0A", "07"
BACKLOG = 1024  # connections that wait to be accepted: many nodes may connect at the same time
TEXT_LIMIT = 4096  # characters of a command: the head accepts no longer text


def listen_everywhere(port: int) -> "socket.socket":
    """Returns a socket that listens on all interfaces. Raises OSError if another socket listens on the port of any
    interface. An earlier run's connections in TIME_WAIT do not hinder it, as it sets SO_REUSEADDR, like torch."""
    try:
        listener, address = socket.socket(socket.AF_INET6, socket.SOCK_STREAM), "::"
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        listener, address = socket.socket(socket.AF_INET, socket.SOCK_STREAM), ""
    with on_failure(listener.close):
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    return listener


def free_port() -> int:
    """Returns a port on which nothing listens now. The kernel chooses it."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def table_of(name: str) -> str:
    """Returns the text of /proc/net/NAME, which may be long."""
    return read_file("/proc/net/" + name, 1 << 26).decode("latin-1")


def parse_listeners(
    table: str, ports: "set[int] | None", state: str = TCP_LISTENS
) -> "list[tuple[int, str, int, int]]":
    """Returns [(port, address, uid, inode of the socket)] from the text of /proc/net/tcp, tcp6, udp or udp6. Skips
    invalid lines. ports: the ports to return; None returns all. state: the state of the sockets to return."""
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
            # the address is written as 32-bit integers in the machine's byte order
            raw = b"".join(
                raw[i : i + 4][::-1] if sys.byteorder == "little" else raw[i : i + 4] for i in range(0, len(raw), 4)
            )
            family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
            found.append((port, socket.inet_ntop(family, raw), uid, inode))
    return found


def holders(inodes: "list[int]") -> "dict[int, list[int]]":
    """Returns {socket inode: [pid]}. It misses the processes whose open files /proc hides from this user."""
    wanted = {"socket:[%d]" % inode: inode for inode in inodes}
    links = ((link, pid) for pid in pids() for link in {link for _, link in open_files(pid)})
    return grouped((wanted[link], pid) for link, pid in links if link in wanted)


def number_of(pid: int, field: bytes) -> "int | None":
    """Returns the first number of a field in /proc/PID/status: of Uid the real uid, of PPid the parent's pid. Returns
    None if the process is gone."""
    values = status_of(pid, field)
    return int(values[0]) if values else None


def age(start: int) -> "float | None":
    uptime = read_file("/proc/uptime").split()
    return max(0.0, round(float(uptime[0]) - start / os.sysconf("SC_CLK_TCK"), 1)) if uptime else None


def describe(pid: int) -> "dict[str, Any]":
    """Returns {"pid", "start": in clock ticks since boot, "uid", "age": in seconds, "command", "run_id"} of a process.
    Returns {} if the process is gone."""
    born, uid = start_time(pid), number_of(pid, b"Uid")
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


def holder(port: int) -> "dict[str, Any] | None":
    """Returns describe() of the process that listens on a TCP port, or None if no process does. If the process is
    hidden, only "uid" is known, and the others are None."""
    tables = [table_of("tcp"), table_of("tcp6")]
    found = [listener for table in tables for listener in parse_listeners(table, {port})]
    held = [pid for own in holders([inode for _, _, _, inode in found]).values() for pid in own]
    if held:
        return describe(held[0])
    return {"pid": None, "uid": found[0][2], "command": None, "run_id": None} if found else None

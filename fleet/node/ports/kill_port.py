"""Finds the processes that listen on TCP and UDP ports, and ends them: /proc/net/tcp{,6} -> socket inode -> /proc/*/fd
-> process.

spec: {"ports": [n], "dialled": [n], "op": "scan"}, or {..., "op": "end", "grace": s, "force": true also ends other
users' processes, "approved": [[pid, start ticks, uid]]}. dialled: ports to which the head connects. Sends one J:
    {"listeners": [{"port", "protocol": "tcp"|"udp", "address", "pid"|null, "start"|null, "uid", "user", "command"|null,
                    "run_id"|null, "live": bool, "age": s|null, "own": bool, "refused": reason|null,
                    "also": ["8080/tcp"]}],
     "ended": [pid], "reasons": {pid: why it did not end}}
The response to "end" also has "ended" and "reasons"; its listeners are those that are left. There is one entry for each
pair of socket and process: a socket that several processes share has several entries. If the owner of a socket is
hidden, its pid is null. "also": other ports of the process. "own": the process belongs to our user. "live": the
process's run is alive on this node. Before fleet signals an approved process, it checks that pid, start time and owner
are still those that the user saw. It never signals other processes, or a process with "refused"."""

import os
import pwd

from fleet.node.base.processes import end_all, start_time
from fleet.node.base.run_folder import live_supervisors, run_folder
from fleet.node.base.types import Any
from fleet.node.base.wire import send_exit, send_json, start
from fleet.node.ports.listeners import (
    TCP_IS_OPEN,
    TCP_LISTENS,
    UDP_LISTENS,
    describe,
    holders,
    number_of,
    parse_listeners,
    table_of,
)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def ancestors(pid: "int | None") -> "list[int]":
    """Returns the pids of a process and of all its ancestors. This program's ancestors are the shell, the sshd session,
    sshd and init."""
    line: list[int] = []
    while pid and pid not in line:
        line.append(pid)
        pid = number_of(pid, b"PPid")
    return line


def way_in(tables: "dict[str, str]", dialled: "set[int]") -> "tuple[set[int], set[int]]":
    """Returns (pids of the processes that this connection needs, ports whose listeners the connection needs). These
    processes are this program and its ancestors. If the connection comes from a forwarder on this machine, they also
    are the forwarder and its ancestors. tables: name -> text of /proc/net/NAME."""
    above = set(ancestors(os.getpid()))
    fields = os.environ.get("SSH_CONNECTION", "").split()
    if len(fields) != 4 or not (fields[1].isdigit() and fields[3].isdigit()):
        return above, dialled
    peer, here = (fields[0], int(fields[1])), int(fields[3])
    ours = [s for name in ("tcp", "tcp6") for s in parse_listeners(tables[name], {peer[1]}, TCP_IS_OPEN)]
    forwarders = holders([inode for _, address, _, inode in ours if address.replace("::ffff:", "") == peer[0]])
    for pid in [pid for pids in forwarders.values() for pid in pids]:
        above.update(ancestors(pid))
    return above, dialled | {here}


def is_live(run: "str | None") -> bool:
    """Returns whether a supervisor of that run is alive on this node."""
    folder = run_folder(run) if run else None
    return folder is not None and bool(live_supervisors(folder))


def scan(ports: "set[int]", dialled: "set[int]") -> "list[dict[str, Any]]":
    """Returns the listeners on `ports`, as the module's docstring describes them. They are sorted by port, protocol,
    address and pid."""
    tables = {name: table_of(name) for name in ("tcp", "tcp6", "udp", "udp6")}
    above, ways = way_in(tables, dialled)
    sockets = [
        (name[:3],) + each
        for name in tables
        for each in parse_listeners(tables[name], None, TCP_LISTENS if name.startswith("tcp") else UDP_LISTENS)
    ]
    pids_of = holders([inode for _, _, _, _, inode in sockets if inode])
    held: dict[int, set[tuple[int, str]]] = {}
    for protocol, port, _, _, inode in sockets:
        for pid in pids_of.get(inode, []):
            held.setdefault(pid, set()).add((port, protocol))
    way_back = {pid for pid, ports in held.items() if any((port, "tcp") in ports for port in ways)}
    found = []
    for protocol, port, address, socket_uid, inode in sockets:
        for pid in pids_of.get(inode) or [0] if port in ports else []:
            entry: dict[str, Any] = {
                "port": port,
                "protocol": protocol,
                "address": address,
                "pid": None,
                "start": None,
                "uid": socket_uid,
                "age": None,
                "command": None,
                "run_id": None,
                "live": False,
                "refused": None,
                "also": [],
            }
            if pid:
                entry.update(describe(pid))
                entry["live"] = is_live(entry["run_id"])
                entry["also"] = ["%d/%s" % each for each in sorted(held[pid] - {(port, protocol)})]
                carries = "it carries this connection" if pid in above or pid in way_back else None
                entry["refused"] = "it is this host's init" if pid == 1 else carries
            entry["user"] = user_name(entry["uid"])
            entry["own"] = entry["uid"] == os.getuid()
            if entry not in found:
                found.append(entry)
    return sorted(found, key=lambda e: (e["port"], e["protocol"], e["address"], e["pid"] or 0))


def judge(pid: int, uid: int, entry: "dict[str, Any] | None", force: bool) -> "str | None":
    """Returns why fleet must not end an approved process, or None if it may. uid: the owner that the user saw. entry:
    the process's listener, or None if it does not listen any more."""
    if number_of(pid, b"Uid") != uid:
        return "its owner changed since it was shown"
    if entry is None:
        return "it does not listen there any more"
    if entry["refused"]:
        return str(entry["refused"])
    if not entry["own"] and not force:
        return "it belongs to %s" % entry["user"]
    try:
        os.kill(pid, 0)
    except PermissionError:
        return "not permitted"
    except OSError:
        pass  # it has just ended
    return None


def end(
    ports: "set[int]", dialled: "set[int]", approved: "list[list[int]]", grace: float, force: bool
) -> "tuple[list[int], dict[int, str]]":
    """Sends SIGTERM to the approved processes, waits up to `grace` seconds, and sends SIGKILL. Returns ([pids of ended
    processes], {pid of another: why it did not end})."""
    listening = {(entry["pid"], entry["start"]): entry for entry in scan(ports, dialled)}
    # only processes that still live are judged: another process may have the pid of one that has ended
    there = {pid: (born, uid) for pid, born, uid in approved if start_time(pid) == born}
    judged = {pid: judge(pid, uid, listening.get((pid, born)), force) for pid, (born, uid) in there.items()}
    reasons = {pid: reason for pid, reason in judged.items() if reason}
    doomed = {pid: born for pid, (born, _) in there.items() if pid not in reasons}
    left = end_all(lambda: {pid: born for pid, born in doomed.items() if start_time(pid) == born}, grace)
    reasons.update(dict.fromkeys(left, "it survived SIGKILL: it hangs in the kernel"))
    return [pid for pid, _, _ in approved if pid not in reasons], reasons


def main() -> None:
    spec = start()
    ports, dialled = set(spec["ports"]), set(spec.get("dialled", ()))
    answer: dict[str, Any] = {}
    if spec["op"] == "end":
        ended, reasons = end(ports, dialled, spec["approved"], spec["grace"], spec["force"])
        answer.update(ended=ended, reasons={str(pid): reason for pid, reason in reasons.items()})
    answer["listeners"] = scan(ports, dialled)
    send_json(answer)
    send_exit(0)

"""Meets all other nodes at the master's address and port.

master: {"address": ip or name, "port", "token": hex, "is_me": bool, "peers": n}. The master listens on the port as
the engine will, on all interfaces; every other node connects and shows the token, and reports it once it has its
answer: a peer that was too busy to wait for that comes again, and must find the port open. Peers close first, so that
nothing of the exchange stays on the port.
"""

import errno
import hmac
import socket
import threading
import time

from fleet.node.base.processes import read_file
from fleet.node.base.types import Any
from fleet.node.base.wire import start_thread
from fleet.node.ports.listeners import describe, holders, parse_listeners

RETRY_SECONDS, ATTEMPT_SECONDS = 0.05, 1.0
GOT_IT = b"\n"
BACKLOG = 1024  # of nodes that connect at once


def listen_everywhere(port: int) -> "socket.socket":
    """A listening socket on all interfaces. SO_REUSEADDR as torch has it: a listener on any interface is still
    in its way, connections of an earlier run that linger in TIME_WAIT are not."""
    try:
        listener, address = socket.socket(socket.AF_INET6, socket.SOCK_STREAM), "::"
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        listener, address = socket.socket(socket.AF_INET, socket.SOCK_STREAM), ""
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def holder(port: int) -> "dict[str, Any] | None":
    """Returns what is known of the process that listens there: {"pid", "uid", "command", "run_id", ...}, or None."""
    tables = [read_file("/proc/net/" + name, 1 << 26).decode("latin-1") for name in ("tcp", "tcp6")]
    found = [listener for table in tables for listener in parse_listeners(table, {port})]
    held = [pid for own in holders([inode for _, _, _, inode in found]).values() for pid in own]
    if held:
        return describe(held[0])
    return {"pid": None, "uid": found[0][2], "command": None, "run_id": None} if found else None


def greet(peer: "socket.socket", token: bytes, arrived: "set[int]") -> None:
    """One peer: its token and node rank in, our answer out, that it has it in; wait for it to close first."""
    with peer:
        peer.settimeout(2.0)
        try:
            parts = peer.makefile("rb").readline(256).split()
            if len(parts) == 2 and hmac.compare_digest(parts[0], token):
                peer.sendall(hmac.new(token, b"master", "sha256").hexdigest().encode() + b"\n")
                if peer.recv(1) == GOT_IT:
                    arrived.add(int(parts[1]))
            peer.recv(1)
        except (OSError, ValueError):
            pass


def receive_peers(master: "dict[str, Any]", until: float, done: "threading.Event") -> "dict[str, Any]":
    """The master's side; facts as in `meet`."""
    facts: dict[str, Any] = {"ok": False, "error": None, "hint": None, "holder": None, "arrived": []}
    try:
        listener = listen_everywhere(master["port"])
    except OSError as error:
        facts["error"] = "port %d: %s" % (master["port"], error.strerror)
        if error.errno == errno.EADDRINUSE:
            facts["holder"] = holder(master["port"])
            facts["hint"] = "'fleet kill-port %d' shows who listens; or choose another --master-port" % master["port"]
        elif error.errno == errno.EACCES:
            facts["hint"] = "ports below 1024 are root's; choose another --master-port"
        return facts
    arrived: set[int] = set()
    greeters = []
    with listener:
        listener.settimeout(RETRY_SECONDS)
        while len(arrived) < master.get("peers", 0) and time.monotonic() < until and not done.is_set():
            try:
                peer, _address = listener.accept()
            except OSError:
                continue
            greeters.append(start_thread(greet, peer, master["token"].encode(), arrived))
    for greeter in greeters:
        greeter.join(max(0.0, until - time.monotonic()))
    facts.update(ok=True, arrived=sorted(arrived))
    return facts


def visit_master(master: "dict[str, Any]", node_rank: int, until: float, done: "threading.Event") -> "dict[str, Any]":
    """A peer's side: try until the master answers or the time is over; the last reason is reported."""
    facts: dict[str, Any] = {"ok": False, "error": None, "hint": None}
    where = "%s port %d" % (master["address"], master["port"])
    token = master["token"].encode()
    while True:
        try:
            # short attempts: where packets are dropped, {"op": "done"} must still be received
            left = max(0.1, min(ATTEMPT_SECONDS, until - time.monotonic()))
            with socket.create_connection((master["address"], master["port"]), timeout=left) as link:
                link.sendall(token + b" %d\n" % node_rank)
                answer = link.makefile("rb").readline(256).strip()
                if hmac.compare_digest(answer, hmac.new(token, b"master", "sha256").hexdigest().encode()):
                    link.sendall(GOT_IT)
                    return dict(facts, ok=True, error=None, hint=None)
            facts["error"] = "%s: something else answers there" % where
            facts["hint"] = "another program listens on that port, or the address is another machine's"
        except socket.timeout:
            facts["error"] = "%s: no answer" % where
            facts["hint"] = "a firewall drops it, or the address does not lead to the master: check 'data_address'"
        except OSError as error:
            facts["error"] = "%s: %s" % (where, error.strerror or error)
            facts["hint"] = "a firewall refuses it, or the address is not the master's: check 'data_address'"
        if time.monotonic() + RETRY_SECONDS >= until or done.is_set():
            return facts
        time.sleep(RETRY_SECONDS)


def meet(spec: "dict[str, Any]", until: float, done: "threading.Event") -> "dict[str, Any]":
    """{"port": {"ok", "error", "hint"}}; on the master also "holder" and "arrived", the node ranks that came."""
    master = spec["master"]
    if master["is_me"]:
        return {"port": receive_peers(master, until, done)}
    return {"port": visit_master(master, spec["node_rank"], until, done)}

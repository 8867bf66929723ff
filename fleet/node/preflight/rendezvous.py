"""Meets all other nodes at the master's address and port.

master: {"address": ip or name, "port", "token": hex, "is_me": whether this node is the master, "peers": number of the
other nodes}. The master listens on the port on all interfaces, as the engine will. Every other node, a peer, connects,
sends the token, receives the master's proof (an HMAC by the token), and confirms it. Only then does the peer count as
arrived. A peer that was too busy to wait for the proof tries again, so the port stays open until all have arrived.
Peers close first, so that no TIME_WAIT stays on the master's port.
"""

import errno
import hmac
import socket
import threading
import time
from contextlib import suppress

from fleet.node.base.types import Any
from fleet.node.base.wire import start_thread
from fleet.node.ports.listeners import holder, listen_everywhere

RETRY_SECONDS, ATTEMPT_SECONDS = 0.05, 1.0
GOT_IT = b"\n"
WELL: "dict[str, Any]" = {"ok": True, "error": None, "hint": None}


def failure(error: str, hint: "str | None") -> "dict[str, Any]":
    return {"ok": False, "error": error, "hint": hint}


def greet(peer: "socket.socket", token: bytes, arrived: "set[int]") -> None:
    """Serves one peer: receives its token and node rank, sends the master's proof, receives the confirmation, and waits
    until the peer closes. arrived: gets the node rank of a peer that has confirmed."""
    with peer:
        peer.settimeout(2.0)
        with suppress(OSError, ValueError):
            parts = peer.makefile("rb").readline(256).split()
            if len(parts) == 2 and hmac.compare_digest(parts[0], token):
                peer.sendall(hmac.new(token, b"master", "sha256").hexdigest().encode() + b"\n")
                if peer.recv(1) == GOT_IT:
                    arrived.add(int(parts[1]))
            peer.recv(1)


def receive_peers(master: "dict[str, Any]", until: float, done: "threading.Event") -> "dict[str, Any]":
    """Serves peers as the master, until all have arrived, `done` is set, or the monotonic time `until` has come.
    Returns the facts, see meet()."""
    port = master["port"]
    try:
        listener = listen_everywhere(port)
    except OSError as error:
        hints = {
            errno.EADDRINUSE: "'fleet kill-port %d' shows who listens; or choose another --master-port" % port,
            errno.EACCES: "ports below 1024 are root's; choose another --master-port",
        }
        facts = failure("port %d: %s" % (port, error.strerror), hints.get(error.errno or 0))
        return dict(facts, holder=holder(port) if error.errno == errno.EADDRINUSE else None, arrived=[])
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
    return dict(WELL, holder=None, arrived=sorted(arrived))


def visit_master(master: "dict[str, Any]", node_rank: int, until: float, done: "threading.Event") -> "dict[str, Any]":
    """Tries as a peer to reach the master, until it responds, `done` is set, or the monotonic time `until` has come.
    Returns WELL, or the facts of the last failure."""
    where = "%s port %d" % (master["address"], master["port"])
    token = master["token"].encode()
    while True:
        try:
            # an attempt is short: if a firewall drops all packets, `done` must still end this loop soon
            left = max(0.1, min(ATTEMPT_SECONDS, until - time.monotonic()))
            with socket.create_connection((master["address"], master["port"]), timeout=left) as link:
                link.sendall(token + b" %d\n" % node_rank)
                answer = link.makefile("rb").readline(256).strip()
                if hmac.compare_digest(answer, hmac.new(token, b"master", "sha256").hexdigest().encode()):
                    link.sendall(GOT_IT)
                    return WELL
            hint = "another program listens on that port, or the address is another machine's"
            facts = failure("%s: something else answers there" % where, hint)
        except socket.timeout:
            hint = "a firewall drops it, or the address does not lead to the master: check 'data_address'"
            facts = failure("%s: no answer" % where, hint)
        except OSError as error:
            hint = "a firewall refuses it, or the address is not the master's: check 'data_address'"
            facts = failure("%s: %s" % (where, error.strerror or error), hint)
        if time.monotonic() + RETRY_SECONDS >= until or done.is_set():
            return facts
        time.sleep(RETRY_SECONDS)


def meet(spec: "dict[str, Any]", until: float, done: "threading.Event") -> "dict[str, Any]":
    """Returns {"port": {"ok", "error", "hint"}}. On the master it also has "holder": the process that has the port
    already, or None, and "arrived": the node ranks of the peers."""
    master = spec["master"]
    if master["is_me"]:
        return {"port": receive_peers(master, until, done)}
    return {"port": visit_master(master, spec["node_rank"], until, done)}

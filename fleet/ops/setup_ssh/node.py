"""Reads and changes a node's ~/.ssh: runs node.sh over a session, one round trip a call.

The node needs no python. `sh` reads the whole script from stdin before it runs any of it. This module quotes every
value in the script, and puts no value on a command line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from fleet.errors import HostFailed
from fleet.ops.setup_ssh.edits import PublicKey, parse_public_key
from fleet.ops.setup_ssh.files import BITS
from fleet.transport.base import Cancel, Session
from fleet.transport.shell import foreign, run_script

FILES = ("authorized_keys", "known_hosts", "config")
MARK = b"\nFLEET-SETUP-SSH\n"
ABSENT = "-"
_MODE = re.compile("u=[rwxst]*,g=[rwxst]*,o=[rwxst]*")


@dataclass
class NodeState:
    """Describes ~/.ssh of a node. files: name -> (bytes or None, checksum or "-"). at: name -> its real path.

    key_name, key: the file and public half of the node's key pair; if they are None, no_key has the reason. shows: the
    sha256 of the private half's file, which proves that the node has it. makes: the key that the node lacks and would
    make. created: names that were made: ".ssh" and key files. home: a token that is equal on hosts that share a home,
    or "" if it is not known. open_home: the home, if other users may write to it. modes: name -> (old mode, new mode),
    as for chmod. sums: name -> checksum of a file that was put.
    """

    files: dict[str, tuple[bytes | None, str]] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    makes: str | None = None
    key_name: str | None = None
    key: PublicKey | None = None
    no_key: str | None = None
    shows: str | None = None
    created: list[str] = field(default_factory=list)
    modes: dict[str, tuple[str, str]] = field(default_factory=dict)
    open_home: str | None = None
    home: str = ""
    sums: dict[str, str] = field(default_factory=dict)

    def data(self, name: str) -> bytes | None:
        return self.files[name][0]


def quote(value: bytes | str) -> bytes:
    """Returns a value quoted for any POSIX sh. Raises HostFailed for a NUL byte, which no shell can hold."""
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if b"\0" in data:
        raise HostFailed("a file in its ~/.ssh holds a NUL byte", hint="look at it before fleet adds to it")
    return b"'" + data.replace(b"'", b"'\\''") + b"'"


@cache
def script(name: str) -> bytes:
    """Returns the text of a script of this folder."""
    return (files("fleet.ops.setup_ssh") / name).read_bytes()


def look(
    session: Session, *, key_type: str | None, make: bool = True, repair: bool = True, cancel: Cancel | None = None
) -> NodeState:
    """Returns the state of the node's ~/.ssh. repair: makes the folder and corrects modes first. key_type: makes a key
    pair of this type if it is missing; None makes no key. make: False changes nothing; the state lists what would
    change."""
    calls = [b"prepare" if make else b"prepare look"] if repair else []
    if key_type is not None:
        calls.append(call("own_key", "make" if make else "find", key_type, *BITS.get(key_type, ())))
    calls += [call("show", name) for name in FILES]
    state = change(session, calls, cancel=cancel)
    if missing := [name for name in FILES if name not in state.files]:
        raise HostFailed(f"its answer lacks {', '.join(missing)}", host=session.host.name, hint="run it again")
    return state


def call(name: str, *values: bytes | str) -> bytes:
    """Returns a call of a function of node.sh: put NAME CHECKSUM DATA LENGTH, drop NAME CHECKSUM, drop_key NAME
    "TYPE BLOB", widen NAME WAS NOW, drop_dir. Each function changes a file only if the file is as described."""
    return b" ".join([name.encode(), *map(quote, values)])


def put(name: str, before: str, data: bytes) -> bytes:
    """Returns a call that replaces a file whose checksum was `before`."""
    return call("put", name, before, data, str(len(data)))


def change(session: Session, calls: Sequence[bytes], *, cancel: Cancel | None = None) -> NodeState:
    """Runs these calls in order. Raises HostFailed for the first one that fails."""
    text = b"\n".join([script("node.sh"), b"begin", *calls, b"say END", b""])
    done = run_script(session, text, timeout=60.0, cancel=cancel)
    head, mark, body = done.stdout.partition(MARK)
    if not mark:
        output = (done.stderr or head).decode("utf-8", "replace").strip() or f"exit status {done.status}"
        raise foreign(session.host.name, output.encode(), "a plain sh")
    state, failed = parse_answer(body, session.host.name)
    if failed is not None:
        last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        detail = f" ({last[:200]})" if last else ""
        full = "No space left" in detail or "quota" in detail.lower()
        raise HostFailed(
            failed + detail,
            host=session.host.name,
            hint="look there with 'df -h ~/.ssh' and 'quota -s', free some space, then run this again"
            if full
            else None,
        )
    return state


def parse_answer(body: bytes, host: str) -> tuple[NodeState, str | None]:
    """Parses the output of node.sh. Returns (state, the text of FAIL or None). Raises HostFailed if the output is
    incomplete."""
    state = NodeState()
    at = 0
    while at < len(body):
        end = body.find(b"\n", at)
        end = len(body) if end < 0 else end
        line = body[at:end]
        at = end + 1
        keyword, _, rest = line.partition(b" ")
        text = rest.decode("utf-8", "replace")
        if keyword == b"END":
            return state, None
        if keyword == b"FAIL":
            return state, text
        if keyword == b"FILE":
            name, checksum, path = [*text.split(" ", 2), "", ""][:3]
            data: bytes | None = None
            if checksum != ABSENT:
                match = re.fullmatch(r"[0-9]{1,10}:([0-9]{1,10})", checksum)
                size = int(match[1]) if match else -1
                data = body[at : at + size]
                if len(data) != size or body[at + size : at + size + 1] != b"\n":
                    raise HostFailed(f"its ~/.ssh/{name} changed while it was read", host=host, hint="run it again")
                at += size + 1
            if name in FILES:
                state.files[name], state.at[name] = (data, checksum), path
        else:
            _note(state, keyword, rest, text, host)
    raise HostFailed("its answer was cut off", host=host, hint="run it again")


def _note(state: NodeState, keyword: bytes, rest: bytes, text: str, host: str) -> None:
    name, _, more = text.partition(" ")
    match keyword:
        case b"KEY":
            if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
                raise HostFailed("its key has no name that a config can hold", host=host, hint="look at ~/.ssh there")
            state.key_name = name
            state.key = parse_public_key(rest.partition(b" ")[2], comment=f"{host} fleet".encode(), host=host)
        case b"SHOWS":
            state.shows = text[:64]
        case b"MAKES":
            state.makes = text
        case b"NOKEY":
            state.no_key = text.strip()
        case b"CREATED" | b"NEWKEY":
            state.created.append(text)
        case b"MODE":
            was, _, now = more.partition(" ")
            if not (_MODE.fullmatch(was) and _MODE.fullmatch(now)):
                raise HostFailed("its answer has an invalid mode", host=host, hint="run it again")
            state.modes[name] = (was, now)
        case b"HOME":
            state.home = text
        case b"OPENHOME":
            state.open_home = text
        case b"PUT":
            state.sums[name] = more

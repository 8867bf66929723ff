"""A node's ~/.ssh as the head sees and changes it: node.sh over a session, one round trip a call.

No python is needed there. `sh` reads the script from stdin as a whole: no shell ever sees a part of it, nor a command
line anything of it. Every value in it is single-quoted here.
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
    """Describes ~/.ssh of a node. files: name -> (bytes or None, checksum or "-"). at: name -> the path that it really
    has. makes: the key that it has not got yet, and would make.

    key_name/key: its own key pair's file and public half, None with `no_key` saying why. shows: the sha256 of
    the private half's file, by which it shows that it has it. created: names that were made, ".ssh" and key
    files. home: the same on hosts that share one, "" where that is not known. modes: name -> (the mode that it had, the
    one that it got), as chmod takes them.
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
    """One token for any POSIX sh, byte for byte. HostFailed for NUL, which no shell can hold."""
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
    """Read the node's ~/.ssh. repair: make the folder and put modes right first. key_type: also make sure of
    a key pair of its own; None leaves keys alone. Without `make` what would be made or narrowed is only named."""
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
    "TYPE BLOB", widen NAME WAS NOW, drop_dir. Each does nothing to what is not as described."""
    return b" ".join([name.encode(), *map(quote, values)])


def put(name: str, before: str, data: bytes) -> bytes:
    """Returns a call that replaces a file whose checksum was `before`."""
    return call("put", name, before, data, str(len(data)))


def change(session: Session, calls: Sequence[bytes], *, cancel: Cancel | None = None) -> NodeState:
    """Does these calls, in order; the first that cannot be done ends it with HostFailed. `sums` has what was put."""
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
    """(state, the text of FAIL or None) of what node.sh printed. HostFailed when it stops in the middle."""
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
                raise HostFailed("its answer names a mode that is none", host=host, hint="run it again")
            state.modes[name] = (was, now)
        case b"HOME":
            state.home = text
        case b"OPENHOME":
            state.open_home = text
        case b"PUT":
            state.sums[name] = more

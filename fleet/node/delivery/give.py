"""Gives files of this node to the head: a list first, then what the head has not got yet of each.

spec: {"path", "since": only what was written after that, or null}. Sends J {"event": "listed", ...}, as often as it
takes; waits for a control line {"op": "give", "offsets": [bytes that the head has, of each entry]}; then for each file
a J {"event": "piece", "index", "offset"} before each part of it, O frames, and J {"event": "given", "index", "size",
"sha256"}. Zero bytes in a row are not sent: the next piece begins behind them.
"""

import hashlib
import os
import stat

from fleet.node.base.errors import Refused, failed
from fleet.node.base.types import TYPE_CHECKING, Callable, Iterator
from fleet.node.base.wire import control_lines, decode, frame, in_parts, send_exit, send_json, start
from fleet.protocol.frames import OUTPUT

if TYPE_CHECKING:
    from fleet.protocol.messages import give

say: "Callable[[give.Giving], None]" = send_json
CHUNK = 1 << 20
ZEROS = bytes(CHUNK)


def entry(root: bytes, path: bytes) -> "give.Entry | None":
    """None for what is no file, folder or link."""
    full = os.path.join(root, path) if path else root
    st = os.lstat(full) if path else os.stat(full)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(st.st_mode))
    return kind and {  # type: ignore[return-value]
        "path": decode(path),
        "kind": kind,
        "size": st.st_size if kind == "file" else 0,
        "mode": st.st_mode & 0o777,
        "mtime": st.st_mtime,
        "link": decode(os.readlink(full)) if kind == "link" else None,
    }


def walk(root: bytes, path: bytes = b"") -> "Iterator[give.Entry]":
    """Everything below root, in the order of names; what goes away meanwhile is left out."""
    try:
        found = entry(root, path)
    except FileNotFoundError:
        return
    if not found:
        return
    if path or found["kind"] == "file":
        yield found
    if found["kind"] == "folder":
        try:
            names = sorted(os.listdir(os.path.join(root, path) if path else root))
        except FileNotFoundError:
            return
        for name in names:
            yield from walk(root, os.path.join(path, name) if path else name)


def give_file(full: bytes, index: int, offset: int, size: int) -> None:
    digest, at, announced = hashlib.sha256(), 0, None
    try:
        fd = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # since it was listed: the head looks again
        say({"event": "given", "index": index, "size": 0, "sha256": digest.hexdigest()})
        return
    try:
        while at < size:  # as it was listed: what was appended since is left for the next time
            data = os.pread(fd, min(CHUNK, size - at), at)
            if not data:
                break
            digest.update(data)
            skip = max(0, offset - at)
            if skip < len(data) and data != ZEROS[: len(data)]:
                if announced != at + skip:
                    say({"event": "piece", "index": index, "offset": at + skip})
                frame(OUTPUT, data[skip:])
                announced = at + len(data)
            at += len(data)
    finally:
        os.close(fd)
    say({"event": "given", "index": index, "size": at, "sha256": digest.hexdigest()})


def converse(spec: "give.GiveSpec") -> None:
    root = os.fsencode(os.path.expanduser(spec["path"]))
    since = spec["since"]
    if not os.path.exists(root):
        say({"event": "listed", "entries": [], "more": False, "missing": True, "path": decode(root)})
        return
    entries = [e for e in walk(root) if since is None or e["kind"] == "file" and e["mtime"] >= since]
    parts = in_parts(entries, 200)
    for number, part in enumerate(parts, 1):
        say({"event": "listed", "entries": part, "more": number < len(parts), "missing": False, "path": decode(root)})
    offsets = next((line["offsets"] for line in control_lines() if line.get("op") == "give"), None)
    if offsets is None:
        return
    for index, each in enumerate(entries):
        if each["kind"] == "file":
            path = os.fsencode(each["path"])
            give_file(os.path.join(root, path) if path else os.path.realpath(root), index, offsets[index], each["size"])


def main() -> None:
    spec = start()
    try:
        converse(spec)
    except OSError as error:
        send_json(failed(Refused("%s" % error, None)))
    send_exit(0)

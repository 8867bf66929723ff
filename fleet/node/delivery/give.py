"""Gives files of this node to the head: a list first, then what the head has not got yet of each.

spec: {"path", "since": only what was written after that, or null}. Sends J {"event": "tree", ...}, as often as it
takes; waits for a control line {"op": "give", "offsets": [bytes that the head has, of each entry]}; then for each file
a J {"event": "piece", "index", "offset"} before each part of it, O frames, and J {"event": "given", "index", "size",
"sha256"}. Zero bytes in a row are not sent: the next piece begins behind them.
"""

import hashlib
import os

from fleet.node.base.errors import Refused, failed
from fleet.node.base.types import Callable, chain, give
from fleet.node.base.wire import control_lines, decode, encode, frame, send_exit, send_json, start
from fleet.node.delivery.tree import Walk, tell
from fleet.protocol.frames import OUTPUT

say: "Callable[[give.Giving], None]" = send_json
CHUNK = 1 << 20
ZEROS = bytes(CHUNK)


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


def written(root: str, entry: "chain.Entry") -> int:
    """When, in nanoseconds since the epoch; 0 of a folder, which comes with what is in it."""
    if entry[1] != "l":
        return entry[4]
    try:
        return os.lstat(os.path.join(os.fsencode(root), encode(entry[0]))).st_mtime_ns
    except FileNotFoundError:  # since it was listed
        return 0


def converse(spec: "give.GiveSpec") -> None:
    root = os.path.expanduser(spec["path"])
    walk, since = Walk(root, changing=True), spec["since"]
    entries = list(walk.entries()) if os.path.exists(root) else []
    if since is not None:
        entries = [entry for entry in entries if written(root, entry) >= since * 1e9]
    tell(walk, entries)
    offsets: list[int] = next((line["offsets"] for line in control_lines() if line.get("op") == "give"), [])
    for index, offset in enumerate(offsets):
        path, kind, _mode, size, _mtime, _link = entries[index]
        if kind == "f":
            full = os.fsencode(root)
            give_file(os.path.join(full, encode(path)) if path else os.path.realpath(full), index, offset, size)


def main() -> None:
    spec = start()
    try:
        converse(spec)
    except (Refused, OSError) as error:
        send_json(failed(error, shown=decode))
    send_exit(0)

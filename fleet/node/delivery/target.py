"""Where a broadcast writes on this node: the target, its state folder beside it, its lock, what is there already.

State folder (0700) of target T: .NAME.fleet-data beside T, or T/.fleet-data where T is a mount point or the folder
around it is not ours. It holds
    lock          held while a broadcast writes to T
    delivered     a JSON line [path, size, mtime_ns, sha256] for each file put in place; the last one of a path counts
    parts/KEY     a file under way, KEY made of its path, size and mtime; KEY.blocks: digests of its 4 MiB blocks
    stage/        what rsync brings, with --via rsync
"""

import hashlib
import json
import os
import stat

from fleet.node.base.beneath import Beneath, check_folder, reach, shown
from fleet.node.base.errors import Refused
from fleet.node.base.files import check_inside, replace_file
from fleet.node.base.locks import take_lock
from fleet.node.base.state_folder import state_folder
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.unfinished import note_delivery
from fleet.protocol.state import DATA_STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from fleet.protocol.messages.values import Delivery


def delivered(name: str, size: int, mtime_ns: int, digest: str) -> bytes:
    """A line of the log."""
    return json.dumps([name, size, mtime_ns, digest]).encode() + b"\n"


class Target:
    """One PATH:DEST on this node. path: where it goes, absolute bytes. kind: "f" or "d"."""

    def __init__(self, path: str, kind: str) -> None:
        self.kind = kind
        self.path = os.path.abspath(encode(os.path.expanduser(path)))
        self.tree: Beneath | None = None  # the folder that `path` is, or lies in, held open
        self.lock: int | None = None
        self.known: dict[str, tuple[int, int, str]] = {}

    def prepare(self, spec: "Delivery") -> "str | None":
        """Make the folder, take the lock; the name of the host that holds it when this is a shared folder."""
        folder = self.path if self.kind == "d" else os.path.dirname(self.path)
        self.made = False
        try:
            tree = Beneath(reach(folder)).check()
        except FileNotFoundError:
            self.made = True
            tree = Beneath(reach(folder, make=True)).check()
        self.tree = tree
        # links on the way to the target are the node's own business; below it none is followed
        folder = tree.name
        self.path = folder if self.kind == "d" else os.path.join(folder, os.path.basename(self.path))
        if self.path == b"/":
            # its state folder would have no place, its mode is the machine's
            raise Refused("'/' cannot be a destination", "name a folder: PATH:DEST/")
        if self.kind == "f" and os.path.isdir(self.full("")):
            raise Refused("%s is a folder" % decode(self.path), "to put the file inside it, end DEST with '/'")
        if not os.access(tree.path, os.W_OK | os.X_OK):
            raise Refused("%s is not writable" % decode(folder), "choose another destination, or mend its mode")
        around, name = os.path.split(self.path)
        self.meta = state_folder(Beneath(reach(around)), name, encode(DATA_STATE), tree if self.kind == "d" else None)
        self.parts = os.path.join(self.meta, b"parts")
        self.stage = os.path.join(self.meta, b"stage")
        self.lock, holder = take_lock(self.meta, spec)
        if self.lock is None:
            return holder or "?"
        for folder in (self.parts, self.stage):
            os.makedirs(folder, 0o700, exist_ok=True)
        return None

    def load(self) -> None:
        """What earlier broadcasts delivered; a log that has grown far beyond that is written anew."""
        path = os.path.join(self.meta, b"delivered")
        lines = 0
        try:
            with open(path, "rb") as f:
                for line in f:
                    lines += 1
                    try:
                        name, size, mtime_ns, digest = json.loads(line.decode())
                        self.known[name] = (size, mtime_ns, digest)
                    except (ValueError, TypeError):
                        continue  # the last line of a log whose writer was killed
        except FileNotFoundError:
            pass
        if lines > 2 * len(self.known) + 1000:
            replace_file(path, b"".join(delivered(name, *rest) for name, rest in self.known.items()))
        # a torn last line must not swallow the next one
        self.log: BinaryIO = open(path, "ab")  # noqa: SIM115
        if self.log.tell():
            self.log.write(b"\n")
            self.log.flush()

    def remember(self, name: str, size: int, mtime_ns: int, digest: str) -> None:
        self.log.write(delivered(name, size, mtime_ns, digest))
        self.log.flush()

    def note(self) -> None:
        """What is here is old and new mixed from now on, until forget_delivery."""
        note_delivery(self.path, os.readlink(self.meta))

    def inside(self, name: str) -> bytes:
        """Of `tree`."""
        return encode(name) if self.kind == "d" else os.path.basename(self.path)

    def full(self, name: str) -> bytes:
        """A path to be used at once; the source's is a plain one."""
        if self.tree is None:
            return os.path.join(self.path, encode(name)) if name else self.path
        return self.tree.at(self.inside(name))

    def shown(self, name: str) -> str:
        return decode(os.path.join(self.path, encode(name)) if name else self.path)

    def part(self, name: str, size: int, mtime_ns: int) -> bytes:
        key = hashlib.sha256(("%d %d " % (size, mtime_ns)).encode() + encode(name)).hexdigest()[:32]
        return os.path.join(self.parts, key.encode())

    def check_place(self, name: str, kind: str) -> "os.stat_result | None":
        """Refuse what leads out of the target, goes through a link of the node's, or would replace another kind."""
        if name:
            check_inside(name)
        try:
            st = os.lstat(self.full(name))
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise Refused(
                "%s is a file or a link on the node, and not so in the source" % shown(error.filename),
                "move it away there first",
            ) from None
        if kind == "d" and stat.S_ISDIR(st.st_mode):
            check_folder(self.full(name), st)
        is_kind = {"d": stat.S_ISDIR, "f": stat.S_ISREG, "l": stat.S_ISLNK}[kind](st.st_mode)
        if not is_kind:
            what = (
                "folder"
                if stat.S_ISDIR(st.st_mode)
                else "link"
                if stat.S_ISLNK(st.st_mode)
                else "file"
                if stat.S_ISREG(st.st_mode)
                else "device, pipe or socket"
            )
            raise Refused(
                "%s is a %s on the node, and not so in the source" % (self.shown(name), what),
                "move it away there first",
            )
        return st

    def sweep(self, keep: "list[bytes]") -> None:
        """Drop parts that belong to no file of this broadcast: their source has changed since."""
        names = {os.path.basename(path) for path in keep}
        for name in os.listdir(self.parts):
            if name.split(b".")[0] not in names:
                os.unlink(os.path.join(self.parts, name))

    def close(self) -> None:
        """Give up the lock; an empty state folder part goes with it."""
        self.log.close()
        for folder in (self.parts, self.stage):
            try:
                os.rmdir(folder)
            except OSError:
                pass
        if self.lock is not None:
            os.close(self.lock)

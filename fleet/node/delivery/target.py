"""Opens a delivery's destination on this node, and its state folder with its lock, journal and stage."""

import os

from fleet.node.base.beneath import Beneath, reach
from fleet.node.base.errors import Refused, on_os_error
from fleet.node.base.locks import release, take_lock
from fleet.node.base.state_folder import state_folder
from fleet.node.base.types import TYPE_CHECKING, Any, values
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.commit import Commit
from fleet.node.delivery.journal import Journal
from fleet.node.delivery.stage import Stage
from fleet.protocol.state import DATA_STATE

if TYPE_CHECKING:
    from fleet.node.delivery.compare import Comparison

MENDS = {
    True: ("name a folder: PATH:DEST/", "choose another destination"),
    False: ("name a folder with --to", "choose another folder with --to"),
}


class Target:
    """Describes a destination: a folder, or one file. path: its absolute path. kind: "f" or "d". name: the file's name;
    "" for a folder. tree: the folder, or the file's parent folder. suffix: end of the state folder's name, CODE_STATE
    or DATA_STATE. made: whether this delivery made the folder. lock: descriptor of the lock. entries: those of the
    manifest, as in the journal. comparison: the comparison of these entries with the files there."""

    def __init__(self, path: str, kind: str, suffix: str = DATA_STATE) -> None:
        self.kind, self.suffix = kind, encode(suffix)
        self.name_it, self.another = MENDS[suffix == DATA_STATE]
        path = os.path.expanduser(path)
        if path.startswith("~"):
            raise Refused("there is no user %s" % path.split("/")[0], "'~/...' is the home of the user who logs in")
        self.path = os.path.abspath(encode(path))
        self.name = os.path.basename(decode(self.path)) if kind == "f" else ""
        self.tree: Beneath  # set by prepare()
        self.lock: int | None = None
        self.entries: list[Any] = []
        self.comparison: Comparison
        self.made = False

    def prepare(self, spec: "values.Delivery") -> "str | None":
        """Makes the folder, and locks its state folder. Returns None. If nodes share the folder, and another host of
        this sync has the lock, returns that host's name. Raises Refused if the destination cannot be used."""
        tree = self.tree = self.hold(os.path.dirname(self.path) if self.name else self.path)
        # hold() has followed the links in the destination's own path; fleet follows no link below the destination
        self.path = os.path.join(tree.name, encode(self.name)) if self.name else tree.name
        if self.path == b"/":
            # "/" has no parent folder for the state folder, and a delivery must not change the mode of "/"
            raise Refused("'/' cannot be a destination", self.name_it)
        if self.name and os.path.isdir(self.full(self.name)):
            raise Refused("%s is a folder" % decode(self.path), "to put the file inside it, end DEST with '/'")
        if not os.access(tree.path, os.W_OK | os.X_OK):
            raise Refused("%s is not writable" % decode(tree.name), "%s, or mend its mode" % self.another)
        around, name = os.path.split(self.path)
        self.meta = state_folder(Beneath(reach(around, way=True)), name, self.suffix, None if self.name else tree)
        self.lock, holder = take_lock(self.meta, spec)
        if self.lock is None:
            return holder or "?"
        self.journal = Journal(self.meta)
        self.stage = Stage(self.meta, tree)
        self.commit = Commit(tree, self.stage)
        return None

    def hold(self, folder: bytes) -> "Beneath":
        with on_os_error(Refused, "cannot make %s" % decode(folder), self.another):
            try:
                return Beneath(reach(folder, way=True)).check()
            except FileNotFoundError:
                self.made = True
                return Beneath(reach(folder, make=True, way=True)).check()

    def full(self, name: str) -> bytes:
        """Returns the path of a name in the tree. The caller must use the path at once."""
        return self.tree.at(encode(name))

    def close(self) -> None:
        """Completes staged writes, and releases the lock."""
        self.stage.flush()
        if self.lock is not None:
            release(self.lock)


def inside_source(dest: str, mark: "str | None") -> "str | None":
    """Returns the path of the destination inside the source. Returns "." if the destination is the source, and None if
    it is outside. mark: the name of a folder that lies in the source during the sync."""
    folder = full = os.path.realpath(os.path.expanduser(dest))
    while mark is not None:
        if os.path.lexists(os.path.join(folder, mark)):
            return os.path.relpath(full, folder)
        if folder == "/":
            break
        folder = os.path.dirname(folder)
    return None


def check_around(dest: str, source: str) -> None:
    if source.startswith(dest.rstrip("/") + "/"):
        raise Refused(
            "%s holds the source itself, %s: what is sent there would change it" % (dest, source),
            "name another folder with --to",
        )

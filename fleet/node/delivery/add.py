"""The policy `add`: files of several targets are put where they are to be, nothing is ever taken away."""

import os
import stat

from fleet.node.base.beneath import chmod
from fleet.node.base.files import file_digest, remove_tree, waiting_link
from fleet.node.base.wire import encode
from fleet.node.delivery.disk_space import check_space
from fleet.node.delivery.part_file import BLOCK, verified_prefix
from fleet.node.delivery.store import writable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleet.node.delivery.store import Store


def take_stock(store: "Store", allocated: "dict[str, int]", sweep: bool) -> "dict[int, str]":
    """Decide for every file whether it is here, may be here (-> {file: sha256}), or is to come; make room. allocated:
    bytes that a file with holes takes. sweep: also what rsync has left here."""
    unsure: dict[int, str] = {}
    needs: list[tuple[bytes, int, int]] = []
    for _target, name, kind, _mode, _size, _mtime, _link in (e for e in store.entries if e[2] != "f"):
        store.targets[_target].check_place(name, kind)
    for index, f in enumerate(store.files):
        st = f.target.check_place(f.name, "f")
        f.part = f.target.part(f.name, f.size, f.mtime_ns)
        if st is not None and (st.st_size, st.st_mtime_ns) == (f.size, f.mtime_ns):
            size, mtime_ns, digest = f.target.known.get(f.name, (0, 0, ""))
            if digest and (size, mtime_ns) == (f.size, f.mtime_ns):
                f.state, f.have = "held", f.size
                if stat.S_IMODE(st.st_mode) != f.mode:
                    chmod(f.final, f.mode)
                continue
            unsure[index] = file_digest(f.final, os.O_NOFOLLOW)
        f.have = verified_prefix(f.part, f.size) if f.size > BLOCK else 0
        f.epochs = {0} if f.have else set()
        needs.append((f.target.meta, min(f.size - f.have, allocated.get(str(index), f.size)), f.have == 0))
    for target in store.targets:
        target.sweep([f.part for f in store.files if f.target is target and f.state == "wanted"])
        if sweep:
            remove_tree(target.stage)
    check_space(needs, "free some space there, or choose another destination")
    return unsure


def begin(store: "Store", held: "list[int]", unsure: "dict[int, str]") -> None:
    """Take up what turned out to be here, make folders, and start on files that need no byte."""
    for index in held:
        f = store.files[index]
        f.state, f.have, f.digest = "held", f.size, unsure[index]
        f.target.remember(f.name, f.size, f.mtime_ns, f.digest)
        chmod(f.final, f.mode)
    for target in {f.target for f in store.files if f.state == "wanted"}:
        target.note()
    for number, name, kind, _mode, _size, _mtime, _link in store.entries:
        if kind == "d" and store.targets[number].check_place(name, "d") is None:
            writable(os.mkdir, store.targets[number].full(name), 0o700)
    for f in store.files:
        if f.state == "wanted" and f.have == f.size:
            os.close(os.open(f.part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            f.received = True
    store.begin()


def finish(store: "Store") -> None:
    """Links and the modes of folders, once the files are there; everything to disk."""
    folders = []
    for number, name, kind, mode, _size, _mtime, link in store.entries:
        target = store.targets[number]
        if kind == "l":
            there = target.check_place(name, "l")
            if there is None or os.readlink(target.full(name)) != encode(link):
                writable(os.rename, waiting_link(target.meta, encode(link)), target.full(name))
        elif kind == "d" and (name or target.made):
            # a folder that was there, perhaps somebody's home, keeps its mode
            folders.append((target, name, mode))
    for target, name, mode in reversed(folders):
        if stat.S_IMODE(os.lstat(target.full(name)).st_mode) != mode:
            chmod(target.full(name), mode)
    for fd in [target.log.fileno() for target in store.targets]:
        os.fsync(fd)
    for target, folder in store.folders:
        assert target.tree
        fd = os.open(target.tree.at(folder + b"/."), os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)

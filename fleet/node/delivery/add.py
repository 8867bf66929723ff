"""The policy `add`: files of several targets are put where they are to be, nothing is ever taken away."""

import os
import zlib

from fleet.node.base.files import file_digest, to_disk
from fleet.node.delivery.commit import compare
from fleet.node.delivery.disk_space import check_space
from fleet.node.delivery.journal import by_column
from fleet.node.delivery.store import Store
from fleet.node.delivery.sync_state import forget_delivery, note_delivery


def take_stock(store: "Store", allocated: "dict[str, int]", sweep: bool) -> "dict[int, str]":
    """Decide for every file whether it is here, may be here (-> {file: sha256}), or is to come; make room. allocated:
    bytes that a file with holes takes. sweep: also what rsync has left here."""
    unsure: dict[int, str] = {}
    needs: list[tuple[bytes, int, int]] = []
    for target in store.targets:
        assert target.tree
        needed, target.changed = compare(target.tree, target.entries, None)
        target.needed = {entry[0] for entry in needed}
    for index, f in enumerate(store.files):
        if f.name not in f.target.needed:
            if f.target.journal.digest_of(f.entry):
                f.state, f.have = "held", f.size
                continue
            unsure[index] = file_digest(f.final, os.O_NOFOLLOW)
    for target in store.targets:
        os.makedirs(target.stage.folder, 0o700, exist_ok=True)
        wanted = [f for f in store.files if f.target is target and f.state == "wanted"]
        left = target.take_up([f.entry for f in wanted])
        for f in wanted if sweep else ():
            f.have = target.stage.verified(f.entry) if f.name in left else f.size
    for index, f in enumerate(store.files):
        if f.state == "wanted":
            needs.append((f.target.meta, min(f.size - f.have, allocated.get(str(index), f.size)), f.have == 0))
    check_space(needs, "free some space there, or choose another destination")
    return unsure


def begin(store: "Store", held: "list[int]", unsure: "dict[int, str]") -> None:
    """Take up what turned out to be here, make folders, and start on files that need no byte."""
    for index in held:
        f = store.files[index]
        f.state, f.have, f.digest = "held", f.size, unsure[index]
        f.target.stage.drop(f.entry)
        f.note()
    for target in {f.target for f in store.files if f.state == "wanted"}:
        note_delivery(target.path, os.readlink(target.meta))
    for target in store.targets:
        for path, kind, *_ in target.changed:
            if kind == "d":
                target.commit.make(path, whole=False)
    for f in store.files:
        if f.state == "wanted" and f.have == f.size:
            f.received = True
            if not f.size:
                f.target.stage.write(f.entry, 0, b"")
    store.begin()


def finish(store: "Store") -> None:
    """Links and modes, once the files are there; everything to disk, and written down."""
    failed = {f.target for f in store.files if f.state == "failed"}
    for target in store.targets:
        # a folder that was there, perhaps somebody's home, keeps its mode
        new = [entry for entry in target.changed if entry[0] not in target.needed and (entry[0] or target.made)]
        target.commit.run(new, set())
        target.stage.remove()
    for target, folder in store.folders:
        assert target.tree
        to_disk(target.tree.at(folder + b"/."))
    for target in set(store.targets) - failed:
        journal = target.journal
        if journal.log is not None:
            entries = [versions[-1] for versions in journal.known.values()]
            journal.finish("", zlib.compress(by_column(entries), 1), [], None)
        forget_delivery(target.path)

"""The policy `add`: files of several targets are put where they are to be, nothing is ever taken away, and nothing of
the node's own replaced unasked (ownership.py)."""

import os
import time

from fleet.node.base.files import to_disk
from fleet.node.base.types import Any, Sequence
from fleet.node.delivery.compare import Comparison
from fleet.node.delivery.disk_space import check_space
from fleet.node.delivery.journal import DELIVERED, KIND, PATH, SEEN
from fleet.node.delivery.ownership import Ownership, kind_of, look
from fleet.node.delivery.store import Store
from fleet.node.delivery.sync_state import note_delivery


def take_stock(store: "Store", allocated: "dict[str, int]", force: "bool | Sequence[str]") -> "dict[int, str]":
    """Decide for every file whether it is here, may be here (-> {file: sha256}), or is to come; make room. allocated:
    bytes that a file with holes takes."""
    unsure: dict[int, str] = {}
    needs: list[tuple[bytes, int, int]] = []
    for target in store.targets:
        assert target.tree
        target.told = Comparison(Ownership(target.tree, target.journal), target.entries, (), force)
    for index, f in enumerate(store.files):
        told = f.target.told
        if f.state == "held":
            continue
        if f.name in told.left:
            f.state, f.have, f.left = "held", f.size, True
        elif f.name in told.doubts:
            unsure[index] = told.owner.digest(f.name)
        elif f.name not in told.needed and f.name not in told.own:
            if f.target.journal.digest_of(f.entry):
                f.state, f.have = "held", f.size
                continue
            unsure[index] = told.owner.digest(f.name)
    for target in store.targets:
        wanted = [f for f in store.files if f.target is target and f.state == "wanted"]
        left = target.take_up([f.entry for f in wanted])
        for f in wanted:
            f.have = target.stage.verified(f.entry) if f.name in left else f.size
    for index, f in enumerate(store.files):
        if f.state == "wanted":
            needs.append(
                (f.target.stage.meta_of(f.name), min(f.size - f.have, allocated.get(str(index), f.size)), f.have == 0)
            )
    check_space(needs, "free some space there, or choose another destination")
    return unsure


def own_files(store: "Store") -> "list[Any]":
    """[target, path, kind, size, age in s, ""] of the node's own that is in the way, unless it turns out to be the
    source's."""
    files = []
    for number, target in enumerate(store.targets):
        for path in sorted([*target.told.own, *target.told.doubts]):
            st = target.told.found.get(path)
            if st is not None:
                inside = "" if path == target.name else path  # a single file's
                files.append([number, inside, kind_of(st), st.st_size, max(0.0, time.time() - st.st_mtime), ""])
    return files


def begin(store: "Store", held: "list[int]", unsure: "dict[int, str]", replace: "list[Any]", keep: "list[Any]") -> None:
    """Take up what turned out to be here, make folders, and start on files that need no byte. replace, keep: [target,
    path] of what is the node's own."""
    for index in held:
        f = store.files[index]
        f.state, f.have, f.digest = "held", f.size, unsure[index]
        f.target.told.digests[f.name] = f.digest
        f.target.stage.drop(f.entry)
        f.note(SEEN)
    for number, target in enumerate(store.targets):
        told = target.told
        told.settle(dict(told.digests))
        told.resolve(*({path or target.name for at, path in some if at == number} for some in (replace, keep)))
        target.commit.put_aside([path for path in told.aside if told.changed[path][KIND] != "f"], told.found)
    for f in store.files:
        if f.state == "wanted" and f.name in f.target.told.left:
            f.state, f.have, f.left = "held", f.size, True
            f.target.stage.drop(f.entry)
    for target in {f.target for f in store.files if f.state == "wanted"}:
        note_delivery(target.path, os.readlink(target.meta))
    for target in store.targets:
        found = target.told.found
        for path, kind, *_ in target.told.changed.values():
            if kind == "d":
                if found.get(path) is not None:  # a link that was delivered, say, whose folder comes in its place now
                    target.commit.check(path, found[path])
                    target.commit.clear(path, kind, found[path])
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
        told = target.told
        new = [entry for entry in told.changed.values() if entry[0] not in told.needed and (entry[0] or target.made)]
        target.commit.run(new, ())
        for entry in new:
            st = look(target.commit.dest, entry[PATH])
            if entry[KIND] == "l" and st is not None:
                target.journal.add([*entry, "", DELIVERED, st.st_mtime_ns, st.st_ctime_ns])
        target.stage.remove()
    for target, folder in store.folders:
        assert target.tree
        to_disk(target.tree.at(folder + b"/."))
    for target in set(store.targets) - failed:
        journal = target.journal
        if journal.log is not None:
            journal.finish("", [versions[-1] for versions in journal.known.values()])
        note_delivery(target.path, os.readlink(target.meta), whole=True)

"""Delivers by the policy `add`: puts the files of several targets in place. It deletes nothing, and replaces nothing of
the node's own without consent (ownership.py)."""

import os

from fleet.node.base.files import to_disk
from fleet.node.base.types import Sequence
from fleet.node.delivery.compare import Comparison
from fleet.node.delivery.disk_space import check_space
from fleet.node.delivery.head import Head
from fleet.node.delivery.journal import DELIVERED, KIND, PATH, SEEN
from fleet.node.delivery.ownership import Ownership, look
from fleet.node.delivery.store import File, Store
from fleet.node.delivery.sync_state import note_delivery


def take_stock(store: "Store", allocated: "dict[str, int]", force: "bool | Sequence[str]", head: "Head") -> None:
    """Decides for each file whether the node has it or needs it. Requests from the head the digests of files that may
    be equal, and which of the node's own files it may replace. Removes useless files from the stage. Raises Refused if
    the disk has too little space.

    allocated: index of a file, as text -> the bytes that it takes on disk, for files with holes. force: see
    Comparison."""
    for target in store.targets:
        target.comparison = Comparison(Ownership(target.tree, target.journal), target.entries, (), force)
    doubts: dict[int, File] = {}
    for index, f in enumerate(store.files):
        comparison, is_known = f.target.comparison, f.state == "held" or f.target.journal.digest_of(f.entry)
        if not (is_known or f.name in comparison.left or f.name in comparison.needed or f.name in comparison.own):
            comparison.doubt(f.entry)
        if f.state == "wanted" and f.name in comparison.doubts:
            doubts[index] = f
    digests = head.ask("doubts", list(doubts)) or ()
    for target in store.targets:
        known = {doubts[index].name: digest for index, digest in digests if doubts[index].target is target}
        target.comparison.settle(known)
    answer = head.ask("own", [row for target in store.targets for row in target.comparison.in_the_way()])
    for target in store.targets:
        target.comparison.resolve(answer)
    for f in store.files:
        if f.name not in f.target.comparison.needed:
            f.state, f.have = "held", f.size
    for target in store.targets:
        wanted = [f for f in store.files if f.target is target and f.state == "wanted"]
        left = target.stage.sweep({f.name: f.entry for f in wanted})
        for f in wanted:
            f.have = target.stage.verified(f.entry) if f.name in left else f.size
    needs = [
        f.target.stage.needs(f.entry, min(f.size, allocated.get(str(index), f.size)), f.have)
        for index, f in enumerate(store.files)
        if f.state == "wanted"
    ]
    check_space(needs, "free some space there, or choose another destination")


def begin(store: "Store") -> None:
    """Records the files that the node had, makes folders, and marks as received the files that are complete in the
    stage."""
    for f in store.files:
        if f.name in f.target.comparison.seen and f.state == "held":
            f.digest = f.target.comparison.digests[f.name]
            f.note(SEEN)
    for target in {f.target for f in store.files if f.state == "wanted"}:
        note_delivery(target.path, os.readlink(target.meta))
    for target in store.targets:
        comparison, commit = target.comparison, target.commit
        found, changed = comparison.found, comparison.changed
        commit.put_aside([path for path in comparison.aside if changed[path][KIND] != "f"], found)
        for path in [path for path, entry in changed.items() if entry[KIND] == "d"]:
            if found.get(path) is not None:  # a folder replaces a link that fleet delivered
                commit.check(path, found[path])
                commit.clear(path, "d", found[path])
            commit.make(path, whole=False)
    for f in store.files:
        if f.state == "wanted" and f.have == f.size:
            f.received = True
            if not f.size:
                f.target.stage.write(f.entry, 0, b"")
    store.begin()


def finish(store: "Store") -> None:
    """Makes links and sets modes, once the files are in place. Then writes folders to disk, and completes the journal
    of each target without a failed file."""
    failed = {f.target for f in store.files if f.state == "failed"}
    for target in store.targets:
        # a destination that existed before the delivery may be a user's home: it keeps its mode
        comparison = target.comparison
        new = [
            entry
            for entry in comparison.changed.values()
            if entry[0] not in comparison.needed and (entry[0] or target.made)
        ]
        target.commit.run(new, ())
        for entry in new:
            st = look(target.commit.dest, entry[PATH])
            if entry[KIND] == "l" and st is not None:
                target.journal.add([*entry, "", DELIVERED, st.st_mtime_ns, st.st_ctime_ns])
        target.stage.remove()
    for target, folder in store.folders:
        to_disk(target.tree.at(folder + b"/."))
    for target in set(store.targets) - failed:
        journal = target.journal
        if journal.log is not None:
            journal.finish("", [versions[-1] for versions in journal.known.values()])
        note_delivery(target.path, os.readlink(target.meta), whole=True)

"""Receives a code sync on the node: reports what it lacks, stages and verifies it, then puts it in place.

Conversation ("->": J frames to the head, "<-": control lines of the head; s: seconds):
    spec {"dest", "sync", "host", "head", "wait": s, "patience": s, "source": {"host", "path", "id"},
          "mark": the name of a folder that lies in the source while the sync runs, or null,
          "replaces": [source]: other sources whose files may be replaced and deleted; true: any,
          "force": [pattern]: the node's own files to be replaced even if the source has not changed; true: all,
          "max_delete": how many files may be deleted, "all", or null: less than most of them}
    -> {"event": "inside", "path"}: DEST lies inside the source, at this path; the head sends {"op": "go"} or closes
    -> {"event": "hello", "dest", "known": manifest digest | null}
       or {"event": "same"}: DEST is the source
       or {"event": "shared", "with": host}: another host of the same sync holds the lock of this folder
    <- {"op": "manifest", "digest", "size": n, "allocated": {path: bytes on disk of a file with holes}, "brought":
       [path]: files that were fetched from this node, which stay} and n bytes (zlib data of journal.by_column); size
       0 if "known" is that digest
    -> {"event": "doubts", "items": [path], "more"}: files that may differ from the source's
    <- {"op": "answer", "size": n, "sha256"} and n bytes: zlib data of JSON {path: sha256 of the source's file}
    -> {"event": "gone", "items": [[path, kind]], "more"}: paths that were delivered and that the source does not list
    <- {"op": "answer", ...} and [path]: those of the gone paths that the source excludes
    -> {"event": "lost", "items": [[path, size, sha256]], "more"}: gone paths, if they are most of a folder's files
    <- {"op": "answer", ...} and [path]: those of the lost paths whose bytes the source has at another path
    -> {"event": "consent", "to": "sources" | "deletion", "dest", "sources", "folder", "deleted": n, "replaced": n,
       "of": n, "named": [path]}: other sources' files, or most of a folder's files, would be lost
    -> {"event": "own", "items": [[path, kind, size, age in s, a path in it]], "more"}: the node's own files in the way
    <- {"op": "answer", ...} and {"replace": [path], "keep": [path]}; a head that wants neither closes the connection
    -> {"event": "lacks", "files": [[path, size]] | "blocks": [[path, number, sha256]]}, any number of times, with the
       first parts of long lists; blocks: the 4 MiB blocks of large files that the node has, staged or in place
    -> {"event": "need", "files", "blocks"}, the last parts
    <- {"op": "parcel", "size": n, "sha256"} and n bytes, see fleet/delivery/parcels.py; any number of parcels
    <- {"op": "block", "path", "at", "size": n} and n bytes of a large file; the node has all other blocks
    <- {"op": "switch", "digests": {path: sha256}}: everything is sent; digests of the large files
    -> {"event": "waiting", "run": id}: before it puts files in place, the node waits for a run that starts from DEST
    -> {"event": "done", "sent", "deleted", "kept": [...], "left": [...], "entries", "changed", "replaced", "aside"}
The node sends doubts, gone, lost and own only if the list is not empty. "more" is false in the last part of a list. A
refusal is {"event": "failed", "message", "hint", "busy": whether another sync is under way}. The program ends, and so
releases its lock, if it waits for the head and the head sends nothing for `patience` seconds, not even ping.
After same, shared and consent the node changes nothing.

A manifest is a list of [path, kind, mode, size, mtime_ns, link]; kind "f", "d" or "l". Paths travel as UTF-8 with
surrogateescape. The journal (journal.py) is next to DEST. It is in DEST if DEST is a mount point, or if its parent
folder is not writable.
"""

import gc
import hashlib
import os
from contextlib import suppress

from fleet.node.base.beneath import shown
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import file_digest, open_regular
from fleet.node.base.types import Any, BinaryIO, Callable, Collection, Iterator, code
from fleet.node.base.wire import count_progress, decode, send_exit, send_json, start
from fleet.node.delivery.compare import Comparison
from fleet.node.delivery.deleting import drop, gone_of, losing_most, missing_consent
from fleet.node.delivery.disk_space import check_space, write_at, write_sparse
from fleet.node.delivery.head import Head
from fleet.node.delivery.journal import DELIVERED, is_source, unpack
from fleet.node.delivery.ownership import Ownership
from fleet.node.delivery.stage import BLOCK, Stage, seal, unpack_parcel
from fleet.node.delivery.sync_state import wait_for_runs
from fleet.node.delivery.target import Target, check_around, inside_source
from fleet.protocol.state import CODE_STATE

MOST_NAMED = 100
CHUNK = 1 << 20
STAGED = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Large:
    """Stages the large files, one after the other. Whole blocks that an earlier sync staged stay. The head's blocks are
    written over staged blocks, or after them. All other bytes are copied from the file in place.

    entry, file: the current file's entry, and the descriptor of its staged file. at: offset of the next byte. come:
    number of bytes that were staged before. basis: the file in place, or None if it is missing."""

    def __init__(self, target: "Target") -> None:
        self.target, self.at, self.come = target, 0, 0
        self.entry: list[Any] | None = None
        self.file = -1
        self.basis: BinaryIO | None = None

    def have(self, wanted: "list[Any]") -> "Iterator[tuple[str, int, str]]":
        """Yields (path, block number, sha256) of each block that the node has, in the stage or in the file in place."""
        for entry in wanted:
            places = (self.target.stage.at, self.target.full) if entry[3] > BLOCK else ()
            files = [file for place in places for file in [self.open(place, entry[0])] if file]
            for at in range(0, entry[3] if files else 0, BLOCK):
                count_progress()
                size = min(BLOCK, entry[3] - at)
                blocks = (os.pread(file.fileno(), size, at) for file in files)
                block = next((block for block in blocks if len(block) == size), None)
                if block is not None:
                    yield entry[0], at // BLOCK, hashlib.sha256(block).hexdigest()
            for file in files:
                file.close()

    def open(self, place: "Callable[[str], bytes]", path: str) -> "BinaryIO | None":
        with suppress(OSError):
            return open_regular(place(path), os.O_NOFOLLOW)
        return None

    def fill(self, entry: "list[Any]", end: int) -> None:
        """Stages a file up to the offset `end` from data that the node has. Raises Refused if the data ends before."""
        if entry is not self.entry:
            self.finish()
            stage = self.target.stage
            self.file = os.open(stage.place(stage.at(entry[0])), STAGED, 0o600)
            size = os.fstat(self.file).st_size
            self.entry, self.at, self.come = entry, 0, entry[3] if size >= entry[3] else size - size % BLOCK
            os.ftruncate(self.file, self.come)
            self.basis = self.open(self.target.full, entry[0])
        self.at = max(self.at, min(end, self.come))
        while self.at < end:
            count_progress()
            data = os.pread(self.basis.fileno(), min(CHUNK, end - self.at), self.at) if self.basis else b""
            if not data:
                raise changed_meanwhile(entry[0])
            self.put(data)

    def put(self, data: bytes) -> None:
        (write_at if self.at < self.come else write_sparse)(self.file, memoryview(data), self.at)
        self.at += len(data)

    def finish(self) -> None:
        """Completes the current file from data that the node has, after the head has sent all blocks of the file."""
        if self.entry is not None:
            self.fill(self.entry, self.entry[3])
            os.ftruncate(self.file, self.entry[3])
            os.close(self.file)
            if self.basis is not None:
                self.basis.close()
        self.entry = None


def changed_meanwhile(path: str) -> "Refused":
    return Refused(
        "%s did not arrive as it was sent (changed while it was read?)" % path,
        "run the sync again; no file was replaced",
    )


def receive(head: "Head", stage: "Stage", left: "dict[str, Any]", large: "Large") -> "bool":
    """Stages the files of `left` (path -> entry) as the head sends them. Returns False if the head is gone. Raises
    Refused if the digest of a large file differs from the head's."""
    while True:
        message = head.next_of("parcel", "block", "switch")
        if message is None:
            return False
        if message["op"] == "switch":
            break
        if message["op"] == "block":
            large.fill(left[message["path"]], message["at"])
            for piece in head.pieces(message["size"]):
                large.put(piece)
            continue
        for path, data in unpack_parcel(head.payload(message)):
            stage.put(left.pop(path), data)
    for path, entry in left.items():
        large.fill(entry, entry[3])
        large.finish()
        with open_regular(stage.at(path), os.O_NOFOLLOW) as file:
            stage.digests[path] = file_digest("/proc/self/fd/%d" % file.fileno())
            if stage.digests[path] != message["digests"].get(path):
                raise changed_meanwhile(path)
            seal(file.fileno(), entry)
    return True


def settle(head: "Head", comparison: "Comparison", spec: "code.Spec") -> "code.Consent | None":
    """Decides what happens to each path. Requests the facts for that from the head, and what its user wants for the
    node's own files. Returns the message about a missing consent to other losses, or None."""
    comparison.settle(head.ask("doubts", sorted(comparison.doubts)) or {})
    gone = gone_of(comparison)
    excluded = set(head.ask("gone", [row[:2] for row in gone]) or ())
    drop(comparison, gone, excluded)
    folders = losing_most(comparison, gone, excluded, spec["max_delete"], lambda lost: head.ask("lost", lost))
    missing = missing_consent(comparison, folders, spec["replaces"])
    if missing is None:
        comparison.resolve(head.ask("own", comparison.in_the_way()))
    return missing


def place(
    target: "Target", comparison: "Comparison", source: "code.Source", sent: "Collection[list[Any]]"
) -> "code.Done":
    """Deletes files that the source no longer has, and puts staged files in place. Returns the message "done"."""
    journal, commit = target.journal, target.commit
    changed, deleted, also = list(comparison.changed.values()), 0, comparison.also
    if changed or comparison.delete:
        wait_for_runs(target.meta, lambda run: send_json({"event": "waiting", "run": run}))
        for path in comparison.changed:
            if comparison.found[path] is not None:
                commit.check(path, comparison.found[path])
        journal.begin([[*e, comparison.come.get(e[0], ""), DELIVERED, e[4], 0] for e in changed], source)
        deleted, held = commit.delete(comparison.delete)
        also = also + [journal.known[path][-1] for path in held]
        commit.put_aside(comparison.aside, comparison.found)
        commit.run(changed, comparison.needed, comparison.found)
    comparison.also = also
    return {
        "event": "done",
        "sent": len(sent),
        "bytes": sum(entry[3] for entry in sent),
        "deleted": deleted,
        "kept": comparison.kept[:MOST_NAMED],
        "left": sorted(comparison.left)[:MOST_NAMED],
        "entries": len(comparison.entries),
        "changed": len(changed),
        "replaced": len(comparison.aside),
        "overwritten": sum(comparison.loses(path) for path in comparison.changed),
        "aside": sorted(map(shown, commit.aside)),
    }


def mirror(spec: "code.Spec") -> "code.Same | code.Shared | code.Consent | code.Done | None":
    inside = inside_source(spec["dest"], spec["mark"])
    if inside == ".":
        return {"event": "same"}
    head = Head(spec["patience"])
    if inside is not None:
        head.request({"event": "inside", "path": inside})
        if head.next_of("go") is None:
            return None
    target = Target(spec["dest"], "d", CODE_STATE)
    holder = target.prepare(spec)
    if holder is not None:
        return {"event": "shared", "with": holder}
    head.locks = [fd for fd in [target.lock] if fd is not None]
    journal, stage, dest = target.journal, target.stage, target.tree
    state, name = journal.state, decode(dest.name)
    if spec["mark"] and os.path.lexists(os.path.join(spec["source"]["path"], spec["mark"])):
        check_around(name, os.path.realpath(spec["source"]["path"]))
    head.request({"event": "hello", "dest": name, "known": state["digest"]})
    message = head.next_of("manifest")
    if message is None:
        return None
    digest, packed, entries = message["digest"], state["packed"], state["entries"]
    if message["size"]:
        packed = head.payload(message)
        entries = unpack(packed)
    # other sources whose files may be in DEST, including those of interrupted deliveries; each source once
    sources = [by for by in [state["source"], *state["begun_by"]] if by and not is_source(by, spec["source"])]
    others = [by for number, by in enumerate(sources) if by not in sources[number + 1 :]]
    comparison = Comparison(Ownership(dest, journal), entries, message.get("brought") or (), spec["force"], others)
    refusal = settle(head, comparison, spec)
    if refusal is not None:
        return refusal
    left = stage.sweep(comparison.needed)
    wanted = list(left.values())
    allocated = message.get("allocated") or {}
    needs = [stage.needs(entry, min(entry[3], allocated.get(path, entry[3]))) for path, entry in left.items()]
    check_space(needs, "free some space there, or exclude large files with .fleetignore")
    large = Large(target)
    head.send_parts({"files": [(e[0], e[3]) for e in wanted], "blocks": list(large.have(wanted))})
    if not receive(head, stage, left, large):
        return None
    comparison.come = {
        path: stage.digests.get(path) or file_digest(stage.at(path), os.O_NOFOLLOW) for path in comparison.needed
    }
    done = place(target, comparison, spec["source"], wanted)
    if comparison.is_news(digest) or comparison.changed or comparison.delete or state["source"] != spec["source"]:
        rows = map(comparison.row, entries)
        journal.finish(digest, rows, comparison.also, spec["source"], packed, comparison.left_code(), comparison.news())
    stage.remove()
    return done


def main() -> None:
    gc.disable()  # it would scan long lists again and again, which live to the end
    spec: code.Spec = start()
    answer: code.Same | code.Shared | code.Consent | code.Done | code.Refused | None
    try:
        answer = mirror(spec)
    except EOFError:  # the head is gone, or ends the sync
        answer = None
    except (Refused, OSError) as error:
        answer = {**failed(error, shown, spec["dest"]), "busy": getattr(error, "busy", False)}
    if answer is not None:
        send_json(answer)
        send_exit(1 if answer["event"] == "failed" else 0)

"""The node's half of a code sync: says what it lacks, stages it, verifies, then switches it in.

Conversation (J frames out, control lines in):
    spec {"dest", "sync", "host", "head", "wait": s, "patience": s, "source": {"host", "path"}, "replaces": [source]
    or true: the other folders of which what they delivered may be replaced and deleted}
    -> {"event": "hello", "dest", "known": manifest digest | null, "rsync": path | null}
       or {"event": "shared", "with": host}: another host of this very sync holds the lock of the same folder
    <- {"op": "manifest", "digest", "size": n, "allocated": {path: bytes that a file with holes takes}} and n bytes
       (zlib data of journal.by_column), or size 0 where "known" is that digest
    -> {"event": "other", "source", "dest", "deleted": n, "replaced": n}, and nothing is done: what another folder
       delivered would be lost
    or {"event": "lacks", "files": [[path, size]]}, any number of times, the first parts of a long list
    -> {"event": "need", "files": [[path, size]], "stage": dir, "basis": dir}
    <- {"op": "parcel", "size": n, "sha256"} and n bytes, see parcels.py; any number of these
    <- {"op": "switch", "digests": {path: sha256}}    of the files that came into stage, by rsync
    -> {"event": "waiting", "run": id} when files are to be put in place and a run is beginning from DEST
    -> {"event": "done", "sent", "deleted", "kept": [...], "entries", "changed"}
Any refusal is {"event": "failed", "message", "hint", "busy": whether another sync is under way}. A head that says
nothing (not even ping) for `patience` seconds while it is asked something is gone: the program ends, and its lock with
it.

A manifest is a list of [path, kind, mode, size, mtime_ns, link]; kind "f", "d" or "l". Paths travel as
UTF-8 with surrogateescape. What earlier syncs delivered is remembered in a folder beside DEST (inside it,
where DEST is a mount point or the parent is not ours); only that is ever deleted, and only if unmodified.
"""

import gc
import os

from fleet.node.base.beneath import shown
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import file_digest, lstat
from fleet.node.base.types import Any, code
from fleet.node.base.wire import decode, in_parts, send_exit, send_json, start
from fleet.node.delivery.commit import check_own, compare, count_lost, find_stale, look
from fleet.node.delivery.disk_space import check_space
from fleet.node.delivery.head import Head
from fleet.node.delivery.journal import unpack
from fleet.node.delivery.stage import Stage, seal, unpack_parcel
from fleet.node.delivery.sync_state import wait_for_runs
from fleet.node.delivery.target import Target
from fleet.protocol.state import CODE_STATE


def verify(stage: "Stage", left: "dict[str, Any]", digests: "dict[str, str]") -> None:
    """What rsync brought; what has come as it was sent is whole."""
    for path, entry in left.items():
        staged = stage.at(path)
        st = lstat(staged)
        if st is None or file_digest(staged, os.O_NOFOLLOW, entry[3]) != digests.get(path):
            raise Refused(
                "%s did not arrive as it was sent (changed while it was read?)" % path,
                "run the sync again; nothing was switched in",
            )
        if st.st_size > entry[3]:  # it grew meanwhile
            os.truncate(staged, entry[3])
        fd = os.open(staged, os.O_RDONLY | os.O_NOFOLLOW)
        seal(fd, entry)
        os.close(fd)


def check_room(target: "Target", needed: "list[Any]", left: "dict[str, Any]", allocated: "dict[str, int]") -> None:
    """Refused where they have no room. What rsync left in the stage gives way: it writes a file anew beside it."""
    assert target.tree
    sizes = [min(entry[3], allocated.get(path, entry[3])) for path, entry in left.items()]
    needs = [(target.tree.path, sum((size + 4095) // 4096 * 4096 for size in sizes), len(left))]
    hint = "free some space there, or exclude large files with .fleetignore"
    try:
        check_space(needs, hint)
    except Refused:
        target.stage.sweep({entry[0]: entry for entry in needed if entry[0] not in left}, under_way=False)
        check_space(needs, hint)


def find_rsync() -> "str | None":
    for folder in os.environ.get("PATH", os.defpath).split(":"):
        if os.access(os.path.join(folder, "rsync"), os.X_OK):
            return os.path.join(folder, "rsync")
    return None


def receive(head: "Head", stage: "Stage", left: "dict[str, Any]") -> "dict[str, Any] | None":
    """Unpack files as they come; the message that ends that, None when the head is gone."""
    while True:
        message = head.hear("parcel", "switch")
        if message is None or message["op"] == "switch":
            return message
        for path, offset, data in unpack_parcel(head.payload(message)):
            entry = left[path]
            if len(data) == entry[3]:
                stage.put(entry, data)
            elif not stage.write(entry, offset, data):
                continue
            del left[path]


def mirror(spec: "code.Spec") -> "code.Shared | code.Other | code.Done | None":
    target = Target(spec["dest"], "d", CODE_STATE)
    holder = target.prepare(spec)
    if holder is not None:
        return {"event": "shared", "with": holder}
    head = Head(spec["patience"], [target.lock])
    journal, stage, dest = target.journal, target.stage, target.tree
    assert dest
    state = journal.state
    head.say({"event": "hello", "dest": decode(dest.name), "known": state["digest"], "rsync": find_rsync()})
    message = head.hear("manifest")
    if message is None:
        return None
    digest, packed, entries = message["digest"], state["packed"], state["entries"]
    if message["size"]:
        packed = head.payload(message)
        entries = unpack(packed)
    needed, changed = compare(dest, entries, journal)
    if (
        state["source"] not in (None, spec["source"])
        and spec["replaces"] is not True
        and state["source"] not in spec["replaces"]
    ):
        deleted = count_lost(find_stale(dest, journal, entries), journal.known)
        replaced = sum(look(dest, entry[0]) is not None for entry in needed)
        if deleted or replaced:
            return {
                "event": "other",
                "source": state["source"],
                "dest": decode(dest.name),
                "deleted": deleted,
                "replaced": replaced,
            }
    left = target.take_up(needed)
    wanted = list(left.values())
    check_room(target, needed, left, message.get("allocated") or {})
    os.makedirs(stage.folder, 0o700, exist_ok=True)
    *parts, last = in_parts([(e[0], e[3]) for e in wanted])
    for part in parts:
        head.say({"event": "lacks", "files": part})
    head.say({"event": "need", "files": last, "stage": decode(stage.folder), "basis": decode(dest.path)})
    message = receive(head, stage, left)
    if message is None:
        return None
    verify(stage, left, message["digests"])
    deleted = 0
    kept: list[str] = []
    if changed or digest != state["digest"]:
        wait_for_runs(target.meta, lambda run: send_json({"event": "waiting", "run": run}))
        check_own(dest, changed, journal.known)
        stale = find_stale(dest, journal, entries)
        journal.begin(changed)
        deleted, kept = target.commit.delete(stale, journal.known)
        target.commit.run(changed, {entry[0] for entry in needed})
        also = [entry for path in kept for entry in journal.known[path] if entry[1] == "d"]
        journal.finish(digest, packed, also, spec["source"])
    elif state["source"] != spec["source"]:
        journal.finish(digest, packed, state["also"], spec["source"])
    stage.remove()
    return {
        "event": "done",
        "sent": len(wanted),
        "bytes": sum(e[3] for e in wanted),
        "deleted": deleted,
        "kept": kept[:100],
        "entries": len(entries),
        "changed": len(changed),
    }


def main() -> None:
    gc.disable()  # of lists of tens of thousands that live to the end it finds nothing, again and again
    spec: code.Spec = start()
    answer: code.Shared | code.Other | code.Done | code.Refused | None
    try:
        answer = mirror(spec)
    except Refused as refused:
        answer = {"event": "failed", "message": refused.message, "hint": refused.hint, "busy": refused.busy}
    except OSError as error:
        said = failed(error, shown, spec["dest"])
        answer = {"event": "failed", "message": said["message"], "hint": said["hint"]}
    if answer is not None:
        send_json(answer)
        send_exit(1 if answer["event"] == "failed" else 0)

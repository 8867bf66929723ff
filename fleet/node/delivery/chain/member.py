"""One member of a broadcast's chain: receives a stream of files, puts them in place, and sends it on meanwhile.

The head runs it, too, as the "source": the one that has everything and only sends.

Conversation (J frames out, control lines in):
    spec {"role": "node" | "source", "sync": id, "host", "head", "wait": s, "every": s, "patience": s,
          "via": "chain" | "rsync", "listen": address, "targets": [[path, "f" | "d"]], "tls": {"cert", "key"}, "token",
          "limit": bytes/s | null}
    -> {"event": "hello"}, or {"event": "shared", "with": host}: that host of this sync writes the same folders
    <- {"op": "manifest", "size": n, "sha256", "allocated": {file: bytes that one with holes takes}} and n bytes: zlib
       JSON of [[target, path, kind, mode, size, mtime_ns, link]]
    -> {"event": "lacks", "wants" | "files" | "unsure": ...}, any number of times: the first parts of long lists of
    -> {"event": "need", "wants", "files": [[from, to]], "unsure": {file: sha256}, "bytes", "address", "port",
        "stages"}
    <- {"op": "go", "held": [file]}        the unsure ones that are what the source has
    <- {"op": "next", "epoch", "addresses": [[address, port, name?]], "token"}     whom to send to
    <- {"op": "staged", "names"}    with --via rsync, instead: what was wanted lies in the "stages" of need
    <- {"op": "digests", "files": [[file, sha256]]}
    <- {"op": "fail", "files": [[file, reason]]}      the source cannot give these
    -> {"event": "at", "position", "received", "placed", "sent"}  every so often
    -> {"event": "link", "epoch", "connected", "nonsense", "why"}     sending to the successor failed
    -> {"event": "corrupt", "file", "epoch"}    its digest is another than the source's; the link that brought it
    <- {"op": "again", "files": [file]}    have these once more from the same sender, unless another one comes
    -> {"event": "served", "epoch"}                       the successor has all
    -> {"event": "done", "files", "bytes", "problems": [[path, reason]]}; sending goes on
    <- {"op": "end"}
The source answers {"op": "digest", "files": [...]} with {"event": "digests", "files": [[file, sha256]]} and reports
{"event": "changed", "files": [file]}. "file" counts the manifest's regular files. A refusal is
{"event": "failed", "message", "hint", "kind": "sync" | "mixed"}.
"""

import os
import ssl
import stat
import time

from fleet.node.base.beneath import chmod
from fleet.node.base.errors import Refused
from fleet.node.base.files import file_digest, remove_tree, waiting_link
from fleet.node.base.wire import decode, encode, in_parts, send_exit, send_json, start
from fleet.node.delivery.chain.conversation import Mixed, fail, worker
from fleet.node.delivery.chain.part_file import BLOCK, verified_prefix
from fleet.node.delivery.chain.receive import Receiver
from fleet.node.delivery.chain.send import Sender
from fleet.node.delivery.chain.source import run_source
from fleet.node.delivery.chain.store import Store, writable
from fleet.node.delivery.chain.target import Target
from fleet.node.delivery.disk_space import check_space
from fleet.node.delivery.head import Head, unpack
from fleet.node.delivery.unfinished import forget_delivery

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from fleet.protocol.messages import chain

say: "Callable[[chain.MemberMessage], None]" = send_json
PLACERS = 8  # each waits for its file to be on disk; journals write many such waits at once


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


def tell_need(store: "Store", unsure: "dict[int, str]", address: "str | None", port: "int | None") -> None:
    """What is lacking here; of long lists the first parts go ahead."""
    wants = store.wants()
    parts: dict[str, list[Any]] = {
        "wants": in_parts(wants),
        "files": in_parts(store.wanted_files()),
        "unsure": [dict(part) for part in in_parts(sorted(unsure.items()))],
    }
    for name, some in parts.items():
        for part in some[:-1]:
            send_json({"event": "lacks", name: part})
    say(
        {
            "event": "need",
            "wants": parts["wants"][-1],
            "files": parts["files"][-1],
            "unsure": parts["unsure"][-1],
            "bytes": sum(b - a for a, b in wants),
            "address": address,
            "port": port,
            "stages": [decode(target.stage) for target in store.targets],
        }
    )


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


def report(store: "Store", sender: "Sender | None", every: float) -> None:
    """Tell the head how far this node is, then that it is done."""
    count = len(store.files)
    while True:
        say(
            {
                "event": "at",
                "position": store.position(),
                "received": store.received,
                "placed": count - store.left,
                "sent": sender.sent if sender else 0,
            }
        )
        if store.settled():
            break
        time.sleep(every)
    finish(store)
    files = sum(bool(f.digest) and f.state == "held" for f in store.files)
    for target in set(store.targets) - {f.target for f in store.files if f.state == "failed"}:
        forget_delivery(target.path)
    say({"event": "done", "files": files, "bytes": store.received, "problems": store.problems[:100]})
    while True:
        time.sleep(every)
        say(
            {
                "event": "at",
                "position": store.total,
                "received": store.received,
                "placed": count,
                "sent": sender.sent if sender else 0,
            }
        )


def run_node(spec: "chain.MemberSpec") -> None:
    if not ssl.HAS_TLSv1_3:
        raise Refused("its python3 has no TLS 1.3 (%s)" % ssl.OPENSSL_VERSION, "--via rsync needs none")
    targets = [Target(path, kind) for path, kind in spec["targets"]]
    holders, seen = [target.prepare(spec) for target in targets], set()
    for target in targets:
        if target.path in seen:
            raise Refused("two sources go to %s" % decode(target.path), "end DEST with '/' to put them inside it")
        seen.add(target.path)
    if any(holders):
        if not all(holders):
            raise Mixed(
                "only some of these destinations are shared with host %s" % next(filter(None, holders)),
                "sync them one at a time",
            )
        say({"event": "shared", "with": str(holders[0])})
        return
    for target in targets:
        target.load()
    say({"event": "hello"})
    store = receiver = sender = None
    unsure = {}
    head = Head(spec["patience"])
    for message in head.lines():
        op = message.get("op")
        if op == "manifest":
            store = Store(targets, unpack(head.payload(message)), False)
            unsure = take_stock(store, message.get("allocated") or {}, spec["via"] == "chain")
            address, port = None, None
            if spec["via"] == "chain":
                receiver = Receiver(store, spec["tls"], spec["token"], spec["listen"])
                sender = Sender(store, spec["tls"], None)
                address, port = receiver.listener.getsockname()[:2]
            tell_need(store, unsure, address, port)
        elif op == "end":
            break
        elif store is None:
            continue  # nonsense
        elif op == "go":
            begin(store, message["held"], unsure)
            if receiver is not None:
                for work in (receiver.accept_forever, receiver.receive_forever):
                    worker(work)
            for _ in range(PLACERS):
                worker(store.place_forever)
            worker(report, store, sender, spec["every"])
        elif op == "digests":
            for index, digest in message["files"]:
                store.set_digest(index, digest)
        elif op == "fail":
            for index, reason in message["files"]:
                store.fail(index, reason)
        elif op == "again":
            store.again(message["files"])
        elif op == "next" and sender is not None:
            sender.connect_to(message)
        elif op == "staged":
            store.take_staged(message["names"])
    # end of file: the head is gone; what was received stays for the next time
    for target in targets:
        target.close()


def main() -> None:
    spec = start()
    try:
        (run_source if spec["role"] == "source" else run_node)(spec)
        send_exit(0)
    except (Refused, OSError) as error:
        fail(error)

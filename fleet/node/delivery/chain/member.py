"""Makes this node a member of a broadcast's chain: receives a stream of files, puts them in place, and meanwhile sends
the stream to the next member.

Conversation ("->": J frames to the head, "<-": control lines of the head; s: seconds):
    spec {"sync": id, "host", "head", "wait": s, "every": s, "patience": s, "listen": address,
          "targets": [[path, "f" | "d"]], "tls": {"cert", "key"}, "token"}
    -> {"event": "hello"}, or {"event": "shared", "with": host}: that host of this sync writes the same folders
    <- {"op": "manifest", "size": n, "sha256", "allocated": {file: bytes on disk of a file with holes}} and n bytes:
       zlib data of journal.by_column([[target, path, kind, mode, size, mtime_ns, link]])
    -> {"event": "doubts", "items": [file], "more"}    files of this node that may be equal to the source's
    <- {"op": "answer", "size": n, "sha256"} and n bytes: zlib data of JSON [[file, sha256]]
    -> {"event": "own", "items", "more"}    the node's own files in the way, as in code_sync.py
    <- {"op": "answer", ...} and {"replace": [path], "keep": [path]}; a path in neither ends the sync
    -> {"event": "lacks", "wants" | "files": ...}, any number of times, with the first parts of long lists
    -> {"event": "need", "wants": [[from, to]] of the stream, "files": [[from, to]] of the files' numbers, "bytes",
       "address", "port"}
    <- {"op": "go"}
    <- {"op": "next", "epoch", "addresses": [[address, port]], "token"}     the host to send to
    <- {"op": "digests", "files": [[file, sha256]]}
    <- {"op": "fail", "files": [[file, reason]]}      the source cannot send these files
    -> {"event": "at", "position", "received", "placed", "sent"}  every `every` seconds
    -> {"event": "link", "epoch", "kind", "why"}     sending to the successor failed
    -> {"event": "corrupt", "file", "epoch"}    the file's digest differs from the source's; a new link must send it
    -> {"event": "done", "files", "bytes", "problems": [[path, reason]]}; the node goes on sending to its successor
    <- {"op": "end"}
A "file" is its number among the manifest's regular files. An "epoch" is the number of a link. A refusal is {"event":
"failed", "message", "hint", "kind": "sync" | "mixed" (see Mixed in head.py)}.
"""

import ssl
import time
from contextlib import suppress

from fleet.node.base.beneath import shown
from fleet.node.base.errors import Refused
from fleet.node.base.types import Callable, chain
from fleet.node.base.wire import decode, send_exit, send_json, start
from fleet.node.delivery.add import begin, finish, take_stock
from fleet.node.delivery.chain.receive import Receiver
from fleet.node.delivery.chain.send import Sender, way
from fleet.node.delivery.head import Head, Mixed, fail, worker
from fleet.node.delivery.journal import ENTRY, unpack
from fleet.node.delivery.store import Store
from fleet.node.delivery.target import Target

say: "Callable[[chain.MemberMessage], None]" = send_json
NUMBERED = [{int}] + ENTRY  # types of the number of a target, and of the entry that follows
PLACERS = 8  # threads that put files in place. Each waits until its file is on disk; a disk serves many waits at once


def report(store: "Store", sender: "Sender", every: float) -> None:
    """Reports this node's progress to the head every `every` seconds. After the last file it completes the delivery,
    and reports "done"."""

    def send() -> None:
        placed, position = store.count - store.left, store.position()
        say({"event": "at", "position": position, "received": store.received, "placed": placed, "sent": sender.sent})

    send()
    while not store.settled():
        time.sleep(every)
        send()
    finish(store)
    files = sum(bool(f.digest) and f.state == "held" for f in store.files)
    left = sorted({path for target in store.targets for path in target.comparison.left})[:100]
    aside = sorted(shown(folder) for target in store.targets for folder in target.commit.aside)
    problems = store.problems[:100]
    say({"event": "done", "files": files, "bytes": store.received, "problems": problems, "left": left, "aside": aside})
    while True:
        time.sleep(every)
        send()


def run(spec: "chain.MemberSpec") -> None:
    if not ssl.HAS_TLSv1_3:
        as_code = "sync it as code: fleet sync PATH --to DEST"
        raise Refused("its python3 has no TLS 1.3 (%s)" % ssl.OPENSSL_VERSION, as_code)
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
    say({"event": "hello"})
    store = None
    head = Head(spec["patience"], [target.lock for target in targets])
    for message in head.lines():
        op = message.get("op")
        if op == "manifest":
            store = Store(targets, unpack(head.payload(message), NUMBERED))
            take_stock(store, message.get("allocated") or {}, spec["force"], head)
            receiver = Receiver(store, spec["tls"], spec["token"], spec["listen"])
            sender = Sender(store, spec["tls"], say)
            wants, (address, port, *_) = store.wants(), receiver.listener.getsockname()
            lists = {"wants": wants, "files": store.wanted_files()}
            head.send_parts(lists, bytes=sum(b - a for a, b in wants), address=address, port=port)
        elif op == "end":
            break
        elif store is None:
            continue  # not possible before the manifest
        elif op == "go":
            begin(store)
            for work in [receiver.accept_forever, receiver.receive_forever] + [store.place_forever] * PLACERS:
                worker(work)
            worker(report, store, sender, spec["every"])
        elif op == "digests":
            for index, digest in message["files"]:
                store.set_digest(index, digest)
        elif op == "fail":
            for index, reason in message["files"]:
                store.fail(index, reason)
        elif op == "next":
            sender.connect_to(message["epoch"], message["token"], [way(*address) for address in message["addresses"]])
    # the head has ended the sync, or is gone: received files stay in the stage for the next time
    for target in targets:
        target.close()


def main() -> None:
    spec = start()
    try:
        with suppress(EOFError):
            run(spec)
        send_exit(0)
    except (Refused, OSError) as error:
        fail(error)

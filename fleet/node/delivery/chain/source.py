"""The head's part of a broadcast: it has everything, only sends, and knows the digests."""

import time

from fleet.node.base.files import file_digest
from fleet.node.base.wire import send_json
from fleet.node.delivery.chain.conversation import worker
from fleet.node.delivery.chain.send import Limit, Sender
from fleet.node.delivery.head import Head, unpack
from fleet.node.delivery.store import Store
from fleet.node.delivery.target import Target

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from fleet.protocol.messages import chain

say: "Callable[[chain.SourceMessage], None]" = send_json
DIGEST_BATCH_SECONDS = 0.2


def digest_files(store: "Store", sender: "Sender", indexes: "list[int]", tell: "Callable[[list[Any]], None]") -> None:
    """The source's digests, in order, so that what sending just read is still in memory."""
    batch, last = [], time.monotonic()
    for index in indexes:
        f = store.files[index]
        while sender.at is not None and f.start > sender.at + (1 << 30):
            time.sleep(0.1)
        try:
            digest = file_digest(f.final)
            with open(f.final, "rb") as file:
                store.check_unchanged(index, file.fileno())
        except OSError:
            store.changed(index)
            continue
        batch.append([index, digest])
        if time.monotonic() - last > DIGEST_BATCH_SECONDS or len(batch) >= 500:
            tell(batch)
            batch, last = [], time.monotonic()
    tell(batch)


def run_source(spec: "chain.SourceSpec") -> None:
    targets = [Target(path, kind) for path, kind in spec["targets"]]
    say({"event": "hello"})
    told = set()

    def changed(index: int) -> None:
        if index not in told:
            told.add(index)
            say({"event": "changed", "files": [index]})

    store = sender = None
    head = Head(spec["patience"])
    for message in head.lines():
        op = message.get("op")
        if op == "manifest":
            store = Store(targets, unpack(head.payload(message)), True, changed)
            sender = Sender(store, spec["tls"], Limit(spec["limit"]) if spec["limit"] else None)
            worker(report_sent, sender, spec["every"])
        elif op == "digest":
            worker(
                digest_files,
                store,
                sender,
                message["files"],
                lambda batch: say({"event": "digests", "files": batch}),
            )
        elif op == "next" and sender:
            sender.connect_to(message)
        elif op == "end":
            say({"event": "at", "sent": sender.sent if sender else 0})
            return


def report_sent(sender: "Sender", every: float) -> None:
    while True:
        say({"event": "at", "sent": sender.sent})
        time.sleep(every)

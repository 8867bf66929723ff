"""Makes this node the first sender of a chain: reports what it has, then sends to the hosts that the head names.

Conversation ("->": J frames to the head, "<-": control lines of the head; s: seconds; a "file" is its number):
    spec {"paths": [path], "copy_unsafe_links", "tls": {"cert", "key"}, "limit": bytes a second or null, "every": s,
        "patience": s, after which the program ends if the head is silent}
    -> {"event": "tree", "entries", "allocated", "skipped", "linked", "unsafe", "mode", "more"}    for each path
    <- {"op": "ask", "files": [file]}    the head requests the digests of these files
    -> {"event": "news", "digests": [[file, sha256]], "changed": [file]}
    <- {"op": "next", "name", "epoch", "token", "addresses": [[address, port]]}    one more host to send to
    -> {"event": "link", "epoch", "kind", "why"}    sending to a host failed
    -> {"event": "sent", "bytes", "grown": [file]}    every `every` seconds
    <- {"op": "end"}
"""

import os
import ssl
import time

from fleet.node.base.errors import Refused, answer
from fleet.node.base.types import Any, Callable, chain
from fleet.node.base.wire import encode, send_json
from fleet.node.delivery.chain.send import way
from fleet.node.delivery.chain.source import Source
from fleet.node.delivery.head import Head, worker
from fleet.node.delivery.tree import Walk, send_entries

say: "Callable[[chain.FirstMessage], None]" = send_json


def send_tree(path: str, follows: bool) -> "tuple[list[Any], list[int]]":
    """Sends the head the list of files below a path. Returns (entries of the regular files, inodes of these files).
    follows: sends the target of a link that leads out of the path, in place of the link."""
    walk = Walk(path, follows=follows)
    try:
        entries = list(walk.entries())
    except FileNotFoundError as error:
        if error.filename == path:
            raise Refused(
                "%s does not exist there" % path, "--data takes a path of the host that --from names"
            ) from None
        raise
    send_entries(walk, entries)
    files = [entry for entry in entries if entry[1] == "f"]
    return files, [walk.inodes[entry[0]] for entry in files]


def run(spec: "chain.FirstSpec") -> None:
    if not ssl.HAS_TLSv1_3:
        raise Refused("its python3 has no TLS 1.3 (%s)" % ssl.OPENSSL_VERSION, "fetch it with 'fleet get', sync it on")
    roots = [os.path.expanduser(os.fsdecode(encode(path))) for path in spec["paths"]]
    files: list[Any] = []
    inodes: list[int] = []
    for number, root in enumerate(roots):
        found, of_them = send_tree(root, spec["copy_unsafe_links"])
        files += [(number,) + tuple(entry) for entry in found]
        inodes += of_them
    source = Source(files, [os.fsencode(os.path.realpath(root)) for root in roots], inodes, spec["tls"], spec["limit"])

    def news(digests: "dict[int, str]", changed: "set[int]") -> None:
        say({"event": "news", "digests": sorted(digests.items()), "changed": sorted(changed)})

    def report() -> None:
        while True:
            say({"event": "sent", "bytes": source.sent, "grown": sorted(source.grown)})
            time.sleep(spec["every"])

    source.on_news, source.on_link = news, say
    worker(report)
    for message in Head(spec["patience"]).lines():
        op = message.get("op")
        if op == "ask":
            source.ask(message["files"])
        elif op == "next":
            ways = [way(*address) for address in message["addresses"]]
            source.send_to(message["name"], message["epoch"], message["token"], ways)
        elif op == "end":
            break


def main() -> None:
    answer(run, (Refused, OSError))

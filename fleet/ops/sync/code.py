"""`fleet sync [SRC] [--to DEST]`: DEST on every host becomes what SRC is, by rsync over one warm session a host."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import ConnectError, HostFailed, UsageError
from fleet.events import Notice, Progress
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.each import on_each
from fleet.ops.runtime import Runtime
from fleet.ops.sync.tree import Tree, scan
from fleet.transport.base import Session
from fleet.transport.program import PING_SECONDS, Frame, Nonsense, Program
from fleet.transport.rsh import rsync

SILENCE_SECONDS = 30.0
LOCK_WAIT_SECONDS = 10.0
PATIENCE_SECONDS = 30.0  # after which a node gives up a head that says nothing, and its lock for the next sync
# -I: the node said which files differ, rsync need not doubt it; the old file is the basis of the delta.
RSYNC = ("--links", "--times", "--perms", "--ignore-times", "--from0", "--files-from=-", "--no-implied-dirs",
         "--timeout=60")


def checked(done: Mapping[str, Any], host: str) -> dict[str, Any]:
    """What a node says it did; Nonsense when something in it is of another type than it must be."""
    kept = done.get("kept")
    if not (all(type(done.get(name)) is int for name in ("sent", "bytes", "deleted", "entries"))
            and isinstance(kept, list) and all(isinstance(path, str) for path in kept)):
        raise Nonsense("what it did is told in another way", host)
    return dict(done)


@dataclass(frozen=True)
class SyncPlan:
    """source: the folder on the head. dests: host name -> folder on that host ("~" is the node's own). whole: also
    what ignore files leave out."""

    source: Path
    dests: Mapping[str, str]
    whole: bool = False

    def describe(self) -> dict[str, Any]:
        return {"source": str(self.source), "to": dict(self.dests)}


def make_plan(inventory: Inventory, source: Path, to: str | None) -> SyncPlan:
    """Pure: DEST is --to, else the host's workdir, else the path of the head's current folder."""
    if to is not None and not to.strip():
        raise UsageError("--to is empty", hint="name a folder on the hosts, '~/work' for instance")
    here = str(Path.cwd())
    return SyncPlan(source, {h.name: to or h.workdir or here for h in inventory.hosts})


class Digests:
    """sha256 of source files, each read once however many hosts lack it."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, paths: Sequence[str]) -> dict[str, str]:
        with self._lock:
            for path in paths:
                if path not in self._known:
                    self._known[path] = self._tree.file_digest(path)
            return {path: self._known[path] for path in paths}


class _Conversation:
    """The J frames of remote/mirror.py, one question at a time."""

    def __init__(self, program: Program, runtime: Runtime) -> None:
        self._program, self._runtime = program, runtime
        self._frames: Iterator[Frame] = program.frames(silence=SILENCE_SECONDS, cancel=runtime.cancel)

    def answer(self) -> dict[str, Any]:
        for frame in self._frames:
            if frame.kind == "J":
                message, name = frame.json(), self._program.host.name
                if message["event"] == "waiting":
                    said = f"waits until run {message['run']} has begun, which uses this folder"
                    self._runtime.emit(Notice("info", said, name))
                    continue
                if message["event"] == "failed":
                    hint = message["hint"]
                    raise HostFailed(str(message["message"]), hint=hint and str(hint), host=name, kind="sync")
                return message
        raise ConnectError("the node ended the sync early", host=self._program.host.name, kind="protocol")

    @contextmanager
    def while_busy(self) -> Iterator[None]:
        """Tells the node that we live, while nobody reads its answers."""
        done = threading.Event()

        def ping() -> None:
            while not done.wait(PING_SECONDS):
                self._program.send({"op": "ping"})

        thread = threading.Thread(target=ping, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def execute(inventory: Inventory, plan: SyncPlan, runtime: Runtime) -> Report:
    """Mirror the tree to all hosts at once. Results carry {"to", "sent", "bytes", "deleted", "kept", ...}."""
    if shutil.which("rsync") is None:
        raise UsageError("rsync is not installed on this machine", hint="apt install rsync")
    tree = scan(plan.source, whole=plan.whole)
    digests = Digests(tree)
    sync_id = uuid.uuid4().hex

    def task(session: Session, host: Host) -> Result:
        spec = {"dest": plan.dests[host.name], "sync": sync_id, "host": host.name, "wait": LOCK_WAIT_SECONDS,
                "head": f"{socket.gethostname()} (pid {os.getpid()})", "patience": PATIENCE_SECONDS}
        with Program(session, "mirror", spec) as program:
            talk = _Conversation(program, runtime)
            hello = talk.answer()
            if hello["event"] == "shared":
                return Result(host.name, True, 0, data={"to": spec["dest"], "shared_with": hello["with"]})
            program.send_bytes(_manifest(tree, hello["known"]))
            need = talk.answer()
            paths = [path for path, _size in need["files"]]
            if not tree.files.issuperset(paths):
                # a node may name anything here: ignored files, or what a link in the tree leads to
                raise Nonsense("it asks for files that are not in the source", host.name)
            with talk.while_busy():
                if paths:
                    _send_files(session, host, tree, need, hello, runtime)
                wanted = digests.of(paths)
            program.send({"op": "switch", "digests": wanted})
            done = checked(talk.answer(), host.name)
            done.pop("event")
        return Result(host.name, True, 0, data={"to": str(hello["dest"]), **done})

    results = on_each(inventory.hosts, runtime, task)
    data = {"source": str(tree.root), "entries": len(tree.entries), "skipped": list(tree.skipped)}
    return Report("sync", results, exit_code_of(results), data)


def _manifest(tree: Tree, known: str | None) -> bytes:
    """The control line, and the packed manifest behind it unless the node has this very one."""
    packed = b"" if known == tree.digest else tree.packed
    line = {"op": "manifest", "digest": tree.digest, "size": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    return json.dumps(line).encode() + b"\n" + packed


def _send_files(
    session: Session, host: Host, tree: Tree, need: Mapping[str, Any], hello: Mapping[str, Any], runtime: Runtime
) -> None:
    if hello["rsync"] is None:
        raise HostFailed("rsync is not installed there", host=host.name, kind="sync",
                         hint=f"fleet exec -w {host.name} -- apt-get install -y rsync")
    total = sum(size for _path, size in need["files"])
    sent = 0

    def moved(count: int) -> None:
        nonlocal sent
        sent += count
        runtime.emit(Progress(host.name, "sending", min(sent, total), total))

    names = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path, _size in need["files"])
    options = [*RSYNC, "--compare-dest=" + os.fsdecode(need["basis"].encode("utf-8", "surrogateescape"))]
    try:
        rsync(session, options, tree.root, os.fsdecode(need["stage"].encode("utf-8", "surrogateescape")), names,
              cancel=runtime.cancel, moved=moved)
    except HostFailed:
        for path, _size in need["files"]:
            if not tree.local(path).is_file():
                raise HostFailed(f"{path} vanished while it was sent", kind="sync",
                                 hint="run the sync again; nothing was switched in") from None
        raise

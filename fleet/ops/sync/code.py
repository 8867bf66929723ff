"""`fleet sync [SRC] [--to DEST]`: DEST on every host becomes what SRC is, over one warm session a host.

Small files are packed once for all hosts; large ones go by rsync, which sends what has changed in them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import ConnectError, HostFailed, Reason, UsageError
from fleet.events import Notice, Progress
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.each import on_each, with_shared
from fleet.ops.runtime import Runtime
from fleet.ops.shape import fits
from fleet.ops.sync.parcels import Parcels
from fleet.ops.sync.tree import Tree, scan
from fleet.transport.base import Cancel, Session
from fleet.transport.frames import Frame, Nonsense
from fleet.transport.program import Program
from fleet.transport.rsh import rsync

SILENCE_SECONDS = 30.0
JOIN_SECONDS = 5.0
SMALL_BYTES = 1 << 20
LOCK_WAIT_SECONDS = 10.0
PATIENCE_SECONDS = 30.0  # after which a node gives up a head that says nothing, and its lock for the next sync
# what can be a path on a node: bytes that are no UTF-8 come as \udc80 to \udcff
PATH = re.compile("[^\0\ud800-\udc7f\udd00-\udfff]+")
HELLO = {"dest": PATH, "known": (str, None), "rsync": (PATH, None)}
NEED = {"files": list, "stage": PATH, "basis": PATH}
DONE = {"sent": int, "bytes": int, "deleted": int, "kept": [PATH], "entries": int, "changed": int}
# -I: the node said which files differ, rsync need not doubt it; the old file is the basis of the delta.
RSYNC = ("--links", "--times", "--perms", "--ignore-times", "--from0", "--files-from=-", "--no-implied-dirs",
         "--partial", "--timeout=60")


def told(message: Mapping[str, Any], host: str, shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message of a node; Nonsense when something in it is not of the shape that it must have."""
    for name, part in shape.items():
        if not fits(message, {name: part}):
            raise Nonsense(f"{name!r} is told in another way", host)
    return message


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

    def __init__(self, program: Program, runtime: Runtime, waiting: Callable[[str], None]) -> None:
        self._program, self._waiting = program, waiting
        self._waited = False
        self._frames: Iterator[Frame] = program.frames(silence=SILENCE_SECONDS, cancel=runtime.cancel)

    def answer(self) -> dict[str, Any]:
        for frame in self._frames:
            if frame.kind == "J":
                message, name = frame.json(), self._program.host.name
                if message.get("event") == "waiting":
                    if not self._waited:  # a node that says so without end fills nobody's screen
                        self._waiting(str(message.get("run")))
                    self._waited = True
                elif message.get("event") == "failed":
                    hint = message.get("hint")
                    raise HostFailed(Reason.of_node(str(message.get("message"))), hint=hint and str(hint), host=name,
                                     kind="sync")
                else:
                    return message
        raise ConnectError("the node ended the sync early", host=self._program.host.name, kind="protocol")


class _Delivery(threading.Thread):
    """Sends a host what it lacks, while its answers are listened to: it may fail or freeze meanwhile."""

    def __init__(self, program: Program, deliver: Callable[[Cancel], None], cancel: Cancel) -> None:
        super().__init__(name=f"delivery {program.host.name}", daemon=True)
        self._program, self._deliver, self._cancel = program, deliver, Cancel()
        self._forget = cancel.on_set(self._cancel.set)
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._deliver(self._cancel)
        except Exception as error:
            self.error = error
            self._program.close()

    def __enter__(self) -> _Delivery:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._forget()
        cause = self.error
        if error is not None:
            self._cancel.set()
            self._program.close()  # what waits for the node to read ends, too
        self.join(JOIN_SECONDS)
        if error is None:
            cause = self.error  # what is raised from here on after an error comes of our own cutting it off
        if cause is not None and getattr(error, "kind", None) != "sync":  # that is the node's own word
            raise cause from None


def execute(inventory: Inventory, plan: SyncPlan, runtime: Runtime) -> Report:
    """Mirror the tree to all hosts at once. Results carry {"to", "sent", "bytes", "deleted", "kept", ...}."""
    tree = scan(plan.source, whole=plan.whole)
    digests, parcels = Digests(tree), Parcels(tree)
    sync_id = uuid.uuid4().hex
    runs: set[str] = set()

    def waiting(run: str) -> None:
        if run not in runs:  # one word for all its hosts
            runs.add(run)
            runtime.emit(Notice("warning", f"waiting until run {run} has begun, which uses the same folder"))

    def task(session: Session, host: Host) -> Result:
        name = host.name
        spec = {"dest": plan.dests[name], "sync": sync_id, "host": name, "wait": LOCK_WAIT_SECONDS,
                "head": f"{socket.gethostname()} (pid {os.getpid()})", "patience": PATIENCE_SECONDS}
        with Program(session, "mirror", spec) as program:
            talk = _Conversation(program, runtime, waiting)
            hello = talk.answer()
            if hello.get("event") == "shared":
                return Result(name, True, 0, data={"to": spec["dest"], "shared_with": str(hello.get("with"))})
            told(hello, name, HELLO)
            program.send_bytes(_manifest(tree, hello["known"]))
            need = told(talk.answer(), name, NEED)
            paths = _wanted(tree, need["files"], name)
            can_rsync = hello["rsync"] is not None and shutil.which("rsync") is not None
            large = [path for path in paths if can_rsync and tree.by_path[path][3] > SMALL_BYTES]
            counter = _Counter(host, tree, paths, runtime)

            def deliver(cancel: Cancel) -> None:
                digests_of_large = {}
                if large:
                    _rsync(session, tree, large, need, cancel, counter)
                    digests_of_large = digests.of(large)
                for message, count in parcels.of(sorted(set(paths).difference(large))):
                    if cancel.is_set():
                        return
                    program.send_bytes(message)
                    counter.add(count)
                program.send({"op": "switch", "digests": digests_of_large})

            with _Delivery(program, deliver, runtime.cancel):
                done = told(talk.answer(), name, DONE)
        return Result(name, True, 0, data={"to": hello["dest"], **{k: done[k] for k in DONE}})

    results = with_shared(on_each(inventory.hosts, runtime, task, what="comparing files"))
    data = {"source": str(tree.root), "entries": len(tree.entries), "skipped": list(tree.skipped)}
    return Report("sync", results, exit_code_of(results), data)


def _wanted(tree: Tree, files: list[Any], host: str) -> list[str]:
    """The paths that a node asks for. It may name anything here: ignored files, or what a link in the tree leads to."""
    try:
        paths = [path for path, size in files if isinstance(size, int)]
        if len(paths) == len(files) and tree.by_path.keys() >= set(paths):
            return paths
    except (TypeError, ValueError):
        pass
    raise Nonsense("it asks for files that are not in the source", host)


def _manifest(tree: Tree, known: str | None) -> bytes:
    """The control line, and the packed manifest behind it unless the node has this very one."""
    packed = b"" if known == tree.digest else tree.packed
    line = {"op": "manifest", "digest": tree.digest, "size": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    return json.dumps(line).encode() + b"\n" + packed


class _Counter:
    """What one host has got so far, told to the view."""

    def __init__(self, host: Host, tree: Tree, paths: Sequence[str], runtime: Runtime) -> None:
        self._host, self._runtime = host, runtime
        self._total = sum(tree.by_path[path][3] for path in paths)
        self._sent = 0

    def add(self, count: int) -> None:
        self._sent = min(self._sent + count, self._total)
        self._runtime.emit(Progress(self._host.name, "sending", self._sent, self._total))


def _rsync(
    session: Session, tree: Tree, paths: Sequence[str], need: Mapping[str, Any], cancel: Cancel, counter: _Counter
) -> None:
    names = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    options = [*RSYNC, "--compare-dest=" + os.fsdecode(need["basis"].encode("utf-8", "surrogateescape"))]
    try:
        rsync(session, options, tree.root, os.fsdecode(need["stage"].encode("utf-8", "surrogateescape")), names,
              cancel=cancel, moved=counter.add)
    except HostFailed:
        for path in paths:
            if not tree.local(path).is_file():
                raise HostFailed(f"{path} vanished while it was sent", kind="sync",
                                 hint="run the sync again; nothing was switched in") from None
        raise

"""A folder on every host becomes what one is here, over one warm session a host.

Small files are packed once for all hosts; large ones go by rsync, which sends what has changed in them.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fleet import fanout
from fleet.delivery import own_files
from fleet.delivery.conversation import Conversation, Delivery
from fleet.delivery.lock_order import LockOrder, claim
from fleet.delivery.other_sources import KIND as OTHER
from fleet.delivery.other_sources import question, refusal
from fleet.delivery.own_files import KIND as OWN
from fleet.delivery.parcels import Parcels
from fleet.delivery.source_id import known, marked, unknown
from fleet.delivery.tree import CHANGED, MAX_ENTRIES, Tree, grown_notice, hard_links, scan, with_payload
from fleet.each import over, with_shared
from fleet.errors import HostFailed, ProtocolError
from fleet.events import Notice, Progress, Round, Started
from fleet.model import Host, Report, Result, exit_code_of
from fleet.protocol.messages.code import (
    Done,
    Doubts,
    Gone,
    Hello,
    Inside,
    Kind,
    Lacks,
    Need,
    Other,
    Own,
    OwnFile,
    Same,
    Shared,
    Source,
    Spec,
    Wanted,
)
from fleet.protocol.messages.values import Claim
from fleet.runtime import Runtime
from fleet.transport import rsh
from fleet.transport.base import Cancel, Session
from fleet.transport.program import Program

T = TypeVar("T")
COMPARING = "comparing files"
SMALL_BYTES = 1 << 20
ROUNDS = 3  # of reading the source, while it changes
PATIENCE_SECONDS = 30.0  # after which a node gives up a head that says nothing, and its lock for the next sync
# -I: the node said which files differ, rsync need not doubt it; the old file is the basis of the delta. The node gives
# them mode and time, once their digests are right.
RSYNC = ("--no-times", "--ignore-times", "--sparse")


@dataclass(frozen=True)
class Mirror:
    """source: the folder on the head. dests: host name -> folder on that host ("~" is the node's own). whole: also what
    ignore files leave out. force: also replace what is the node's own and what came from another source; patterns: what
    is the node's own and they name. keep: leave what is the node's own. hint: how to say these. delete_excluded: delete
    what was delivered and is left out now. everything, copy_unsafe_links: as tree.scan has them. source_id: what the
    source is known by, None: what is kept in it."""

    hosts: tuple[Host, ...]
    source: Path
    dests: Mapping[str, str]
    whole: bool = False
    force: bool | tuple[str, ...] = False
    keep: bool = False
    delete_excluded: bool = False
    everything: bool = False
    copy_unsafe_links: bool = False
    source_id: str | None = None
    hint: str = "--force replaces it"

    def read(self) -> Tree:
        """What the source consists of. UsageError."""
        return scan(
            self.source,
            whole=self.whole,
            everything=self.everything,
            copy_unsafe_links=self.copy_unsafe_links,
            hosts=self.hosts,
        )


class Ahead:
    """Hosts are connected, and their programs loaded, while the source is still being read; as many as may be at
    once."""

    def __init__(self, hosts: Sequence[Host], runtime: Runtime) -> None:
        self._transport, self._cancel = runtime.transport, Cancel()
        self._forget = runtime.cancel.on_set(self._cancel.set)
        self._pool = ThreadPoolExecutor(max(1, runtime.fanout), thread_name_prefix="ahead")
        self._begun = {host.name: self._pool.submit(self._begin, host) for host in hosts[: runtime.fanout]}

    def _begin(self, host: Host) -> tuple[Session, Program]:
        session = self._transport.connect(host, self._cancel)
        try:
            return session, Program(session, "delivery.code_sync", None)
        except BaseException:
            session.close()
            raise

    def take(self, host: Host) -> tuple[Session, Program]:
        """Raises what connect() does."""
        begun = self._begun.pop(host.name, None)
        return begun.result() if begun else self._begin(host)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_error: object) -> None:
        """What nobody took ends."""
        self._forget()
        self._cancel.set()
        for begun in self._begun.values():
            begun.add_done_callback(_leave)
        self._pool.shutdown(wait=False)


def _leave(begun: Future[tuple[Session, Program]]) -> None:
    if begun.exception() is None:
        session, program = begun.result()
        program.close()
        session.close()


def run(plan: Mirror, runtime: Runtime) -> Report:
    """Mirror the tree to all the hosts at once. Results carry {"to", "sent", "bytes", "deleted", "kept", ...}.

    What is a node's own, or came from another source, is lost only with `plan.force`, or when the user says yes to it.
    """
    runtime.emit(Round(f"reading {plan.source}", ()))
    fanout.check_limits(len(plan.hosts), runtime.fanout)
    with Ahead(plan.hosts, runtime) as ahead:
        tree = plan.read()
        for text in tree.notices:
            runtime.emit(Notice("warning", text))
        with nullcontext() if plan.whole else marked(tree.root) as mark:
            source = unknown(tree.root) if plan.whole else known(tree.root, plan.source_id)
            report = _Mirroring(plan, tree, source, mark, ahead, runtime).report()
            for _ in range(ROUNDS - 1):
                if not any(r.error is not None and r.error.kind == CHANGED for r in report.results):
                    break
                tree = replace(plan.read(), longer=tree.longer)
                report = _Mirroring(plan, tree, source, mark, ahead, runtime).report()
        if tree.grown:
            runtime.emit(Notice("warning", grown_notice(tree.grown)))
        return report


class _Mirroring:
    """One sync. mark: see source_id.marked."""

    def __init__(
        self, plan: Mirror, tree: Tree, source: Source, mark: str | None, ahead: Ahead, runtime: Runtime
    ) -> None:
        self._plan, self._tree, self._source, self._mark = plan, tree, source, mark
        self._ahead, self._runtime = ahead, runtime
        self._replaces: bool | list[Source] = plan.force is True
        self._force = plan.force
        self._parcels = Parcels(tree)
        self._excluded: set[str] = set()

    def report(self) -> Report:
        plan, tree = self._plan, self._tree
        results = self._over(plan.hosts)
        for kind, asked in ((OTHER, lambda refused: question(refused, self._source)), (OWN, own_files.question)):
            refused = [r for r in results if r.error is not None and r.error.kind == kind]
            if not refused or not self._runtime.ask(asked(refused)):
                continue
            if kind == OTHER:
                self._replaces = list({tuple(r.data["source"].items()): r.data["source"] for r in refused}.values())
            else:
                self._force = True
            names = {r.host for r in refused}
            hosts = [h for h, r in zip(plan.hosts, results, strict=True) if names & {h.name, r.data.get("shared_with")}]
            again = {r.host: r for r in self._over(hosts)}
            results = tuple(again.get(r.host, r) for r in results)
        results = with_shared(results)
        if self._excluded:
            paths = sorted(self._excluded)
            self._runtime.emit(Notice("info", f"deleted though left out here: {own_files.named({'': paths})}"))
        data = {
            "source": str(tree.root),
            "entries": len(tree.entries),
            "skipped": list(tree.skipped),
            "hard_links": hard_links([tree]),
        }
        return Report("sync", results, exit_code_of(results), data)

    def _over(self, hosts: Sequence[Host]) -> tuple[Result, ...]:
        """Once over the hosts."""
        runtime = self._runtime
        claimed = claim()
        runs: set[str] = set()
        turns = LockOrder(hosts if min(len(hosts), runtime.fanout) > 1 else (), runtime.cancel)

        def waiting(run: str) -> None:
            if run not in runs:  # once for all its hosts
                runs.add(run)
                runtime.emit(Notice("warning", f"waiting until run {run} has begun, which uses the same folder"))

        def one(host: Host) -> Result:
            runtime.emit(Started(host.name, "connecting"))
            session, program = self._ahead.take(host)
            runtime.emit(Started(host.name, COMPARING))
            try:
                with program:
                    turns.begin(host.name)
                    program.go_on(self._spec(host, claimed))
                    return self._one(host, session, Conversation(program, runtime, waiting), program, turns.locked)
            finally:
                session.close()

        return over(hosts, replace(runtime, emit=turns.watch(runtime.emit)), one, COMPARING)

    def _spec(self, host: Host, claimed: Claim) -> Spec:
        return {
            **claimed,
            "dest": self._plan.dests[host.name],
            "host": host.name,
            "patience": PATIENCE_SECONDS,
            "source": self._source,
            "mark": self._mark,
            "replaces": True if self._replaces is True else self._replaces or [],
        }

    def _one(
        self, host: Host, session: Session, talk: Conversation, program: Program, locked: Callable[[str], None]
    ) -> Result:
        tree, name, dest = self._tree, host.name, self._plan.dests[host.name]
        hello = talk.answer(Hello | Inside | Same | Shared)
        if hello["event"] == "inside":
            if tree.why(hello["path"], "d") is None:
                raise HostFailed(
                    f"{dest} lies in the source: each sync would send it along",
                    host=name,
                    kind="sync",
                    hint=f"name another folder with --to, or list {hello['path']}/ in .fleetignore",
                )
            program.send({"op": "go"})
            hello = talk.answer(Hello | Shared)
        locked(name)
        if hello["event"] == "same":
            return Result(name, True, 0, data={"to": dest, "same": True})
        if hello["event"] == "shared":
            return Result(name, True, 0, data={"to": dest, "shared_with": hello["with"]})
        packed = b"" if hello["known"] == tree.digest else tree.packed  # unless the node has this very one
        brought = sorted(tree.brought)
        message = with_payload("manifest", packed, digest=tree.digest, allocated=tree.allocated, brought=brought)
        program.send_bytes(message)
        need = self._settle(talk, program, name)
        if need["event"] == "other":
            return refusal(need, name, self._plan.hint)
        if need["event"] == "own":
            error = own_files.error(name, need["files"], self._plan.hint)
            return Result(
                name, False, error=error, data={"to": hello["dest"], "own": [path for path, *_ in need["files"]]}
            )
        paths: list[str] = []
        while need["event"] == "lacks":
            _take(tree, need["files"], paths, name)
            need = talk.answer(Lacks | Need)
        _take(tree, need["files"], paths, name)
        can_rsync = hello["rsync"] is not None and shutil.which("rsync") is not None
        large = [path for path in paths if can_rsync and tree.by_path[path][3] > SMALL_BYTES]
        sent, total = 0, sum(tree.by_path[path][3] for path in paths)

        def moved(count: int) -> None:
            nonlocal sent
            sent = min(sent + count, total)
            talk.watchdog.word()
            self._runtime.emit(Progress(name, "sending", sent, total))

        def deliver(cancel: Cancel) -> None:
            if large:
                _rsync(session, tree, large, need["stage"], need["basis"], cancel, moved)
            digests = self._parcels.digests(large)
            for parcel, count in self._parcels.of(sorted(set(paths).difference(large))):
                if cancel.is_set():
                    return
                program.send_bytes(parcel)
                moved(count)
            program.send({"op": "switch", "digests": digests})

        with Delivery(program, deliver, self._runtime.cancel):
            done = talk.answer(Done)
        return Result(name, True, 0, data={"to": hello["dest"], **{k: v for k, v in done.items() if k != "event"}})

    def _settle(self, talk: Conversation, program: Program, name: str) -> Other | Own | Lacks | Need:
        """Answer what the node asks, up to what it lacks, or what must be consented to."""
        plan, tree = self._plan, self._tree
        doubts: list[str] = []
        gone: list[tuple[str, Kind]] = []
        own: list[OwnFile] = []

        def send(op: str, answer: object) -> None:
            program.send_bytes(with_payload(op, zlib.compress(json.dumps(answer).encode(), 1)))

        while True:
            message = talk.answer(Doubts | Gone | Own | Other | Lacks | Need)
            if message["event"] == "doubts":
                _few(doubts, message["paths"], len(tree.by_path), name)
                if not message["more"]:
                    if not tree.by_path.keys() >= set(doubts):
                        raise ProtocolError("it asks for files that are not in the source", name)
                    send("digests", self._parcels.digests(doubts))
            elif message["event"] == "gone":
                _few(gone, message["entries"], MAX_ENTRIES, name)
                if not message["more"]:
                    excluded = tree.excluded(gone) if gone else set[str]()
                    if plan.delete_excluded:
                        self._excluded |= excluded
                        excluded = set()
                    send("excluded", sorted(excluded))
            elif message["event"] == "own":
                _few(own, message["files"], len(tree.entries), name)
                if not message["more"]:
                    paths = [path for path, *_ in own]
                    force = self._force
                    meant = paths if force is True else [p for p in paths if force and own_files.is_meant(p, force)]
                    rest = sorted(set(paths).difference(meant))
                    if rest and not plan.keep:
                        return {**message, "files": own}
                    send("resolve", {"replace": meant, "keep": rest})
            else:
                return message


def _few(items: list[T], more: Sequence[T], most: int, host: str) -> None:
    """Take more of a list of the node's, which has an end."""
    items += more
    if len(items) > most or not more:
        raise ProtocolError("it lists more than there can be", host)


def _take(tree: Tree, files: Wanted, paths: list[str], host: str) -> None:
    """Put to `paths` what a node asks for. It may name anything here: ignored files, or what a link in the tree leads
    to."""
    if not tree.by_path.keys() >= {path for path, _ in files} or len(paths) + len(files) > len(tree.by_path):
        raise ProtocolError("it asks for files that are not in the source", host)
    paths += [path for path, _ in files]


def _rsync(
    session: Session,
    tree: Tree,
    paths: Sequence[str],
    stage: str,
    basis: str,
    cancel: Cancel,
    moved: Callable[[int], None],
) -> None:
    options = [*RSYNC, "--compare-dest=" + rsh.local(basis), "--copy-links" if tree.followed else "--links"]
    try:
        rsh.stage(session, options, tree.root, stage, paths, cancel=cancel, moved=moved)
    except HostFailed:
        for path in paths:
            if not tree.local(path).is_file():
                raise HostFailed(
                    f"{path} vanished while it was sent",
                    kind=CHANGED,
                    hint="run the sync again; nothing was switched in",
                ) from None
        raise

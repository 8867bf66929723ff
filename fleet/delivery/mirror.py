"""A folder on every host becomes what one is here, over one warm session a host.

Small files are packed once for all hosts; large ones go by rsync, which sends what has changed in them.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from fleet import fanout
from fleet.delivery.conversation import Conversation, Delivery
from fleet.delivery.lock_order import LockOrder, claim
from fleet.delivery.other_sources import KIND, question, refusal
from fleet.delivery.parcels import Parcels
from fleet.delivery.tree import CHANGED, Tree, grown_notice, hard_links, scan, with_payload
from fleet.each import over, with_shared
from fleet.errors import HostFailed, ProtocolError
from fleet.events import Notice, Progress, Round, Started
from fleet.model import Host, Report, Result, exit_code_of
from fleet.protocol.messages.code import Done, Hello, Lacks, Need, Other, Shared, Source, Spec, Wanted
from fleet.runtime import Runtime
from fleet.transport import rsh
from fleet.transport.base import Cancel, Session
from fleet.transport.program import Program

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
    ignore files leave out. force: also replace and delete what came from another folder. hint: how to say that."""

    hosts: tuple[Host, ...]
    source: Path
    dests: Mapping[str, str]
    whole: bool = False
    force: bool = False
    hint: str = "--force replaces it"


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

    What another folder delivered is lost only with `plan.force`, or when the user says yes to it.
    """
    runtime.emit(Round(f"reading {plan.source}", ()))
    fanout.check_limits(len(plan.hosts), runtime.fanout)
    with Ahead(plan.hosts, runtime) as ahead:
        tree = _scanned(plan)
        for text in tree.notices:
            runtime.emit(Notice("warning", text))
        report = _run(plan, tree, ahead, runtime)
        for _ in range(ROUNDS - 1):
            if not any(r.error is not None and r.error.kind == CHANGED for r in report.results):
                break
            tree = replace(_scanned(plan), longer=tree.longer)
            report = _run(plan, tree, ahead, runtime)
        if tree.grown:
            runtime.emit(Notice("warning", grown_notice(tree.grown)))
        return report


def _scanned(plan: Mirror) -> Tree:
    return scan(plan.source, whole=plan.whole, hosts=plan.hosts)


def _run(plan: Mirror, tree: Tree, ahead: Ahead, runtime: Runtime) -> Report:
    here: Source = {"host": socket.gethostname(), "path": str(tree.root)}
    results = _mirror(plan.hosts, plan, tree, here, plan.force, ahead, runtime)
    others = [r for r in results if r.error is not None and r.error.kind == KIND]
    if others and runtime.ask(question(others, here)):
        names = {r.host for r in others}
        hosts = [
            host
            for host, r in zip(plan.hosts, results, strict=True)
            if names & {r.host, str(r.data.get("shared_with"))}
        ]
        agreed = list({tuple(r.data["source"].items()): r.data["source"] for r in others}.values())
        again = {r.host: r for r in _mirror(hosts, plan, tree, here, agreed, ahead, runtime)}
        results = tuple(again.get(r.host, r) for r in results)
    results = with_shared(results)
    data = {
        "source": str(tree.root),
        "entries": len(tree.entries),
        "skipped": list(tree.skipped),
        "hard_links": hard_links([tree]),
    }
    return Report("sync", results, exit_code_of(results), data)


def _mirror(
    hosts: Sequence[Host],
    plan: Mirror,
    tree: Tree,
    here: Source,
    replaces: bool | Sequence[Source],
    ahead: Ahead,
    runtime: Runtime,
) -> tuple[Result, ...]:
    """Once over the hosts. replaces: the other folders of which what they delivered may be lost, True: any."""
    parcels = Parcels(tree)
    claimed = claim()
    runs: set[str] = set()
    turns = LockOrder(hosts if min(len(hosts), runtime.fanout) > 1 else (), runtime.cancel)

    def waiting(run: str) -> None:
        if run not in runs:  # one word for all its hosts
            runs.add(run)
            runtime.emit(Notice("warning", f"waiting until run {run} has begun, which uses the same folder"))

    def one(host: Host) -> Result:
        runtime.emit(Started(host.name, "connecting"))
        session, program = ahead.take(host)
        runtime.emit(Started(host.name, COMPARING))
        try:
            with program:
                return told(host, session, program)
        finally:
            session.close()

    def told(host: Host, session: Session, program: Program) -> Result:
        name = host.name
        spec: Spec = {
            **claimed,
            "dest": plan.dests[name],
            "host": name,
            "patience": PATIENCE_SECONDS,
            "source": here,
            "replaces": True if replaces is True else list(replaces or []),
        }
        turns.begin(name)
        program.go_on(spec)
        talk = Conversation(program, runtime, waiting)
        hello = talk.answer(Hello | Shared)
        turns.locked(name)
        if hello["event"] == "shared":
            return Result(name, True, 0, data={"to": spec["dest"], "shared_with": hello["with"]})
        packed = b"" if hello["known"] == tree.digest else tree.packed  # unless the node has this very one
        program.send_bytes(with_payload("manifest", packed, digest=tree.digest, allocated=tree.allocated))
        paths: list[str] = []
        while (need := talk.answer(Lacks | Other | Need))["event"] == "lacks":
            _take(tree, need["files"], paths, name)
        if need["event"] == "other":
            return refusal(need, name, plan.hint)
        _take(tree, need["files"], paths, name)
        can_rsync = hello["rsync"] is not None and shutil.which("rsync") is not None
        large = [path for path in paths if can_rsync and tree.by_path[path][3] > SMALL_BYTES]
        sent, total = 0, sum(tree.by_path[path][3] for path in paths)

        def moved(count: int) -> None:
            nonlocal sent
            sent = min(sent + count, total)
            talk.watchdog.word()
            runtime.emit(Progress(name, "sending", sent, total))

        def deliver(cancel: Cancel) -> None:
            if large:
                _rsync(session, tree, large, need["stage"], need["basis"], cancel, moved)
            digests = parcels.digests(large)
            for message, count in parcels.of(sorted(set(paths).difference(large))):
                if cancel.is_set():
                    return
                program.send_bytes(message)
                moved(count)
            program.send({"op": "switch", "digests": digests})

        with Delivery(program, deliver, runtime.cancel):
            done = talk.answer(Done)
        return Result(name, True, 0, data={"to": hello["dest"], **{k: v for k, v in done.items() if k != "event"}})

    return over(hosts, replace(runtime, emit=turns.watch(runtime.emit)), one, COMPARING)


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

"""Makes a folder on every host equal to one on the head, over one open session a host.

Small files are packed once for all hosts. A large file is sent in blocks, and only the blocks that a host does not
have.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from fleet import fanout
from fleet.answers.sync import Mirrored, Synced
from fleet.background import background
from fleet.codec import from_json
from fleet.delivery import own_files
from fleet.delivery.conversation import Answers, Conversation, connected_ahead, delivering
from fleet.delivery.delivered import note
from fleet.delivery.lock_order import LockOrder, claim, shared_with, with_shared
from fleet.delivery.own_files import KIND as OWN
from fleet.delivery.own_files import MOST, OTHER, question, refusal
from fleet.delivery.parcels import Parcels
from fleet.delivery.source_id import identified, marked
from fleet.delivery.tree import CHANGED, Tree, grown_notice, hard_links, scan, with_payload
from fleet.each import for_each_host
from fleet.errors import HostFailed, ProtocolError
from fleet.events import Notice, Progress, Round, Started
from fleet.model import Host, Report, Result, exit_code_of
from fleet.node.delivery.stage import BLOCK
from fleet.protocol.messages.code import (
    Done,
    Hello,
    Inside,
    Lacks,
    Need,
    Same,
    Shared,
    Source,
    Spec,
)
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.program import Program

COMPARING = "comparing files"
ROUNDS = 3  # how often the source is read if its files change during a sync
PATIENCE_SECONDS = 30.0  # a node waits so long for a silent head, then releases the folder's lock


@dataclass(frozen=True)
class Mirror:
    """Holds the plan of a sync. source: the folder on the head. dests: host name -> folder on that host ("~" is the
    home folder on the node). whole: the whole folder is sent; no ignore file applies. hint: how to write --force and
    --keep. command: the typed command line without --force, in two parts: --force goes between them."""

    hosts: tuple[Host, ...]
    source: Path
    dests: Mapping[str, str]
    request: Sync
    whole: bool = False
    hint: str = "--force replaces it"
    command: tuple[str, str] = ("fleet sync", "")

    def consent(self, deleted: int, others: bool) -> str:
        """Returns the command line with the consent to delete `deleted` files. others: True to replace files of other
        sources, too."""
        force = True if others else self.request.force
        options = ["--force"] if force is True else [f"--force={pattern}" for pattern in force or ()]
        return f"{self.command[0]} {shlex.join([*options, f'--max-delete={deleted}'])}{self.command[1]}"

    def read(self) -> Tree:
        """Returns the entries of the source. Raises UsageError."""
        return scan(
            self.source,
            whole=self.whole,
            everything=self.request.all,
            copy_unsafe_links=self.request.copy_unsafe_links,
            hosts=self.hosts,
            places=sorted(set(self.dests.values())),
        )


def run(plan: Mirror, runtime: Runtime) -> Report:
    """Makes the folder on all hosts equal to the source, all hosts at once. Results carry {"to", "sent", "bytes",
    "deleted", "kept", ...}.

    Files that belong to the node, or to another source, are replaced or deleted only with --force, or if the user
    consents.
    """
    runtime.emit(Round(f"reading {plan.source}", ()))
    fanout.check_limits(len(plan.hosts), runtime.fanout)
    with connected_ahead(plan.hosts, runtime) as take:
        tree = plan.read()
        for text in tree.notices:
            runtime.emit(Notice("warning", text))
        with nullcontext() if plan.whole else marked(tree.root) as mark:
            source = identified(tree.root, "" if plan.whole else plan.request.source_id or None)
            if not source["id"] and not plan.whole:
                text = f"nothing can be written to {tree.root}, by which it is known next time: --source-id ID names it"
                runtime.emit(Notice("warning", text))
            for more in reversed(range(ROUNDS)):
                report = _Mirroring(plan, tree, source, mark, take, runtime).report()
                if not more or not any(r.error is not None and r.error.kind == CHANGED for r in report.results):
                    break
                tree = replace(plan.read(), odd=tree.odd)
        if not plan.whole and any(r.ok for r in report.results):
            note(source, tree)
        if tree.grown:
            runtime.emit(Notice("warning", grown_notice(tree.grown)))
        return report


class _Mirroring:
    """Runs one sync. mark: the name of an empty folder that lies in the source during the sync (source_id.marked).
    take: returns the session and the program of a host (conversation.connected_ahead)."""

    def __init__(
        self,
        plan: Mirror,
        tree: Tree,
        source: Source,
        mark: str | None,
        take: Callable[[Host], tuple[Session, Program]],
        runtime: Runtime,
    ) -> None:
        self._plan, self._tree, self._source, self._mark = plan, tree, source, mark
        self._connected, self._runtime = take, runtime
        request = plan.request
        self._others: list[Source] = []  # the sources whose files would be lost, as nodes reported
        self._replaces: list[Source] | Literal[True] = True if request.force is True else []
        self._max_delete = request.max_delete
        self._parcels = Parcels(tree)
        self._answers = Answers(tree, self._parcels, runtime.emit, request)

    def report(self) -> Report:
        plan, tree = self._plan, self._tree
        results = self._over(plan.hosts)
        last = f"Put {self._source['host']}:{self._source['path']} there all the same?"
        delete = partial(question, last="Delete them?")
        for kind, make in ((MOST, delete), (OTHER, partial(question, last=last)), (OWN, question)):
            refused = [r for r in results if r.error is not None and r.error.kind == kind]
            if not refused or not self._runtime.ask(make(refused)):
                continue
            if kind == OTHER:
                self._replaces = list(self._others)  # the sources that the question named
            elif kind == MOST:
                self._max_delete = "all"
            else:
                self._answers.force = True
            names = {r.host for r in refused}
            hosts = [h for h, r in zip(plan.hosts, results, strict=True) if names & {h.name, shared_with(r)}]
            again = {r.host: r for r in self._over(hosts)}
            results = tuple(again.get(r.host, r) for r in results)
        results = with_shared(results)
        answer = Mirrored(
            str(tree.root),
            len(tree.entries),
            list(tree.skipped),
            hard_links([tree]),
            tree.rules and tree.rules.left_out or None,
        )
        return Report("sync", results, exit_code_of(results), answer=answer)

    def _over(self, hosts: Sequence[Host]) -> tuple[Result, ...]:
        """Syncs these hosts once, and returns their results."""
        runtime = self._runtime
        claimed = claim()
        runs: set[str] = set()
        turns = LockOrder(hosts if min(len(hosts), runtime.fanout) > 1 else (), runtime.cancel)

        def waiting(run: str) -> None:
            if run not in runs:  # one notice for all hosts of the run
                runs.add(run)
                runtime.emit(Notice("warning", f"waiting until run {run} has begun, which uses the same folder"))

        def one(host: Host) -> Result:
            runtime.emit(Started(host.name, "connecting"))
            session, program = self._connected(host)
            runtime.emit(Started(host.name, COMPARING))
            with closing(session), program:
                turns.begin(host.name)
                spec: Spec = {
                    **claimed,
                    "dest": self._plan.dests[host.name],
                    "host": host.name,
                    "patience": PATIENCE_SECONDS,
                    "source": self._source,
                    "mark": self._mark,
                    "force": self._plan.request.force,
                    "replaces": self._replaces,
                    "max_delete": self._max_delete,
                }
                program.go_on(spec)
                return self._one(host, Conversation(program, runtime, waiting), program, turns.locked)

        return for_each_host(hosts, replace(runtime, emit=turns.watch(runtime.emit)), one, COMPARING)

    def _one(self, host: Host, conversation: Conversation, program: Program, locked: Callable[[str], None]) -> Result:
        tree, name, dest = self._tree, host.name, self._plan.dests[host.name]
        hello = conversation.answer(Hello | Inside | Same | Shared)
        if hello["event"] == "inside":
            if tree.why(hello["path"], "d") is None:
                raise HostFailed(
                    f"{dest} lies in the source: each sync would send it along",
                    host=name,
                    kind="sync",
                    hint=f"name another folder with --to, or list {hello['path']}/ in .fleetignore",
                )
            program.send({"op": "go"})
            hello = conversation.answer(Hello | Shared)
        locked(name)
        if hello["event"] == "same":
            return Result(name, True, 0, answer=Synced(dest, same=True))
        if hello["event"] == "shared":
            return Result(name, True, 0, answer=Synced(dest, shared_with=hello["with"]))
        packed = b"" if hello["known"] == tree.digest else tree.packed  # empty if the node already has this manifest
        fetched = sorted(tree.brought)
        message = with_payload("manifest", packed, digest=tree.digest, allocated=tree.allocated, brought=fetched)
        program.send_bytes(message)
        need = self._answers.answer_until_need(conversation, program, name)
        if need["event"] == "consent":
            self._others += need["sources"] if need["to"] == "sources" else []
            return refusal(need, name, self._plan.consent)
        if need["event"] == "own":
            error = own_files.error(name, need["items"], self._plan.hint)
            return Result(
                name, False, error=error, answer=Synced(hello["dest"], own=[path for path, *_ in need["items"]])
            )
        paths: list[str] = []
        has: dict[str, dict[int, str]] = {}
        while need["event"] == "lacks":
            _take(tree, need, paths, has, name)
            need = conversation.answer(Lacks | Need)
        _take(tree, need, paths, has, name)
        large = sorted(path for path in paths if tree.by_path[path][3] > BLOCK)
        sent, total = 0, sum(tree.by_path[path][3] for path in paths)

        def moved(count: int) -> None:
            nonlocal sent
            sent = min(sent + count, total)
            conversation.watchdog.received()
            self._runtime.emit(Progress(name, "sending", sent, total))

        def deliver(cancel: Cancel) -> None:
            if large:
                background("digests", partial(self._parcels.digests, large))  # digests() below raises its errors
            for message, count in self._parcels.of(sorted(set(paths).difference(large)), large, has):
                if cancel.is_set():
                    return
                if message:
                    program.send_bytes(message)
                moved(count)
            program.send({"op": "switch", "digests": self._parcels.digests(large)})

        with delivering(program, deliver, self._runtime.cancel):
            done = conversation.answer(Done)
        return Result(name, True, 0, answer=from_json(Synced, {**done, "to": hello["dest"]}))


def _take(tree: Tree, need: Lacks | Need, paths: list[str], has: dict[str, dict[int, str]], host: str) -> None:
    """Adds to `paths` the files that a node lacks, and to `has` the blocks that it has. Raises ProtocolError for a path
    that is not in the source. Otherwise a node could request an ignored file, or the target of a link in the tree."""
    files, blocks, sizes = need.get("files", []), need.get("blocks", []), tree.by_path
    if not sizes.keys() >= {path for path, _ in files} or len(paths) + len(files) > len(sizes):
        raise ProtocolError("it asks for files that are not in the source", host)
    if any(path not in sizes or number * BLOCK >= sizes[path][3] for path, number, _ in blocks):
        raise ProtocolError("it has blocks of what is not in the source", host)
    if need["event"] == "lacks" and not (files or blocks):
        raise ProtocolError("it lacks nothing, and says so", host)
    paths += [path for path, _ in files]
    for path, number, digest in blocks:
        if has.setdefault(path, {}).setdefault(number, digest) is not digest:
            raise ProtocolError("it has a block twice", host)

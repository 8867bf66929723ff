"""Runs a broadcast: converses with every host and with the source at once, and makes one report."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fleet import fanout
from fleet.answers.sync import Broadcasted, Received
from fleet.background import unattended
from fleet.delivery import own_files
from fleet.delivery.chain.coordinator import TICK_SECONDS
from fleet.delivery.chain.handlers import Head
from fleet.delivery.chain.member import Member, converse
from fleet.delivery.chain.source import HeadSource, NodeSource
from fleet.delivery.lock_order import LockOrder, claim, with_shared
from fleet.delivery.manifest import Manifest, scan
from fleet.delivery.tree import grown_notice, links_notice
from fleet.each import failed, for_each_host
from fleet.errors import FleetError, HostFailed
from fleet.events import Notice, Round, Started
from fleet.model import Host, Report, Result, exit_code_of
from fleet.protocol.messages.chain import MemberSpec
from fleet.runtime import Runtime
from fleet.transport.certificate import make_certificate

PATIENCE_SECONDS = 60.0  # a node waits so long for a silent head, then releases its locks
FDS_PER_HOST = 2  # open files that the head needs for each host


@dataclass(frozen=True)
class Item:
    """Holds one PATH:DEST. source: an absolute path on the head, or a path on the host that has the files
    (Broadcast.origin). dests: host name -> path on that host ("~" is the home folder there)."""

    source: Path
    dests: Mapping[str, str]


@dataclass(frozen=True)
class Broadcast:
    """Holds the plan of a broadcast. limit: most bytes a second that leave the source; None for no limit. origin: the
    host that has the files; None if this machine has them. copy_unsafe_links: links that lead out of the source are
    replaced by their targets. force, keep: as in Sync. hint: as in mirror.Mirror."""

    hosts: tuple[Host, ...]
    items: tuple[Item, ...]
    limit: int | None = None
    origin: Host | None = None
    copy_unsafe_links: bool = False
    force: bool | Sequence[str] = False
    keep: bool = False
    hint: str = "--force replaces it"


def run(plan: Broadcast, runtime: Runtime) -> Report:
    """Copies the plan's files to all hosts. A result holds what its host received: {"to": [path], "files", "bytes",
    ...}.

    Report.answer: {"sources", "files", "size", "sent": bytes that left the source, "cuts"}. Hosts that cannot be
    reached are left out. If a host refuses the files (no disk space, no permission), nothing is sent to any host.
    """
    report = _run(plan, runtime)
    refused = [r for r in report.results if r.error is not None and r.error.kind == own_files.KIND]
    if refused and runtime.ask(own_files.question(refused)):
        plan = replace(plan, force=True)
        report = _run(plan, runtime)
    if len(plan.items) > 1 and any(r.error is not None and r.error.kind == "mixed" for r in report.results):
        return _joined([_run(replace(plan, items=(item,)), runtime) for item in plan.items])
    return report


def _joined(reports: list[Report]) -> Report:
    """Returns one report of several broadcasts to the same hosts."""
    results: list[Result] = []
    for of_host in zip(*(report.results for report in reports), strict=True):
        first = next((r for r in of_host if not r.ok), of_host[0])
        each = [r.read(Received) for r in of_host]
        answer = Received(
            to=[to for one in each for to in one.to],
            files=sum(one.files or 0 for one in each),
            bytes=sum(one.bytes or 0 for one in each),
        )
        results.append(Result(first.host, first.ok, first.exit_status, error=first.error, answer=answer))
    parts = [report.read(Broadcasted) for report in reports]
    whole = replace(
        parts[0],
        sources=[one for part in parts for one in part.sources],
        cuts=[one for part in parts for one in part.cuts],
        skipped=[one for part in parts for one in part.skipped],
        files=sum(part.files for part in parts),
        size=sum(part.size for part in parts),
        sent=sum(part.sent for part in parts),
        hard_links=sum(part.hard_links for part in parts),
    )
    final = tuple(results)
    return Report("sync", final, exit_code_of(final), answer=whole)


def _run(plan: Broadcast, runtime: Runtime) -> Report:
    sources = [item.source for item in plan.items]
    runtime.emit(Round(f"reading {', '.join(map(str, sources))}", ()))
    tls = make_certificate()
    with contextlib.ExitStack() as opened:
        source: HeadSource | NodeSource
        if plan.origin is None:
            manifest = scan(sources, plan.copy_unsafe_links)
            source = HeadSource(manifest, sources, tls, plan.limit)
        else:
            session = runtime.transport.connect(plan.origin, runtime.cancel)
            opened.callback(session.close)
            names, follows = list(map(str, sources)), plan.copy_unsafe_links
            source = NodeSource(session, names, tls, plan.limit, PATIENCE_SECONDS, runtime.cancel, follows)
            manifest = source.read()
        if manifest.unsafe_links:
            runtime.emit(Notice("warning", links_notice(manifest.unsafe_links)))
        report = _sent(plan, runtime, tls, manifest, source)
    if source.grown:
        grown = [manifest.files[index] for index in source.grown]
        runtime.emit(Notice("warning", grown_notice(entry[1] or sources[entry[0]].name for entry in grown)))
    return report


def _sent(
    plan: Broadcast, runtime: Runtime, tls: dict[str, str], manifest: Manifest, source: HeadSource | NodeSource
) -> Report:
    # the chain needs every host at once, however small the fan-out
    fanout.check_limits(len(plan.hosts), len(plan.hosts), FDS_PER_HOST)
    members = [
        Member(host, [item.dests[host.name] for item in plan.items], secrets.token_urlsafe(24)) for host in plan.hosts
    ]
    every = max(0.2, len(members) / 160)
    lock_order = LockOrder(plan.hosts if len(members) > 1 else (), runtime.cancel)
    claimed = claim()
    folders = {entry[0] for entry in manifest.entries if entry[1:3] == ("", "d")}
    kinds = ["d" if number in folders else "f" for number in range(len(plan.items))]
    coordinator = Head(
        members,
        manifest,
        runtime.emit,
        source,
        every=every,
        limit=plan.limit,
        locked=lock_order.release_turn,
        force=plan.force,
        keep=plan.keep,
        hint=plan.hint,
    )

    def one(host: Host) -> Result:
        """Connects to one host, converses with it to the end, and returns its result."""
        member = coordinator.members[host.name]
        runtime.emit(Started(host.name, "connecting"))
        error: FleetError | None = None
        spec: MemberSpec = {
            **claimed,
            "patience": PATIENCE_SECONDS,
            "every": every,
            "tls": tls,
            "force": plan.force,
            "host": host.name,
            "token": member.token,
            "listen": host.data_address or host.address,
            "targets": list(zip(member.dests, kinds, strict=True)),
        }
        try:
            session = member.session = runtime.transport.connect(host, runtime.cancel)
            member.reached = session.address
            with closing(session), runtime.cancel.calling(member.cancel.set):
                lock_order.begin(host.name)
                if not coordinator.over.is_set():
                    converse(session, spec, member.cancel, partial(coordinator.opened, member), coordinator.handle)
        except BaseException as raised:  # SystemExit, too: the other hosts must not wait for this one
            error = failed(host, raised).error
        coordinator.left(host.name, error)
        is_fault = error is not None and error.kind == "internal"
        if not is_fault and (error is None or member.state == "done" or not runtime.cancel.is_set()):
            error = member.error
        answer = replace(member.answer, to=member.dests)
        return Result(host.name, error is None, None if error else 0, error=error, answer=answer)

    def tick() -> None:
        try:
            while not coordinator.over.wait(TICK_SECONDS) and not runtime.cancel.is_set():
                coordinator.tick()
        except Exception as error:  # without ticks, a broadcast may never end
            here = Host("this machine", "localhost")
            coordinator.abort(failed(here, error).error or HostFailed(str(error)))

    if isinstance(source, NodeSource):
        source.follow(coordinator.abort)
    unattended("ticker", tick)
    try:
        ordered = replace(runtime, fanout=len(members), emit=lock_order.watch(runtime.emit))
        final = with_shared(for_each_host(plan.hosts, ordered, one, ""))
    finally:
        coordinator.end()
    answer = Broadcasted(
        sources=[str(item.source) for item in plan.items],
        files=len(manifest.files),
        size=manifest.size,
        sent=source.sent,
        cuts=coordinator.cuts,
        skipped=list(manifest.skipped),
        hard_links=manifest.hard_links,
        source=plan.origin.name if plan.origin else None,
    )
    return Report("sync", final, exit_code_of(final), answer=answer)

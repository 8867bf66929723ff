"""Runs a broadcast: a conversation with every host and with the source, all at once, and one report."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from fleet import fanout
from fleet.delivery.chain.certificate import make_certificate
from fleet.delivery.chain.coordinator import TICK_SECONDS, Coordinator
from fleet.delivery.chain.member import Member, converse
from fleet.delivery.chain.source import Source
from fleet.delivery.chain.star import send
from fleet.delivery.chain.tunnel import ways
from fleet.delivery.lock_order import LockOrder, claim
from fleet.delivery.manifest import Manifest, scan
from fleet.each import failed, with_shared
from fleet.errors import FleetError, HostFailed, UsageError
from fleet.events import Finished, Round, Started
from fleet.model import Host, Report, Result, exit_code_of
from fleet.protocol.messages.chain import MemberSpec
from fleet.runtime import Runtime
from fleet.transport.base import Session

PATIENCE_SECONDS = 60.0  # after which a node gives up a head that says nothing, and its locks
FDS_PER_HOST = 2


@dataclass(frozen=True)
class Item:
    """One PATH:DEST. source: an absolute path on the head. dests: host name -> path there ("~" is the node's)."""

    source: Path
    dests: Mapping[str, str]


@dataclass(frozen=True)
class Broadcast:
    """limit: bytes a second that leave the head, None for no limit. via: "chain", or "rsync": a star."""

    hosts: tuple[Host, ...]
    items: tuple[Item, ...]
    limit: int | None = None
    via: Literal["chain", "rsync"] = "chain"


def run(plan: Broadcast, runtime: Runtime) -> Report:
    """Bring the plan's files to all hosts. Results carry {"to": [path], "files", "bytes", ...}: what was received.

    Report.data: {"sources", "files", "size", "sent": bytes that left this machine, "cuts"}. Hosts that cannot be
    reached are left out; a host that refuses (no room, no right) keeps everything from being sent.
    """
    if plan.via == "rsync" and shutil.which("rsync") is None:
        raise UsageError("rsync is not installed on this machine", hint="apt install rsync")
    report = _run(plan, runtime)
    if len(plan.items) > 1 and any(r.error is not None and r.error.kind == "mixed" for r in report.results):
        return _joined([_run(replace(plan, items=(item,)), runtime) for item in plan.items])
    return report


def _joined(reports: list[Report]) -> Report:
    """Several broadcasts to the same hosts as one."""
    results: list[Result] = []
    for of_host in zip(*(report.results for report in reports), strict=True):
        first = next((r for r in of_host if not r.ok), of_host[0])
        data = {
            "to": [to for r in of_host for to in r.data.get("to", [])],
            **{key: sum(r.data.get(key, 0) for r in of_host) for key in ("files", "bytes")},
        }
        results.append(Result(first.host, first.ok, first.exit_status, error=first.error, data=data))
    data = {key: [one for report in reports for one in report.data[key]] for key in ("sources", "cuts", "skipped")}
    data |= {key: sum(report.data[key] for report in reports) for key in ("files", "size", "sent", "hard_links")}
    final = tuple(results)
    return Report("sync", final, exit_code_of(final), data)


def _run(plan: Broadcast, runtime: Runtime) -> Report:
    runtime.emit(Round(f"reading {', '.join(str(item.source) for item in plan.items)}", ()))
    manifest = scan([item.source for item in plan.items])
    # the chain needs every host at once, however small the fan-out
    fanout.check_limits(len(plan.hosts), len(plan.hosts), FDS_PER_HOST)
    members = [
        Member(host, [item.dests[host.name] for item in plan.items], secrets.token_urlsafe(24)) for host in plan.hosts
    ]
    runtime.emit(Round("", tuple(host.name for host in plan.hosts)))
    transfer = _Transfer(plan, manifest, members, runtime)
    coordinator = transfer.coordinator
    threading.Thread(target=transfer.ticker, name="ticker", daemon=True).start()
    results: dict[str, Result] = {}
    try:
        for member, outcome in fanout.run(members, transfer.member, limit=len(members), cancel=runtime.cancel):
            name = member.host.name
            result = outcome if isinstance(outcome, Result) else failed(member.host, outcome)
            results[name] = result
            runtime.emit(Finished(result))
    finally:
        coordinator.end()
    final = with_shared([results[host.name] for host in plan.hosts])
    data = {
        "sources": [str(item.source) for item in plan.items],
        "files": len(manifest.files),
        "size": manifest.size,
        "sent": coordinator.sent,
        "cuts": coordinator.cuts,
        "skipped": list(manifest.skipped),
        "hard_links": manifest.hard_links,
    }
    return Report("sync", final, exit_code_of(final), data)


class _Transfer:
    """What the threads of one broadcast share."""

    def __init__(self, plan: Broadcast, manifest: Manifest, members: list[Member], runtime: Runtime) -> None:
        self._plan, self._manifest, self._runtime = plan, manifest, runtime
        self._sessions: dict[str, Session] = {}
        self._lock_order = LockOrder(plan.hosts if len(members) > 1 else (), runtime.cancel)
        self._tls, self._claim = make_certificate(), claim()
        self._every = max(0.2, len(members) / 160)
        self._source = Source(manifest, [item.source.resolve() for item in plan.items], self._tls, plan.limit)
        self.coordinator = Coordinator(
            members,
            manifest,
            runtime.emit,
            self._source,
            self._serve,
            star=self.star if plan.via == "rsync" else None,
            every=self._every,
            limit=plan.limit,
            locked=self._lock_order.leave,
        )
        self._at_once = threading.BoundedSemaphore(runtime.fanout)
        self._kinds = ["d" if item.source.is_dir() else "f" for item in plan.items]

    def _serve(self, member: Member, epoch: int) -> None:
        name = member.host.name
        self._source.send_to(name, epoch, member.token, ways(member, self._sessions.get(name)))

    def member(self, member: Member) -> Result:
        """One host, from connecting to its result."""
        host, coordinator = member.host, self.coordinator
        self._runtime.emit(Started(host.name, "connecting"))
        error: FleetError | None = None
        try:
            session = self._runtime.transport.connect(host, self._runtime.cancel)
            self._sessions[host.name] = session
            member.reached = session.address
            undo = self._runtime.cancel.on_set(member.cancel.set)
            try:
                self._lock_order.begin(host.name)
                spec: MemberSpec = {
                    **self._claim,
                    "patience": PATIENCE_SECONDS,
                    "every": self._every,
                    "tls": self._tls,
                    "via": self._plan.via,
                    "host": host.name,
                    "token": member.token,
                    "listen": host.data_address or host.address,
                    "targets": list(zip(member.dests, self._kinds, strict=True)),
                }

                if not coordinator.over.is_set():
                    converse(session, spec, member.cancel, partial(coordinator.opened, member), coordinator.handle)
            finally:
                undo()
                session.close()
        except FleetError as raised:
            error = raised
        except Exception as raised:
            error = failed(host, raised).error
            raise
        finally:
            coordinator.left(host.name, error)
        data = {"to": member.dests, **member.data}
        if self._runtime.cancel.is_set() and member.state != "done" and error is not None:
            return Result(host.name, False, error=error, data=data)
        if member.error is not None:
            return Result(host.name, False, error=member.error, data=data)
        return Result(host.name, True, 0, data=data)

    def star(self, member: Member) -> None:
        """Bring one member its files by rsync."""
        plan, name = self._plan, member.host.name
        limit = plan.limit and plan.limit // min(self._runtime.fanout, len(self.coordinator.members))
        try:
            with self._at_once:
                sent = send(
                    self._sessions[name],
                    member,
                    self._manifest,
                    [item.source for item in plan.items],
                    limit,
                    self._runtime,
                )
            self.coordinator.staged(name, sent)
        except Exception as error:
            result = failed(member.host, error)
            assert result.error
            self.coordinator.give_up(name, result.error)

    def ticker(self) -> None:
        try:
            while not self.coordinator.over.wait(TICK_SECONDS) and not self._runtime.cancel.is_set():
                self.coordinator.tick()
        except Exception as error:  # unwatched, a broadcast may never end
            here = Host("this machine", "localhost")
            self.coordinator.abort(failed(here, error).error or HostFailed(str(error)))

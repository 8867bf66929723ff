"""Runs the node side of wheels: reads the interpreter, fills the folder of wheels, and installs. The folder's name is
made from its content and the head's id."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.answers.sync import HasWheels
from fleet.delivery import mirror
from fleet.delivery.chain import transfer
from fleet.delivery.chain.transfer import Broadcast, Item
from fleet.delivery.mirror import Mirror
from fleet.each import on_each
from fleet.errors import HostFailed, PreflightError, ProtocolError, Reason
from fleet.events import Notice, Started
from fleet.inventory.nodeset import fold
from fleet.model import Host, Inventory, Result
from fleet.ops import execute
from fleet.ops.cache import cache, fresh, head_id
from fleet.ops.facts import HasFacts, training
from fleet.ops.wheels.present import breaks
from fleet.ops.wheels.wheel import Reading, Wheel
from fleet.protocol.messages.values import Failed
from fleet.protocol.messages.wheels import Installed, InstallFailed, InstallSpec, Interpreter, InterpreterSpec
from fleet.protocol.state import CODE_STATE, DATA_STATE, HOME, WHEELS
from fleet.requests.hosts import Exec
from fleet.requests.sync import Sync
from fleet.rules.units import size
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import call

ANSWER_SECONDS = 60.0
LOCK_SECONDS = 600.0
# errors of a broadcast after which a sync may still reach the host: it needs only the SSH connection
CHAIN_KINDS = ("unreachable", "slow", "stalled")
# Larger sets are sent by a broadcast. For smaller ones, its start costs more than it saves.
CHAIN_BYTES = 32 << 20


def _refused(failure: Failed) -> HostFailed:
    return HostFailed(Reason.of_node(failure["message"]), hint=failure["hint"] or None, kind="wheels")


def ask(inventory: Inventory, wheels: Sequence[Wheel], runtime: Runtime, *, judge: bool = True) -> tuple[Result, ...]:
    """Returns, as HasFacts, each host's interpreter and the state of the wheels there. Changes nothing. judge: whether
    to return also the tags of the host's pip and all installed packages; for this, the host imports pip."""
    requested = [wheel.identity_of() for wheel in wheels]

    def task(session: Session, host: Host) -> Result:
        spec: InterpreterSpec = {
            **training(inventory, host),
            "deadline": ANSWER_SECONDS,
            "wheels": requested,
            "judge": judge,
        }
        facts = call(
            session,
            "python.interpreter",
            spec,
            Interpreter | Failed,
            timeout=ANSWER_SECONDS + 30,
            cancel=runtime.cancel,
        )
        if facts["event"] == "failed":
            raise _refused(facts)
        if len(facts["states"]) != len(wheels):
            raise ProtocolError("it reports other wheels than were requested", host.name)
        return Result(host.name, True, 0, answer=HasFacts(facts))

    return on_each(inventory.hosts, runtime, task, what="asking its Python")


def states(facts: Mapping[str, Any], wheels: Sequence[Wheel]) -> dict[str, str]:
    """Returns the name of each wheel -> its state on this node."""
    return {w.name: s["state"] for w, s in zip(wheels, facts["states"], strict=False)}


def lacking(facts: Mapping[str, Any], wheels: Sequence[Wheel]) -> list[Wheel]:
    """Returns the wheels that this node does not have unchanged, or has never imported."""
    return [w for w, s in zip(wheels, facts["states"], strict=True) if s["state"] != "there" or not s["verified"]]


def refusal(facts: Mapping[str, Any], wheels: Sequence[Wheel], force: bool) -> PreflightError | None:
    """Returns the error that the wheels cannot be installed into this interpreter, or None if they can. Uses the facts
    alone, so nothing need be sent before."""
    todo = [w for w, s in zip(wheels, facts["states"], strict=True) if s["state"] != "there"]
    python = facts["executable"]
    if facts["pip"] is None:
        return PreflightError(
            f"{python} has no pip",
            kind="no-pip",
            hint=f"{python} -m ensurepip, or apt-get install python3-pip python3-venv",
        )
    if facts["managed"] and todo:
        return PreflightError(
            f"{python} is managed by the system, which allows no installs into it",
            kind="managed",
            hint="make an environment (python3 -m venv ~/train) and name its python in the inventory: python: "
            "~/train/bin/python",
        )
    if not force and (broken := breaks(facts, wheels)):
        return PreflightError(
            f"unmet: {', '.join(broken[:8])}",
            kind="unmet",
            hint="add wheels that fit, or let fleet collect those that FILE names: fleet sync --wheels FILE; "
            "with --force these are installed all the same",
        )
    needed = sum(w.unpacked for w in todo)
    if needed > facts["free"]:
        return PreflightError(
            Reason(
                "{size} are to be installed in {to}, {free} are free",
                size=size(needed),
                to=facts["target"],
                free=size(facts["free"]),
            ),
            kind="room",
            hint="free some space there",
        )
    return None


def install(
    inventory: Inventory,
    wheels: Sequence[Wheel],
    facts: Mapping[str, Mapping[str, Any]],
    folder: str,
    runtime: Runtime,
    import_seconds: float,
) -> tuple[Result, ...]:
    """Installs the copied wheels on every host of the inventory. folder: the wheels' folder on the hosts. facts: host
    name -> facts. A result has the state of each wheel after the installation: "unknown" if the host was lost before
    its report."""
    mine = {host.name: lacking(facts[host.name], wheels) for host in inventory.hosts}
    lost = {name: states(facts[name], wheels) | {w.name: "unknown" for w in some} for name, some in mine.items()}

    def task(session: Session, host: Host) -> Result:
        runtime.emit(Started(host.name, "installing"))
        some = mine[host.name]
        wanted = {w.name for w in some}
        spec: InstallSpec = {
            **training(inventory, host),
            "deadline": ANSWER_SECONDS,
            "folder": folder,
            "mark": f"wheels-{uuid.uuid4().hex}",
            "wait": LOCK_SECONDS,
            "import_deadline": import_seconds,
            "wheels": [w.carried() for w in some],
        }
        began = time.monotonic()
        answer = call(session, "python.install", spec, Installed | InstallFailed, cancel=runtime.cancel)
        there = {name: state for name, state in answer.get("wheels", {}).items() if name in wanted}
        if answer["event"] == "failed":
            return Result(host.name, False, error=_refused(answer), answer=HasWheels(wheels=lost[host.name] | there))
        if not there.keys() >= wanted:
            raise ProtocolError("it reports other wheels than it was to install", host.name)
        return Result(
            host.name,
            True,
            0,
            answer=HasWheels(answer["executable"], lost[host.name] | there, round(time.monotonic() - began, 1)),
        )

    results = on_each(inventory.hosts, runtime, task, what="installing")
    return tuple(r if r.answer else replace(r, answer=HasWheels(wheels=lost[r.host])) for r in results)


# removes also the folders of unfinished syncs
CLEAN = (
    f'cd ~/{HOME}/"$0" 2>/dev/null && rm -rf -- "$1" ".$1{CODE_STATE}" ".$1{DATA_STATE}" && '
    f"find . -maxdepth 1 -mtime +7 -name '*{'?' * 24}-{'?' * 8}*' -exec rm -rf -- {{}} +"
)


def digest_of_set(wheels: Sequence[Wheel]) -> str:
    """Returns a name for a set of wheels, which depends on its content only."""
    text = "\n".join(sorted(f"{w.sha256} {w.path.name}" for w in wheels))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def folder_of(name: str, kind: str = WHEELS) -> str:
    """Returns the folder on the hosts for files that are sent under that name. Each head has a folder of its own."""
    return f"~/{HOME}/{kind}/{name}-{head_id()}"


def carry(inventory: Inventory, wheels: Sequence[Wheel], name: str, runtime: Runtime) -> tuple[Result, ...]:
    """Copies exactly these wheels to folder_of(name) on every host of the inventory. A second call with the same name
    sends only missing wheels. A file gets its name only after its digest was verified. The caller must hold the lock of
    that name."""
    with fresh(cache() / "wheels" / f"send-{name}") as stage:
        for wheel in wheels:
            source, target = wheel.path.resolve(), stage / wheel.path.name
            try:
                os.link(source, target)
            except OSError:
                with Reading(source, runtime.cancel.is_set) as file, target.open("wb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
        return bring(inventory.hosts, stage, folder_of(name), sum(w.size for w in wheels), runtime)


def forget(there: Inventory, folder: str, runtime: Runtime) -> None:
    """Removes copied files from the hosts that have installed or loaded them. Ignores failures: the next call removes
    the rest."""
    if there.hosts and not runtime.cancel.is_set():
        request = Exec(("sh", "-c", CLEAN, *folder.split("/")[-2:]), timeout=60.0)
        quiet = Runtime(runtime.transport, runtime.fanout, cancel=runtime.cancel)
        execute.run(execute.plan(there, request), quiet)


def bring(hosts: tuple[Host, ...], folder: Path, there: str, size: int, runtime: Runtime) -> tuple[Result, ...]:
    """Makes the folder `there` on every host equal to `folder`, which has `size` bytes. Hosts that the broadcast did
    not reach get their own copy, unless a host failed for another reason."""
    done: dict[str, Result] = {}
    if size >= CHAIN_BYTES and len(hosts) > 1:
        item = Item(folder, {h.name: there for h in hosts})
        done = {r.host: r for r in transfer.run(Broadcast(hosts, (item,)), runtime).results}
    failed = {r.host: r.error for r in done.values() if r.error is not None}
    left = tuple(h for h in hosts if h.name not in done or h.name in failed)
    if left and all(error.kind in CHAIN_KINDS for error in failed.values()) and not runtime.cancel.is_set():
        if done:
            runtime.emit(Notice("warning", f"the broadcast did not reach {fold(failed)}: each gets its own copy"))
        plan = Mirror(left, folder, {h.name: there for h in left}, Sync(force=True, max_delete="all"), whole=True)
        done |= {r.host: r for r in mirror.run(plan, runtime).results}
    return tuple(done[h.name] for h in hosts)

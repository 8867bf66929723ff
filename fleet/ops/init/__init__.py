"""Plans and runs `fleet init`: proposes an inventory from a source on the head and the facts of the hosts.

An existing inventory keeps its contents, and additions are proposed. No other file is written, on no machine.
"""

from __future__ import annotations

import shlex
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fleet import own
from fleet.answers.hosts import InitFound, Proposed
from fleet.errors import FleetError, HostFailed, Interrupted, InventoryError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.inventory.select import select
from fleet.inventory.write import entry, fields_of
from fleet.inventory.yaml_file import parse_yaml, read_defaults
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.facts import HasFacts
from fleet.ops.init import ask, choose
from fleet.ops.init.choose import proposed
from fleet.ops.init.sources import Given, find
from fleet.ops.plans import Line, OnHosts
from fleet.ops.sessions import Sessions
from fleet.ops.setup_ssh import SetupRuntime, files
from fleet.requests.request import Reach
from fleet.transport.base import ConnectOptions
from fleet.transport.ssh.transport import SshTransport


@dataclass(frozen=True)
class InitPlan(OnHosts):
    """Describes what to probe. path: the inventory to write. old: its present text, or None. inventory: the hosts to
    probe. new: names of hosts that are not in the file. folder: the head's current folder; no workdir is proposed if
    all hosts have that folder. python: the interpreter of the head's environment, which hosts may have, too."""

    path: Path
    old: str | None
    new: frozenset[str]
    notes: tuple[str, ...] = ()
    folder: str = "/"
    python: str = "python3"
    connect_timeout: float = Reach.connect_timeout
    tofu: bool = False

    def describe(self) -> dict[str, Any]:
        """Returns the plan as JSON."""
        hosts = {host.name: {"new": host.name in self.new, **fields_of(host)} for host in self.hosts}
        return {"inventory": str(self.path), "hosts": hosts, "notes": list(self.notes)}

    def lines(self) -> Iterator[Line]:
        yield from self.notes
        what = "write" if self.old is None else "add to"
        yield f"would ask these hosts for interpreters, GPUs and addresses, and {what} {self.path}:"
        for host in self.hosts:
            yield f"  {entry(host.name, fields_of(host))}{'' if host.name in self.new else '  (in there already)'}"


@dataclass(frozen=True)
class Proposal(Report):
    """Reports a proposal. text: the proposed inventory, or None if no host could be probed. rows: host -> column ->
    text, for the table."""

    text: str | None = None
    rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def plan(
    path: Path,
    old: str | None,
    given: Given,
    *,
    hosts: str | None = None,
    exclude: str | None = None,
    folder: str = "/",
    python: str = "python3",
    connect_timeout: float = Reach.connect_timeout,
    tofu: bool = False,
) -> InitPlan:
    """Returns the plan. old: the text of the inventory at `path`, or None if there is no file. hosts, exclude: values
    of -w and -x. Pure."""
    inventory = replace(given.inventory, source=str(path))
    new = frozenset(inventory.names)
    if old is not None:
        there = parse_yaml(old, str(path))
        added = _added(given.inventory, there, read_defaults(old, str(path)))
        inventory, new = replace(there, hosts=(*there.hosts, *added)), frozenset(host.name for host in added)
    inventory = select(inventory, hosts, exclude)
    return InitPlan(
        inventory=inventory,
        path=path,
        old=old,
        new=new & {*inventory.names},
        notes=given.notes,
        folder=folder,
        python=python,
        connect_timeout=connect_timeout,
        tofu=tofu,
    )


def _added(given: Inventory, there: Inventory, defaults: Mapping[str, Any]) -> list[Host]:
    """Returns the given hosts that the inventory `there` lacks, with its defaults."""
    known = {host.name: host for host in there.hosts}
    added = list[Host]()
    for host in given.hosts:
        same = known.get(host.name) or find(there, host.address, host.port)
        if same is None:
            values = {each.name: getattr(host, each.name) for each in fields(host)}
            added.append(Host(**{**defaults, **{key: value for key, value in values.items() if value}}))
        elif host.address not in (host.name, same.address):
            raise InventoryError(
                f"{there.source} has it at {same.address}, not at {host.address}",
                host=host.name,
                where=given.source,
                hint="correct its address there, or give this one another name",
            )
    return added


def run(plan: InitPlan, runtime: SetupRuntime) -> Proposal:
    """Probes the hosts and proposes the inventory. runtime.confirm: confirms host keys.

    Each result's data: "found", the fields to add, and "lacks", the problems. Report.data: "inventory", and "next", the
    next commands."""
    inventory, failures = ask.trust(plan.inventory, plan.tofu, runtime)
    all_hosts = (*inventory.hosts, *inventory.unselected)
    with closing(SshTransport(ConnectOptions(plan.connect_timeout), hosts=all_hosts)) as transport:
        asking = replace(runtime, transport=transport)
        willing = replace(inventory, hosts=tuple(host for host in inventory.hosts if host.name not in failures))
        results = {**failures, **ask.facts(willing, plan.folder, plan.python, asking)}
        facts = {name: result.read(HasFacts).facts for name, result in results.items() if result.ok}
        endpoints = {host.name: transport.resolve(host) for host in willing.hosts}
        candidates = choose.unshared(
            {name: choose.addresses(found, endpoints[name].address) for name, found in facts.items()}
        )
        with closing(Sessions(asking)) as sessions:
            reached = ask.reach([inventory.host(name) for name in facts], candidates, sessions)
    if runtime.cancel.is_set():
        raise Interrupted("interrupted", hint="nothing was written")
    found = choose.findings_of(inventory, facts, candidates, reached, Path(plan.folder).name)
    filled = {host.name: replace(host, **found[host.name].fields) for host in inventory.hosts}
    for name, each in found.items():
        for message, hint in each.problems:
            runtime.emit(Notice("warning", message, name, hint))
    final = tuple(_result(results[name], plan.inventory.host(name), filled[name], found[name]) for name in filled)
    text = None
    # if no host was probed, and setup-ssh can give access to none, there is nothing to add to the given hosts
    if any(result.ok or keyless(result.error) for result in final):
        remarks = {name: each.remark for name, each in found.items()}
        text, left = proposed(plan.path, plan.old, replace(inventory, hosts=tuple(filled.values())), plan.new, remarks)
        for name, missing in left.items():
            hint = f"take it out of the entry that it shares, and add to its own: {entry(name, missing)}"
            runtime.emit(Notice("warning", f"{plan.path} has no entry for it alone", name, hint))
    rows = {
        name: choose.row(str(endpoints.get(name, host.address)), host, found[name]) for name, host in filled.items()
    }
    answer = Proposed(str(plan.path), _next(final))
    return Proposal("init", final, exit_code_of(final), text=text, rows=rows, answer=answer)


def _result(result: Result, before: Host, after: Host, found: choose.HostFindings) -> Result:
    old, new = fields_of(before), fields_of(after)
    fields = {k: v for k, v in new.items() if old.get(k) != v}
    return replace(result, answer=InitFound(fields, [message for message, _ in found.problems]))


def keyless(error: FleetError | None) -> bool:
    """Returns whether setup-ssh can give access to the host, or to its gateway."""
    why = error.__cause__ if error is not None and error.kind == "gateway" else error
    return isinstance(why, FleetError) and why.kind == "auth"


def _next(results: tuple[Result, ...]) -> list[str]:
    """Returns the next commands, as lines to copy."""
    shut = [result.host for result in results if keyless(result.error)]
    if shut:
        some = "" if len(shut) == len(results) else f" -w {shlex.quote(fold(shut))}"
        return [f"fleet setup-ssh{some}", "fleet init", "fleet check"]
    return ["fleet check", "fleet launch --sync train.py"] if all(result.ok for result in results) else ["fleet init"]


def try_to_write(plan: InitPlan) -> None:
    """Raises HostFailed or UsageError if the file cannot be written, before any host is probed."""
    own.own_file(plan.path, "name another inventory: fleet -i FILE init")
    if plan.old is None:
        files.try_to_write(plan.path)


def write(plan: InitPlan, text: str) -> None:
    """Writes the file atomically. Raises HostFailed if it was changed meanwhile."""
    target = own.own_file(plan.path, "name another inventory: fleet -i FILE init")
    now = files.read(target)
    bom = BOM_UTF8 if now and now.startswith(BOM_UTF8) else b""  # plan.old has none
    if now != (None if plan.old is None else bom + plan.old.encode()):
        raise HostFailed(f"{plan.path} was changed meanwhile", hint="run 'fleet init' again")
    files.write(target, bom + text.encode(), mode=0o644, follow=False)

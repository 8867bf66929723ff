"""Plans and runs `fleet setup-ssh --undo`: removes exactly what the record has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from fleet.answers.hosts import SetUpAll, Undone
from fleet.each import failed, on_each
from fleet.errors import HostFailed
from fleet.events import Notice, silent
from fleet.inventory.nodeset import fold
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.plans import Line, OnHosts, PerHost
from fleet.ops.setup_ssh import config_block, files, node
from fleet.ops.setup_ssh.install import by_key_or_password
from fleet.ops.setup_ssh.passwords import SetupRuntime
from fleet.ops.setup_ssh.record import Record, Trace, my_turn
from fleet.ops.setup_ssh.undo_files import calls_for, leave_to_others, undo_head
from fleet.rules.units import counted
from fleet.runtime import Runtime
from fleet.transport.base import Session, Transport
from fleet.transport.ssh.transport import SshTransport

UNDOING = "taking away what was added"


@dataclass(frozen=True)
class UndoPlan(OnHosts):
    """Describes an undo. inventory: a selection of `full_inventory`. home: the user's home directory on the head."""

    full_inventory: Inventory
    home: Path

    def describe(self) -> dict[str, Any]:
        """Returns the records of the selected hosts and of this machine, as JSON."""
        record = self.record()

        def of(trace: Trace) -> dict[str, Any]:
            return {
                "lines": {name: len(lines) for name, lines in trace.files.items() if lines},
                "block": "config" in trace.files,
                "keys": sorted(trace.keys),
            }

        names = with_logins(self.inventory, record).names
        hosts = {name: of(trace) for name, trace in record.hosts.items() if name in names}
        return {"head": of(Trace() if self._others(record) else record.head), "hosts": hosts}

    def lines(self) -> Iterator[Line]:
        description = self.describe()
        taken = {
            name: list(_taken(each))
            for name, each in {"this machine": description["head"], **description["hosts"]}.items()
        }
        if others := self._others(self.record()):
            taken["this machine"] = [f"would keep its part for the hosts not selected: {', '.join(others)}"]
        yield PerHost({name: lines or ["nothing on record"] for name, lines in taken.items()})

    def record(self) -> Record:
        """Returns the record. Raises HostFailed if it is empty."""
        record = Record.load(self.home, self.full_inventory.source)
        record.take_over(self.full_inventory)
        if record.empty:
            raise HostFailed(
                f"there is no record of setup-ssh for {self.full_inventory.source} on this machine: nothing to undo",
                hint=f"it would be {record.path}",
            )
        return record

    def _others(self, record: Record) -> list[str]:
        """Returns the unselected hosts on record, which still need this machine's part."""
        names = with_logins(self.inventory, record).names
        return [name for name, trace in record.hosts.items() if not trace.empty and name not in names]


def with_logins(inventory: Inventory, record: Record) -> Inventory:
    """Returns the inventory with earlier accounts of its hosts added as hosts."""
    by_name = {host.name: host for host in inventory.hosts}
    earlier = [
        replace(by_name[host], name=name, user=trace.user)
        for name, trace in record.hosts.items()
        if (host := name.rpartition("@")[2]) != name and host in by_name
    ]
    return replace(inventory, hosts=(*inventory.hosts, *earlier))


def _taken(description: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"would take {counted(count, 'line')} out of {name}" for name, count in description["lines"].items())
    if description["block"]:
        yield "would take its block out of config"
    yield from (f"would remove key {key}" for key in description["keys"])


def run(plan: UndoPlan, runtime: SetupRuntime) -> Report:
    """Reverts the selected hosts. Reverts the head, too, unless unselected or failed hosts still depend on it. These
    hosts stay on record, so that the undo can be repeated. Report.data has the same form as that of a setup."""
    inventory, all_hosts, home = plan.inventory, plan.full_inventory, plan.home
    with my_turn(all_hosts.source, runtime):
        record = plan.record()
        for host in all_hosts.hosts:
            if target := runtime.transport.resolve(host):
                record.log_in(host.name, target.user)
        record.save_all()
        inventory, all_hosts = with_logins(inventory, record), with_logins(all_hosts, record)
        _hand_over(record, inventory, runtime)
        by_name = {name: Result(name, ok=True, answer=Undone()) for name in inventory.names}
        by_name.update(_undo_hosts(inventory, all_hosts, record, runtime))
        _forget(record, all_hosts, runtime)
        left = [name for name, trace in record.hosts.items() if not trace.empty]
        if left:
            head_changed = _keep_for(left, inventory, all_hosts, record, home, runtime)
        else:
            head_changed = undo_head(home, record, runtime)
            record.delete()
    ordered = tuple(by_name[name] for name in inventory.names)
    changed = bool(head_changed or any(result.read(Undone).changed for result in ordered))
    answer = SetUpAll(changed, Undone(head_changed))
    return Report("setup-ssh", ordered, exit_code_of(ordered), answer=answer)


def _hand_over(record: Record, inventory: Inventory, runtime: Runtime) -> None:
    """Keeps the parts on which other inventories of this machine rely: moves them to the records of these
    inventories."""
    hosts = {name: record.hosts[name] for name in inventory.names if name in record.hosts}
    for other in record.others:
        theirs = {at: each for each in other.hosts.values() for at in each.at.values()}
        for name, trace in hosts.items():
            for each in {id(it): it for at in trace.at.values() if (it := theirs.get(at))}.values():
                if parts := trace.hand_over(each):
                    runtime.emit(Notice("info", f"{', '.join(parts)} stay there: {other.source} needs them", name))
        if hosts.keys() >= record.hosts.keys() and (parts := record.head.hand_over(other.head)):
            runtime.emit(Notice("info", f"{', '.join(parts)} stay on this machine: {other.source} needs them"))
        other.save()
        record.save()


def _undo_hosts(inventory: Inventory, all_hosts: Inventory, record: Record, runtime: SetupRuntime) -> dict[str, Result]:
    """Reverts the hosts, gateways last. A gateway to a host that was not reverted stays unchanged."""
    left = {h.name: h for h in all_hosts.hosts if h.name in record.hosts and not record.hosts[h.name].empty}
    ways = {h.name: runtime.transport.route(h) for h in left.values()}
    selected = sorted((h for h in inventory.hosts if h.name in left), key=lambda h: -len(ways[h.name]))
    results: dict[str, Result] = {}
    for _, level in groupby(selected, key=lambda h: len(ways[h.name])):
        free: list[Host] = []
        for host in level:
            ends = {host.name, host.address}
            dependents = [name for name in left if any({hop.name, hop.address} & ends for hop in ways[name])]
            if dependents:
                error = HostFailed(
                    f"it is the way to {fold(dependents)}, where fleet's part still is",
                    host=host.name,
                    hint=f"first 'fleet setup-ssh --undo -w {fold(dependents)}'; then this one",
                )
                results[host.name] = failed(host, error)
            else:
                free.append(host)
        results.update(_undo_level(free, record, runtime))
        for name in [name for name, result in results.items() if result.ok]:
            left.pop(name, None)
    return results


def _undo_level(hosts: list[Host], record: Record, runtime: SetupRuntime) -> dict[str, Result]:
    first: dict[str, str] = {}  # home -> the host that reverts it for all hosts that share it
    homes = _homes([h for h in hosts if not record.hosts[h.name].uses], runtime)
    own = {h.name: [*record.hosts[h.name].uses, homes.get(h.name) or h.name][0] for h in hosts}
    shares = {h.name: first.setdefault(own[h.name], h.name) for h in hosts}
    alike = [h for h in hosts if h.name in homes and shares[h.name] != h.name]  # only equal by a token: check each host
    for host in hosts:
        if shares[host.name] != host.name:
            record.hosts[shares[host.name]].join(record.hosts[host.name])

    def task(session: Session, host: Host) -> Result:
        trace = record.hosts[host.name]
        state = node.look(session, key_type=None, repair=False, cancel=runtime.cancel)
        leave_to_others(state, record, host, runtime)
        calls, changed = calls_for(state, trace, f"{host.name}:~/.ssh/config")
        if calls:
            trace.leaving = True
            record.save()
            node.change(session, calls, cancel=runtime.cancel)
        record.forget(host.name)
        return Result(host.name, ok=True, answer=Undone(changed))

    on_record = [h for h in hosts if shares[h.name] == h.name]
    leaving = {h.name for h in on_record if record.hosts[h.name].leaving}
    results: dict[str, Result] = {}

    def go_on(hosts: list[Host]) -> None:
        for result in on_each(hosts, runtime, task, what=UNDOING) if hosts else ():
            if result.error is not None and result.error.kind == "auth":
                # an earlier undo removed the key, and was cut off before its report
                record.forget(result.host)
                result = Result(result.host, ok=True, answer=Undone())
            results[result.host] = result

    go_on([h for h in on_record if h.name in leaving])
    rest = [h for h in on_record if h.name not in leaving]
    if rest:
        results.update(by_key_or_password(rest, runtime, task, what=UNDOING))
    done = [h for h in on_record if results[h.name].ok]
    # one account under two names: it was reverted under the other name
    go_on([h for h in rest if results[h.name].error and any(_one_account(h, each, runtime.transport) for each in done)])
    go_on([h for h in alike if results[shares[h.name]].ok])
    for host in hosts:
        if host.name not in results:
            results[host.name] = replace(results[shares[host.name]], host=host.name)
            if results[host.name].ok:
                record.forget(host.name)
    return results


def _homes(hosts: list[Host], runtime: SetupRuntime) -> dict[str, str]:
    """Returns host name -> a token of its home, for hosts without keys of their own. Hosts that share a home have the
    same token."""
    homes: dict[str, str] = {}

    def task(session: Session, host: Host) -> Result:
        homes[host.name] = node.look(session, key_type=None, repair=False, cancel=runtime.cancel).home
        runtime.passwords.accepted(host.name)  # the next step logs in once more
        return Result(host.name, ok=True)

    if len(hosts) > 1:
        on_each(hosts, replace(runtime, emit=silent), task, what=UNDOING)
    return homes


def _one_account(host: Host, other: Host, transport: Transport) -> bool:
    if not isinstance(transport, SshTransport):
        return False
    ends = [transport.resolve(each) for each in (host, other)]
    keys = [{entry.key.fingerprint for entry in transport.known_hosts.of(end).known} for end in ends]
    return ends[0].user == ends[1].user and not keys[0].isdisjoint(keys[1])


def _forget(record: Record, all_hosts: Inventory, runtime: Runtime) -> None:
    """Removes from the record the hosts that left the inventory, if the user confirms that they are gone."""
    gone = [name for name, trace in record.hosts.items() if name not in all_hosts.names and not trace.empty]
    if gone and runtime.ask(f"{fold(gone)} left the inventory with fleet's part. Gone for good, and to be forgotten"):
        for name in gone:
            record.forget(name)


def _keep_for(
    left: list[str], inventory: Inventory, all_hosts: Inventory, record: Record, home: Path, runtime: Runtime
) -> list[str]:
    """Removes from this machine the entries that the remaining hosts do not need. Returns the names of changed
    files."""
    others = [name for name in left if name not in inventory.names and name in all_hosts.names]
    failed = [name for name in left if name in inventory.names]
    gone = [name for name in left if name not in all_hosts.names]
    if others:
        runtime.emit(Notice("info", f"this machine keeps its part for the hosts not selected: {', '.join(others)}"))
    if failed:
        runtime.emit(
            Notice(
                "warning",
                f"this machine keeps its key and its entries for {fold(failed)}",
                hint="run it again when they can be reached; take what is gone for good out of the inventory first",
            )
        )
    if gone:
        runtime.emit(
            Notice(
                "warning",
                f"this machine keeps its key and its entries for {fold(gone)}, which left the inventory: "
                "fleet's part is still there",
                hint="put it back, and run this again; on a terminal it is forgotten, where it is gone for good",
            )
        )
    record.save()
    path = home / ".ssh" / "config"
    data = new = files.read(path)
    for block in record.head.files.get("config", ()):
        kept = config_block.names(new, block, str(path)) & set(left)
        new = config_block.narrow(new, block, kept, str(path))
    if new == data:
        return []
    files.write(path, new)
    return ["config"]

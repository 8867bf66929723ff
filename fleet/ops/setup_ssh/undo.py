"""`fleet setup-ssh --undo`: takes away what the record says was added, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet.errors import HostFailed
from fleet.events import Notice
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.each import on_each
from fleet.ops.runtime import Runtime
from fleet.ops.setup_ssh import config_block, files, keys, node
from fleet.ops.setup_ssh.lines import remove
from fleet.ops.setup_ssh.node import NodeState
from fleet.ops.setup_ssh.record import Record, Trace, block_name
from fleet.transport.base import Session


def undo(inventory: Inventory, everyone: Inventory, home: Path, runtime: Runtime) -> Report:
    """Undo the selected hosts; the head too, unless hosts outside the selection still depend on it.

    A host that cannot be reached is reported and stays on record. Report.data: as for setup.
    """
    record = Record.load(home, everyone.source)
    if record.empty:
        raise HostFailed(f"there is no record of setup-ssh for {everyone.source} on this machine: nothing to undo",
                         hint=f"it would be {record.path}")
    block = f"{block_name(everyone.source)} node"
    changed: dict[str, list[str]] = {}

    def task(session: Session, host: Host) -> Result:
        trace = record.hosts[host.name]
        state = node.look(session, key_type=None, repair=False, cancel=runtime.cancel)
        calls, changed[host.name] = calls_for(state, trace, block, f"{host.name}:~/.ssh/config")
        if calls:
            node.change(session, calls, cancel=runtime.cancel)
        return Result(host.name, ok=True, data={"changed": changed[host.name]})

    on_record = [host for host in inventory.hosts if host.name in record.hosts]
    results = on_each(on_record, runtime, task, what="taking away what was added")
    done = {r.host for r in results if r.ok}
    record.hosts = {name: trace for name, trace in record.hosts.items() if name not in done}
    left = [name for name in record.hosts if name not in inventory.names and name in everyone.names]
    head_changed: list[str] = []
    if left:
        runtime.emit(Notice("info", f"this machine keeps its part for the hosts not selected: {', '.join(left)}"))
        record.save()
    else:
        head_changed = undo_head(home, record, everyone.source)
        _finish(record, everyone, runtime)
    nothing = tuple(Result(h.name, ok=True, data={"changed": []}) for h in inventory.hosts if h not in on_record)
    by_name = {r.host: r for r in (*results, *nothing)}
    ordered = tuple(by_name[name] for name in inventory.names)
    data = {"changed": bool(head_changed or any(changed.values())), "head": {"changed": head_changed}}
    return Report("setup-ssh", ordered, exit_code_of(ordered), data)


def describe(inventory: Inventory, everyone: Inventory, home: Path) -> dict[str, Any]:
    """What --undo --dry-run shows: what is on record for the selected hosts and for this machine."""
    record = Record.load(home, everyone.source)

    def of(trace: Trace) -> dict[str, Any]:
        return {"lines": {name: len(added.lines) for name, added in trace.files.items() if added.lines},
                "keys": sorted(trace.keys)}

    hosts = {name: of(trace) for name, trace in record.hosts.items() if name in inventory.names}
    return {"head": of(record.head), "hosts": hosts}


def _finish(record: Record, everyone: Inventory, runtime: Runtime) -> None:
    """What is still on record belongs to hosts that were not reached, or that left the inventory."""
    gone = [name for name in record.hosts if name not in everyone.names]
    if gone:
        runtime.emit(Notice("warning", f"no longer in the inventory, left as they are: {', '.join(gone)}",
                            hint="remove fleet's lines from their ~/.ssh by hand"))
    record.head = Trace()
    record.hosts = {name: trace for name, trace in record.hosts.items() if name in everyone.names}
    if record.hosts:
        record.save()
    else:
        record.delete()


def calls_for(state: NodeState, trace: Trace, block: str, where: str) -> tuple[list[bytes], list[str]]:
    """(what to do on the node, the same in words). Pure."""
    calls: list[bytes] = []
    words: list[str] = []
    for name in ("config", "known_hosts", "authorized_keys"):
        data, before = state.files[name]
        new = undone(name, data, trace, block, where)
        if new == data:
            continue
        calls.append(node.drop(name, before) if new is None else node.put(name, before, new))
        words.append(name)
    for name, public in trace.keys.items():
        calls.append(node.drop_key(name, public))
        words.append(f"removed key {name}")
    if trace.made_dir:
        calls.append(node.DROP_DIR)
    return calls, words


def undone(name: str, data: bytes | None, trace: Trace, block: str, where: str) -> bytes | None:
    """One file without fleet's part; None when fleet made it and nothing else is in it."""
    if name == "config":
        data = config_block.take(data, block, where)
    return remove(data, trace.added(name))


def undo_head(home: Path, record: Record, source: str) -> list[str]:
    """The head's own files; returns what was changed. A key that another inventory's record may rely on stays."""
    ssh = home / ".ssh"
    words: list[str] = []
    for name in ("config", "known_hosts"):
        data = files.read(ssh / name)
        new = undone(name, data, record.head, block_name(source), str(ssh / name))
        if new != data:
            files.write(ssh / name, new)
            words.append(name)
    if not record.others():
        for path, public in record.head.keys.items():
            if keys.discard(Path(path), public):
                words.append(f"removed key {path}")
        if record.head.made_dir and ssh.is_dir() and not any(ssh.iterdir()):
            ssh.rmdir()
    return words

"""Removes from files what setup-ssh added according to the record: on hosts by calls of node.sh, on the head
directly."""

from __future__ import annotations

import stat
from pathlib import Path

from fleet.events import Notice
from fleet.model import Host
from fleet.node.base.wire import encode
from fleet.ops.setup_ssh import config_block, edits, files, node
from fleet.ops.setup_ssh.node import NodeState
from fleet.ops.setup_ssh.record import Record, Trace
from fleet.runtime import Runtime


def calls_for(state: NodeState, trace: Trace, where: str) -> tuple[list[bytes], list[str]]:
    """Returns (calls of node.sh, the same as text). Pure."""
    calls: list[bytes] = []
    parts: list[str] = []

    def file(name: str) -> bytes | None:
        data, before = state.files[name]
        new = undone(name, data, trace, where)
        if new != data:
            calls.append(node.call("drop", name, before) if new is None else node.put(name, before, new))
            parts.append(name)
        return new

    file("config")
    knows = edits.knows_hosts(file("known_hosts"))
    for name, public in trace.keys.items():
        if knows:
            parts.append(f"key {name} stays: it may let its user in to other hosts that are known there")
        else:
            calls.append(node.call("drop_key", name, public))
            parts.append(f"removed key {name}")
    file("authorized_keys")  # last: until then, the head can log in again
    widened = [node.call("widen", name, was, now) for name, (was, now) in trace.modes.items()]
    parts += [f"mode of {name}" for name in trace.modes]
    if calls and ".ssh" not in (trace.kept or ()):
        widened.append(node.call("drop_dir"))
    return [*calls, *widened], parts


def leave_to_others(state: NodeState, record: Record, host: Host, runtime: Runtime) -> None:
    """Keeps the keys and entries by which hosts reach each other, if a block in the ssh config shows that another
    machine's setup-ssh may rely on them. The entry of this machine's key is still removed."""
    trace = record.hosts[host.name]
    mine = {f"{each.block}{end}" for each in (record, *record.others) for end in ("", " node")}
    mine.update(*(each.files.get("config", ()) for each in (trace, record.head)))
    others = config_block.blocks(state.files["config"][0]) - mine
    if others and (trace.keys or trace.files):
        keys = {key.split()[1].encode() for key in record.head.uses}
        own = [line for line in trace.files.get("authorized_keys", ()) if edits.blobs(encode(line)) & keys]
        trace.files = {"config": trace.files.get("config", []), "authorized_keys": own}
        trace.keys, trace.modes = {}, {}
        text = (
            f"its key, and what lets the hosts in to each other, stays there: {', '.join(sorted(others))} may need it"
        )
        runtime.emit(Notice("info", text, host.name))


def undone(name: str, data: bytes | None, trace: Trace, where: str) -> bytes | None:
    """Returns the content of a file without fleet's part, or None if the file has no other content and is to be
    removed. where: the file's name in messages."""
    if data is None or name not in trace.files:
        return data
    left = data
    if name == "config":
        for block in trace.files[name]:
            left = config_block.narrow(left, block, (), where) or b""
    else:
        left = edits.remove(data, trace.files[name])
    if left != data and name + edits.UNENDED in (trace.kept or ()):
        left = left.removesuffix(b"\n")
    return left or (b"" if name in (trace.kept or ()) else None)


def undo_head(home: Path, record: Record, runtime: Runtime) -> list[str]:
    """Reverts the head's own files. Returns the changes as text."""
    ssh = home / ".ssh"
    parts: list[str] = []
    for name in ("config", "known_hosts"):
        data = files.read(ssh / name)
        new = undone(name, data, record.head, str(ssh / name))
        if new != data:
            files.write(ssh / name, new)
            parts.append(name)
    for name, (was, now) in record.head.modes.items():
        at = ssh if name == ".ssh" else ssh / name
        if at.exists() and f"{stat.S_IMODE(at.stat().st_mode):o}" == now:
            at.chmod(int(was, 8))
            parts.append(f"mode of {name}")
    for path, public in record.head.keys.items():
        if _may_go(Path(path), ssh, runtime) and files.discard_key(Path(path), public):
            parts.append(f"removed key {path}")
    if ".ssh" not in (record.head.kept or ()) and ssh.is_dir() and not any(ssh.iterdir()):
        ssh.rmdir()
    return parts


def _may_go(path: Path, ssh: Path, runtime: Runtime) -> bool:
    """Returns whether a key that fleet made may be removed. If known_hosts has other hosts, the user decides."""
    if not path.exists() or not edits.knows_hosts(files.read(ssh / "known_hosts")):
        return True
    if runtime.ask(f"Remove {path}, which fleet made? It may let you in to hosts that fleet did not set up"):
        return True
    text = f"{path} stays, though fleet made it: it may let you in to hosts that fleet did not set up"
    runtime.emit(Notice("info", text, hint=f"rm {path} {path}.pub"))
    return False

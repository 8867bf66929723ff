"""Writes run.json: what started a run, and all that is needed to start it once more (ops/run/find/again.py reads it).

For a run that repeats another one, reports the differences in the code here and in versions on the nodes.
fleet/delivery/git.py runs git."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from fleet.answers.run_start_events import Differs
from fleet.background import unattended
from fleet.delivery.git import NoAnswer, ask
from fleet.errors import FleetError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.inventory.secret import masked, masked_argv, unless_secret, without_secrets
from fleet.model import Host, Inventory, grouped
from fleet.node.base.processes import boot_id
from fleet.ops.run.kept.documents import RUN, read_object, sealed
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord, host_elsewhere
from fleet.ops.run.plan.here import HeadCode
from fleet.ops.run.plan.plan import Plan
from fleet.own import private
from fleet.runtime import Runtime
from fleet.transport.base import Transport
from fleet.version import __version__

SECONDS = 5.0  # for all requests to git
STATUS_BYTES, DIFF_BYTES = 4 << 20, 4 << 20
_DIFF = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-relative")
_CHANGES = ("--ignore-submodules=dirty",)
DIFF = "code.diff"
VARIABLES = ("env", "env_expand")
SHORT = 12  # characters of a commit, of a digest


def since_boot() -> list[Any]:
    """Returns [id of this machine's boot, seconds since the boot]. Setting the clock changes neither."""
    return [boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME)]


def age(folder: RunFolder, started: float) -> float:
    """Returns the seconds since a run was started. Uses the time since boot if the run was started in the present boot
    of this machine. started: seconds since the epoch, by the clock of the head that started it; 0: unknown."""
    (boot, now), kept = since_boot(), read_object(folder.path / RUN).get("boot")
    if isinstance(kept, list) and kept[:1] == [boot] and isinstance(kept[-1], float):
        return float(now - kept[-1])
    return time.time() - started if started else 0.0


def write_origin(
    plan: Plan, record: RunRecord, folder: RunFolder, runtime: Runtime, inventory: Inventory
) -> Future[None]:
    """Writes run.json at once. A thread then adds the report of git, which has a deadline of its own, while the nodes
    start. Returns the future of the thread. Emits the differences from the run that this one repeats. inventory: as it
    was before spares replaced hosts."""
    written = document(plan, record, runtime.transport, inventory)
    repeats = plan.request.repeats
    before = read_object(plan.request.runs / repeats / RUN) if repeats else {}
    folder.write_json(RUN, sealed(written, plan.run_id))

    def add_code() -> None:
        code, diff = git_facts(written["fleet"]["folder"])
        ran = plan.request.sync or HeadCode(plan).compare_with_nodes(written["facts"])[0]
        diff = b"" if ran is False else diff
        written["code"] = {**code, "diff": DIFF if diff else None, "ran": ran}
        try:
            if diff:
                with open(folder.path / DIFF, "wb", opener=private) as file:
                    file.write(diff)
            folder.amend(RUN, code=written["code"])  # a restart may have changed the file meanwhile
        except (OSError, FleetError) as error:
            runtime.emit(Notice("warning", f"{RUN} does not describe the code: {error}"))
        for text, hint in differences(before, written):
            event = Differs(run=written["repeats"], hint=hint)
            runtime.emit(folder.notice("warning", text, event, None, hint))

    return unattended("fleet-code", add_code)


def document(plan: Plan, record: RunRecord, transport: Transport, inventory: Inventory) -> dict[str, Any]:
    """Returns the document of a run. Variables that may be secret have null as their value. inventory: see
    write_origin()."""
    request = plan.requested or plan.request
    launch = {name: without_secrets(value) if name in VARIABLES else value for name, value in request.document.items()}
    if request.notify is not None:
        launch["notify"] = unless_secret("notify", request.notify)
    return {
        **plan.masked(),
        "started": record.about["started"],
        "boot": since_boot(),
        "owner": record.about["owner"],
        "repeats": request.repeats,
        "fleet": {
            "version": __version__,
            "python": platform.python_version(),
            "argv": masked_argv(masked(plan.typed)),
            "folder": request.cwd,
            "transport": transport.name,
        },
        "launch": launch,
        "inventory": _inventory(inventory, plan.hosts),
        "facts": {name: dict(known.seen) for name, known in plan.facts.items()},
        "code": None,
    }


def _inventory(inventory: Inventory, used: tuple[Host, ...]) -> dict[str, Any]:
    """Returns the inventory for run.json. "hosts" has hosts that are not selected, too, because they may be gateways.
    "selected" and "used" are in the form of -w. "whole": the run could use all hosts with all devices."""
    source = Path(inventory.source)
    return {
        "source": str(source.absolute()) if source.exists() else None,
        "whole": not inventory.unselected and all(host.devices is None for host in inventory.hosts),
        "selected": ",".join(map(_operand, inventory.hosts)),
        "used": ",".join(map(_operand, used)),
        "env": without_secrets(inventory.env),
        "hosts": [_host(host) for host in (*inventory.hosts, *inventory.unselected)],
    }


def _operand(host: Host) -> str:
    return host.name if host.devices is None else f"{host.name}:{','.join(map(str, host.devices))}"


def _host(host: Host) -> Mapping[str, Any]:
    return {**asdict(host_elsewhere(host)), "env": without_secrets(host.env)}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """Yields (a sentence, a hint) for each difference between two run.json."""
    if before:
        yield from _of_code(before, now.get("code") or {})
        yield from ((text, None) for text in _of_versions(before, now))


def _of_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    then = before.get("code") or {"why": "no record"}
    was, is_, where = then.get("commit"), now.get("commit"), f"the code in {now.get('folder')}"
    if was is None and then.get("why"):
        return  # git reported nothing then
    apply = " && git apply " + quote(f"{before.get('logs')}/{then['diff']}") if then.get("diff") else ""
    stash = "git stash && " if now.get("dirty") else ""  # a checkout keeps local changes; no diff applies to these
    hint = f"to have it as it was: {stash}git checkout {_short(was)}{apply}" if was else None
    if was != is_:
        yield f"{where} is at commit {_short(is_)}, and was at {_short(was)}", hint
    elif was and (then.get("sha256"), then.get("dirty")) != (now.get("sha256"), now.get("dirty")):
        yield f"{where} is at the same commit, with other changes", hint


def _short(commit: str | None) -> str:
    return commit[:SHORT] if commit else "none"


def _of_versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    then, here = before.get("facts") or {}, now.get("facts") or {}
    pairs = ((host, versions(then.get(host) or {}), versions(here[host] or {})) for host in here)
    changed = (
        (f"{name} is {is_.get(name) or 'not there'}, and was {was.get(name) or 'not there'}", host)
        for host, was, is_ in pairs
        for name in (sorted(was | is_) if was else ())
        if was.get(name) != is_.get(name)
    )
    yield from (f"{fold(hosts)}: {text}" for text, hosts in grouped(changed).items())
    old, new = ((each.get("fleet") or {}).get("version") for each in (before, now))
    if old != new:
        yield f"fleet is {new}, and was {old}"


def versions(facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns the versions of the software that a run's ranks use: name -> version."""
    found = {"python": (facts.get("python") or {}).get("version"), **(facts.get("packages") or {})}
    found |= {name: (facts.get(name) or {}).get("version") for name in ("torch", "deepspeed")}
    found["script, by its sha256,"] = ((facts.get("script") or {}).get("sha256") or "")[:SHORT]
    found |= {name: facts.get(name) for name in ("driver", "cuda_toolkit", "nccl_library")}
    return {name: str(version) for name, version in found.items() if version}


def git_facts(folder: str, seconds: float = SECONDS) -> tuple[dict[str, Any], bytes]:
    """Returns (git's report on a folder, the diff against its commit). The diff is b"" if there is none, or if it is
    too large.

    The fields of the report are: folder: the one in which git ran. commit: its full id, None if there is none. branch:
    None if none is checked out. dirty: whether tracked files have changed. untracked: the number of untracked entries.
    sha256: of the diff. why: the reason why some values are not known."""
    names = ("commit", "branch", "dirty", "untracked", "sha256", "why")
    code, diff, begun = {"folder": folder, **dict.fromkeys(names)}, b"", time.monotonic()
    try:
        arguments = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", *_CHANGES)
        code |= _read(ask(folder, *arguments, seconds=seconds, begun=begun, most=STATUS_BYTES))
        if code["dirty"] and code["commit"] is not None:
            diff = ask(folder, *_DIFF, *_CHANGES, "HEAD", seconds=seconds, begun=begun, most=DIFF_BYTES)
            code["sha256"] = hashlib.sha256(diff).hexdigest()
    except NoAnswer as why:
        code["why"] = str(why)
    return code, diff


def _read(status: bytes) -> dict[str, Any]:
    lines = status.decode("utf-8", "replace").split("\0")
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch.") and " " in line[2:])
    commit, branch = headers.get("branch.oid"), headers.get("branch.head")
    return {
        "commit": None if commit == "(initial)" else commit,
        "branch": None if branch == "(detached)" else branch,
        "dirty": any(line[:2] in ("1 ", "2 ", "u ") for line in lines),
        "untracked": sum(line.startswith("? ") for line in lines),
    }

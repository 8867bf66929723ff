"""run.json: what started a run, and all that is needed to start it once more (ops/run/find/again.py reads it).

What a run that repeats another one does not find as it was: the code here, and versions on the nodes."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from fleet.answers.run_events import Differs
from fleet.errors import FleetError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.inventory.secret import kept_of, masked, masked_words
from fleet.model import Host, Inventory
from fleet.node.base.processes import boot_id
from fleet.ops.run.kept.documents import RUN, read_object, sealed
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord, host_elsewhere
from fleet.ops.run.plan.code import SECONDS, look
from fleet.ops.run.plan.here import Here
from fleet.ops.run.plan.plan import Plan
from fleet.own import private
from fleet.runtime import Runtime
from fleet.transport.base import Transport
from fleet.version import __version__

DIFF = "code.diff"
VARIABLES = ("env", "env_expand")
SHORT = 12  # characters of a commit, of a digest


def since_boot() -> list[Any]:
    """[id of this machine's boot, seconds since it]: who sets a clock changes neither."""
    return [boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME)]


def age(folder: RunFolder, started: float) -> float:
    """Seconds since a run was started, by the clock that it was started by where that is this machine's. started: by
    its head's time of day; 0: unknown."""
    (boot, now), kept = since_boot(), read_object(folder.path / RUN).get("boot")
    if isinstance(kept, list) and kept[:1] == [boot] and isinstance(kept[-1], float):
        return float(now - kept[-1])
    return time.time() - started if started else 0.0


class Origin:
    """Writes it at once, and once more with what git reports, which runs while the nodes start. Emits what is not as
    it was in the run that this one repeats."""

    def __init__(
        self, plan: Plan, record: RunRecord, folder: RunFolder, runtime: Runtime, inventory: Inventory
    ) -> None:
        self._plan = plan
        self._document = document(plan, record, runtime.transport, inventory)
        self._folder, self._runtime = folder, runtime
        repeats = plan.request.repeats
        self._before = read_object(plan.request.runs / repeats / RUN) if repeats else {}
        folder.write_json(RUN, sealed(self._document, plan.run_id))
        self._thread = threading.Thread(target=self._add_code, name="fleet-code", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until all of it is written; git has its own deadline."""
        self._thread.join(SECONDS + 1)

    def _add_code(self) -> None:
        code, diff = look(self._document["fleet"]["folder"])
        ran = self._plan.request.sync or Here(self._plan).standing(self._document["facts"])[0]
        diff = b"" if ran is False else diff
        self._document["code"] = recorded = {**code, "diff": DIFF if diff else None, "ran": ran}
        try:
            if diff:
                with open(self._folder.path / DIFF, "wb", opener=private) as file:
                    file.write(diff)
            self._folder.amend(RUN, code=recorded)  # the run may have been started again meanwhile
        except (OSError, FleetError) as error:
            self._runtime.emit(Notice("warning", f"{RUN} does not tell of the code: {error}"))
        for text, hint in differences(self._before, self._document):
            event = Differs(run=self._document["repeats"], hint=hint)
            self._runtime.emit(self._folder.notice("warning", text, event, None, hint))


def document(plan: Plan, record: RunRecord, transport: Transport, inventory: Inventory) -> dict[str, Any]:
    """Returns the document of a run. Of variables that may be secret it has the names only, with null. inventory:
    before hosts were replaced by spares."""
    request = plan.asked or plan.request
    launch = {name: kept_of(value) if name in VARIABLES else value for name, value in request.document.items()}
    return {
        **plan.told(),
        "started": record.about["started"],
        "boot": since_boot(),
        "owner": record.about["owner"],
        "repeats": request.repeats,
        "fleet": {
            "version": __version__,
            "python": platform.python_version(),
            "argv": masked_words(masked(plan.typed)),
            "folder": request.cwd,
            "transport": transport.name,
        },
        "launch": launch,
        "inventory": _inventory(inventory, plan.hosts),
        "facts": {name: dict(known.seen) for name, known in plan.facts.items()},
        "code": None,
    }


def _inventory(inventory: Inventory, used: tuple[Host, ...]) -> dict[str, Any]:
    """hosts: all, also those not selected, which may be gateways to others. selected, used: as -w has them."""
    source = Path(inventory.source)
    return {
        "source": str(source.absolute()) if source.exists() else None,
        "whole": not inventory.unselected and all(host.devices is None for host in inventory.hosts),
        "selected": ",".join(map(_operand, inventory.hosts)),
        "used": ",".join(map(_operand, used)),
        "env": kept_of(inventory.env),
        "hosts": [_host(host) for host in (*inventory.hosts, *inventory.unselected)],
    }


def _operand(host: Host) -> str:
    return host.name if host.devices is None else f"{host.name}:{','.join(map(str, host.devices))}"


def _host(host: Host) -> Mapping[str, Any]:
    return {**asdict(host_elsewhere(host)), "env": kept_of(host.env)}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """(a sentence, what to do) for each, of two run.json."""
    if before:
        yield from _of_code(before, now.get("code") or {})
        yield from ((text, None) for text in _of_versions(before, now))


def _of_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    then = before.get("code") or {"why": "nobody asked"}
    was, is_, where = then.get("commit"), now.get("commit"), f"the code in {now.get('folder')}"
    if was is None and then.get("why"):
        return  # git reported nothing then
    apply = " && git apply " + quote(f"{before.get('logs')}/{then['diff']}") if then.get("diff") else ""
    stash = "git stash && " if now.get("dirty") else ""  # a checkout takes changes along, and a diff does not fit them
    hint = f"to have it as it was: {stash}git checkout {_short(was)}{apply}" if was else None
    if was != is_:
        yield f"{where} is at commit {_short(is_)}, and was at {_short(was)}", hint
    elif was and (then.get("sha256"), then.get("dirty")) != (now.get("sha256"), now.get("dirty")):
        yield f"{where} is at the same commit, with other changes", hint


def _short(commit: str | None) -> str:
    return commit[:SHORT] if commit else "none"


def _of_versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    then, here = before.get("facts") or {}, now.get("facts") or {}
    by_text: dict[str, list[str]] = {}
    for host in here:
        was, is_ = versions(then.get(host) or {}), versions(here[host] or {})
        for name in sorted(was | is_) if was else ():
            if was.get(name) != is_.get(name):
                text = f"{name} is {is_.get(name) or 'not there'}, and was {was.get(name) or 'not there'}"
                by_text.setdefault(text, []).append(host)
    yield from (f"{fold(hosts)}: {text}" for text, hosts in by_text.items())
    old, new = ((each.get("fleet") or {}).get("version") for each in (before, now))
    if old != new:
        yield f"fleet is {new}, and was {old}"


def versions(facts: Mapping[str, Any]) -> dict[str, str]:
    """Returns the versions of what a run's ranks use, by name."""
    found = {"python": (facts.get("python") or {}).get("version"), **(facts.get("packages") or {})}
    found |= {name: (facts.get(name) or {}).get("version") for name in ("torch", "deepspeed")}
    found["script, by its sha256,"] = ((facts.get("script") or {}).get("sha256") or "")[:SHORT]
    found |= {name: facts.get(name) for name in ("driver", "cuda_toolkit", "nccl_library")}
    return {name: str(version) for name, version in found.items() if version}

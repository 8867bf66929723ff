"""`fleet get`: files of the nodes on the head: checkpoints, results, profiles."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.each import on_each
from fleet.errors import HostFailed, UsageError
from fleet.events import Notice, Progress
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.cache import turn
from fleet.ops.get.receive import Received, listing
from fleet.ops.launch.folder import LATEST
from fleet.ops.plans import Line, OnHosts
from fleet.ops.runs.find import find, meant_first, missing
from fleet.ops.runs.word import choose, is_part_of_name
from fleet.protocol.messages.give import GiveSpec
from fleet.rules.units import size_text
from fleet.runtime import Runtime
from fleet.transport.base import Session

STAGE = ".fleet-get"


@dataclass(frozen=True)
class GetPlan(OnHosts):
    """what: a path on the nodes, relative to a host's workdir; or a run: what was written in its folder since its
    start. to: a folder of this machine."""

    what: str
    to: Path

    @property
    def is_path(self) -> bool:
        return "/" in self.what or self.what[:1] in ("~", ".")

    def describe(self) -> dict[str, Any]:
        return {"what": self.what, "to": str(self.to)}

    def lines(self) -> Iterator[Line]:
        yield f"brings {self.what} of {len(self.hosts)} hosts to {self.to}"


def plan(inventory: Inventory, what: str, to: Path) -> GetPlan:
    """Pure. UsageError."""
    if not what or "\0" in what:
        raise UsageError("nothing is named", hint="fleet get checkpoints; or fleet get latest")
    return GetPlan(inventory, what, to)


def run(plan: GetPlan, runtime: Runtime) -> Report:
    """A host that has no such path is no failure, unless none has. data of each host: files, bytes, to."""
    specs, silent = _specs(plan, runtime)
    hosts = tuple(host for host in plan.hosts if host.name in specs)

    def look(session: Session, host: Host) -> Result:
        spec = specs[host.name]
        tree = listing(session, spec, runtime.cancel)
        found = bool(tree.entries) or spec["since"] is None and tree.mode is not None
        size = sum(entry[3] for entry in tree.entries)
        return Result(host.name, True, 0, data={"path": str(tree.root), "found": found, "bytes": size})

    looked = on_each(hosts, runtime, look, what="listing")
    have = [result for result in looked if result.ok and result.data["found"]]
    if not have and all(result.ok for result in looked):
        if any(spec["since"] is not None for spec in specs.values()):
            wrote = f"run {plan.what} has written nothing into its folder, on none of its hosts"
            raise UsageError(wrote, hint="what it wrote elsewhere: fleet get /PATH; its logs: fleet logs " + plan.what)
        if plan.what == LATEST:
            raise UsageError("there is no run yet", hint="'fleet launch' starts one; a path: fleet get ./latest")
        raise UsageError(f"no host has {plan.what}", hint="a path is relative to the host's workdir")
    where = _places(plan, {result.host: result.data["path"] for result in have})
    name = f"get-{hashlib.sha256(os.fsencode(plan.to.absolute())).hexdigest()[:16]}"
    with turn(name, f"another get to {plan.to}", runtime):  # they would share a stage
        _check_room(plan, sum(result.data["bytes"] for result in have))
        brought = _bring(plan, runtime, specs, where)
    results = (*(brought.get(result.host) or _without(result) for result in looked), *silent)
    return Report("get", results, exit_code_of(results), {"what": plan.what, "to": str(plan.to)})


def _bring(
    plan: GetPlan, runtime: Runtime, specs: Mapping[str, GiveSpec], where: Mapping[str, Path]
) -> dict[str, Result]:
    def bring(session: Session, host: Host) -> Result:
        def progress(done: int, total: int) -> None:
            runtime.emit(Progress(host.name, "receiving", done, total))

        stage = plan.to / STAGE / host.name
        received = Received(session, specs[host.name], where[host.name], stage, runtime.cancel, progress)
        files, size = received.bring()
        return Result(host.name, True, 0, data={"files": files, "bytes": size, "to": str(where[host.name])})

    hosts = tuple(host for host in plan.hosts if host.name in where)
    brought = {result.host: result for result in on_each(hosts, runtime, bring, what="receiving")}
    if all(result.ok for result in brought.values()):
        shutil.rmtree(plan.to / STAGE, ignore_errors=True)
    return brought


def _without(result: Result) -> Result:
    return replace(result, data={"files": 0, "bytes": 0, "to": None}) if result.ok else replace(result, data={})


def _specs(plan: GetPlan, runtime: Runtime) -> tuple[dict[str, GiveSpec], list[Result]]:
    """(what each host is asked for; of a run only its own hosts are, those that may be of it and did not answer)."""
    if not plan.is_path:
        runs, asked = find(plan.inventory, runtime, live=False)
        known = {run.run_id: run for run in meant_first(runs)}
        try:
            run = known[choose(plan.what, list(known))]
        except UsageError:
            alike = [run_id for run_id in known if run_id.startswith(plan.what)]
            if alike and not any(is_part_of_name(plan.what, run_id) for run_id in alike):
                raise  # which it is of several
            run = None
        if run is not None and not is_part_of_name(plan.what, run.run_id):
            runtime.emit(Notice("info", f"{plan.what} is run {run.run_id}"))
            silent = [] if missing(run, asked) is None else [replace(each, data={}) for each in asked if not each.ok]
            return {
                name: {"path": part["cwd"] or "~", "since": run.started} for name, part in run.parts.items()
            }, silent
    path = plan.what
    return {
        host.name: {"path": path if path[0] == "~" else posixpath.join(host.workdir or "~", path), "since": None}
        for host in plan.hosts
    }, []


def _places(plan: GetPlan, paths: Mapping[str, str]) -> dict[str, Path]:
    """One tree where one host has it, else a folder for each host."""
    names = {host: posixpath.basename(posixpath.normpath(path)) or "root" for host, path in paths.items()}
    for host, name in names.items():
        if name in (".", "..", STAGE):
            raise UsageError(f"{host}: {paths[host]} has no name of its own", hint="name the folder itself")
    if len(names) == 1:
        return {host: plan.to / name for host, name in names.items()}
    return {host: plan.to / host / name for host, name in names.items()}


def _check_room(plan: GetPlan, size: int) -> None:
    try:
        plan.to.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(plan.to).free
    except OSError as error:
        raise UsageError(f"{plan.to}: {error.strerror}", hint="--to names another folder") from None
    # what is there of an earlier attempt counts, and so do holes: only a warning could be sure
    if size - _held(plan.to / STAGE) > free:
        raise HostFailed(
            f"{size_text(size)} are to come to {plan.to}, {size_text(free)} are free there",
            hint="--to names a folder with more room, --from fewer hosts",
            kind="no-space",
        )


def _held(stage: Path) -> int:
    return sum(path.lstat().st_size for path in stage.rglob("*") if path.is_file())

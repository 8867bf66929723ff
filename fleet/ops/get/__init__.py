"""`fleet get`: files of the nodes on the head: checkpoints, results, profiles."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.each import failed, on_each
from fleet.errors import HostFailed, UsageError
from fleet.events import Notice, Progress
from fleet.inventory.nodeset import fold
from fleet.model import Host, Inventory, Report, Result, exit_code_of, grouped
from fleet.ops.cache import turn
from fleet.ops.get.listed import listing
from fleet.ops.get.names import is_repository, name_of, name_of_run
from fleet.ops.get.place import Ground, InTheWay, Place, in_words
from fleet.ops.get.receive import Received
from fleet.ops.launch.folder import LATEST
from fleet.ops.plans import Line, OnHosts
from fleet.ops.runs.find import find, meant_first, missing
from fleet.ops.runs.word import choose, is_part_of_name
from fleet.protocol.messages.give import GiveSpec
from fleet.rules.units import counted, few, seconds, size_text
from fleet.runtime import Runtime
from fleet.transport.base import Session


@dataclass(frozen=True)
class GetPlan(OnHosts):
    """what: a path on the nodes, relative to a host's workdir; or a run: what was written in its folder since its
    start. to: a folder of this machine. force: replace what is there. everything: repositories of git, too."""

    what: str
    to: Path
    force: bool = False
    everything: bool = False
    runs_dir: Path = Path("runs")

    @property
    def is_path(self) -> bool:
        return "/" in self.what or self.what[:1] in ("~", ".")

    def describe(self) -> dict[str, Any]:
        return {"what": self.what, "to": str(self.to)}

    def lines(self) -> Iterator[Line]:
        yield f"brings {self.what} of {len(self.hosts)} hosts to {self.to}"


@dataclass(frozen=True)
class Asked:
    """Of one host. name: of what is written here."""

    spec: GiveSpec
    name: str


def plan(
    inventory: Inventory,
    what: str,
    to: Path,
    force: bool = False,
    everything: bool = False,
    runs_dir: Path = Path("runs"),
) -> GetPlan:
    """Pure. UsageError."""
    if not what or "\0" in what:
        raise UsageError("nothing is named", hint="fleet get checkpoints; or fleet get latest")
    return GetPlan(inventory, what, to, force, everything, runs_dir)


def run(plan: GetPlan, runtime: Runtime) -> Report:
    """A host that has no such path is no failure, unless none has. data of each host: files, bytes, same, to."""
    asked, silent = _asked(plan, runtime)
    hosts = tuple(host for host in plan.hosts if host.name in asked)
    if not plan.everything and any(is_repository(each.name) for each in asked.values()):
        raise UsageError(f"{plan.what}: its configuration names programs that run here", hint="--all brings it")

    def look(session: Session, host: Host) -> Result:
        spec = asked[host.name].spec
        listed = listing(session, spec, runtime.cancel, plan.everything)
        found = bool(listed.entries) or spec["run"] is None and listed.tree.mode is not None
        return Result(host.name, True, 0, data={"found": found and "." not in listed.left_out, "listed": listed})

    looked = on_each(hosts, runtime, look, what="listing")
    answered = not silent and all(result.ok for result in looked)
    have = [result for result in looked if result.ok and result.data["found"]]
    for left, names in grouped((r.data["listed"].left_out, r.host) for r in looked if r.ok).items():
        if left:
            said = f"left out on {fold(names)}: {few(left)}: git and the like run what is configured there"
            runtime.emit(Notice("info", said, hint="--all brings it"))
    if not have and answered:
        raise _nothing(plan, any(each.spec["run"] is not None for each in asked.values()))
    if not have:
        return _report(plan, (*map(_without, looked), *silent))
    with turn(_turn(plan.to), f"another get to {plan.to}", runtime):  # they would share a stage
        ground = Ground(plan.to)
        done = False
        try:
            places = {}
            for result in have:
                each, listed = asked[result.host], result.data["listed"]
                inside = each.name if answered and len(have) == 1 else f"{result.host}/{each.name}"
                places[result.host] = place = Place(ground, result.host, inside, str(listed.tree.root))
                place.entries, place.mode = listed.entries, listed.tree.mode
            _check_room(plan, ground, sum(result.data["listed"].size for result in have) - ground.held)
            _ask(plan, places, runtime)
            brought = _bring(plan, runtime, asked, places)
            done = all(result.ok for result in brought.values())
        finally:
            ground.close(done=done)
    return _report(plan, (*(brought.get(result.host) or _without(result) for result in looked), *silent))


def _turn(to: Path) -> str:
    return f"get-{hashlib.sha256(os.fsencode(os.path.realpath(to))).hexdigest()[:16]}"


def _report(plan: GetPlan, results: tuple[Result, ...]) -> Report:
    return Report("get", results, exit_code_of(results), {"what": plan.what, "to": str(plan.to)})


def _nothing(plan: GetPlan, of_run: bool) -> UsageError:
    """Nothing is there to be brought."""
    if of_run:
        wrote = f"run {plan.what} has written nothing into its folder, on none of its hosts"
        return UsageError(wrote, hint="what it wrote elsewhere: fleet get /PATH; its logs: fleet logs " + plan.what)
    if plan.what == LATEST:
        return UsageError("there is no run yet", hint="'fleet launch' starts one; a path: fleet get ./latest")
    return UsageError(f"no host has {plan.what}", hint="a path is relative to the host's workdir")


def _bring(
    plan: GetPlan, runtime: Runtime, asked: Mapping[str, Asked], places: Mapping[str, Place]
) -> dict[str, Result]:
    """From the hosts into the stage, and when it is known of all what is in the way here, from there to its place."""
    came: dict[str, Received] = {}

    def bring(session: Session, host: Host) -> Result:
        def progress(done: int, total: int) -> None:
            runtime.emit(Progress(host.name, "receiving", done, total))

        spec, place = asked[host.name].spec, places[host.name]
        received = Received(session, spec, place, plan.everything, runtime.cancel, progress)
        with in_words(host.name):
            received.bring()
        came[host.name] = received
        return Result(host.name, True, 0)

    hosts = tuple(host for host in plan.hosts if host.name in places)
    brought = {result.host: result for result in on_each(hosts, runtime, bring, what="receiving")}
    if runtime.cancel.is_set():  # what came stays staged
        return brought | {host.name: failed(host, KeyboardInterrupt()) for host in hosts if host.name in came}
    for what in ("growing", "gone"):
        for paths, names in grouped((tuple(getattr(came[host], what)), host) for host in came).items():
            if paths:
                runtime.emit(
                    Notice("warning", f"{fold(names)}: {_SAID[what]}: {few([path or plan.what for path in paths])}")
                )
    _ask(plan, {host: places[host] for host in came}, runtime)
    for host, received in came.items():
        brought[host] = _put(host, received, places[host])
    return brought


_SAID = {
    "growing": "still being written, brought as far as it was when it was read",
    "gone": "went away before it was read",
}


def _put(host: str, received: Received, place: Place) -> Result:
    try:
        if "" in received.gone:
            raise HostFailed(f"{received.spec['path']} went away before it was read", host=host)
        with in_words(host):
            files, size, same = place.put() if place.entries or place.mode is not None else (0, 0, 0)
            error = received.not_still()
    except HostFailed as why:
        return Result(host, False, error=why)
    data = {"files": files, "bytes": size, "same": same, "to": str(place.path)}
    return Result(host, error is None, 0 if error is None else None, error=error, data=data)


def _ask(plan: GetPlan, places: Mapping[str, Place], runtime: Runtime) -> None:
    """What is here and get did not put there is replaced when the user says so. UsageError: nothing is."""
    found: dict[str, list[InTheWay]] = {}
    for host, place in places.items():
        with in_words(host):
            found[host] = place.look()
    ways = [way for each in found.values() for way in each]
    if not ways:
        return
    now = time.time()
    some = few([f"{way.shown} ({size_text(way.size)}, changed {seconds(now - way.changed)} ago)" for way in ways])
    said = f"{counted(len(ways), 'file')} here would be replaced, which no get put there as it is: {some}"
    if not plan.force and not runtime.ask(f"{said}. Replace?"):
        words = ["get", plan.what, *(["--to", str(plan.to)] if plan.to != Path(".") else [])]
        line = shlex.join(["fleet", *words, "--force"])
        raise UsageError(f"{said}; nothing was replaced", hint=f"to replace: {line}; or --to another folder")
    for host, each in found.items():
        places[host].agreed |= {way.path for way in each}


def _without(result: Result) -> Result:
    return replace(result, data={"files": 0, "bytes": 0, "same": 0, "to": None} if result.ok else {})


def _asked(plan: GetPlan, runtime: Runtime) -> tuple[dict[str, Asked], list[Result]]:
    """(what each host is asked for; of a run only its own hosts are, those that may be of it and did not answer)."""
    if not plan.is_path:
        runs, answers = find(plan.inventory, runtime, live=False)
        known = {run.run_id: run for run in meant_first(runs, plan.runs_dir)}
        try:
            run = known[choose(plan.what, list(known))]
        except UsageError:
            alike = [run_id for run_id in known if run_id.startswith(plan.what)]
            if alike and not any(is_part_of_name(plan.what, run_id) for run_id in alike):
                raise  # which it is of several
            run = None
        if run is not None and not is_part_of_name(plan.what, run.run_id):
            runtime.emit(Notice("info", f"{plan.what} is run {run.run_id}"))
            silent = (
                [] if missing(run, answers) is None else [replace(each, data={}) for each in answers if not each.ok]
            )
            return {
                name: Asked(
                    {"path": part["cwd"] or "~", "run": run.run_id},
                    name_of_run(run.run_id, name, plan.what, plan.runs_dir),
                )
                for name, part in run.parts.items()
            }, silent
    path = plan.what
    paths = {h.name: path if path[0] == "~" else posixpath.join(h.workdir or "~", path) for h in plan.hosts}
    return {host: Asked({"path": path, "run": None}, name_of(path)) for host, path in paths.items()}, []


def _check_room(plan: GetPlan, ground: Ground, size: int) -> None:
    free = shutil.disk_usage(ground.top.top).free
    if size > free:
        raise HostFailed(
            f"{size_text(size)} are to come to {plan.to}, {size_text(free)} are free there",
            hint="--to names a folder with more room, --from fewer hosts",
            kind="no-space",
        )

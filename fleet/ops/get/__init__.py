"""Plans and runs `fleet get`, which fetches files from the nodes to the head: checkpoints, results, profiles."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.answers.sync import Got, GotAll
from fleet.delivery.brought import store_of
from fleet.delivery.tree import Tree, links_notice
from fleet.each import answers_of, failed
from fleet.errors import HostFailed, UsageError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Host, Inventory, Report, Result, exit_code_of, grouped
from fleet.ops.cache import turn
from fleet.ops.get.listed import Sender, Senders
from fleet.ops.get.names import is_repository, name_of, name_of_run
from fleet.ops.get.place import Ground, Place, as_host_failure
from fleet.ops.get.receive import Received
from fleet.ops.plans import RequestPlan
from fleet.ops.run.find.find import find
from fleet.ops.run.find.here import chosen
from fleet.ops.run.kept.local import choose, is_part_of_name
from fleet.ops.run.kept.local import names as names_here
from fleet.protocol.messages.give import GiveSpec
from fleet.protocol.state import LATEST
from fleet.requests.runs import Get
from fleet.rules.units import counted, few, size_text
from fleet.runtime import Runtime


@dataclass(frozen=True)
class HostRequest:
    """Holds the request to one host. name: the name that the fetched file or folder gets on this machine."""

    spec: GiveSpec
    name: str


GetPlan = RequestPlan[Get]


def plan(inventory: Inventory, request: Get) -> GetPlan:
    """Returns the plan. Pure."""
    text = f"brings {request.what} of {len(inventory.hosts)} hosts to {request.folder}"
    return GetPlan(inventory, request, {"what": request.what, "to": str(request.folder)}, text)


def run(plan: GetPlan, runtime: Runtime) -> Report:
    """Fetches the files. A host that lacks the path does not fail, unless all hosts lack it. Each result has "files",
    "bytes", "same" and "to"."""
    answers, silent = _answers(plan, runtime)
    hosts = tuple(host for host in plan.hosts if host.name in answers)
    if not plan.request.all and any(is_repository(each.name) for each in answers.values()):
        text = f"{plan.request.what}: its configuration names programs that run here"
        raise UsageError(text, hint="--all fetches it")

    senders = Senders(runtime, len(hosts) <= runtime.fanout, plan.request.all)
    with contextlib.closing(senders):
        return _run(plan, runtime, answers, silent, senders, hosts)


def _run(
    plan: GetPlan,
    runtime: Runtime,
    answers: Mapping[str, HostRequest],
    silent: Sequence[Result],
    senders: Senders,
    hosts: tuple[Host, ...],
) -> Report:
    def look(host: Host) -> Sender:
        return senders.list_files(host, answers[host.name].spec)

    lists, failures = answers_of(hosts, runtime, look, "listing")
    answered = not silent and not failures
    have = {host: each.tree for host, each in lists.items() if each.has_files}
    for left, names in grouped((each.left_out, host) for host, each in lists.items() if each.left_out).items():
        text = f"left out on {fold(names)}: {few(left)}: git and the like run what is configured there"
        runtime.emit(Notice("info", text, hint="--all fetches it"))
    if not have and answered:
        raise _nothing(plan, any(each.spec["run"] is not None for each in answers.values()))
    for links, names in grouped((each.tree.unsafe_links, host) for host, each in lists.items()).items():
        if links:
            runtime.emit(Notice("warning", f"{fold(names)}: {links_notice(links)}"))
    fetched = _bring(plan, runtime, answers, have, senders, flat=answered and len(have) == 1) if have else {}
    of_host = {host: Result(host, True, 0, answer=Got()) for host in lists} | failures | fetched
    results = (*(of_host[host.name] for host in hosts), *silent)
    return Report("get", results, exit_code_of(results), answer=GotAll(plan.request.what, str(plan.request.folder)))


def _nothing(plan: GetPlan, of_run: bool) -> UsageError:
    """Returns the error for the case that no host has a file to fetch. of_run: the files of a run were requested."""
    what = plan.request.what
    if of_run:
        wrote = f"run {what} has written nothing into its folder, on none of its hosts"
        return UsageError(
            wrote, hint="what it wrote elsewhere: fleet get /PATH; its logs: fleet logs " + plan.request.what
        )
    if what == LATEST:
        return UsageError("no run latest: none was launched from this folder", hint="a path: fleet get ./latest")
    host, colon, path = what.partition(":")
    if colon and path and host in {each.name for each in plan.hosts}:
        return UsageError(f"no host has {what}", hint=f"fleet get -w {host} {shlex.quote(path)}")
    return UsageError(f"no host has {what}", hint="a path is relative to the host's workdir")


def _bring(
    plan: GetPlan,
    runtime: Runtime,
    answers: Mapping[str, HostRequest],
    have: Mapping[str, Tree],
    senders: Senders,
    flat: bool,
) -> dict[str, Result]:
    """Fetches the files of the hosts. Puts no file in place before the user has agreed to replace files on this
    machine, for all hosts. flat: the files get no folder that is named after their host."""
    to = plan.request.folder
    alone = turn(f"get-{store_of(to).name}", f"another get to {to}", runtime)  # two gets would share a stage
    with alone, contextlib.closing(Ground(to)) as ground:
        places = {
            host: Place(ground, host, answers[host].name if flat else f"{host}/{answers[host].name}", tree)
            for host, tree in have.items()
        }
        for place in places.values() if not plan.request.all else ():
            place.check_repositories()
        _check_room(plan, ground, have.values())
        _ask(plan, places, runtime, senders)
        fetched = _receive(plan, runtime, answers, places, senders)
        ground.is_done = all(result.ok for result in fetched.values())
    return fetched


def _check_room(plan: GetPlan, ground: Ground, trees: Iterable[Tree]) -> None:
    size = sum(min(entry[3], tree.allocated.get(entry[0], entry[3])) for tree in trees for entry in tree.entries)
    held = sum(path.lstat().st_blocks * 512 for path in Path(os.fsdecode(ground.stage.path)).rglob("*"))
    free = shutil.disk_usage(ground.top.top).free
    if size - held > free:
        raise HostFailed(
            f"{size_text(size - held)} are to come to {plan.request.folder}, {size_text(free)} are free there",
            hint="--to names a folder with more room, --from fewer hosts",
            kind="no-space",
        )


def _ask(plan: GetPlan, places: Mapping[str, Place], runtime: Runtime, senders: Senders) -> None:
    """Asks the user whether files on this machine that did not come from get may be replaced. Raises UsageError, and
    replaces nothing, if the user declines."""
    found = dict[str, dict[str, str]]()
    for host, place in places.items():
        with as_host_failure(host):
            found[host] = place.look()
    ways = [text for each in found.values() for text in each.values()]
    if not ways:
        return
    text = f"{counted(len(ways), 'file')} here would be replaced, and get did not put it there as it is: {few(ways)}"
    senders.close() if not plan.request.force else None  # no session waits: the user may take long
    if not plan.request.force and not runtime.ask(f"{text}. Replace?"):
        to = ["--to", str(plan.request.folder)] if plan.request.folder != Path(".") else []
        line = shlex.join(["fleet", "get", plan.request.what, *to, "--force"])
        raise UsageError(f"{text}; nothing was replaced", hint=f"to replace: {line}; or --to another folder")
    for host, each in found.items():
        places[host].agreed |= each.keys()


def _receive(
    plan: GetPlan, runtime: Runtime, answers: Mapping[str, HostRequest], places: Mapping[str, Place], senders: Senders
) -> dict[str, Result]:
    """Receives files from the hosts into the stage, and moves them to their places."""

    def bring(host: Host) -> Received:
        received = Received(host, answers[host.name].spec, places[host.name], senders)
        with as_host_failure(host.name):
            received.bring()
        return received

    hosts = tuple(host for host in plan.hosts if host.name in places)
    came, failures = answers_of(hosts, runtime, bring, "receiving")
    if runtime.cancel.is_set():  # received files stay staged
        return failures | {host.name: failed(host, KeyboardInterrupt()) for host in hosts if host.name in came}
    named = (((what, *getattr(each, what)), host) for what in _NOTICES for host, each in came.items())
    for (what, *paths), names in grouped(named).items():
        if paths:
            text = f"{fold(names)}: {_NOTICES[what]}: {few([path or plan.request.what for path in paths])}"
            runtime.emit(Notice("warning", text))
    here = {host: places[host] for host in came}
    _ask(plan, here, runtime, senders)
    ground = next(iter(places.values())).ground
    ground.note({key: known for place in here.values() for key, known in place.lacking().items()})
    try:
        return failures | {host: _put(plan, host, received, here[host]) for host, received in came.items()}
    finally:
        ground.note({key: known for place in here.values() for key, known in place.notes.items()})


_NOTICES = {
    "growing": "still being written, brought as far as it was when it was read",
    "gone": "went away before it was read",
}


def _put(plan: GetPlan, host: str, received: Received, place: Place) -> Result:
    if "" in received.gone:
        gone = f"{received.spec['path']} went away before it was read"
        return Result(host, False, error=HostFailed(gone, host=host))
    try:
        with as_host_failure(host):
            files, size = place.put()
            error = received.not_still()
    except HostFailed as why:
        return Result(host, False, error=why)
    got = Got(files, size, place.same, str(plan.request.folder / place.inside))
    return Result(host, error is None, 0 if error is None else None, error=error, answer=got)


def _answers(plan: GetPlan, runtime: Runtime) -> tuple[dict[str, HostRequest], list[Result]]:
    """Returns (the request to each host; results of the hosts that may belong to the run and did not answer). For a
    run, only its own hosts get a request."""
    follows = plan.request.copy_unsafe_links
    if not plan.request.is_path:
        runs, answers = find(plan.inventory, runtime, live=False)
        known = {run.run_id: run for run in runs}
        try:
            run_id = choose(plan.request.what, names_here(plan.request.runs), known)
        except UsageError:
            alike = [run_id for run_id in known if run_id.startswith(plan.request.what)]
            if alike and not any(is_part_of_name(plan.request.what, run_id) for run_id in alike):
                raise  # the argument fits several runs
        else:
            if not is_part_of_name(plan.request.what, run_id):
                run = chosen(run_id, runs, answers, plan.request.runs)
                runtime.emit(Notice("info", f"{plan.request.what} is run {run_id}"))
                silent = [each for each in answers if not each.ok] if run.is_partial else []
                return {
                    host: HostRequest(
                        {"path": part["cwd"] or "~", "run": run_id, "copy_unsafe_links": follows},
                        name_of_run(run_id, host, plan.request.what, plan.request.runs),
                    )
                    for host, part in run.parts.items()
                }, silent
    path = plan.request.what
    paths = {h.name: path if path[0] == "~" else posixpath.join(h.workdir or "~", path) for h in plan.hosts}
    return {
        host: HostRequest({"path": path, "run": None, "copy_unsafe_links": follows}, name_of(path))
        for host, path in paths.items()
    }, []

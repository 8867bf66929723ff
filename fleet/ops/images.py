"""Plans and runs `fleet sync --image NAME|FILE.tar`. It loads a container image into the runtime (podman, docker) of
every host, and verifies the image by its id."""

from __future__ import annotations

import hashlib
import shlex
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from fleet.answers.sync import Broadcasted, HasImage, Image
from fleet.delivery.chain import transfer
from fleet.delivery.chain.transfer import Broadcast, Item
from fleet.each import on_each
from fleet.errors import HostFailed, Reason, UsageError
from fleet.inventory.fields import FieldError, image
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.node.base.errors import Refused
from fleet.node.delivery.archive import read_archive
from fleet.node.facts.runtimes import file_runtime
from fleet.ops.broadcast import parse_rate
from fleet.ops.cache import turn
from fleet.ops.facts import training
from fleet.ops.plans import RequestPlan
from fleet.ops.wheels.node import folder_of, forget
from fleet.ops.wheels.wheel import Reading
from fleet.protocol.messages.images import Has, ImageSpec, Of
from fleet.protocol.messages.values import Failed
from fleet.protocol.state import IMAGES
from fleet.requests.sync import SyncImage
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.local import LocalTransport
from fleet.transport.program import call

HERE = Inventory((Host("this machine", "localhost"),))
FILE, KIND = "image.tar", "image"
TEXT = "image: %s; would be sent by a chain of the hosts that do not have it, loaded, and verified by its id"
WHAT = {"look": "looking for the image", "save": "saving the image", "load": "loading the image"}


@dataclass(frozen=True)
class ImagePlan(RequestPlan[SyncImage]):
    """Holds the plan. origin: an inventory of only the host that has the image, or None if this machine has it. limit:
    bytes a second, or None."""

    origin: Inventory | None
    limit: int | None


def plan(inventory: Inventory, request: SyncImage, origin: Host | None) -> ImagePlan:
    """Returns the plan. Pure. Raises UsageError for a limit that is no rate, and if no host is to get the image."""
    hosts = inventory.only(host for host in inventory.hosts if origin is None or host.name != origin.name)
    if not hosts.hosts:
        raise UsageError(f"host {inventory.names[0]} has it, no other is selected", hint="say who gets it: -w HOSTS")
    shown = {"image": request.image, "limit": request.limit, "from": origin and origin.name}
    rate = None if request.limit is None else parse_rate(request.limit)
    return ImagePlan(hosts, request, shown, TEXT % request.image, inventory.only([origin]) if origin else None, rate)


def read_file(path: Path, runtime: Runtime) -> tuple[str, dict[str, Of]]:
    """Returns the name of the one image in an archive of podman's or docker's `save`, and the ids that it may have.
    Raises UsageError for another file, and Interrupted."""
    try:
        with Reading(path, runtime.cancel.is_set) as file:
            name, ids = read_archive(file)
        if name is None or file_runtime(name):
            raise Refused("its image has no name")
        return image(name), cast(dict[str, Of], ids)
    except (OSError, Refused, FieldError) as error:
        why = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
        hint = "give an archive of one image, by its name: podman save -o FILE.tar NAME"
        raise UsageError(f"{path}: {why}", hint=hint) from None


def run(plan: ImagePlan, runtime: Runtime) -> Report:
    """Finds the hosts that lack the image, saves it once, sends it to these hosts by a chain, and loads it there. If
    one host fails, the others still get the image."""
    request, source = plan.request, plan.origin or HERE
    origin = source.hosts[0] if plan.origin else None
    near = runtime if origin else replace(runtime, transport=LocalTransport())
    if request.is_archive:
        name, ids = read_file(Path(request.image).expanduser(), runtime)
    else:
        name, ids = request.image, _ids_of(plan, near)
    first, sent = next(iter(ids)), 0
    key = hashlib.sha256(f"{first} {name}".encode()).hexdigest()[:24]
    there, saved = folder_of(key, IMAGES), folder_of(f"from-{key}", IMAGES)
    file = Path(request.image).expanduser().absolute() if request.is_archive else Path(saved, FILE)
    with turn(f"image-{key}", "another sync of this image", runtime):
        done, seen = _do(plan.inventory, runtime, "look", name, ids)
        if not request.is_archive and {_state(has, ids) for has in seen.values()} & {"missing", "unknown"}:
            ids = ids | _one(_do(source, near, "save", name, ids, str(file)))["archive"]
        states = {host: _state(has, ids) for host, has in seen.items()}
        lacking = tuple(host for host in plan.hosts if states.get(host.name) == "missing")
        if lacking:
            item = Item(file if origin else file.expanduser(), {host.name: f"{there}/{FILE}" for host in lacking})
            report = transfer.run(Broadcast(lacking, (item,), plan.limit, origin, force=True), runtime)
            done |= {result.host: result for result in report.results if not result.ok}
            sent = report.read(Broadcasted).sent
        behind = [host for host in plan.hosts if done[host.name].ok and states[host.name] in ("missing", "stored")]
        loaded, has = _do(plan.inventory.only(behind), runtime, "load", name, ids, f"{there}/{FILE}")
        done, seen, states = done | loaded, seen | has, states | dict.fromkeys(has, "loaded")
        # also on hosts where an earlier sync was killed after it had loaded the image
        forget(plan.inventory.only(host for host in plan.hosts if done[host.name].ok), there, runtime)
        results = tuple(done[host.name] for host in plan.hosts)
        if all(result.ok for result in results):
            forget(source, saved, near)
    answers = {host: HasImage(has["runtime"], has["id"], states[host]) for host, has in seen.items()}
    results = tuple(replace(result, answer=answers[result.host]) if result.ok else result for result in results)
    answer = Image(name, first, sent, origin.name if origin else None)
    return Report("sync", results, exit_code_of(results), answer=answer)


def _state(has: Has, ids: Mapping[str, Of]) -> str:
    """Returns "there", "stored" (under another name), "missing", or "unknown" (the ids are of different kinds). ids:
    the ids that the image may have -> their kinds."""
    if has["id"] in ids:
        return "there"
    if has["stored"]:
        return "stored"
    return "missing" if has["id"] is None or has["of"] in ids.values() else "unknown"


def _one(found: tuple[dict[str, Result], dict[str, Has]]) -> Has:
    """Returns the response of the only host. Raises the host's error if it failed."""
    (result,) = found[0].values()
    if result.error:
        raise result.error
    return found[1][result.host]


def _ids_of(plan: ImagePlan, runtime: Runtime) -> dict[str, Of]:
    """Returns the id of the image in the runtime of the source. Raises HostFailed if the source lacks the image."""
    source, name = plan.origin or HERE, plan.request.image
    has = _one(_do(source, runtime, "look", name, {}))
    if has["id"] is None:
        hint = f"{has['runtime']} pull {shlex.quote(name)} there, or name the host that has it: --from HOST"
        raise HostFailed(f"{has['runtime']} does not have image {name}", host=source.names[0], hint=hint, kind=KIND)
    return {has["id"]: has["of"]}


def _do(
    inventory: Inventory,
    runtime: Runtime,
    do: Literal["look", "save", "load"],
    name: str,
    ids: dict[str, Of],
    file: str | None = None,
) -> tuple[dict[str, Result], dict[str, Has]]:
    """Runs node/delivery/image.py on the hosts. Returns the result for each host, and the response of each that is
    ok."""
    seen: dict[str, Has] = {}

    def task(session: Session, host: Host) -> Result:
        spec: ImageSpec = {
            **training(inventory, host),
            "do": do,
            "image": name,
            "ids": ids,
            "file": file,
            "mark": f"image-{uuid.uuid4().hex}",
        }
        has = call(session, "delivery.image", spec, Has | Failed, cancel=runtime.cancel)
        if has["event"] == "failed":
            raise HostFailed(Reason.of_node(has["message"]), hint=has["hint"] or None, kind=KIND)
        seen[host.name] = has
        return Result(host.name, True, 0)

    return {result.host: result for result in on_each(inventory.hosts, runtime, task, what=WHAT[do])}, seen

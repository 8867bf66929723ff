"""`fleet sync --image NAME|FILE.tar`: a container image in the runtime of every host, by its id."""

from __future__ import annotations

import re
import shlex
import shutil
import tarfile
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fleet.answers.sync import Broadcasted, HasImage, Image
from fleet.delivery.chain import transfer
from fleet.delivery.chain.transfer import Broadcast, Item
from fleet.each import on_each
from fleet.errors import HostFailed, Reason, UsageError
from fleet.inventory.fields import FieldError, image
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.node.base.json import loads
from fleet.ops.broadcast import parse_rate
from fleet.ops.cache import cache, turn
from fleet.ops.facts import training
from fleet.ops.plans import RequestPlan
from fleet.ops.wheels.node import folder_of, forget
from fleet.protocol.messages.images import Has, ImageSpec
from fleet.protocol.messages.values import Failed
from fleet.protocol.state import IMAGES
from fleet.requests.sync import SyncImage
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.local import LocalTransport
from fleet.transport.program import call

HERE = Inventory((Host("this machine", "localhost"),))
OCI_NAME, DOCUMENT_BYTES, FILE, KIND = "org.opencontainers.image.ref.name", 1 << 20, "image.tar", "image"
TEXT = "image: %s; would be sent by a chain of the hosts that do not have it, loaded, and verified by its id"
WHAT = {"look": "looking for the image", "save": "saving the image", "load": "loading the image"}


@dataclass(frozen=True)
class ImagePlan(RequestPlan[SyncImage]):
    """origin: the host that has the image, alone; None: this machine has it. limit: bytes a second."""

    origin: Inventory | None
    limit: int | None


def plan(inventory: Inventory, request: SyncImage, origin: Host | None) -> ImagePlan:
    """Pure. Raises UsageError for a limit that is no rate, and where no host is to get the image."""
    hosts = inventory.only(host for host in inventory.hosts if origin is None or host.name != origin.name)
    if not hosts.hosts:
        raise UsageError(f"host {inventory.names[0]} has it, no other is selected", hint="say who gets it: -w HOSTS")
    shown = {"image": request.image, "limit": request.limit, "from": origin and origin.name}
    rate = None if request.limit is None else parse_rate(request.limit)
    return ImagePlan(hosts, request, shown, TEXT % request.image, inventory.only([origin]) if origin else None, rate)


def read_archive(path: Path) -> tuple[str, str]:
    """Returns (name, id) of the one image in an archive of podman's or docker's `save`. Raises UsageError."""
    try:
        with tarfile.open(path) as archive:

            def read(name: str) -> Any:
                file = archive.extractfile(name)
                return loads((file.read(DOCUMENT_BYTES) if file else b"").decode())

            try:
                (only,) = read("manifest.json")
                name, config = only["RepoTags"][0], only["Config"]
            except KeyError:
                (only,) = read("index.json")["manifests"]
                name = only["annotations"][OCI_NAME]
                config = read("blobs/" + only["digest"].replace(":", "/"))["config"]["digest"]
            return image(name), re.findall("[0-9a-f]{64}", config)[0]
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UsageError(f"{path}: {error}", hint="give an archive: podman save -o FILE.tar NAME") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, FieldError):
        hint = "save one, by its name: podman save -o FILE.tar NAME"
        raise UsageError(f"{path} is no archive of one image with a name", hint=hint) from None


def run(plan: ImagePlan, runtime: Runtime) -> Report:
    """Finds the hosts that lack the image, saves it once, sends it to them by a chain, and loads it there. A host that
    fails by itself keeps no other from getting it."""
    request, source = plan.request, plan.origin or HERE
    origin = source.hosts[0] if plan.origin else None
    near = runtime if origin else replace(runtime, transport=LocalTransport())
    name, wanted = read_archive(Path(request.image)) if request.is_archive else (request.image, _id_of(plan, near))
    key, sent = wanted[:24], 0
    there = folder_of(key, IMAGES)
    saved = folder_of(f"from-{key}", IMAGES) if origin else str(cache() / IMAGES / key)
    file = Path(request.image).absolute() if request.is_archive else Path(saved, FILE)
    with turn(f"image-{key}", "another sync of this image", runtime):
        done = _do(plan.inventory, runtime, "look", name, wanted)
        states = {host: result.read(HasImage).state for host, result in done.items() if result.ok}
        lacking = tuple(host for host in plan.hosts if states.get(host.name) == "missing")
        if lacking:
            saving = {} if request.is_archive else _do(source, near, "save", name, wanted, str(file))
            for error in (result.error for result in saving.values() if result.error):
                raise error
            item = Item(file, {host.name: f"{there}/{FILE}" for host in lacking})
            report = transfer.run(Broadcast(lacking, (item,), plan.limit, origin, force=True), runtime)
            done |= {result.host: result for result in report.results if not result.ok}
            sent = report.read(Broadcasted).sent
        behind = [host for host in plan.hosts if done[host.name].ok and states[host.name] != "there"]
        done |= _do(plan.inventory.only(behind), runtime, "load", name, wanted, f"{there}/{FILE}")
        forget(plan.inventory.only(host for host in behind if done[host.name].ok), there, runtime)
        results = tuple(done[host.name] for host in plan.hosts)
        if all(result.ok for result in results):
            shutil.rmtree(saved, ignore_errors=True) if origin is None else forget(source, saved, runtime)
    answer = Image(name, wanted, sent, origin.name if origin else None)
    return Report("sync", results, exit_code_of(results), answer=answer)


def _id_of(plan: ImagePlan, runtime: Runtime) -> str:
    """Returns the id of the image, which the runtime of the source has. Raises HostFailed."""
    (result,) = _do(plan.origin or HERE, runtime, "look", plan.request.image, None).values()
    if result.error:
        raise result.error
    has, name = result.read(HasImage), plan.request.image
    if has.id is None:
        hint = f"{has.runtime} pull {shlex.quote(name)} there, or name the host that has it: --from HOST"
        raise HostFailed(f"{has.runtime} does not have image {name}", host=result.host, hint=hint, kind=KIND)
    return has.id


def _do(
    inventory: Inventory,
    runtime: Runtime,
    do: Literal["look", "save", "load"],
    name: str,
    wanted: str | None,
    file: str | None = None,
) -> dict[str, Result]:
    """Returns the result of node/delivery/image.py for each host."""

    def task(session: Session, host: Host) -> Result:
        spec: ImageSpec = {
            **training(inventory, host),
            "do": do,
            "image": name,
            "id": wanted,
            "file": file,
            "mark": f"image-{uuid.uuid4().hex}",
        }
        has = call(session, "delivery.image", spec, Has | Failed, cancel=runtime.cancel)
        if has["event"] == "failed":
            raise HostFailed(Reason.of_node(has["message"]), hint=has["hint"] or None, kind=KIND)
        found = "there" if has["id"] == wanted else "stored" if has["stored"] else "missing"
        state = "loaded" if do == "load" else found
        return Result(host.name, True, 0, answer=HasImage(has["runtime"], has["id"], state))

    return {result.host: result for result in on_each(inventory.hosts, runtime, task, what=WHAT[do])}

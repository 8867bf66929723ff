"""Shows, for `fleet` without a verb, the state of this folder and the one command to type next. It sends and writes
nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fleet.cli.screen.output import clean
from fleet.errors import FleetError, NoInventory
from fleet.inventory.find import find_inventory, load
from fleet.inventory.nodeset import fold
from fleet.inventory.section import read_section
from fleet.model import Inventory
from fleet.rules.units import counted
from fleet.sources import SOURCES


class Seen(NamedTuple):
    """Holds a fact: its title, and a text. command: what to type next, None if all is as it should be."""

    title: str
    text: str
    command: str | None = None


def what_next() -> str:
    """Returns the facts up to the first one with a command, and this command."""
    seen = list[Seen]()
    for fact in _facts():
        seen.append(fact)
        if fact.command:
            break
    rows = "\n".join(f"  {fact.title:9}  {clean(fact.text)}" for fact in seen)
    command = f"next: {seen[-1].command}\n\n" if seen[-1].command else ""
    return f"""\
fleet takes a list of hosts to a running distributed training job, and back.

{rows}

{command}fleet --help shows all verbs"""


def _facts() -> Iterator[Seen]:
    try:
        yield from _around(load(find_inventory(None, Path.cwd(), os.environ)))
    except NoInventory:
        within = ((name, SOURCES.get(name).detect(os.environ)) for name in SOURCES.own)
        source, what = next((pair for pair in within if pair[1]), ("", None))
        yield (
            Seen("inventory", f"none; this is {what}", f"fleet --on {source} hosts")
            if what
            else Seen("inventory", "none: no fleet.yaml or hostfile here, no $FLEET_INVENTORY", "fleet init")
        )
    except FleetError as error:
        yield Seen("error", str(error))
        yield Seen("hint", error.hint or "'fleet hosts' tries it again")
    except OSError as error:
        yield Seen("error", f"this folder cannot be read: {error.strerror}")
        yield Seen("hint", "cd to another one")


def _around(inventory: Inventory) -> Iterator[Seen]:
    from fleet.ops.run.kept.documents import going_on

    yield Seen("inventory", f"{inventory.source}, {counted(len(inventory.hosts), 'host')}")
    if run := going_on(Path("runs")):
        yield Seen("run", f"{run} goes on", f"fleet attach {run}")
    if strangers := _strangers(inventory):
        yield Seen("ssh", f"not set up: {fold(strangers)}", "fleet setup-ssh")
    yield Seen("ssh", "set up")
    yield from _code(inventory)


def _strangers(inventory: Inventory) -> list[str]:
    """Returns the hosts that setup-ssh has not set up. If setup-ssh never ran, it returns the hosts whose host key is
    not known."""
    from fleet.ops.setup_ssh.record import Record
    from fleet.transport.ssh.endpoint import Routed
    from fleet.transport.ssh.known_hosts import KnownHosts

    if traces := Record.load(Path.home(), inventory.source).hosts:
        done = {name for name, trace in traces.items() if trace.needs or trace.files}
        return [name for name in inventory.names if name not in done]
    ways, on_file = Routed(None, None, inventory.hosts), KnownHosts()
    found = {host.name: on_file.of(ways.resolve(host)) for host in inventory.hosts if not host.host_key}
    return [name for name, keys in found.items() if not (keys.known or keys.bare or keys.authorities)]


def _code(inventory: Inventory) -> Iterator[Seen]:
    """Yields how the code here differs from its last delivery, and what can be launched."""
    from fleet.delivery.delivered import last_of

    section, script = read_section(inventory), _script()
    root = (section.code[0] if section.code else Path()).resolve()
    last = last_of(root)
    if last is None and not Path.home().is_relative_to(root) and (section.code or not inventory.sync):
        yield Seen("code", "never synced from this folder", "fleet sync")
    changed = last.changed(root) if last else 0
    yield Seen("code", f"synced at {last.when}, {counted(changed, 'file')} changed since" if last else "not from here")
    launch = f"fleet launch {'--sync ' * bool(changed)}{shlex.quote(script)}" if script else "fleet check"
    yield Seen("script", script or "no train.py in this folder", launch)


def _script() -> str | None:
    """Returns the name of the training script: train.py, or a similar name; without one, the only script of the folder.
    Returns None if there is no such script."""
    names = [path.name for path in Path().glob("[!-]*.py")]
    like = [name for name in names if name.startswith("train")] or (names if len(names) == 1 else [])
    return min(like, key=len, default=None)

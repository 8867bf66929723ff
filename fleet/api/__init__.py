"""Offers the verbs of the command line to programs and notebooks. The command line is built on this module.

    import fleet

    gpus = fleet.open("fleet.yaml").select("gpu[01-04]")
    report = gpus.exec(["nvidia-smi", "-L"])
    with gpus.launch("train.py", ["--lr", "1e-4"], nproc_per_node=8) as run:
        for event in run:
            print(event)
    print(run.report.exit_code)

A verb returns a Report when it is over, with a Result for each host. A host that failed raises nothing: its Result has
the error. If a verb cannot begin at all, it raises a FleetError, whose class depends on the cause, with `exit_code` and
`hint`. Ctrl-C first ends the verb's processes on the hosts, then raises KeyboardInterrupt. An exception that another
signal's handler raises does the same. Nothing is printed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from fleet.api.hosts import Hosts
from fleet.api.hosts import Planned as Planned
from fleet.api.plans import Plans as Plans
from fleet.api.run import Run as Run
from fleet.errors import UsageError
from fleet.events import Emit, silent
from fleet.model import Inventory, Report
from fleet.requests.request import Reach
from fleet.sources import INVENTORY, hosts_on
from fleet.transport import DEFAULT as SSH

if TYPE_CHECKING:
    from fleet.ops.check import Checked
    from fleet.ops.run.kept.local import LocalRun

P = ParamSpec("P")
R = TypeVar("R")


def _at_once(
    verb: Callable[Concatenate[Plans, P], Planned], do: Callable[[Planned], R]
) -> Callable[Concatenate[Fleet, P], R]:
    """Returns the verb as a method of Fleet. The method makes the plan, and `do` carries it out."""

    @wraps(verb)
    def method(self: Fleet, /, *args: P.args, **given: P.kwargs) -> R:
        return do(verb(self.plan, *args, **given))

    return method


def _checked(planned: Planned) -> Checked:
    return cast("Checked", planned.run())


@dataclass(frozen=True)
class Fleet(Hosts):
    """Holds hosts, and offers the verbs of `Plans`, each carried out at once."""

    @property
    def plan(self) -> Plans:
        """Returns the same verbs, each of which returns its plan and does nothing yet:
        `gpus.plan.sync().describe()`."""
        return Plans(self)

    exec = _at_once(Plans.exec, Planned.run)
    sync = _at_once(Plans.sync, Planned.run)
    sync_data = _at_once(Plans.sync_data, Planned.run)
    sync_image = _at_once(Plans.sync_image, Planned.run)
    sync_wheels = _at_once(Plans.sync_wheels, Planned.run)
    check = _at_once(Plans.check, _checked)
    kill_port = _at_once(Plans.kill_port, Planned.run)
    setup_ssh = _at_once(Plans.setup_ssh, Planned.run)
    build = _at_once(Plans.build, Planned.run)
    launch = _at_once(Plans.launch, Planned.begin)
    again = _at_once(Plans.again, Planned.begin)
    attach = _at_once(Plans.attach, Planned.begin)
    stop = _at_once(Plans.stop, Planned.run)
    forget = _at_once(Plans.forget, Planned.run)
    ps = _at_once(Plans.ps, Planned.run)
    top = _at_once(Plans.top, Planned.run)
    logs = _at_once(Plans.logs, Planned.run)
    stacks = _at_once(Plans.stacks, Planned.run)
    get = _at_once(Plans.get, Planned.run)


def open(
    inventory: str | os.PathLike[str] | Inventory | None = None,
    *,
    on: str = INVENTORY,
    transport: str = SSH,
    fanout: int = Reach.fanout,
    connect_timeout: float = Reach.connect_timeout,
    emit: Emit = silent,
    ask: Callable[[str], bool | None] = lambda question: None,
) -> Fleet:
    """Returns the hosts of an inventory: a file, "lab", or None for the one that the command line would find.

    on: the value of --on; any value but "ssh" has its own hosts. transport: the value of --transport. fanout: hosts to
    work on at once. connect_timeout: seconds to reach and authenticate a host. emit: called with each event, from
    several threads; the events of a launch go to its Run instead. ask: answers a question with yes or no, or None if no
    user can answer. Raises InventoryError if the inventory is missing or cannot be read.
    """
    from fleet.inventory.find import find_inventory, load

    if on != INVENTORY:
        if inventory is not None:
            raise UsageError(f"on={on!r} has its own hosts, and takes no inventory")
        inventory, transport = hosts_on(on, transport, os.environ)
    elif not isinstance(inventory, Inventory):
        inventory = load(find_inventory(None if inventory is None else os.fspath(inventory), Path.cwd(), os.environ))
    return Fleet(
        inventory=inventory,
        everyone=inventory,
        transport=transport,
        fanout=fanout,
        connect_timeout=connect_timeout,
        emit=emit,
        ask=ask,
    )


def reopen(
    run: str = "latest",
    *,
    runs_dir: str | os.PathLike[str] = "runs",
    env: Mapping[str, str] | None = None,
    fanout: int = Reach.fanout,
    connect_timeout: float = Reach.connect_timeout,
    emit: Emit = silent,
    ask: Callable[[str], bool | None] = lambda question: None,
) -> Fleet:
    """Returns the hosts of a run of this machine, as its inventory described them when it started, with its transport.

    env: values of the inventory's variables that may be secret, because fleet does not keep such values. Raises
    UsageError if one is missing. ask: as in `open`; it is asked whether to use a record that this user's fleet did not
    write."""
    from fleet.inventory.select import select
    from fleet.ops.run.find import again

    recorded = again.recorded(run, Path(runs_dir), ask)
    all_hosts = recorded.everyone(env or {})
    inventory = select(all_hosts, recorded.selected, None)
    return Fleet(
        inventory=inventory,
        everyone=all_hosts,
        transport=recorded.transport,
        fanout=fanout,
        connect_timeout=connect_timeout,
        emit=emit,
        ask=ask,
    )


def report(run: str = "latest", *, runs_dir: str | os.PathLike[str] = "runs") -> Report:
    """Returns the report of a run, from its folder on this machine. docs/json.md describes the report."""
    from fleet.ops.run.find.report import report_on

    return report_on(run, Path(runs_dir))


def runs(
    runs_dir: str | os.PathLike[str] = "runs",
    *,
    prune: bool = False,
    keep: int = 10,
    days: float = 0.0,
    max_size: float | None = None,
) -> list[LocalRun]:
    """Returns the runs that have logs on this machine, newest first. prune: removes and returns only the runs that are
    over, not among the `keep` newest, and older than `days`. max_size: removes only the oldest of these runs, until all
    remaining runs together have at most so many bytes."""
    from fleet.ops.run.kept import local

    found = local.local_runs(Path(runs_dir))
    if not prune:
        return found
    old = local.prunable(found, keep, days, max_size)
    for run in old:
        local.prune(run)
    return old

"""Holds hosts, the means to reach them, and plans for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fleet.api.run import Run, Task
from fleet.codec import T
from fleet.events import Emit, silent
from fleet.model import Host, Inventory, Report
from fleet.ops.plans import Line, Plan
from fleet.requests.request import Reach
from fleet.runtime import Runtime
from fleet.transport import DEFAULT as SSH
from fleet.transport import open_transport
from fleet.transport.base import Cancel, ConnectOptions, Transport

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Hosts:
    """Holds the hosts to work on. inventory: the selected hosts. everyone: all hosts. typed: the command line, if there
    is one. The other fields are the parameters of `open`."""

    inventory: Inventory
    everyone: Inventory
    transport: str = SSH
    fanout: int = Reach.fanout
    connect_timeout: float = Reach.connect_timeout
    emit: Emit = silent
    ask: Callable[[str], bool | None] = lambda question: None
    typed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Reach(fanout=self.fanout, connect_timeout=self.connect_timeout)

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the selected hosts, in node-rank order."""
        return self.inventory.names

    def select(self, hosts: str | None = None, exclude: str | None = None, *, option: str = "-w") -> Self:
        """Returns the hosts of -w without those of -x: node sets, groups, addresses, devices. Raises InventoryError if
        the inventory lacks one of them. option: the name of `hosts` in that error."""
        from fleet.inventory.select import select

        return replace(self, inventory=select(self.inventory, hosts, exclude, option))

    @contextmanager
    def runtime(
        self, emit: Emit | None = None, password_for: Callable[[Host], str | None] | None = None
    ) -> Iterator[Runtime]:
        """Yields the runtime for a plan. emit: replaces the `emit` of these hosts. password_for: returns a host's
        password; it is called if the host accepts no key."""
        with closing(self.connect(password_for)) as transport:
            yield Runtime(transport, self.fanout, emit or self.emit, Cancel(), self.ask)

    def run(self, work: Callable[[Runtime], T], emit: Emit | None = None) -> T:
        """Calls `work` with a runtime, and returns its result."""
        with self.runtime(emit) as runtime:
            return Task(work, runtime).result()

    def connect(self, password_for: Callable[[Host], str | None] | None = None) -> Transport:
        """Returns the transport to the hosts."""
        more = {"password_for": password_for} if password_for else {}
        # a gateway may be a host of the inventory that is not selected
        return open_transport(self.transport, ConnectOptions(self.connect_timeout), self.everyone.hosts, **more)


@dataclass(frozen=True)
class Planned:
    """Holds a plan and its hosts. run() carries it out."""

    fleet: Hosts
    plan: Plan
    work: Callable[[Runtime], Report] = field(repr=False)

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.plan.hosts

    def describe(self) -> dict[str, Any]:
        """Returns the plan as `--dry-run --json` has it."""
        return self.plan.describe()

    def lines(self) -> Iterable[Line]:
        """Yields the plan as --dry-run shows it."""
        return self.plan.lines()

    def run(self, emit: Emit | None = None) -> Report:
        """Carries the plan out. emit: replaces the `emit` of the hosts."""
        return self.fleet.run(self.work, emit)

    def begin(self) -> Run:
        """Begins the plan of any verb. Returns the Run, which iterates over its events."""
        return Run(self.fleet.runtime, self.plan, self.work)

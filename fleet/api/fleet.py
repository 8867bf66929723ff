"""Does the verbs of `Plans` at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from fleet.api.hosts import Hosts, Planned
from fleet.api.plans import Plans

if TYPE_CHECKING:
    from fleet.ops.check import Checked

P = ParamSpec("P")
R = TypeVar("R")


def _at_once(
    verb: Callable[Concatenate[Plans, P], Planned], do: Callable[[Planned], R]
) -> Callable[Concatenate[Fleet, P], R]:
    """Returns the verb as a method of Fleet: it plans, and does what it has planned."""

    @wraps(verb)
    def method(self: Fleet, /, *args: P.args, **given: P.kwargs) -> R:
        return do(verb(self.plan, *args, **given))

    return method


def _checked(planned: Planned) -> Checked:
    return cast("Checked", planned.run())


@dataclass(frozen=True)
class Fleet(Hosts):
    """Hosts, and the verbs of `Plans`, done at once."""

    @property
    def plan(self) -> Plans:
        """The same verbs, of which each gives its plan and does nothing yet: `gpus.plan.sync().describe()`."""
        return Plans(self)

    exec = _at_once(Plans.exec, Planned.run)
    sync = _at_once(Plans.sync, Planned.run)
    sync_data = _at_once(Plans.sync_data, Planned.run)
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
    logs = _at_once(Plans.logs, Planned.run)
    stacks = _at_once(Plans.stacks, Planned.run)
    get = _at_once(Plans.get, Planned.run)

"""Makes a launch wait, for `launch --wait`, until the live runs on its hosts are over. If several launches of this
machine wait for the same hosts, the first one starts first. Each launch has a file in ~/.fleet/waiting until its ranks
run. Between launches of different machines, the nodes decide: if two runs start at once, the older run stays, and the
other launch waits, in its old place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from fleet import own
from fleet.answers.run_start_events import WaitsFor
from fleet.codec import decode
from fleet.errors import ConnectError, FleetError, Interrupted, Occupied, PreflightError
from fleet.events import Notice, Round, silent
from fleet.inventory.nodeset import fold
from fleet.node.base.files import replace_file
from fleet.node.base.locks import exclusive_lock
from fleet.node.base.processes import lives, myself
from fleet.node.base.record import whoami
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.spares import preflight_all, with_enough
from fleet.ops.run.start.sync import refuse_live_runs
from fleet.ops.sessions import Sessions
from fleet.protocol.state import WAITING, meet
from fleet.rules.units import seconds
from fleet.runtime import Runtime

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 20.0  # seconds between two looks at the hosts
LINE_PAUSE = 1.0  # between two looks at the launches that came before
MOST_BYTES = 1 << 20  # of the file of a place
NAME = re.compile("[0-9]{9}-", re.ASCII)  # the number of a place, before the run's id

Place = TypedDict("Place", {"who": Any, "run": str, "owner": str, "hosts": list[tuple[str, int, list[int] | None]]})


class Turn:
    """Holds a launch's place in the line. line: is closed when the launch's ranks run, which removes the place.
    forestalled: why the launch could not start in its turn. Raises FleetError if the file of the place cannot be
    written."""

    forestalled: Occupied | None = None

    def __init__(self, plan: Plan, runtime: Runtime, line: ExitStack) -> None:
        self._before, self._runtime, self._limit = _line_up(plan, line), runtime, plan.request.wait
        self._until = None if self._limit is True else runtime.clock.monotonic() + self._limit

    def wait_for_turn(self, plan: Plan, prepare: Callable[[Plan], Plan]) -> Plan:
        """Waits until no earlier launch waits for the plan's hosts, and no live run uses them. Then returns
        prepare(plan). After the time limit of the request it calls prepare() anyway, whose preflight refuses the launch
        because of live runs. Raises PreflightError if an earlier launch still waits then. Raises Interrupted if the
        user cancels."""
        runtime, until = self._runtime, self._until
        clock = runtime.clock
        shown: object = None
        busy, pause = frozenset[tuple[str, str]](), FIRST_PAUSE
        while True:
            is_over, ahead = until is not None and clock.monotonic() >= until, self._before()
            text = "; ".join(f"the launch of {place['run']} by {place['owner']} came before" for place in ahead)
            if ahead and is_over:
                waited = seconds(float(self._limit))
                raise PreflightError(f"waited {waited}: {text}; nothing was started anywhere")
            if is_over:
                return prepare(replace(plan, request=replace(plan.request, wait=False)))
            held, silent_ones = frozenset(("", place["run"]) for place in ahead), frozenset[str]()
            if not ahead:
                try:
                    if (forestalled := self.forestalled) is not None:
                        self.forestalled = None
                        raise forestalled
                    if shown is not None and (lost := _look(plan, runtime)) is not None:
                        their = _silent(lost)
                        silent_ones, why = frozenset(their), next(iter(their.values()))
                        text = f"no answer from {fold(their)}, which is tried again: {why}"
                    else:
                        return prepare(plan)
                except Occupied as occupied:
                    text, held = occupied.message, occupied.held
            if shown != (held, silent_ones):
                shown = held, silent_ones
                event = WaitsFor(launches=sorted({run for _, run in held}))
                runtime.emit(Notice("info", f"waiting: {text}", happened=(event,)))
            if held and held != busy:
                busy, pause = held, FIRST_PAUSE
            runtime.emit(Round("waiting for hosts", ()))
            pause = min(LONGEST_PAUSE, pause * 1.5)
            left = pause if until is None else until - clock.monotonic()
            if clock.wait(runtime.cancel, max(0.0, min(LINE_PAUSE if ahead else pause, left))):
                raise Interrupted("interrupted while waiting for hosts; nothing was started")


def _look(plan: Plan, runtime: Runtime) -> ConnectError | None:
    """Checks the hosts without any report: first only for live runs, which costs less, then by preflight. Returns the
    error if hosts do not answer. Raises Occupied if live runs use them. Raises Interrupted if the user cancels. Ignores
    other errors, because prepare() will raise them."""
    quiet = replace(runtime, emit=silent)
    try:
        with_enough(plan, quiet, lambda each: refuse_live_runs(each, quiet))
        with closing(Sessions(quiet)) as sessions:
            preflight_all(plan, sessions)
    except ConnectError as error:
        return error
    except (Occupied, Interrupted):
        raise
    except FleetError:
        pass
    return None


def _silent(error: ConnectError) -> dict[str, str]:
    """Returns host -> the reason why it is not known what runs there."""
    found = {name: each.reason for name, each in error.hosts.items() if isinstance(each, ConnectError)}
    return found or {error.host or "a host": error.reason}


def _line_up(plan: Plan, line: ExitStack) -> Callable[[], list[Place]]:
    """Takes the last place in the line. Returns a function that returns the earlier places of launches for any of these
    hosts. That function also removes the places of dead processes. It ignores places of other machines, because it
    cannot know whether their processes live. line: removes the place when it is closed."""
    those = (*plan.hosts, *plan.spares)
    hosts = [(h.address, h.port or 22, None if h.devices is None else list(h.devices)) for h in those]
    mine: Place = {"who": myself(), "run": plan.run_id, "owner": whoami(), "hosts": hosts}
    try:
        folder = own.home(Path.home(), WAITING)
        with open(folder / ".lock", "ab", opener=own.private) as lock, exclusive_lock(lock.fileno()):
            last = max((int(path.name[:9]) for path in _places(folder)), default=0)
            place = folder / f"{last + 1:09}-{plan.run_id}.json"
            replace_file(bytes(place), json.dumps(mine).encode(), 0o600)
    except OSError as error:
        raise FleetError(f"--wait: cannot write to ~/.fleet/{WAITING}: {error.strerror}") from None
    line.callback(place.unlink, missing_ok=True)

    def before() -> list[Place]:
        found = []
        for path in sorted(path for path in _places(folder) if path.name < place.name):
            with suppress(OSError, ValueError):  # gone meanwhile, or damaged
                other = decode(Place, own.read_json(path, MOST_BYTES))
                if (is_alive := lives(other["who"])) is False:
                    path.unlink()
                if is_alive and any(a[:2] == b[:2] and meet(a[2], b[2]) for a in hosts for b in other["hosts"]):
                    found.append(other)
        return found

    return before


def _places(folder: Path) -> list[Path]:
    """Returns the files of the places in the line. Files with other names do not count."""
    return [path for path in folder.glob("*.json") if NAME.match(path.name)]

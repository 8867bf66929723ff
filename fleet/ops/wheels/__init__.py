"""Plans and runs `fleet sync --wheels`, which installs the same wheels into every node's interpreter. If a host cannot
take the wheels, it installs none on any host, and reports which host has which wheels."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fleet.answers.sync import HasWheels, WheelFile, Wheels
from fleet.errors import HostFailed, UsageError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Inventory, Report, Result, exit_code_of, grouped
from fleet.ops.cache import turn
from fleet.ops.facts import HasFacts
from fleet.ops.plans import Files, Line, OnHosts, PerHost
from fleet.ops.wheels import node
from fleet.ops.wheels.download import collect
from fleet.ops.wheels.node import carry, digest_of_set, folder_of, forget
from fleet.ops.wheels.present import HELD, replaced
from fleet.ops.wheels.requirements import Requirements
from fleet.ops.wheels.tags import agree, choose
from fleet.ops.wheels.wheel import DAMAGE, SDISTS, Wheel, read_folder, read_wheel, sdist_refused
from fleet.requests.sync import SyncWheels
from fleet.rules.units import counted, size
from fleet.runtime import Runtime

__all__ = ["DAMAGE", "Wheel", "WheelsPlan", "plan", "read_wheel", "run"]

Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class WheelsPlan(OnHosts):
    """Holds the plan. source: the path in the request. kind: "folder", "wheel" or "requirements". hint: the command
    line that replaces other versions on the hosts."""

    request: SyncWheels
    source: Path
    kind: str
    hint: str

    @property
    def pythons(self) -> dict[str, str | None]:
        """Returns host name -> its interpreter in the inventory, or None for python3 on the PATH."""
        return {host.name: host.python for host in self.inventory.hosts}

    def describe(self) -> dict[str, Any]:
        wheels = {"wheels": sorted(p.name for p in self.source.glob("*.whl"))} if self.kind == "folder" else {}
        return {"source": str(self.source), "kind": self.kind, **wheels, "python": self.pythons}

    def lines(self) -> Iterator[Line]:
        if self.kind == "folder":
            files = Files([(path.name, path.stat().st_size) for path in sorted(self.source.glob("*.whl"))])
            yield f"wheels: {self.source}, {files}; would be installed where they are not:"
            yield files
        else:
            yield f"wheels: what {self.source} asks for, for the hosts' Python; would be installed where it is not"
        yield PerHost({name: [f"in {python or 'python3'}"] for name, python in self.pythons.items()})


def plan(inventory: Inventory, request: SyncWheels) -> WheelsPlan:
    """Returns the plan. Raises UsageError if the source is missing, is an sdist, or would run code on the head."""
    source = Path(request.source)
    if source.name.endswith(SDISTS) and source.is_file():
        raise sdist_refused(source)
    if not source.exists():
        raise UsageError(f"{source} does not exist", hint="give a folder of wheels, or a requirements file")
    kind = "folder" if source.is_dir() else "wheel" if source.suffix == ".whl" else "requirements"
    if kind == "requirements":
        Requirements(source)
    command = shlex.join(["fleet", "sync", "--wheels", str(source), "--yes"])
    return WheelsPlan(inventory, request, source, kind, f"to replace it: {command}")


def run(plan: WheelsPlan, runtime: Runtime) -> Report:
    """Queries and checks the hosts, then copies, installs and verifies the wheels. Sends nothing before every host can
    take all wheels, and installs nothing before every host has them. Results carry {"python", "wheels": {name:
    "installed" | "there" | ...}}."""
    inventory, stopped = plan.inventory, runtime.cancel.is_set
    wheels: Sequence[Wheel] = ()
    if plan.kind != "requirements":
        wheels = read_folder(plan.source, stopped) if plan.kind == "folder" else (read_wheel(plan.source, stopped),)
    try:
        if wheels and len({w.name for w in wheels}) == len(wheels):
            facts = _ask(inventory, wheels, runtime, judge=False)
            agree(facts)
            if not any(node.lacking(found, wheels) for found in facts.values()):
                return _report(tuple(_there(inventory, wheels, facts).values()), wheels)
        facts = _ask(inventory, wheels, runtime)
        agree(facts)
        requested = tuple(wheels)
        if plan.kind == "requirements":
            _refuse(inventory, (), facts)
            wheels = collect(plan.source, facts, runtime, refresh=plan.request.refresh)
        else:
            if any(found["pip"] is None for found in facts.values()):
                _refuse(inventory, wheels, facts)
            wheels = choose(wheels, facts)
        if wheels != requested:
            facts = _ask(inventory, wheels, runtime)
        return _report(_bring(plan, wheels, facts, runtime), wheels)
    except _NoneInstalled as stop:
        return _report(stop.args[0], wheels)


class _NoneInstalled(Exception):
    """Is raised if a host cannot take the wheels: then nothing is done on any host. Its argument: the results of all
    hosts."""


def _ask(inventory: Inventory, wheels: Sequence[Wheel], runtime: Runtime, *, judge: bool = True) -> Facts:
    """Returns host name -> facts, for all hosts. Raises _NoneInstalled if a host failed."""
    answers = node.ask(inventory, wheels, runtime, judge=judge)
    facts = {r.host: r.read(HasFacts).facts for r in answers if r.ok}
    _all_or_none(inventory, {r.host: r for r in answers if not r.ok}, wheels, facts)
    return facts


def _refuse(inventory: Inventory, wheels: Sequence[Wheel], facts: Facts, force: bool = False) -> None:
    """Raises _NoneInstalled if any host cannot take the wheels."""
    bad = {
        name: Result(name, False, error=error, answer=HasWheels(wheels=node.states(found, wheels)))
        for name, found in facts.items()
        if (error := node.refusal(found, wheels, force))
    }
    _all_or_none(inventory, bad, wheels, facts)


def _all_or_none(inventory: Inventory, bad: Mapping[str, Result], wheels: Sequence[Wheel], facts: Facts) -> None:
    """Raises _NoneInstalled if any host failed. bad: host name -> its failure."""
    if bad:
        rest = {n: _held(n, bad, "nothing was sent", node.states(facts[n], wheels)) for n in facts if n not in bad}
        raise _NoneInstalled(tuple({**rest, **bad}[name] for name in inventory.names))


def _held(name: str, bad: Iterable[str], what: str, have: Mapping[str, str]) -> Result:
    error = HostFailed(
        f"{what}: {fold(bad)} could not",
        host=name,
        kind="held",
        hint=f"all or none: mend it, or leave it out: -x {fold(bad)}",
    )
    return Result(name, False, error=error, answer=HasWheels(wheels=have))


def _there(inventory: Inventory, wheels: Sequence[Wheel], facts: Facts) -> dict[str, Result]:
    return {
        name: Result(name, True, 0, answer=HasWheels(facts[name]["executable"], node.states(facts[name], wheels)))
        for name in inventory.names
    }


def _bring(plan: WheelsPlan, wheels: Sequence[Wheel], facts: Facts, runtime: Runtime) -> tuple[Result, ...]:
    """Copies and installs the missing wheels. Waits for other syncs of the same wheels on this machine first."""
    inventory, name = plan.inventory, digest_of_set(wheels)
    with turn(name, "another sync of these wheels", runtime) as waited:
        if waited:  # the earlier sync may have installed them
            facts = _ask(inventory, wheels, runtime)
        _refuse(inventory, wheels, facts, plan.request.force)
        _consent(plan, wheels, facts, runtime)
        results = _there(inventory, wheels, facts)
        failed = _send(inventory, wheels, name, facts, runtime)
        if not failed:
            folder = folder_of(name)
            some = inventory.only(h for h in inventory.hosts if node.lacking(facts[h.name], wheels))
            done = node.install(some, wheels, facts, folder, runtime, plan.request.import_timeout)
            results |= {r.host: r for r in done}
            through = {r.host for r in done if set((r.read(HasWheels).wheels or {}).values()) <= {"there", "installed"}}
            forget(some.only(h for h in some.hosts if h.name in through), folder, runtime)
    return tuple((results | failed).values())


def _consent(plan: WheelsPlan, wheels: Sequence[Wheel], facts: Facts, runtime: Runtime) -> None:
    """Shows the packages that would be replaced, and asks the user. If the user gave the wheels, only torch and CUDA
    packages are shown."""
    replacing = grouped((each, host) for host, found in facts.items() for each in replaced(found, wheels).items())
    text = "; ".join(
        f"replaces {name} {versions} on {fold(hosts)}"
        for (name, versions), hosts in replacing.items()
        if plan.kind == "requirements" or HELD.fullmatch(name)
    )
    if not text:
        return
    if plan.request.yes:
        runtime.emit(Notice("warning", text))
    elif not runtime.ask(f"{text}. Go on?"):
        raise UsageError(f"{text}; not agreed to, nothing was sent", hint=plan.hint)


def _send(
    inventory: Inventory, wheels: Sequence[Wheel], name: str, facts: Facts, runtime: Runtime
) -> dict[str, Result]:
    """Copies the missing wheels to the hosts that lack some. Returns the results of these hosts if any failed, or else
    {}."""
    have = {host: node.states(found, wheels) for host, found in facts.items()}
    wanted = [w for w in wheels if any(states[w.name] != "there" for states in have.values())]
    lacking = [h for h in inventory.hosts if any(have[h.name][w.name] != "there" for w in wanted)]
    if not lacking:
        return {}
    what = f"{counted(len(wanted), 'wheel')} ({size(sum(w.size for w in wanted))})"
    whom = f"{len(lacking)} of {counted(len(inventory.hosts), 'host')}"
    runtime.emit(Notice("info", f"sending {what} to {whom}"))
    carried = carry(inventory.only(lacking), wanted, name, runtime)
    bad = [r.host for r in carried if not r.ok]
    return {
        r.host: _held(r.host, bad, "not installed", have[r.host])
        if r.ok
        else replace(r, answer=HasWheels(wheels=have[r.host]))
        for r in carried
        if bad
    }


def _report(results: tuple[Result, ...], wheels: Sequence[Wheel]) -> Report:
    listed = Wheels([WheelFile(w.name, w.version, w.path.name, w.sha256) for w in wheels])
    return Report("sync", results, exit_code_of(results), answer=listed)

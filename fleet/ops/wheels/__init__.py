"""`fleet sync --wheels`: the same wheels in every node's interpreter, or a clear list of who has what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import HostFailed, UsageError
from fleet.events import Notice
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.runtime import Runtime
from fleet.ops.wheels import node
from fleet.ops.wheels.carry import carry, forget
from fleet.ops.wheels.collect import collect
from fleet.ops.wheels.tags import agree, choose
from fleet.ops.wheels.wheel import SDISTS, Wheel, read_folder, read_wheel, sdist_refused
from fleet.rules.units import size

__all__ = ["Wheel", "WheelsOptions", "WheelsPlan", "execute", "make_plan", "read_wheel"]

IMPORT_SECONDS = 120.0


@dataclass(frozen=True)
class WheelsPlan:
    """source: a folder of wheels, one wheel, or a requirements file on the head. pythons: host name -> what the
    inventory names as its interpreter, None for python3 on the PATH."""

    source: Path
    kind: str
    pythons: Mapping[str, str | None]

    def describe(self) -> dict[str, Any]:
        wheels = {"wheels": sorted(p.name for p in self.source.glob("*.whl"))} if self.kind == "folder" else {}
        return {"source": str(self.source), "kind": self.kind, **wheels, "python": dict(self.pythons)}


@dataclass(frozen=True)
class WheelsOptions:
    """import_seconds: how long importing all of the wheels may take on a node. refresh: resolve requirements again."""

    import_seconds: float = IMPORT_SECONDS
    refresh: bool = False


def make_plan(inventory: Inventory, source: Path) -> WheelsPlan:
    """What is to be installed where; UsageError where the source is missing or an sdist."""
    if source.name.endswith(SDISTS) and source.is_file():
        raise sdist_refused(source)
    if not source.exists():
        raise UsageError(f"{source} does not exist", hint="give a folder of wheels, or a requirements file")
    kind = "folder" if source.is_dir() else "wheel" if source.suffix == ".whl" else "requirements"
    return WheelsPlan(source, kind, {h.name: h.python for h in inventory.hosts})


def execute(inventory: Inventory, plan: WheelsPlan, options: WheelsOptions, runtime: Runtime) -> Report:
    """Ask, check, carry, install, verify. Nothing is sent before every host could take all of it, and nothing is
    installed before every host has it. Results carry {"python", "wheels": {name: "installed" | "there"}}."""
    wheels: Sequence[Wheel] = ()
    if plan.kind == "folder":
        wheels = read_folder(plan.source)
    elif plan.kind == "wheel":
        wheels = (read_wheel(plan.source),)
    if wheels and len({w.name for w in wheels}) == len(wheels):
        answers = node.ask(inventory, wheels, runtime, judge=False)
        facts = _facts(answers)
        if facts is None:
            return _report(_held_back(answers, inventory), wheels)
        agree(facts)
        if not any(node.lacking(found, wheels) for found in facts.values()):
            return _report(_install(inventory, wheels, facts, options, runtime), wheels)
    answers = node.ask(inventory, wheels, runtime)
    facts = _facts(answers)
    if facts is None:
        return _report(_held_back(answers, inventory), wheels)
    agree(facts)
    asked = tuple(wheels)
    if plan.kind == "requirements":
        early = _refused(facts, (), inventory)
        if early:
            return _report(early, ())
        wheels = read_folder(collect(plan.source, facts, runtime, refresh=options.refresh))
    elif any(f["pip"] is None for f in facts.values()):
        return _report(_refused(facts, wheels, inventory), wheels)
    chosen = choose(wheels, facts)
    if chosen != asked:
        answers = node.ask(inventory, chosen, runtime)
        facts = _facts(answers)
        if facts is None:
            return _report(_held_back(answers, inventory), chosen)
    refused = _refused(facts, chosen, inventory)
    if refused:
        return _report(refused, chosen)
    return _report(_install(inventory, chosen, facts, options, runtime), chosen)


def _facts(answers: Sequence[Result]) -> Mapping[str, Mapping[str, Any]] | None:
    """host name -> facts, None unless every host answered."""
    return {r.host: r.data["facts"] for r in answers} if all(r.ok for r in answers) else None


def _held_back(answers: Sequence[Result], inventory: Inventory) -> tuple[Result, ...]:
    """Not all could be asked: nobody gets anything."""
    bad = [r.host for r in answers if not r.ok]
    return tuple(r if not r.ok else _held(inventory.host(r.host), bad, "nothing was sent") for r in answers)


def _refused(
    facts: Mapping[str, Mapping[str, Any]], wheels: Sequence[Wheel], inventory: Inventory
) -> tuple[Result, ...]:
    """A result for every host when any host cannot take the wheels; () when all can."""
    errors = {host: node.refusal({**found, "states": found["states"][: len(wheels)]}, wheels)
              for host, found in facts.items()}
    if not any(errors.values()):
        return ()
    bad = [host for host, error in errors.items() if error]
    return tuple(_held(h, bad, "nothing was sent") if errors[h.name] is None else
                 Result(h.name, False, error=errors[h.name], data={"wheels": _states(facts[h.name], wheels)})
                 for h in inventory.hosts)


def _held(host: Host, bad: Sequence[str], what: str) -> Result:
    return Result(host.name, False, error=HostFailed(f"{what}: {', '.join(bad[:4])} could not", host=host.name,
                                                     kind="held", hint="all or none: mend it, or leave it out with -x"))


def _states(facts: Mapping[str, Any], wheels: Sequence[Wheel]) -> dict[str, str]:
    return {w.name: s["state"] for w, s in zip(wheels, facts["states"], strict=False)}


def _install(
    inventory: Inventory, wheels: Sequence[Wheel], facts: Mapping[str, Mapping[str, Any]], options: WheelsOptions,
    runtime: Runtime,
) -> tuple[Result, ...]:
    lacking = {name: node.lacking(found, wheels) for name, found in facts.items()}
    hosts = tuple(h for h in inventory.hosts if lacking[h.name])
    done = {name: Result(name, True, 0, data={"python": found["executable"], "wheels": _states(found, wheels)})
            for name, found in facts.items()}
    if hosts:
        wanted = [w for w in wheels if any(w in some for some in lacking.values())]
        runtime.emit(Notice("info",
            f"to {len(hosts)} of {len(facts)} hosts: {size(sum(w.size for w in wanted))}, wheels: {len(wanted)}"))
        there = Inventory(hosts, inventory.groups, inventory.env, inventory.source,
                          unselected=inventory.unselected)
        folder, carried = carry(there, wanted, runtime)
        bad = [r.host for r in carried if not r.ok]
        if bad:
            done |= {r.host: r if not r.ok else _held(inventory.host(r.host), bad, "not installed") for r in carried}
        else:
            results = node.install(there, hosts, folder, wheels, runtime, options.import_seconds, lacking.__getitem__)
            done |= {r.host: r for r in results}
            if all(r.ok for r in results):
                forget(there, hosts, folder, runtime)
    return tuple(done[h.name] for h in inventory.hosts)


def _report(results: tuple[Result, ...], wheels: Sequence[Wheel]) -> Report:
    listed = [{"name": w.name, "version": w.version, "file": w.path.name, "sha256": w.sha256} for w in wheels]
    return Report("sync", results, exit_code_of(results), {"wheels": listed})

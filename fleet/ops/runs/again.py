"""What this machine knows of how a run was started (its run.json), for starting it once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import UsageError
from fleet.model import Host, Inventory
from fleet.ops.launch.folder import MISSING, read_told
from fleet.ops.launch.origin import RUN, VARIABLES
from fleet.ops.runs.find import choose
from fleet.ops.runs.local import names
from fleet.ops.runs.stored import misfit

AGAIN = "give the script and its options once more"


@dataclass(frozen=True)
class Recorded:
    """run: its id. document: its run.json."""

    run: str
    document: Mapping[str, Any]

    @property
    def transport(self) -> str:
        return str(self.document["fleet"]["transport"])

    @property
    def source(self) -> str | None:
        """The inventory's file."""
        found: str | None = self.document["inventory"]["source"]
        return found

    @property
    def selected(self) -> str:
        """The hosts that were to choose from, as -w has it."""
        return str(self.document["inventory"]["selected"])

    @property
    def narrowed(self) -> str | None:
        """The same, None where it was the whole inventory."""
        return None if self.document["inventory"]["whole"] else self.selected

    @property
    def command(self) -> tuple[str, tuple[str, ...]]:
        """(script, its arguments)."""
        asked = self.document["launch"]
        return str(asked["script"]), tuple(asked.get("args", ()))

    def fitted(self, inventory: Inventory) -> dict[str, Any]:
        """Its nnodes and spares, no more than there are hosts now: those that are gone were left out on purpose."""
        asked, hosts = self.document["launch"], len(inventory.hosts)
        nnodes = str(asked.get("nnodes") or "")
        if not nnodes.isdecimal():
            return {}
        kept = min(int(nnodes), hosts)
        return {"nnodes": str(kept), "spares": min(asked.get("spares", 0), hosts - kept)}

    def everyone(self, env: Mapping[str, str]) -> Inventory:
        """The inventory as it was. env: values of its variables that were not kept. UsageError where one is missing."""
        stored = self.document["inventory"]
        chosen = {word.partition(":")[0] for word in self.selected.split(",")}
        needed = [stored["env"], *(host["env"] for host in stored["hosts"] if host["name"] in chosen)]
        self._refuse({name for each in needed for name, value in each.items() if value is None} - env.keys())

        def filled(kept: Mapping[str, str | None]) -> dict[str, str]:
            values = {name: env.get(name) if value is None else value for name, value in kept.items()}
            return {name: value for name, value in values.items() if value is not None}

        hosts = tuple(Host(**{**host, "env": filled(host["env"])}) for host in stored["hosts"])
        return Inventory(hosts, env=filled(stored["env"]), source=stored["source"] or self.run)

    def asked(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """What fleet.api's launch() was given, and what is others now. UsageError."""
        then = dict(self.document["launch"])
        variables = {name: {**then.pop(name, {}), **(changed.get(name) or {})} for name in VARIABLES}
        for name, other in (VARIABLES, VARIABLES[::-1]):
            for given in changed.get(name) or {}:  # a variable is either literal or expanded
                variables[other].pop(given, None)
        self._refuse({name for each in variables.values() for name, value in each.items() if value is None})
        return {**then, **changed, **variables}

    def _refuse(self, withheld: set[str]) -> None:
        if withheld:
            given = " ".join(f"--env {name}" for name in sorted(withheld))
            raise UsageError(
                f"run {self.run}: what may be secret is not kept, so give it again: {', '.join(sorted(withheld))}",
                hint=f"add {given}, which takes the value from your environment, or NAME=VALUE",
            )


def recorded(word: str, runs_dir: Path) -> Recorded:
    """Of a run that has a folder here; UsageError where nothing tells how it was started."""
    try:
        run = choose(word, names(runs_dir))
    except UsageError as error:
        hint = (
            error.hint
            if "begin so" in error.message
            else "'fleet runs' lists what was started here; one of another machine is repeated there"
        )
        raise UsageError(f"{runs_dir}: {error.message}", hint=hint) from None
    path = runs_dir / run / RUN
    document, wrong = read_told(path)
    hint = "'fleet ps --all' shows who started it, on which machine"
    if wrong == MISSING:
        wrong += ": it was not started from here"
    elif wrong:
        hint = AGAIN
    elif not all(isinstance(document.get(part), dict) for part in ("launch", "inventory", "fleet")):
        wrong = "was written by an older fleet"
    if wrong:
        raise UsageError(f"run {run}: nothing here tells how it was started: {path} {wrong}", hint=hint)
    odd = misfit(document)
    if odd:
        raise UsageError(f"run {run}: {path} is not as fleet wrote it: {odd}", hint=AGAIN)
    return Recorded(run, document)

"""What this machine knows of how a run was started (its run.json), for starting it once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import UsageError
from fleet.model import Host, Inventory
from fleet.ops.launch.logs import read_object
from fleet.ops.launch.origin import RUN, VARIABLES
from fleet.ops.runs.find import choose
from fleet.ops.runs.local import names


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
    def selection(self) -> str:
        """The hosts that were to choose from, as -w has it."""
        return str(self.document["inventory"]["selected"] or ",".join(host["name"] for host in self._hosts))

    @property
    def narrowed(self) -> str | None:
        """The same, None where it was the whole inventory."""
        found: str | None = self.document["inventory"]["selected"]
        return found

    @property
    def command(self) -> tuple[str, tuple[str, ...]]:
        """(script, its arguments)."""
        asked = self.document["launch"]
        return str(asked["script"]), tuple(asked.get("args", ()))

    def nnodes(self, inventory: Inventory) -> str | None:
        """How many nodes it was to have, and no more than there are now: hosts were left out on purpose."""
        asked = str(self.document["launch"].get("nnodes", ""))
        return str(min(int(asked), len(inventory.hosts))) if asked.isdecimal() else asked or None

    @property
    def _hosts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["inventory"]["hosts"]
        return found

    def everyone(self, env: Mapping[str, str]) -> Inventory:
        """Its hosts as they were described, and the gateways to them. env: values that were not kept. UsageError."""
        stored = self.document["inventory"]
        hosts = [*stored["hosts"], *stored["gateways"]]
        withheld = {
            name for part in (stored, *hosts) for name, value in part["env"].items() if value is None
        } - env.keys()
        self._refuse(withheld, "variables of its inventory")

        def filled(part: Mapping[str, Any]) -> dict[str, str]:
            return {name: env[name] if value is None else value for name, value in part["env"].items()}

        made = tuple(Host(**{**each, "env": filled(each)}) for each in hosts)
        return Inventory(made, env=filled(stored), source=stored["source"] or self.run)

    def asked(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """What fleet.api's launch() was given, and what is others now. UsageError."""
        then = dict(self.document["launch"])
        variables = {name: {**then.pop(name, {}), **(changed.get(name) or {})} for name in VARIABLES}
        for name, other in (VARIABLES, VARIABLES[::-1]):
            for given in changed.get(name) or {}:  # a variable is either literal or expanded
                variables[other].pop(given, None)
        self._refuse({k for each in variables.values() for k, value in each.items() if value is None}, "variables")
        return {**then, **changed, **variables}

    def _refuse(self, withheld: set[str], whose: str) -> None:
        if withheld:
            given = " ".join(f"--env {name}" for name in sorted(withheld))
            raise UsageError(
                f"run {self.run}: values of {whose} that may be secret are not kept: {', '.join(sorted(withheld))}",
                hint=f"give them again, as they are set here: {given}",
            )


def recorded(word: str, runs_dir: Path) -> Recorded:
    """Of a run that has a folder here; UsageError where nothing tells how it was started."""
    try:
        run = choose(word, names(runs_dir))
    except UsageError as error:
        hint = error.hint if "begin so" in error.message else "'fleet runs' lists those of this folder; see --runs-dir"
        raise UsageError(f"{error.message} in {runs_dir}", hint=hint) from None
    path = runs_dir / run / RUN
    document = read_object(path)
    if not all(isinstance(document.get(part), dict) for part in ("launch", "inventory", "fleet")):
        what = "was written by an older fleet" if document else "is not there: it was not started from here"
        raise UsageError(
            f"run {run}: nothing here tells how it was started: {path} {what}",
            hint="'fleet ps --all' shows who started it, on which machine",
        )
    return Recorded(run, document)

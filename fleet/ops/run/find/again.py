"""Reads the record of how a run was started (its run.json) on this machine, to start the run once more. Checks the
record, because the file may be another user's, or may have been edited by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from fleet import own
from fleet.codec import Misfit, decode
from fleet.errors import Ambiguous, UsageError
from fleet.inventory.fields import FIELDS, FieldError, env_item, host_name, parse_field
from fleet.model import Host, Inventory
from fleet.ops.run.kept.documents import MISSING, RUN, is_sealed, read_document, stored
from fleet.ops.run.kept.job import submitted
from fleet.ops.run.kept.local import choose, names
from fleet.ops.run.plan.origin import VARIABLES
from fleet.protocol.messages.values import Matching
from fleet.protocol.state import is_run_id
from fleet.requests.launch import Launch
from fleet.requests.request import OptionError

AGAIN = "give the script and its options once more"
Text = Annotated[Any, lambda value: type(value) is str]  # a string of any length
# variable -> its value, or None: a value that may be secret is not recorded
Kept = dict[str, Annotated[Any, lambda value: value is None or type(value) is str]]
Table = dict[str, Any] | None
Own = str | float | bool | None  # a value of an engine's own option


Stored = TypedDict("Stored", {"name": str, "address": str, "env": Kept})
Hosts = TypedDict("Hosts", {"source": str | None, "whole": bool, "selected": Text, "env": Kept, "hosts": list[Stored]})
By = TypedDict("By", {"transport": str})
Code = TypedDict(
    "Code",
    {
        "commit": Annotated[str, Matching("[0-9a-f]{4,64}")] | None,
        "dirty": bool | None,
        "sha256": str | None,
        "why": Text | None,
        "diff": str | None,
    },
    total=False,
)
Script = TypedDict("Script", {"sha256": str | None}, total=False)
Facts = TypedDict(
    "Facts",
    {"python": Table, "packages": Table, "torch": Table, "deepspeed": Table, "script": Script | None},
    total=False,
)
Optional = TypedDict("Optional", {"code": Code | None, "facts": dict[str, Facts] | None, "logs": Text}, total=False)


class Document(Optional):
    launch: dict[str, Any]
    inventory: Hosts
    fleet: By


def misfit(document: Mapping[str, Any]) -> str | None:
    """Returns the first fault of a run.json, as text, or None."""
    try:
        decode(Document, document)
        launch, stored = document["launch"], document["inventory"]
        for value in request_of(launch).options.values():  # an engine's own
            decode(Own, value)
        for host in stored["hosts"]:
            _check(host)
        for env in (stored["env"], *(host["env"] for host in stored["hosts"])):
            for name, value in env.items():
                env_item(name, value or "")
    except Misfit as error:
        return str(error)
    except TypeError:
        return "launch.script is missing"
    except OptionError as error:
        return f"launch.{error}"
    except UsageError as error:
        return f"launch: {error}"
    except FieldError as error:
        return f"inventory: {error.message}"
    return None


def request_of(requested: Mapping[str, Any]) -> Launch:
    """Returns the request in a document's "launch". Values that were not recorded are "". Raises UsageError if an
    option is invalid."""
    kept = {name: values for name in VARIABLES if isinstance(values := requested.get(name), dict)}
    filled = {name: {key: "" if value is None else value for key, value in kept[name].items()} for name in kept}
    return Launch.of({**requested, **filled})


def _check(host: Mapping[str, Any]) -> None:
    """Raises Misfit or FieldError if a host of a run.json is invalid."""
    host_name(host["name"])
    known = {field.name for field in dataclasses.fields(Host)}
    for key, value in host.items():
        if key not in known:
            raise Misfit(key, ".inventory.hosts[]")
        if key in FIELDS and value is not None:
            kind = type(parse_field(key, str(value))) if type(value) in (str, int) else None
            if type(value) is not kind:
                raise Misfit(value, f".inventory.hosts[].{key}")


@dataclass(frozen=True)
class Recorded:
    """Holds the record of a run. run: its id. document: its run.json."""

    run: str
    document: Mapping[str, Any]

    @property
    def transport(self) -> str:
        return str(self.document["fleet"]["transport"])

    @property
    def source(self) -> str | None:
        """Returns the path of the inventory's file."""
        return stored(str, self.document, "inventory", "source")

    @property
    def selected(self) -> str:
        """Returns the hosts that the run could use, in the form of -w."""
        return str(self.document["inventory"]["selected"])

    @property
    def narrowed(self) -> str | None:
        """Returns the hosts in the form of -w; None if they were the whole inventory."""
        return None if self.document["inventory"]["whole"] else self.selected

    @property
    def command(self) -> tuple[str, tuple[str, ...]]:
        """Returns (script, its arguments)."""
        launch = self.document["launch"]
        return str(launch["script"]), tuple(launch.get("args", ()))

    def shown(self) -> Iterator[str]:
        """Yields the lines that a user must see before approving the launch: all that decides what runs where."""
        launch, stored = self.document["launch"], self.document["inventory"]
        script, args = self.command
        changed = {k: v for k, v in launch.items() if v not in (getattr(Launch, k, None), None, [], {})}
        yield f"fleet launch {shlex.join([script, *args])}"
        yield f"requested: {json.dumps(changed)}"
        yield f"on {self.selected} of the inventory {self.source}, over {self.transport}; as it was described then:"
        yield f"env {json.dumps(stored['env'])}"
        for host in stored["hosts"]:
            yield json.dumps({name: value for name, value in host.items() if value not in (None, {})})

    def fitted(self, inventory: Inventory) -> dict[str, Any]:
        """Returns the run's nnodes and spares, limited to the number of hosts that the inventory has now. The user left
        out the others on purpose."""
        launch, hosts = self.document["launch"], len(inventory.hosts)
        nnodes = str(launch.get("nnodes") or "")
        if not nnodes.isdecimal():
            return {}
        kept = min(int(nnodes), hosts)
        return {"nnodes": str(kept), "spares": min(launch.get("spares", 0), hosts - kept)}

    def everyone(self, env: Mapping[str, str]) -> Inventory:
        """Returns the inventory of the run. env: values of the variables whose values were not recorded. Raises
        UsageError if one is missing."""
        stored = self.document["inventory"]
        chosen = {operand.partition(":")[0] for operand in self.selected.split(",")}
        needed = [stored["env"], *(host["env"] for host in stored["hosts"] if host["name"] in chosen)]
        self._refuse({name for each in needed for name, value in each.items() if value is None} - env.keys())

        def filled(kept: Mapping[str, str | None]) -> dict[str, str]:
            values = {name: env.get(name) if value is None else value for name, value in kept.items()}
            return {name: value for name, value in values.items() if value is not None}

        hosts = tuple(Host(**{**host, "env": filled(host["env"])}) for host in stored["hosts"])
        return Inventory(hosts, env=filled(stored["env"]), source=stored["source"] or self.run)

    def request(self, changed: Mapping[str, Any]) -> Launch:
        """Returns the run's request with the changed options. Raises UsageError if a value that was not recorded is
        missing."""
        then = self.document["launch"]
        variables = {name: {**(then.get(name) or {}), **(changed.get(name) or {})} for name in VARIABLES}
        for name, other in (VARIABLES, VARIABLES[::-1]):
            for given in changed.get(name) or {}:  # a variable is either literal or expanded
                variables[other].pop(given, None)
        self._refuse({name for each in variables.values() for name, value in each.items() if value is None})
        requested = {**then, **changed, **variables}
        if requested.get("notify", "") is None:
            self._refuse({"--notify"}, f"fleet launch --again {self.run} --notify COMMAND")
        return replace(Launch.of(requested), repeats=self.run)

    def _refuse(self, withheld: set[str], hint: str | None = None) -> None:
        if withheld:
            given = " ".join(f"--env {name}" for name in sorted(withheld))
            by_name = f"'fleet launch --again {self.run} {given}' takes it from your environment; NAME=VALUE sets it"
            raise UsageError(
                f"run {self.run}: what may be secret is not kept, so give it again: {', '.join(sorted(withheld))}",
                hint=hint or by_name,
            )


def recorded(argument: str, runs_dir: Path, ask: Callable[[str], bool | None]) -> Recorded:
    """Returns the record of a run that has a folder here. Raises UsageError if there is none. ask: asks the user
    whether to use a record that this user's fleet did not write; returns None if no user can answer."""
    if (
        is_run_id(argument)
        and os.path.lexists(runs_dir / argument)
        and (why := own.foreign(runs_dir / argument)) is not None
    ):
        raise UsageError(f"{runs_dir / argument} {why}, and is not read", hint=AGAIN)
    here = names(runs_dir)
    try:
        run = choose(argument, here)
    except UsageError as error:
        hint = (
            error.hint
            if isinstance(error, Ambiguous)
            else "'fleet runs' lists what was started here; one of another machine is repeated there"
        )
        raise UsageError(f"{runs_dir}: {error.message}", hint=hint) from None
    path = runs_dir / run / RUN
    document, wrong = read_document(path)
    hint = "'fleet ps --all' shows who started it, on which machine"
    if wrong == MISSING:
        wrong += ": it was not started from here"
    elif wrong:
        hint = AGAIN
    elif "platform" in document:
        wrong, hint = "is of containers that a platform started", "start the job once more where the platform has it"
    if wrong:
        raise UsageError(f"run {run}: nothing here shows how it was started: {path} {wrong}", hint=hint)
    odd = misfit(document)
    if odd:
        raise UsageError(f"run {run}: {path} is not as fleet wrote it: {odd}", hint=AGAIN)
    found, job = Recorded(run, document), submitted(path.parent)
    if not is_sealed(document, run) or job is not None and not own.is_seal(job.seal, run, job.on, job.asked):
        queue = [] if job is None else [f"in a queue, --on {job.on}: {json.dumps(job.asked)}"]
        foreign = f"{path.parent} is not as your fleet wrote it, if it did"
        if not (agreed := ask("\n".join([f"{foreign}. It says:", *found.shown(), *queue, "Launch that?"]))):
            raise UsageError(
                f"{foreign}: nothing is launched" + " without consent, and no user is here to ask" * (agreed is None),
                hint=f"'fleet launch --dry-run --again {run}' shows what it would be; --yes launches it",
            )
    return found

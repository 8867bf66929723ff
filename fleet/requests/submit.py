"""Defines the request to have a queue start a run (`fleet launch --on slurm`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.requests.runs import OfRun


@dataclass(frozen=True, kw_only=True)
class Submit(OfRun):
    """Requests a job that launches `command` on the first of its nodes. command: as it would be typed there after
    `launch`.

    run: its id. environ: the user's variables, from which the queue's command takes options. env: variables of the run,
    whose values are in no command line and no script. on: the source that has the queue. name: the run's name. nodes:
    their number in the queue's form; "": as many as `only` names, else 1. options: the queue's own. only, without: node
    sets. grace: seconds in which ranks save their work, if a user set them. detach: leave the job in the queue. made:
    comments in the script. each: lists of arguments to add to the command, each for a run and job of its own; `run` is
    then the id of the first."""

    on: str
    name: str
    command: Sequence[str]
    run: str = ""
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    nodes: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    only: str | None = None
    without: str | None = None
    grace: float | None = None
    detach: bool = False
    made: Sequence[str] = ()
    each: Sequence[Sequence[str]] = ()

    def asked(self) -> dict[str, Any]:
        """Returns the nodes and the queue's options, with which the same job can be requested again."""
        more = {"nodes": self.nodes, "nodelist": self.only, "exclude": self.without, "grace": self.grace}
        return {**self.options, **{name: value for name, value in more.items() if value}}


def of_line(run: str, line: object) -> str:
    """Returns the id of another run of several that are requested at once: NAME-LINE-DATE-TIME-HEX."""
    name, *stamp = run.rsplit("-", 3)
    return "-".join([name.rpartition("-")[0], str(line), *stamp])


def both(*sets: str | None) -> str | None:
    """Returns the union of node sets as one node set."""
    return ",".join(filter(None, sets)) or None

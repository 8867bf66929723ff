"""Defines the request of `fleet launch` to have a queue start a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.requests.runs import OfRun


@dataclass(frozen=True, kw_only=True)
class Submit(OfRun):
    """Have a job launch `command` on the first of its nodes, as it would be typed there after `launch`.

    run: its id. environ: the user's variables, of which the queue's command takes options. env: variables of the run,
    whose values are in no command line and no script. on: the source whose queue it is. name: what the run is called
    by. nodes: how many, as the queue takes it; "": as many as `only` names, else 1. options: the queue's own. only,
    without: node sets. grace: seconds in which ranks save their work, where a user set them. detach: leave it in the
    queue. made: comments of the script. each: arguments that are added to the command, a run and a job for each; `run`
    is the first one's id then."""

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
        """Nodes and the queue's options: what requests the same."""
        more = {"nodes": self.nodes, "nodelist": self.only, "exclude": self.without, "grace": self.grace}
        return {**self.options, **{name: value for name, value in more.items() if value}}


def of_line(run: str, line: object) -> str:
    """Returns the id of the run of another line, of several that are requested at once: NAME-LINE-DATE-TIME-HEX."""
    name, *stamp = run.rsplit("-", 3)
    return "-".join([name.rpartition("-")[0], str(line), *stamp])


def both(*sets: str | None) -> str | None:
    """Returns one node set of several."""
    return ",".join(filter(None, sets)) or None

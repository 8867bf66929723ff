"""Defines the request of `fleet launch` where hosts are waited for in a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.requests.runs import OfRun


@dataclass(frozen=True, kw_only=True)
class Submit(OfRun):
    """Have a job launch `command` on the first of its nodes, as it would be typed there after `launch`.

    env: variables of the run, whose values are in no command line and no script. on: the source whose queue it is.
    name: what the run is called by. nodes: how many, as the queue takes it. options: the queue's own. only, without:
    node sets. grace: seconds in which ranks save their work, where a user set them. detach: leave it in the queue.
    made: comments of the script."""

    on: str
    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    nodes: str = "1"
    options: Mapping[str, Any] = field(default_factory=dict)
    only: str | None = None
    without: str | None = None
    grace: float | None = None
    detach: bool = False
    made: Sequence[str] = ()

    def asked(self) -> dict[str, Any]:
        """Nodes and the queue's options: what requests the same."""
        more = {"nodes": self.nodes, "nodelist": self.only, "exclude": self.without, "grace": self.grace}
        return {**self.options, **{name: value for name, value in more.items() if value}}

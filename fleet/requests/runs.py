"""Defines the requests of the verbs of runs, and of `fleet get`. run: its id, "latest", its name, or a unique prefix.
runs_dir: where runs/RUN is on this machine."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fleet.errors import UsageError
from fleet.requests.option import option
from fleet.requests.request import Request, within


@dataclass(frozen=True, kw_only=True)
class OfRun(Request):
    """Base of those about a run that this machine may have a folder of."""

    runs_dir: str | os.PathLike[str] = "runs"

    @property
    def runs(self) -> Path:
        return Path(self.runs_dir)


@dataclass(frozen=True, kw_only=True)
class OfRanks(Request):
    """Base of those about some ranks. rank: numbers, None: all."""

    rank: Collection[int] | None = option(None, "Of these ranks only: 0,8-15.", metavar="LIST", limits=within(0))

    @cached_property
    def ranks(self) -> frozenset[int] | None:
        return None if self.rank is None else frozenset(self.rank)


@dataclass(frozen=True, kw_only=True)
class Attach(OfRun):
    """Follow a run that was detached, that lost its head, or that another head started. detach: leave it to itself
    again, led by a process of this machine."""

    run: str = field(default="latest", kw_only=False)
    detach: bool = option(False, "Lead it, and fetch its logs, in the background.")


@dataclass(frozen=True, kw_only=True)
class Stop(OfRun):
    """End a run on all its nodes. grace: seconds between SIGTERM and SIGKILL, None: the run's own."""

    run: str = field(kw_only=False)
    grace: float | None = option(
        None, "Seconds between SIGTERM and SIGKILL [the run's own].", metavar="S", limits=within(0)
    )


@dataclass(frozen=True, kw_only=True)
class Forget(OfRun):
    """Give up a run of this machine whose hosts are gone for good: none is contacted."""

    run: str = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class Ps(Request):
    """The runs on the hosts. all: those that have ended, too, as long as their nodes keep them."""

    all: bool = option(False, "Those that have ended, too, as long as their nodes keep them.", "-a", "--all")


@dataclass(frozen=True, kw_only=True)
class Logs(OfRanks, OfRun):
    """Requests what the ranks of a run wrote. follow: until it is over. host: a node set; rank: numbers; None: all.
    err: standard errors alone. tail: lines of each log to begin with. since: only what was written from then on, in
    seconds since the epoch. attempt: of a run that was started again, None: the last."""

    run: str = field(default="latest", kw_only=False)
    follow: bool = option(False, "Go on until the run is over.", "-f", "--follow")
    host: str | None = option(None, "Of these hosts' ranks only.", metavar="NODESET")
    err: bool = option(False, "Standard errors alone.")
    tail: int | None = option(None, "Begin with the last N lines of each log.", metavar="N", limits=within(0))
    since: float | None = option(None, "What was written since: 90s, 5m, 1h ago; 22:46.", metavar="TIME")
    attempt: int | None = option(None, "Of a run that was started again [the last].", metavar="K", limits=within(0))


@dataclass(frozen=True, kw_only=True)
class Stacks(OfRanks, OfRun):
    """Requests the stacks of a live run's ranks. rank: only these. native: frames of C and C++, too, where py-spy is
    there; a rank is held for a moment meanwhile."""

    run: str = field(default="latest", kw_only=False)
    native: bool = option(True, "Frames of C and C++, where py-spy is there.")


@dataclass(frozen=True, kw_only=True)
class Get(OfRun):
    """Fetch a path of the hosts, relative to their workdir, or what a run wrote in its folder, to the folder `to` of
    this machine. force: replace what is here, and no get put there as it is, without consent. all: repositories of git,
    too. copy_unsafe_links: fetch what links that lead out of it lead to."""

    what: str = field(kw_only=False)
    to: str | os.PathLike[str] = option(".", "Where to [here].", metavar="DIR")
    force: bool = option(False, "Replace what is here, too, and no get put there as it is, without asking.")
    all: bool = option(False, "Bring repositories (.git, .hg) in it, too.")
    copy_unsafe_links: bool = option(False, "Bring what links that lead out of it point to.")

    def check(self) -> None:
        if not self.what or "\0" in self.what:
            raise UsageError("nothing is named", hint="fleet get checkpoints; or fleet get latest")

    @property
    def is_path(self) -> bool:
        return "/" in self.what or self.what[:1] in ("~", ".")

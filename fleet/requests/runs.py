"""Defines the requests about a run, and the request of `fleet get`.

run: the run's id or name, a unique prefix of an id, or "latest". runs_dir: the folder on this machine with a folder for
each run."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fleet.errors import UsageError
from fleet.requests.request import Request, number, option, within

NAMED = "Name and logs"  # a section of launch's help


@dataclass(frozen=True, kw_only=True)
class OfRun(Request):
    """Is the base of requests about a run. This machine may have a folder of that run."""

    runs_dir: str | os.PathLike[str] = option("runs", "Where logs are, on this machine.", metavar="DIR", section=NAMED)

    @property
    def runs(self) -> Path:
        return Path(self.runs_dir)


@dataclass(frozen=True, kw_only=True)
class OfRanks(Request):
    """Is the base of requests about some ranks of a run. rank: their numbers, None: all."""

    rank: Collection[int] | None = option(None, "Of these ranks only: 0,8-15.", metavar="LIST", limits=within(0))

    @cached_property
    def ranks(self) -> frozenset[int] | None:
        return None if self.rank is None else frozenset(self.rank)


@dataclass(frozen=True, kw_only=True)
class Attach(OfRun):
    """Requests to follow a run that was detached, lost its head, or was started by another head. detach: a process in
    the background of this machine leads it."""

    run: str = field(default="latest", kw_only=False)
    detach: bool = option(False, "Lead it, and fetch its logs, in the background.")


@dataclass(frozen=True, kw_only=True)
class Stop(OfRun):
    """Requests to stop a run on all its nodes. grace: seconds between SIGTERM and SIGKILL, None: the run's own."""

    run: str = field(kw_only=False)
    grace: float | None = option(
        None, "Seconds between SIGTERM and SIGKILL [the run's own].", metavar="S", limits=within(0)
    )


@dataclass(frozen=True, kw_only=True)
class Forget(OfRun):
    """Requests to give up a run of this machine whose hosts are gone for good. No host is contacted."""

    run: str = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class Ps(Request):
    """Requests the runs on the hosts. all: runs that have ended, too, as long as their nodes keep them."""

    all: bool = option(False, "Those that have ended, too, as long as their nodes keep them.", "-a", "--all")


@dataclass(frozen=True, kw_only=True)
class Top(OfRun):
    """Requests samples of what hosts do. run: only its hosts, None: all. count: samples of each host, 0: until an
    interrupt. each: takes a host's name and its HostSampled or FleetError, from several threads."""

    run: str | None = field(default=None, kw_only=False)
    every: float = option(2.0, "Seconds between two samples.", metavar="S", limits=within(0.2, 3600))
    count: int = number(1, 0)
    each: Callable[[str, Any], object] = lambda host, found: None


@dataclass(frozen=True, kw_only=True)
class Logs(OfRanks, OfRun):
    """Requests the output of a run's ranks.

    follow: go on until the run is over. host: a node set, None: all. err: stderr only. tail: begin with so many last
    lines of each log. since: only output written from then on, in seconds since the epoch. attempt: its number, None:
    the last."""

    run: str = field(default="latest", kw_only=False)
    follow: bool = option(False, "Go on until the run is over.", "-f", "--follow")
    host: str | None = option(None, "Of these hosts' ranks only.", metavar="NODESET")
    err: bool = option(False, "Standard errors alone.")
    tail: int | None = option(None, "Begin with the last N lines of each log.", metavar="N", limits=within(0))
    since: float | None = option(None, "What was written since: 90s, 5m, 1h ago; 22:46.", metavar="TIME")
    attempt: int | None = option(None, "Of a run that was started again [the last].", metavar="K", limits=within(0))


@dataclass(frozen=True, kw_only=True)
class Stacks(OfRanks, OfRun):
    """Requests the stacks of a live run's ranks. native: with frames of C and C++, on hosts that have py-spy, which
    pauses a rank while it reads them."""

    run: str = field(default="latest", kw_only=False)
    native: bool = option(True, "Frames of C and C++, where py-spy is there.")


@dataclass(frozen=True, kw_only=True)
class Get(OfRun):
    """Requests to fetch a path of the hosts, or what a run wrote in its folder, to a folder of this machine.

    what: a run, or a path relative to each host's workdir. to: the folder on this machine. force: also replace, without
    consent, local files that no get wrote, or that have changed since. all: also fetch repositories (.git, .hg).
    copy_unsafe_links: fetch the target of a link that leads out of the fetched folder, in place of the link."""

    what: str = field(kw_only=False)
    to: str | os.PathLike[str] = option(".", "Where to [here].", metavar="DIR")
    force: bool = option(False, "Also replace, without asking, files that get did not put here, or that changed since.")
    all: bool = option(False, "Bring repositories (.git, .hg) in it, too.")
    copy_unsafe_links: bool = option(False, "Bring what links that lead out of it point to.")

    def check(self) -> None:
        if not self.what or "\0" in self.what:
            raise UsageError("nothing is named", hint="fleet get checkpoints; or fleet get latest")

    @property
    def folder(self) -> Path:
        return Path(self.to)

    @property
    def is_path(self) -> bool:
        return "/" in self.what or self.what[:1] in ("~", ".")

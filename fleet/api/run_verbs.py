"""The verbs of runs, with their parameters, and what all verbs stand on."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fleet.api.asks import asks
from fleet.model import Report
from fleet.ops.plans import Asked, Plan
from fleet.requests.launch import Launch
from fleet.requests.runs import Attach, Forget, Get, Logs, Ps, Stacks, Stop
from fleet.runtime import Runtime

if TYPE_CHECKING:
    from fleet.api.fleet import Fleet

P = TypeVar("P", bound=Plan)
R = TypeVar("R")
L = TypeVar("L")
A = TypeVar("A", Attach, Forget)


class RunVerbs(ABC, Generic[R, L]):
    """Those that are about a run. Names and meanings of parameters are those of the command line, times are seconds."""

    @property
    @abstractmethod
    def _fleet(self) -> Fleet: ...

    @abstractmethod
    def _do(self, plan: P, run: Callable[[P, Runtime], Report]) -> R: ...

    @abstractmethod
    def _begin(self, plan: P, run: Callable[[P, Runtime], Report]) -> L: ...

    @asks(Launch)
    def launch(self, request: Launch) -> L:
        """Start `script` as ranks on all hosts: a Run, which is followed from then on. What the parameters mean:
        `help(fleet.requests.launch.Launch)`. Engines' own options are keywords, too, such as per="node".

        PreflightError (123) and ConnectError (122), raised by the Run: nothing was started anywhere. The report's
        exit_code is that of the first rank that failed, 128+n for signal n."""
        return self._launch(request)

    def _launch(self, request: Launch) -> L:
        from fleet.ops.run.launch.run import run
        from fleet.ops.run.plan.plan import plan_of

        return self._begin(plan_of(self._fleet.inventory, request, self._fleet.typed), run)

    def again(self, run: str = "latest", *, runs_dir: str | os.PathLike[str] = "runs", **changed: Any) -> L:
        """Launch what an earlier run of this machine was, on these hosts (those of then: `fleet.reopen(run)`): the same
        script with the same options. changed: options of `launch` that are others now; `env` is added to. Differences
        of the code's commit and of the nodes' versions are told by warnings.

        UsageError, for values of variables that may be secret: these are not kept, and must be given again."""
        from fleet.ops.run.find import again

        recorded = again.recorded(run, Path(runs_dir), self._fleet.ask)
        return self._launch(replace(recorded.request(changed), runs_dir=runs_dir))

    def _about(self, request: A, text: str) -> Asked[A]:
        return Asked(self._fleet.inventory, request, {"run": request.run, "logs": str(request.runs)}, text)

    @asks(Attach)
    def attach(self, request: Attach) -> L:
        """Follow a run that was detached, that lost its head, or that another head started: a Run, as launch gives it.
        run: its id, "latest", its name, or a unique prefix. detach: leave it to itself again, led by a process of this
        machine."""
        from fleet.ops.run.find import attach

        return self._begin(self._about(request, f"follows run {request.run} to its end"), attach.run)

    @asks(Stop)
    def stop(self, request: Stop) -> R:
        """End a run on all its nodes. grace: seconds between SIGTERM and SIGKILL; None: the run's own."""
        from fleet.ops.run.find import stop

        plan = Asked(
            self._fleet.inventory,
            request,
            {"run": request.run, "grace": request.grace},
            f"ends run {request.run} on all its nodes",
        )
        return self._do(plan, stop.run)

    @asks(Forget)
    def forget(self, request: Forget) -> R:
        """Give up a run of this machine whose hosts are gone for good: none is asked, and nothing waits for them."""
        from fleet.ops.run.find import forget

        return self._do(self._about(request, f"gives up run {request.run}, and asks no host"), forget.run)

    @asks(Ps)
    def ps(self, request: Ps) -> R:
        """The runs on the hosts, as data["runs"] of the report, newest first. all: those that have ended, too."""
        from fleet.ops.run.find import ps

        hosts = self._fleet.inventory
        text = f"asks {len(hosts.hosts)} hosts for {'all' if request.all else 'live'} runs"
        return self._do(Asked(hosts, request, {"all": request.all}, text), ps.run)

    @asks(Logs)
    def logs(self, request: Logs) -> R:
        """What the ranks of a run wrote, as Output events. follow: until it is over. host: a node set; rank: numbers;
        None: all. err: standard errors alone. tail: lines of each log to begin with. since: only what was written from
        then on, in seconds since the epoch. attempt: of a run that was started again; None: the last."""
        from fleet.ops.run.find import logs
        from fleet.ops.run.kept.reader import LogsPlan

        fleet = self._fleet if request.host is None else self._fleet.select(request.host, option="--host")
        only = None if fleet.inventory.names == fleet.everyone.names else fleet.inventory.names
        return self._do(LogsPlan(self._fleet.inventory, request, only), logs.run)

    @asks(Stacks)
    def stacks(self, request: Stacks) -> R:
        """Where the ranks of a live run stand: "places" of the report, those that stand in the same one together, most
        of them first. rank: only these. native: frames of C and C++, too, where py-spy is there; each rank is held for
        a moment while it tells them."""
        from fleet.ops.run.find import stacks

        ranks = request.ranks and sorted(request.ranks)
        plan = Asked(
            self._fleet.inventory,
            request,
            {"run": request.run, "ranks": ranks, "native": request.native},
            f"takes the stacks of run {request.run}'s ranks",
        )
        return self._do(plan, stacks.run)

    @asks(Get)
    def get(self, request: Get) -> R:
        """Bring a path of the hosts (relative to their workdir), or what a run wrote in its folder, to `to` on this
        machine, verified, going on where an earlier attempt ended: one tree where all answered and one has it, else one
        a host. force: replace what is here, and no get put there as it is, without asking. all: repositories of git in
        it, too. copy_unsafe_links: bring what links that lead out of it lead to."""
        from fleet.ops import get

        return self._do(get.plan(self._fleet.inventory, request), get.run)

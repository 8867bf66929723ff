"""Defines the verbs with their parameters. Each returns its plan, which `Fleet` runs at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.api.asks import asks
from fleet.api.hosts import Hosts, Planned
from fleet.errors import UsageError
from fleet.model import Host, Report
from fleet.ops.plans import Plan, RequestPlan
from fleet.requests.hosts import Build, Check, Exec, KillPort, SetupSsh
from fleet.requests.launch import Launch
from fleet.requests.runs import Attach, Forget, Get, Logs, Ps, Stacks, Stop, Top
from fleet.requests.sync import Sync, SyncData, SyncImage, SyncWheels
from fleet.runtime import Runtime
from fleet.transport import DEFAULT as SSH

if TYPE_CHECKING:
    from fleet.ops.kill_port import KillPlan
    from fleet.ops.setup_ssh import SetupPlan
    from fleet.ops.setup_ssh.undo import UndoPlan

P = TypeVar("P", bound=Plan)
Q = TypeVar("Q")


@dataclass(frozen=True)
class Plans:
    """Offers the verbs for hosts. Each verb returns its plan, and does nothing yet. Parameters have the names and
    meanings of the command line's options. Times are in seconds."""

    of: Hosts

    def do(self, plan: P, run: Callable[[P, Runtime], Report]) -> Planned:
        """Returns a plan of your own as a verb returns its plan. run: the function that carries it out."""
        return Planned(self.of, plan, lambda runtime: run(plan, runtime))

    @asks(Exec)
    def exec(self, request: Exec) -> Planned:
        """Run a command on every host. Each Result has stdout, stderr and exit_status, or, after `timeout`,
        DeadlineError (124). This process's own standard input is never read by itself."""
        from fleet.ops import execute

        return self.do(execute.plan(self.of.inventory, request), execute.run)

    @asks(Sync)
    def sync(self, request: Sync) -> Planned:
        """Mirror a folder to every host."""
        from fleet.ops import sync

        return self.do(sync.plan(self.of.inventory, request), sync.run)

    def sync_data(
        self,
        *data: str,
        limit: str | None = SyncData.limit,
        from_host: str | None = SyncData.from_host,
        force: bool | Sequence[str] = SyncData.force,
        keep: bool = SyncData.keep,
        copy_unsafe_links: bool = SyncData.copy_unsafe_links,
    ) -> Planned:
        """Bring each "PATH[:DEST]" to every host by a pipelined broadcast. limit: "100MB" or "200mbit" a second.
        from_host: the host that has PATH, instead of this machine; all other hosts get PATH. force, keep,
        copy_unsafe_links: as in sync()."""
        from fleet.ops import broadcast

        request = SyncData(
            data=data,
            limit=limit,
            from_host=from_host,
            force=force,
            keep=keep,
            copy_unsafe_links=copy_unsafe_links,
        )
        return self.do(broadcast.plan(self.of.inventory, request, self._origin(from_host)), broadcast.run)

    def _origin(self, from_host: str | None) -> Host | None:
        from fleet.inventory.select import select

        having = select(self.of.everyone, from_host, None, "--from").hosts if from_host is not None else (None,)
        if len(having) > 1:
            raise UsageError(f"--from {from_host!r} is {len(having)} hosts", hint="name the one that has it")
        return having[0]

    @asks(SyncImage)
    def sync_image(self, request: SyncImage) -> Planned:
        """Bring a container image to every host's podman or docker."""
        from fleet.node.facts.runtimes import file_runtime
        from fleet.ops import images

        if file_runtime(request.image):
            return self.sync_data(request.image, limit=request.limit, from_host=request.from_host)
        return self.do(images.plan(self.of.inventory, request, self._origin(request.from_host)), images.run)

    @asks(SyncWheels)
    def sync_wheels(self, request: SyncWheels) -> Planned:
        """Bring wheels to every host's Python."""
        from fleet.ops import wheels

        return self.do(wheels.plan(self.of.inventory, request), wheels.run)

    @asks(Check)
    def check(self, request: Check) -> Planned:
        """Compare the hosts' environments. The report also has `findings`, each with a remedy, and the facts of each
        host as `views`. Its exit_code is 123 if a finding would keep a run from starting."""
        from fleet.ops import check

        return self.do(check.plan(self.of.inventory, request), check.run)

    @asks(KillPort)
    def kill_port(self, request: KillPort) -> Planned:
        """Free ports of every host. The hosts are examined first, even if only the plan is requested."""
        from fleet.ops import kill_port

        def run(plan: KillPlan, runtime: Runtime) -> Report:
            return kill_port.run(plan, runtime) if plan.targets and request.agree(plan) else kill_port.report(plan, {})

        inventory = self.of.inventory
        found = self.of.run(lambda runtime: kill_port.look(inventory, request.ports, runtime))
        return self.do(kill_port.plan(inventory, request, found), run)

    @asks(SetupSsh)
    def setup_ssh(self, request: SetupSsh) -> Planned:
        """Set up SSH with keys, and verify each pair of hosts."""
        from fleet.delivery.held_back import note_password_file
        from fleet.ops import setup_ssh
        from fleet.ops.setup_ssh import undo as undoing
        from fleet.ops.setup_ssh.passwords import Passwords, read_password_file

        if self.of.transport != SSH:
            raise UsageError(
                f"setup-ssh speaks SSH itself (passwords, host keys): it cannot go over --transport "
                f"{self.of.transport}",
                hint="leave --transport out; hosts set up so are reached over every transport",
            )
        home = Path.home()

        def run(plan: Any, runtime: Runtime) -> Report:
            gateways = () if request.undo else (each.name for each in plan.all if each.gateway)
            passwords = Passwords(default=request.password)
            if request.password_file:
                file = os.fspath(request.password_file)
                passwords = read_password_file(file, [*self.of.everyone.names, *gateways])
                if file != "-":
                    note_password_file(file)
            with closing(self.of.connect(passwords.take)) as transport:
                prompts = (self.of.connect, passwords, request.confirm, request.ask_password)
                given = setup_ssh.SetupRuntime(
                    transport, runtime.fanout, runtime.emit, runtime.cancel, runtime.ask, *prompts
                )
                return undoing.run(plan, given) if request.undo else setup_ssh.run(plan, given)

        plan: SetupPlan | UndoPlan
        if request.undo:
            plan = undoing.UndoPlan(self.of.inventory, self.of.everyone, home)
        else:
            plan = setup_ssh.plan(self.of.inventory, self.of.everyone, request, home)
        return self.do(plan, run)

    @asks(Build)
    def build(self, request: Build) -> Planned:
        """Build a wheel, and install it everywhere."""
        from fleet.ops import build

        return self.do(build.plan(self.of.inventory, request), build.run)

    # -- of runs ------------------------------------------------------------------------------------------------
    @asks(Launch)
    def launch(self, request: Launch) -> Planned:
        """Start a Run, and follow it from then on. Engines' own options are keywords, too, such as per="node".

        If the Run raises PreflightError (123) or ConnectError (122), nothing was started anywhere. The report's
        exit_code is that of the first rank that failed, 128+n for signal n."""
        from fleet.ops.run.launch.run import run
        from fleet.ops.run.plan.plan import plan_of

        return self.do(plan_of(self.of.inventory, request, self.of.typed), run)

    def again(self, /, run: str = "latest", *, runs_dir: str | os.PathLike[str] = "runs", **changed: Any) -> Planned:
        """Launch the script of an earlier run of this machine again, with the same options, on these hosts. To have the
        earlier run's hosts, call it on `fleet.reopen(run)`. changed: options of `launch` with new values; `env` is
        added to the earlier run's `env`. If the code's commit or the nodes' versions differ, a warning is emitted.

        Raises UsageError if the value of a variable that may be secret is missing: fleet does not keep such values."""
        from fleet.ops.run.find import again

        recorded = again.recorded(run, Path(runs_dir), self.of.ask)
        return self.launch(**vars(replace(recorded.request(changed), runs_dir=runs_dir)))

    def _request(self, request: Q, text: str, **shown: Any) -> RequestPlan[Q]:
        return RequestPlan(self.of.inventory, request, shown, text)

    @asks(Attach)
    def attach(self, request: Attach) -> Planned:
        """Follow a run, by a Run as in launch(). run: its id, "latest", its name, or a unique prefix."""
        from fleet.ops.run.find import attach

        return self.do(
            self._request(request, f"follows run {request.run} to its end", run=request.run, logs=str(request.runs)),
            attach.run,
        )

    @asks(Stop)
    def stop(self, request: Stop) -> Planned:
        """End a run on all its nodes."""
        from fleet.ops.run.find import stop

        return self.do(
            self._request(request, f"ends run {request.run} on all its nodes", run=request.run, grace=request.grace),
            stop.run,
        )

    @asks(Forget)
    def forget(self, request: Forget) -> Planned:
        """Give up a run: no process of this machine waits for its hosts any more."""
        from fleet.ops.run.find import stop

        text = f"gives up run {request.run}, and asks no host"
        return self.do(self._request(request, text, run=request.run, logs=str(request.runs)), stop.forget)

    @asks(Ps)
    def ps(self, request: Ps) -> Planned:
        """Find the runs on the hosts: data["runs"] of the report, newest first."""
        from fleet.ops.run.find import live

        text = f"asks {len(self.of.inventory.hosts)} hosts for {'all' if request.all else 'live'} runs"
        return self.do(self._request(request, text, all=request.all), live.ps)

    @asks(Top)
    def top(self, request: Top) -> Planned:
        """Sample the hosts' GPUs, network, CPUs and memory. Each Result has the last "sample" of its host. Rates are
        computed from two samples."""
        from fleet.ops import top

        which = "all hosts" if request.run is None else f"the hosts of run {request.run}"
        text = f"samples {which} every {request.every:g} s"
        return self.do(self._request(request, text, run=request.run, every=request.every), top.run)

    @asks(Logs)
    def logs(self, request: Logs) -> Planned:
        """Show what the ranks of a run wrote, as Output events."""
        from fleet.ops.run.find import logs
        from fleet.ops.run.kept.reader import LogsPlan

        fleet = self.of if request.host is None else self.of.select(request.host, option="--host")
        only = None if fleet.inventory.names == fleet.everyone.names else fleet.inventory.names
        shown = {"run": request.run, "logs": str(request.runs), "follow": request.follow}
        text = f"shows the logs of run {request.run}"
        return self.do(LogsPlan(self.of.inventory, request, shown, text, only), logs.run)

    @asks(Stacks)
    def stacks(self, request: Stacks) -> Planned:
        """Show the line of code at which each rank of a live run is. The report's "places" group the ranks that are at
        the same place, the largest group first."""
        from fleet.ops.run.find import live

        text, ranks = f"takes the stacks of run {request.run}'s ranks", request.ranks and sorted(request.ranks)
        plan = self._request(request, text, run=request.run, ranks=ranks, native=request.native)
        return self.do(plan, live.stacks)

    @asks(Get)
    def get(self, request: Get) -> Planned:
        """Fetch files of the hosts to this machine and verify them. An interrupted fetch goes on where it ended. The
        files form one tree if all hosts answered and only one of them has the path. Otherwise each host gets its own
        tree."""
        from fleet.ops import get

        return self.do(get.plan(self.of.inventory, request), get.run)

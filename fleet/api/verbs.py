"""The verbs, with their parameters: what `Fleet` does and `Plans` plans."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fleet.api.asks import asks
from fleet.api.run_verbs import L, R, RunVerbs
from fleet.errors import UsageError
from fleet.model import Report
from fleet.requests.exec import Exec
from fleet.requests.hosts import Build, Check, KillPort, SetupSsh
from fleet.requests.sync import Sync, SyncData, SyncWheels
from fleet.runtime import Runtime
from fleet.transport import DEFAULT as SSH

if TYPE_CHECKING:
    from fleet.ops.kill_port import KillPlan
    from fleet.ops.setup_ssh import SetupPlan
    from fleet.ops.setup_ssh.undo import UndoPlan

C = TypeVar("C")


class Verbs(RunVerbs[R, L], Generic[R, C, L]):
    """All verbs. Names and meanings of parameters are those of the command line, times are seconds."""

    @asks(Exec)
    def exec(self, request: Exec) -> R:
        """Run exactly `argv` on every host, or the line `shell` in its shell. Each Result has stdout, stderr and
        exit_status. timeout: it is ended after that (DeadlineError, 124). keep: False leaves the outputs to events.
        env_of: "python" for the environment of each host's training interpreter. stdin: bytes, or a file open for
        reading them, for the command on every host; this process's own is never read by itself."""
        from fleet.ops import execute

        return self._do(execute.plan(self._fleet.inventory, request), execute.run)

    @asks(Sync)
    def sync(self, request: Sync) -> R:
        """Make `to` on every host (default: its workdir) what the folder `source` is. force: also over a node's own
        files and what another source's sync delivered there, without asking; patterns: over the node's own files that
        they name. keep: leave a node's own files. delete_excluded: delete what was delivered and is left out now.
        max_delete: files that may be deleted on a host; "all"; None: not most of what is there. all: send what is left
        out unasked, but private keys. copy_unsafe_links: send what links that lead out point to. source_id: what the
        source is known by, for sources that are made again and again."""
        from fleet.ops import sync

        return self._do(sync.plan(self._fleet.inventory, request), sync.run)

    def sync_data(
        self,
        *data: str,
        limit: str | None = SyncData.limit,
        from_host: str | None = SyncData.from_host,
        force: bool | Sequence[str] = SyncData.force,
        keep: bool = SyncData.keep,
        copy_unsafe_links: bool = SyncData.copy_unsafe_links,
    ) -> R:
        """Bring each "PATH[:DEST]" to every host by a pipelined broadcast. limit: "100MB" or "200mbit" a second.
        from_host: the host that has PATH, instead of this machine; all others get it. force, keep, copy_unsafe_links:
        as of sync()."""
        from fleet.inventory.select import select
        from fleet.ops import broadcast

        request = SyncData(
            data=data,
            limit=limit,
            from_host=from_host,
            force=force,
            keep=keep,
            copy_unsafe_links=copy_unsafe_links,
        )
        origin = None
        if from_host is not None:
            having = select(self._fleet.everyone, from_host, None, "--from").hosts
            if len(having) > 1:
                raise UsageError(f"--from {from_host!r} is {len(having)} hosts", hint="name the one that has the data")
            origin = having[0]
        return self._do(broadcast.plan(self._fleet.inventory, request, origin), broadcast.run)

    @asks(SyncWheels)
    def sync_wheels(self, request: SyncWheels) -> R:
        """Install wheels (a folder, one wheel, a requirements file) into every host's Python, offline, all or none.
        refresh: resolve requirements again. yes: replace what the hosts have, torch for instance, without asking.
        force: also where it breaks what they have."""
        from fleet.ops import wheels

        return self._do(wheels.plan(self._fleet.inventory, request), wheels.run)

    @asks(Check)
    def check(self, request: Check) -> C:
        """Compare the hosts' environments. The report has, besides, `findings` with a remedy each, and
        each host's facts as `views`. Its exit_code: 123 when something would keep a run from starting."""
        from fleet.ops import check

        return cast(C, self._do(check.plan(self._fleet.inventory, request), check.run))

    @asks(KillPort)
    def kill_port(self, request: KillPort) -> R:
        """End who listens on these ports, and nothing else; the hosts are asked first, also for a plan alone. force:
        other users' processes, too. runs: ids or names of live runs whose processes may be ended, too. agree: is shown
        what would be ended, and may say no."""
        from fleet.ops import kill_port

        def run(plan: KillPlan, runtime: Runtime) -> Report:
            return kill_port.run(plan, runtime) if plan.targets and request.agree(plan) else kill_port.report(plan, {})

        inventory = self._fleet.inventory
        found = self._fleet.run(lambda runtime: kill_port.look(inventory, request.ports, runtime))
        return self._do(kill_port.plan(inventory, request, found), run)

    @asks(SetupSsh)
    def setup_ssh(self, request: SetupSsh) -> R:
        """Passwordless SSH from here to every host and, with `mesh`, between all of them. password: of every host that
        does not take the key yet. replace_key: names of hosts that may have another host key. limit: for each pair that
        is verified. confirm: is shown host keys that nobody vouches for. undo: takes away what this added."""
        from fleet.delivery.unasked import note_password_file
        from fleet.ops import setup_ssh
        from fleet.ops.setup_ssh import undo as undoing
        from fleet.ops.setup_ssh.passwords import Passwords, read_password_file

        if self._fleet.transport != SSH:
            raise UsageError(
                f"setup-ssh speaks SSH itself (passwords, host keys): it cannot go over --transport "
                f"{self._fleet.transport}",
                hint="leave --transport out; hosts set up so are reached over every transport",
            )
        home = Path.home()

        def run(plan: Any, runtime: Runtime) -> Report:
            gateways = () if request.undo else (each.name for each in plan.all if each.gateway)
            passwords = Passwords(default=request.password)
            if request.password_file:
                file = os.fspath(request.password_file)
                passwords = read_password_file(file, [*self._fleet.everyone.names, *gateways])
                if file != "-":
                    note_password_file(file)
            transport = self._fleet._connect(passwords.take)
            try:
                prompts = (self._fleet._connect, passwords, request.confirm, request.ask_password)
                given = setup_ssh.SetupRuntime(
                    transport, runtime.fanout, runtime.emit, runtime.cancel, runtime.ask, *prompts
                )
                return undoing.run(plan, given) if request.undo else setup_ssh.run(plan, given)
            finally:
                transport.close()

        plan: SetupPlan | UndoPlan
        if request.undo:
            plan = undoing.UndoPlan(self._fleet.inventory, self._fleet.everyone, home)
        else:
            plan = setup_ssh.plan(self._fleet.inventory, self._fleet.everyone, request, home)
        return self._do(plan, run)

    @asks(Build)
    def build(self, request: Build) -> R:
        """Build a wheel on one host for the GPUs of all, and install it everywhere. what: "deepspeed", or a tree."""
        from fleet.ops import build

        return self._do(build.plan(self._fleet.inventory, request), build.run)

"""The verbs, with their parameters: what `Fleet` does and `Plans` plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, Literal, TypeVar, cast

from fleet.api.run_verbs import L, R, RunVerbs
from fleet.engines import DEFAULT
from fleet.errors import UsageError
from fleet.model import Report
from fleet.runtime import Runtime
from fleet.transport import DEFAULT as SSH

if TYPE_CHECKING:
    from fleet.ops.kill_port import KillPlan
    from fleet.ops.setup_ssh import SetupPlan
    from fleet.ops.setup_ssh.passwords import AskPassword, Confirm
    from fleet.ops.setup_ssh.undo import UndoPlan

C = TypeVar("C")


def refuse_command(argv: Sequence[str], shell: str | None) -> None:
    """UsageError where this is nothing that `exec` could run."""
    if isinstance(argv, str):
        raise UsageError("argv is a list of words", hint="for a line: shell=...")
    if (shell is None) == (not argv):
        raise UsageError("give either a command behind '--' or --shell LINE", hint="fleet exec -- nvidia-smi -L")
    if argv and not argv[0] or shell is not None and not shell.strip():
        raise UsageError("the command is empty", hint="fleet exec -- nvidia-smi -L")


class Verbs(RunVerbs[R, L], Generic[R, C, L]):
    """All verbs. Names and meanings of parameters are those of the command line, times are seconds."""

    def exec(
        self,
        argv: Sequence[str] = (),
        *,
        shell: str | None = None,
        timeout: float | None = None,
        grace: float = 2.0,
        keep: bool = True,
        env_of: Literal["python"] | None = None,
        stdin: bytes | BinaryIO | None = None,
    ) -> R:
        """Run exactly `argv` on every host, or the line `shell` in its shell. Each Result has stdout, stderr and
        exit_status. timeout: it is ended after that (DeadlineError, 124). keep: False leaves the outputs to events.
        env_of: "python" for the environment of each host's training interpreter. stdin: bytes, or a file open for
        reading them, for the command on every host; this process's own is never read by itself."""
        from fleet.ops import execute

        refuse_command(argv, shell)
        options = execute.ExecOptions(tuple(argv) or None, shell, timeout, grace, keep, env_of, stdin)
        return self._do(execute.plan(self._fleet.inventory, options), execute.run)

    def sync(
        self,
        source: str | os.PathLike[str] = ".",
        to: str | None = None,
        *,
        force: bool | Sequence[str] = False,
        keep: bool = False,
        delete_excluded: bool = False,
        all: bool = False,
        copy_unsafe_links: bool = False,
        source_id: str | None = None,
    ) -> R:
        """Make `to` on every host (default: its workdir) what the folder `source` is. force: also over a node's own
        files and what another source's sync delivered there, without asking; patterns: over the node's own files that
        they name. keep: leave a node's own files. delete_excluded: delete what was delivered and is left out now.
        all: send what is left out unasked, but private keys. copy_unsafe_links: send what links that lead out
        point to. source_id: what the source is known by, for sources that are made again and again."""
        from fleet.ops import sync

        plan = sync.plan(
            self._fleet.inventory,
            Path(source),
            to,
            force=force if isinstance(force, bool) else tuple(force),
            keep=keep,
            delete_excluded=delete_excluded,
            everything=all,
            copy_unsafe_links=copy_unsafe_links,
            source_id=source_id,
        )
        return self._do(plan, sync.run)

    def sync_data(
        self,
        *data: str,
        limit: str | None = None,
        via: Literal["chain", "rsync"] = "chain",
        from_host: str | None = None,
        force: bool | Sequence[str] = False,
        keep: bool = False,
        copy_unsafe_links: bool = False,
    ) -> R:
        """Bring each "PATH[:DEST]" to every host by a pipelined broadcast. limit: "100MB" or "200mbit" a second.
        from_host: the host that has PATH, instead of this machine; all others get it. force, keep, copy_unsafe_links:
        as of sync()."""
        from fleet.inventory.select import select
        from fleet.ops import broadcast

        origin = None
        if from_host is not None:
            having = select(self._fleet.everyone, from_host, None, "--from").hosts
            if len(having) > 1:
                raise UsageError(f"--from {from_host!r} is {len(having)} hosts", hint="name the one that has the data")
            origin = having[0]
        asked = force if isinstance(force, bool) else tuple(force)
        plan = broadcast.plan(
            self._fleet.inventory,
            data,
            limit=limit,
            via=via,
            origin=origin,
            force=asked,
            keep=keep,
            copy_unsafe_links=copy_unsafe_links,
        )
        return self._do(plan, broadcast.run)

    def sync_wheels(self, source: str | os.PathLike[str], *, refresh: bool = False, import_timeout: float = 120.0) -> R:
        """Install wheels (a folder, one wheel, a requirements file) into every host's Python, offline, all or none.
        refresh: resolve requirements again."""
        from fleet.ops import wheels

        plan = wheels.plan(self._fleet.inventory, Path(source), import_seconds=import_timeout, refresh=refresh)
        return self._do(plan, wheels.run)

    def check(self, *, timeout: float = 20.0, engine: str = DEFAULT) -> C:
        """Compare the hosts' environments. The report has, besides, `findings` with a remedy each, and
        each host's facts as `views`. Its exit_code: 123 when something would keep a run from starting."""
        from fleet.ops import check

        return cast(C, self._do(check.plan(self._fleet.inventory, check.CheckOptions(timeout, engine)), check.run))

    def kill_port(
        self,
        ports: Collection[int],
        *,
        force: bool = False,
        grace: float = 5.0,
        runs: Collection[str] = (),
        agree: Callable[[KillPlan], bool] = lambda plan: True,
    ) -> R:
        """End who listens on these ports, and nothing else; the hosts are asked first, also for a plan alone. force:
        other users' processes, too. runs: ids or names of live runs whose processes may be ended, too. agree: is shown
        what would be ended, and may say no."""
        from fleet.ops import kill_port

        def run(plan: KillPlan, runtime: Runtime) -> Report:
            return kill_port.run(plan, runtime) if plan.targets and agree(plan) else kill_port.report(plan, {})

        found = self._fleet.run(lambda runtime: kill_port.look(self._fleet.inventory, ports, runtime))
        return self._do(
            kill_port.plan(self._fleet.inventory, sorted(ports), found, grace=grace, force=force, runs=runs), run
        )

    def setup_ssh(
        self,
        *,
        password: str | None = None,
        password_file: str | os.PathLike[str] | None = None,
        mesh: bool = True,
        tofu: bool = False,
        replace_key: Collection[str] = (),
        key_type: Literal["ed25519", "rsa"] | None = None,
        undo: bool = False,
        limit: float = 10.0,
        confirm: Confirm = lambda keys: None,
        ask_password: AskPassword = lambda hosts: None,
    ) -> R:
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
        options = setup_ssh.SetupOptions(mesh, tofu, frozenset(replace_key), key_type, limit)
        home = Path.home()

        def run(plan: Any, runtime: Runtime) -> Report:
            gateways = () if undo else (each.name for each in plan.all if each.gateway)
            passwords = Passwords(default=password)
            if password_file:
                passwords = read_password_file(os.fspath(password_file), [*self._fleet.everyone.names, *gateways])
                if password_file != "-":
                    note_password_file(os.fspath(password_file))
            transport = self._fleet._connect(passwords.take)
            try:
                prompts = (self._fleet._connect, passwords, confirm, ask_password)
                given = setup_ssh.SetupRuntime(
                    transport, runtime.fanout, runtime.emit, runtime.cancel, runtime.ask, *prompts
                )
                return undoing.run(plan, given) if undo else setup_ssh.run(plan, given)
            finally:
                transport.close()

        plan: SetupPlan | UndoPlan
        if undo:
            plan = undoing.UndoPlan(self._fleet.inventory, self._fleet.everyone, home)
        else:
            plan = setup_ssh.plan(self._fleet.inventory, self._fleet.everyone, options, home)
        return self._do(plan, run)

    def build(
        self,
        what: str,
        *,
        version: str | None = None,
        source: str | os.PathLike[str] | None = None,
        arch: str = "auto",
        ops: Sequence[str] = (),
        on: str | None = None,
        cpu: bool = False,
        env: Mapping[str, str] | None = None,
        install: bool = True,
        builds_dir: str | os.PathLike[str] = "builds",
        import_timeout: float = 120.0,
    ) -> R:
        """Build a wheel on one host for the GPUs of all, and install it everywhere. what: "deepspeed", or a tree."""
        from fleet.ops import build

        options = build.BuildOptions(
            what,
            version,
            None if source is None else Path(source),
            arch,
            tuple(ops),
            on,
            cpu,
            dict(env or {}),
            install,
            Path(builds_dir),
            import_timeout,
        )
        return self._do(build.plan(self._fleet.inventory, options), build.run)

"""Implements fabric's Connection and Group over fleet's transport, with its inventory and verified host keys.

Importing this module replaces fabric's own classes by these classes. So no Connection in this process trusts an unknown
key."""

from __future__ import annotations

import os
import posixpath
import stat
from typing import Any

import fabric
import fabric.connection
import fabric.group
import fabric.tasks
from fabric.transfer import Transfer

from fleet import fanout
from fleet.background import unattended
from fleet.errors import Interrupted, UsageError
from fleet.model import Host
from fleet.own import own_umask
from fleet.tasks.ground import Sink, current_sink, task_state
from fleet.tasks.runner import LocalRunner, RemoteRunner
from fleet.transport.base import Session, Target
from fleet.transport.ssh.adapter import paramiko
from fleet.transport.ssh.endpoint import resolve


class Connection(fabric.Connection):  # type: ignore[misc]
    """Connects a task to a host. original_host: the host's name in the inventory. host, user, port: the address of its
    sshd. known: the host as the inventory or ~/.ssh/config describes it. owner: the sink that is current when the
    connection is made."""

    known: Host
    owner: Sink | None
    original_host: str
    user: str
    port: int
    _sftp: Any
    session: Session | None = None
    many = False  # the task runs on several hosts

    def __init__(
        self,
        host: str,
        user: str | None = None,
        port: int | None = None,
        config: Any = None,
        gateway: Any = None,
        forward_agent: bool | None = None,
        connect_timeout: int | None = None,
        connect_kwargs: dict[str, Any] | None = None,
        inline_ssh_env: bool | None = None,
    ) -> None:
        if config is None:
            mine = fabric.Config(ssh_config=fabric.connection.SSHConfig())
        else:
            mine = config.clone(into=None if isinstance(config, fabric.Config) else fabric.Config)
        # fleet itself reads ~/.ssh/config, and supports more of it than paramiko
        mine._set(base_ssh_config=fabric.connection.SSHConfig())
        if mine.run.in_stream is None:
            mine.run.in_stream = False  # many hosts would share this terminal
        super().__init__(
            host, user, port, mine, gateway, forward_agent, connect_timeout, connect_kwargs, inline_ssh_env
        )
        short = self.derive_shorthand(host)
        default = fabric.Config.global_defaults()
        given = {
            "user": user or short["user"] or (self.user if self.user != default["user"] else None),
            "port": port or short["port"] or (self.port if self.port != default["port"] else None),
            "identity_file": self._identity_file(),
            "proxy_jump": jump(self.gateway) if self.gateway else None,
        }
        known = task_state().host(str(self.original_host), **given)
        self._set(known=known, owner=current_sink())
        if password := self.connect_kwargs.get("password"):
            task_state().passwords[known.name] = password
        target = resolve(known, task_state().config)
        self.original_host, self.host, self.user, self.port = known.name, target.address, target.user, target.port

    def _identity_file(self) -> str | None:
        files = self.connect_kwargs.get("key_filename") or self.config.authentication.identities
        files = [files] if isinstance(files, str) else list(files)
        return str(files[0]) if files else None

    def get_gateway(self) -> Any:
        return self.config.gateway

    # -- the connection ------------------------------------------------------------------------------------
    @property
    def is_connected(self) -> bool:
        return self.session is not None and bool(getattr(self.session, "alive", True))

    def open(self) -> None:
        if self.is_connected:
            return
        runtime = task_state().running()
        if runtime.cancel.is_set():
            raise Interrupted("interrupted", host=self.known.name)
        session = runtime.transport.connect(self.known, runtime.cancel)

        def end() -> None:
            """Ends an sftp transfer on an interrupt, because the transfer itself does not notice the interrupt."""
            if self._sftp is not None:
                session.close()

        forget = runtime.cancel.on_set(lambda: unattended("end", end))
        self._set(session=session, forget=forget)
        task_state().opened.append(self.close)
        self.transport = getattr(session, "link", None)

    def close(self) -> None:
        if self._sftp is not None:
            self._sftp.close()
            self._sftp = None
        if self.session is not None:
            self.forget()
            self.session.close()
            self._set(session=None)
            self.transport = None

    def over_ssh(self, what: str) -> Any:
        """Returns the session, for what only the ssh transport can do. Raises UsageError on other transports."""
        self.open()
        if self.transport is None:
            raise UsageError(
                f"{what} of a task goes over --transport ssh only", hint="drop --transport; c.run goes over all of them"
            )
        return self.session

    def create_session(self) -> Any:
        channel = self.over_ssh("sudo with a password, a terminal, or input").channel()
        if self.forward_agent:
            self._agent_handler = fabric.connection.AgentRequestHandler(channel)
        return channel

    def sftp(self) -> Any:
        if self._sftp is None:
            self._sftp = self.over_ssh("put or get").sftp()
        return self._sftp

    # -- what tasks call -----------------------------------------------------------------------------------
    @property
    def sink(self) -> Sink | None:
        """Returns the sink for the output of the task that opened the connection."""
        return self.owner or current_sink()

    def _remote_runner(self) -> RemoteRunner:
        return RemoteRunner(context=self)

    def local(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(LocalRunner(self), *args, **kwargs)

    def shell(self, **kwargs: Any) -> Any:
        raise UsageError("c.shell() talks to one person and one host", hint=f"ssh {self.known.name}")

    def get(self, remote: str, local: Any = None, preserve_mode: bool = True) -> Any:
        """Fetches a file, as fabric does. A task on several hosts needs a path per host. The default is a folder with
        the host's name, as in fabric's Group."""
        local = local or ("{host}/" if self.many else None)
        if self.many and isinstance(local, (str, os.PathLike)):
            folder, name = posixpath.split(str(remote))
            parts = {"host": self.host, "user": self.user, "port": self.port, "dirname": folder, "basename": name}
            path = os.path.abspath(given := os.fspath(local).format(**parts))
            whole = given.endswith(os.sep) or os.path.isdir(path)
            task_state().claim(os.path.join(path, name) if whole else path, self.known.name)
        result = Transfer(self).get(remote, local, preserve_mode=False)
        if preserve_mode and isinstance(result.local, str):  # never more rights than the umask allows
            mode = self.sftp().stat(result.remote).st_mode or 0
            os.chmod(result.local, stat.S_IMODE(mode) & 0o777 & ~own_umask() | stat.S_IRUSR | stat.S_IWUSR)
        return result

    def forward_local(self, local_port: int, *args: Any, **kwargs: Any) -> Any:
        """Forwards a port of this machine, as fabric does. Several hosts cannot share a port; with 0, each gets a free
        one."""
        if self.many and local_port:
            raise UsageError(
                f"c.forward_local({local_port}): this machine has that port once, and the task runs on several hosts",
                hint="fleet -w HOST play ... runs it on one; or a port for each, over a Connection of its own",
            )
        return super().forward_local(local_port, *args, **kwargs)


def jump(gateway: Any) -> str:
    """Returns a gateway as text for the inventory's `proxy_jump`."""
    if not isinstance(gateway, Connection):
        raise UsageError(
            f"fleet runs no ProxyCommand for a task: {gateway!r}", hint="gateway=Connection('bastion'), or ProxyJump"
        )
    first = f"{jump(gateway.gateway)}," if gateway.gateway else ""
    own = gateway.known
    if own in task_state().inventory.hosts:
        return first + own.name
    return f"{first}{Target(gateway.host, gateway.port, gateway.user)}"


class Group(fabric.ThreadingGroup):  # type: ignore[misc]
    """Runs on --fanout hosts at once, and starts no more after Ctrl-C."""

    def __init__(self, *hosts: str, **kwargs: Any) -> None:
        self.extend([Connection(host, **kwargs) for host in hosts])
        for connection in self:
            connection._set(many=len(self) > 1)

    def _do(self, method: str, *args: Any, **kwargs: Any) -> Any:
        runtime = task_state().running()
        results = fabric.group.GroupResult()
        for connection, outcome in fanout.run(
            list(self), lambda each: getattr(each, method)(*args, **kwargs), limit=runtime.fanout, cancel=runtime.cancel
        ):
            results[connection] = outcome
        if results.failed:
            raise fabric.group.GroupException(results)
        return results


for module in (fabric, fabric.connection, fabric.group, fabric.tasks):
    module.Connection = Connection
for module in (fabric, fabric.group):
    module.ThreadingGroup = Group
# no code here uses this policy; if any ever does, it trusts no key
fabric.connection.AutoAddPolicy = paramiko.RejectPolicy

"""The openssh transport: whatever `ssh HOST` can do, with host keys verified and a bound on every wait."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.local import ProcessChannel, has_ended
from fleet.transport.openssh.master import Folder, Master, through
from fleet.transport.openssh.said import Said
from fleet.transport.ssh.dial import Deadline, os_error
from fleet.transport.ssh.endpoint import Endpoint, Routed, named, resolve, route_key
from fleet.transport.ssh.gates import ClosedEarly, Gateways, lost, pause
from fleet.transport.ssh.known_hosts import KnownHosts
from fleet.transport.streams import Started

# What holds whatever the user's config has: no question, no key taken unseen, nothing on stdout that is not the
# command's, no port of this machine opened once a host, no connection that outlives its user, or waits for a
# host that has died.
_ALWAYS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "NoHostAuthenticationForLocalhost=no",
    "UpdateHostKeys=no",
    "ControlPersist=no",
    "ClearAllForwardings=yes",
    "RequestTTY=no",
    "RemoteCommand=none",
    "PermitLocalCommand=no",
    "VisualHostKey=no",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
)
# What the user's config may have ssh give to a host that it logs in to, and no connection of fleet's own does: a user
# who is root there could use it. `fleet ssh` is the user's own, and leaves it to the config.
_GIVES_NOTHING = ("ForwardAgent=no", "ForwardX11=no", "Tunnel=no")
# The same, of keywords that some OpenSSH do not know: for a config that has them. With LogVerbose, a
# channel's `ssh` would write amid the command's output.
_IF_NAMED = (
    "GSSAPIDelegateCredentials=no",
    "ForkAfterAuthentication=no",
    "SessionType=default",
    "StdinNull=no",
    "LogVerbose=none",
)


class OpensshChannel(ProcessChannel):
    """A command on a host: an `ssh` that hands its streams to the host's connection."""

    def __init__(self, argv: Sequence[str], host: Host, master: Master, env: Mapping[str, str] | None = None) -> None:
        self._master = master
        try:
            super().__init__(argv, host, patience=0.0, env=env)
        except OSError as error:
            raise os_error(error, "ssh") from error

    def _lost(self) -> ConnectError:
        via = self._master.via
        if via is not None:
            via.lost()  # it ends a little later than what went through it
        return lost(self._host, via)

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        received = super()._read(timeout)
        if received == (b"", b"") and super().wait(0.5) == 255 and self._master.lost():
            raise self._lost()  # the end of its output is the connection's
        return received

    def wait(self, timeout: float) -> int | None:
        status = super().wait(timeout)
        # 255 is also what ssh ends with when the connection is gone; the connection's own end shows it
        return None if status == 255 and self._master.lost() else status


class OpensshSession(Started[OpensshChannel]):
    """Authenticated access to one host. Where sshd allows few sessions on one connection (MaxSessions), `ssh` itself
    opens another for the one that is too many."""

    def __init__(self, host: Host, master: Master, argv: list[str]) -> None:
        super().__init__(host, master.address)
        self._master, self._argv = master, argv

    def start(self, command: str) -> OpensshChannel:
        if self._master.broken:
            raise lost(self.host, self._master.via)
        return super().start(command)

    def _channel(self, command: str) -> OpensshChannel:
        return OpensshChannel([*self._argv, "--", self.host.name, command], self.host, self._master)

    def client(self, *options: str, command: Sequence[str] = ()) -> list[str]:
        """The argv of an `ssh` for the user's own terminal, over this connection. Options come before what holds for
        all others."""
        return [self._argv[0], *options, *self._argv[1:], "--", self.host.name, *command]

    def ended(self, seconds: float) -> bool:
        """Is true where the connection has ended by then."""
        return has_ended(self._master.process, seconds)

    def close(self) -> None:
        super().close()
        self._master.abort()


class OpensshTransport(Routed):
    """Runs the `ssh` of this machine. Gateways of the inventory and of ProxyJump are connected once, for all hosts
    reached through them."""

    name = "openssh"

    def __init__(
        self,
        options: ConnectOptions | None = None,
        *,
        home: Path | None = None,
        hosts: Iterable[Host] = (),
        users: bool = False,
    ) -> None:
        """users: for the user's own terminal, where what the ssh config forwards is forwarded."""
        super().__init__(options, home, hosts)
        self._own = () if users else _GIVES_NOTHING
        self._known_hosts = KnownHosts()
        self._lock = threading.Lock()
        self._made: Folder | None = None
        self._gateways: Gateways[Master] = Gateways()

    @property
    def _folder(self) -> Folder:
        with self._lock:
            self._made = self._made or self._new_folder()
            return self._made

    def _new_folder(self) -> Folder:
        return Folder(self.config.home)

    def connect(self, host: Host, cancel: Cancel) -> OpensshSession:
        """An authenticated session. ConnectError with its reason as `kind`; LimitError; Interrupted."""
        with named(host):
            endpoint = self.resolve(host, cancel)
            route = self.hops(endpoint)
            with self.gate(endpoint, route):
                deadline = Deadline.after(self.options.connect_timeout, cancel)
                master, arguments = self._connect(host, endpoint, route, deadline, self._more(host, endpoint))
        channel = ["-o", "ControlMaster=no", "-o", "LogLevel=FATAL", "-S", str(master.control)]
        return self._session(host, master, ["ssh", *channel, *arguments])

    def _session(self, host: Host, master: Master, argv: list[str]) -> OpensshSession:
        return OpensshSession(host, master, argv)

    def _more(self, host: Host, endpoint: Endpoint) -> list[str]:
        """Returns further options of `ssh` for a host."""
        return []

    def close(self) -> None:
        self._gateways.close()
        if self._made is not None:
            self._made.close()

    def _connect(
        self,
        host: Host,
        endpoint: Endpoint,
        route: tuple[Host, ...],
        deadline: Deadline,
        more: Sequence[str] = (),
    ) -> tuple[Master, list[str]]:
        """A connection, and the argv that leads there."""
        refused: FleetError | None = None
        without: list[str] = []
        retries = 0
        while True:
            gateway = self._gateway(route, deadline) if route else None
            seen = len(gateway.refusals) if gateway else 0
            arguments = [*self._words(host, endpoint, without), *more, *through(gateway, endpoint)]
            control = self._folder.socket()
            main = ["-N", "-M", "-S", str(control), "-o", "LogLevel=DEBUG1"]
            master = Master(["ssh", *main, *arguments, "--", host.name], control, gateway)
            try:
                settled = master.settle(deadline)
                if settled:
                    return master, arguments
            except BaseException:
                master.abort()
                raise
            master.abort()
            via = (route[-1].name, gateway.refusals[seen:]) if gateway else None
            output = Said(master.said, host, endpoint, deadline.seconds, via)
            error = output.failure(settled is not None)
            retries += isinstance(error, ClosedEarly)
            if isinstance(error, ClosedEarly) and pause(retries, deadline):
                continue
            if (
                error.kind in ("host-key", "unknown-host-key")
                and host.host_key
                and output.key_types
                and output.key_types not in without
            ):
                # the pinned key may be of another type than the one presented, or lie in a certificate
                refused = refused or error
                without.append(output.key_types)
            else:
                raise refused or error

    def _words(self, host: Host, endpoint: Endpoint, without: list[str]) -> list[str]:
        """Returns the options that lead to this host: the inventory's, over the user's config, which ssh reads itself.
        Nothing of it passes a shell."""
        options = [*_ALWAYS, *self._own, f"ConnectTimeout={int(self.options.connect_timeout) + 2}"]
        options += (option for option in _IF_NAMED if self.config.names(option.partition("=")[0]))
        if without:
            options.append(f"HostKeyAlgorithms=-{','.join(without)}")
        if host.identity_file:
            options += [_identity(endpoint.identity_files[0]), "IdentitiesOnly=yes"]
        elif not endpoint.explicit_identities:
            options += map(_identity, endpoint.identity_files)
        if host.address != host.name:
            options.append(f"HostName={host.address.replace('%', '%%')}")
        arguments = [arg for option in options for arg in ("-o", option)]
        if host.host_key:
            known = self._known_hosts.of(endpoint).known
            arguments += self._folder.pinned(host.host_key, (entry.key.type for entry in known))
        return [*self._folder.config(endpoint.by_address), *arguments, "-l", endpoint.user, "-p", str(endpoint.port)]

    def _gateway(self, route: tuple[Host, ...], deadline: Deadline) -> Master:
        """The connection to the last gateway of the route."""
        gateway = route[-1]

        def connect() -> Master:
            return self._connect(gateway, resolve(gateway, self.config), route[:-1], deadline)[0]

        return self._gateways.get(route_key(route), gateway.name, connect)


def _identity(file: Path) -> str:
    if '"' in str(file):
        raise ConnectError(f"{file}: ssh reads no name with a quote in it", kind="config", hint="rename the file")
    return f'IdentityFile="{str(file).replace("%", "%%")}"'

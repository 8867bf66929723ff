"""The openssh transport runs `ssh`, so it reaches every host that `ssh HOST` reaches. Host keys are verified, and every
wait has a limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.node.base.errors import on_failure
from fleet.transport.base import Cancel, ConnectOptions, Once
from fleet.transport.local import ProcessChannel, has_ended
from fleet.transport.openssh.failure import SshOutput
from fleet.transport.openssh.master import Folder, Master, through
from fleet.transport.ssh.dial import Deadline, os_error
from fleet.transport.ssh.endpoint import Endpoint, Routed, named, resolve, route_key
from fleet.transport.ssh.gates import ClosedEarly, Gateways, lost, pause
from fleet.transport.ssh.known_hosts import KnownHosts
from fleet.transport.streams import Started

# These options override the user's config. ssh asks no question, accepts no unknown key, and writes only the command's
# output to stdout. It forwards no ports. A connection does not outlive fleet, and does not wait for a dead host.
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
# A root user of the host could use what these options would forward, so fleet's own connections forward nothing.
# `fleet ssh` leaves them to the user's config.
_GIVES_NOTHING = ("ForwardAgent=no", "ForwardX11=no", "Tunnel=no")
# More such options, which some versions of OpenSSH do not know. Each is added only if the config has its keyword. With
# LogVerbose, a channel's `ssh` would write amid the command's output.
_IF_NAMED = (
    "GSSAPIDelegateCredentials=no",
    "ForkAfterAuthentication=no",
    "SessionType=default",
    "StdinNull=no",
    "LogVerbose=none",
)


class OpensshChannel(ProcessChannel):
    """Runs a command on a host, by an `ssh` that passes the command's streams through the host's open connection."""

    def __init__(self, argv: Sequence[str], host: Host, master: Master, env: Mapping[str, str] | None = None) -> None:
        self._master = master
        try:
            super().__init__(argv, host, patience=0.0, env=env)
        except OSError as error:
            raise os_error(error, "ssh") from error

    def _lost(self) -> ConnectError:
        via = self._master.via
        if via is not None:
            via.lost()  # waits for the end of the gateway's ssh, which follows a little later
        return lost(self._host, via)

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        received = super()._read(timeout)
        if received == (b"", b"") and super().wait(0.5) == 255 and self._master.lost():
            raise self._lost()  # the output ended because the connection did
        return received

    def wait(self, timeout: float) -> int | None:
        status = super().wait(timeout)
        # ssh also ends with 255 when the connection is lost
        return None if status == 255 and self._master.lost() else status


class OpensshSession(Started[OpensshChannel]):
    """Gives authenticated access to one host. Beyond MaxSessions of sshd, `ssh` itself opens a further connection."""

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
        """Returns the argv of an `ssh` for the user's terminal, over this connection. `options` override all others."""
        return [self._argv[0], *options, *self._argv[1:], "--", self.host.name, *command]

    def ended(self, seconds: float) -> bool:
        """Returns whether the connection has ended, or ends within that many seconds."""
        return has_ended(self._master.process, seconds)

    def close(self) -> None:
        super().close()
        self._master.abort()


class OpensshTransport(Routed):
    """Runs the `ssh` of this machine. Hosts that are reached through the same gateway share one connection to it."""

    name = "openssh"

    def __init__(
        self,
        options: ConnectOptions | None = None,
        *,
        home: Path | None = None,
        hosts: Iterable[Host] = (),
        users: bool = False,
    ) -> None:
        """Makes the transport. users: the connections are for the user's terminal, and forward what the ssh config
        forwards."""
        super().__init__(options, home, hosts)
        self._own = () if users else _GIVES_NOTHING
        self._known_hosts = KnownHosts()
        self._folders = Once[Folder]()
        self._gateways: Gateways[Master] = Gateways()

    @property
    def _folder(self) -> Folder:
        """Returns the one folder of the sockets, which the first connection makes."""
        return self._folders.get(None, self._new_folder)

    def _new_folder(self) -> Folder:
        return Folder(self.config.home)

    def connect(self, host: Host, cancel: Cancel) -> OpensshSession:
        """Returns an authenticated session. Raises ConnectError with the reason as `kind`, LimitError, Interrupted."""
        with named(host):
            endpoint = self.resolve(host, cancel)
            route = self.hops(endpoint)
            with self.gate(endpoint, route):
                deadline = Deadline.after(self.options.connect_timeout, cancel)
                master, arguments = self._connect(host, endpoint, route, deadline, self._extra_options(host, endpoint))
        channel = ["-o", "ControlMaster=no", "-o", "LogLevel=FATAL", "-S", str(master.control)]
        return self._session(host, master, ["ssh", *channel, *arguments])

    def _session(self, host: Host, master: Master, argv: list[str]) -> OpensshSession:
        return OpensshSession(host, master, argv)

    def _extra_options(self, host: Host, endpoint: Endpoint) -> list[str]:
        """Returns further options of `ssh` for a host."""
        return []

    def close(self) -> None:
        self._gateways.close()
        for folder in self._folders.all():
            folder.close()

    def _connect(
        self,
        host: Host,
        endpoint: Endpoint,
        route: tuple[Host, ...],
        deadline: Deadline,
        more: Sequence[str] = (),
    ) -> tuple[Master, list[str]]:
        """Returns an open connection, and the arguments of ssh that lead to the host."""
        refused: FleetError | None = None
        without: list[str] = []
        retries = 0
        while True:
            gateway = self._gateway(route, deadline) if route else None
            seen = len(gateway.refusals) if gateway else 0
            arguments = [*self._host_options(host, endpoint, without), *more, *through(gateway, endpoint)]
            control = self._folder.socket()
            main = ["-N", "-M", "-S", str(control), "-o", "LogLevel=DEBUG1"]
            master = Master(["ssh", *main, *arguments, "--", host.name], control, gateway)
            with on_failure(master.abort):
                settled = master.settle(deadline)
            if settled:
                return master, arguments
            master.abort()
            via = (route[-1].name, gateway.refusals[seen:]) if gateway else None
            output = SshOutput(master.stderr, host, endpoint, deadline.seconds, via)
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
                # the host may have a key of the pinned type, too: try again without the presented type
                refused = refused or error
                without.append(output.key_types)
            else:
                raise refused or error

    def _host_options(self, host: Host, endpoint: Endpoint, without: list[str]) -> list[str]:
        """Returns the options and arguments of ssh for this host, fleet's own and the inventory's. ssh reads the user's
        config itself. No shell reads the options. without: patterns of host key types that ssh must not request."""
        options = [*_ALWAYS, *self._own, f"ConnectTimeout={int(self.options.connect_timeout) + 2}"]
        options += (option for option in _IF_NAMED if self.config.sets_keyword(option.partition("=")[0]))
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
        """Returns the connection to the last gateway of the route."""
        gateway = route[-1]

        return self._gateways.get(
            route_key(route),
            gateway.name,
            lambda: self._connect(gateway, resolve(gateway, self.config), route[:-1], deadline)[0],
        )


def _identity(file: Path) -> str:
    if '"' in str(file):
        raise ConnectError(f"{file}: ssh reads no name with a quote in it", kind="config", hint="rename the file")
    return f'IdentityFile="{str(file).replace("%", "%%")}"'

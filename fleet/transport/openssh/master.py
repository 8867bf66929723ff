"""Runs `ssh -N -M`: an authenticated connection with a socket, through which other `ssh` run commands. Keeps the folder
of the sockets, and a watcher that ends the connections when fleet is killed."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import pwd
import re
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fleet.best_effort import best_effort
from fleet.errors import ConnectError
from fleet.transport.local import ChildProcess, end, finish, has_ended
from fleet.transport.ssh.dial import Deadline, os_error
from fleet.transport.ssh.endpoint import Endpoint

NO_HOST = "fleet.invalid"  # does not resolve: an ssh that finds no connection to share reaches no host
END_SECONDS = 10.0  # how long `ssh -O check`, and then the end of ssh, may take
LISTEN_SECONDS = 0.002  # interval of looking for the socket, which ssh makes after it is authenticated


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Raises ConnectError or LimitError if `ssh` cannot be started."""
    try:
        yield
    except FileNotFoundError:
        raise ConnectError(
            "--transport openssh takes OpenSSH's own client, which is not on this machine",
            kind="config",
            hint="install it (Debian: apt install openssh-client), or use --transport ssh",
        ) from None
    except OSError as error:
        raise os_error(error, "ssh") from error


_DIALS = re.compile(rb"debug1: Connecting to \S+ \[([^\]]+)\] port ")


class Master(ChildProcess):
    """Controls the `ssh -N -M` of one host, until abort(). control: its socket. refusals: the host's messages when it
    refuses to forward. via: the gateway's Master. address: the IP address at which this machine reached the host; None
    if it is reached through a gateway or a command."""

    def __init__(self, argv: Sequence[str], control: Path, via: Master | None) -> None:
        self.control, self.via = control, via
        self.address: str | None = None
        self.refusals: list[str] = []
        self._settled = threading.Event()
        self._ours = True  # the output holds no message of the host yet
        with starting():
            super().__init__(argv, "fleet-openssh")
        self.reader.add_done_callback(lambda _: self._settled.set())
        self._mark = control.with_name(str(self.process.pid))  # for the folder's watcher
        try:
            self._mark.touch()
        except OSError as error:  # the folder is gone: the transport was closed meanwhile
            self.abort()
            raise os_error(error, "ssh") from error

    def _on_line(self, line: bytes) -> None:
        self._ours = self._ours and not line.startswith(b"debug1: Local version string ")
        if self._ours and (found := _DIALS.match(line)):
            number = found[1].decode()
            self.address = None if ipaddress.ip_address(number.partition("%")[0]).is_loopback else number
        if b": open failed: " in line:
            self.refusals.append(line.decode("utf-8", "replace").partition(": open failed: ")[2].strip())
        if line.startswith(b"Authenticated to "):
            while not self.control.exists() and not self.broken:
                time.sleep(LISTEN_SECONDS)
            self._settled.set()

    def settle(self, deadline: Deadline) -> bool | None:
        """Waits for the connection. Returns True if it is open, False if ssh has ended, None after the deadline. Raises
        Interrupted."""
        if not deadline.wait(self._settled):
            return None
        return self.control.exists() and not self.broken

    @property
    def broken(self) -> bool:
        return has_ended(self.process)

    def lost(self) -> bool:
        """Returns whether the connection is lost: ssh does not answer, and ends soon."""
        if self.broken:
            return True
        argv = ["ssh", "-F", "none", "-S", str(self.control), "-O", "check", NO_HOST]
        return finish(argv, b"", END_SECONDS)[0] != 0 and has_ended(self.process, END_SECONDS)

    def abort(self) -> None:
        """Ends ssh, and all commands that run over it. Never raises."""
        end(self.process, 0.0, 1.0)
        for path in (self.control, self._mark):
            with best_effort("remove the socket of an ssh connection"):
                path.unlink(missing_ok=True)


def through(gateway: Master | None, endpoint: Endpoint) -> list[str]:
    """Returns the options of ssh that lead through a gateway's connection. Without a gateway, the options switch
    ProxyJump off, because fleet verifies gateways itself."""
    if gateway is None:
        return ["-o", "ProxyCommand=none"] if endpoint.proxy_command is None else []
    share = shlex.join(["ssh", "-F", "none", "-o", "LogLevel=FATAL", "-S", str(gateway.control)])
    return ["-o", f"ProxyCommand={share} -W '[%h]:%p' {NO_HOST}", "-o", "ProxyUseFdpass=no"]


# A socket's path holds 108 bytes, and ssh appends 17 to it at first. Characters that ssh expands are not allowed.
_FIT = re.compile(r"/[A-Za-z0-9_./-]{,60}")
# The watcher's `read` returns when fleet ends, however that happens. The watcher first renames the sockets' folder,
# within the private folder, so that an ssh that just starts cannot make a socket. Each connection has a file whose name
# is the pid of its ssh. Another process may have that pid by now, so the watcher checks the command line.
_WATCH = """read x; mv "$1/c" "$1/over" || exit 0
for f in "$1/over"/*; do p=${f##*/}; grep -qsF "$1/c/" "/proc/$p/cmdline" && kill "$p"; done; rm -rf "$1" """
# Prints known_hosts lines for ssh when the inventory pins a host key. Any other key is revoked. The pinned key is
# accepted, unless a key of its type is on file: then ssh compares the host's key with that one.
_PIN = """[ "$6" != NONE ] || exit 0
[ "$1" = "$3" ] || { echo "@revoked $4 $5 $6"; exit 0; }
case ",$2," in *",$5,"*) ;; *) echo "$4 $5 $6" ;; esac
"""


class Folder:
    """Keeps the private folder of the sockets, which is removed when this process ends. home: the directory that ~
    means."""

    def __init__(self, home: Path) -> None:
        base = tempfile.gettempdir()
        self.path = Path(tempfile.mkdtemp(prefix="fleet-", dir=base if _FIT.fullmatch(base) else "/tmp"))
        (self.path / "c").mkdir()
        null = subprocess.DEVNULL
        argv = ["/bin/sh", "-c", _WATCH, "fleet", str(self.path)]
        with starting():
            self._watch = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
            )
        self._numbers = itertools.count(1)
        (self.path / "pin").write_text(_PIN)
        if home != Path(pwd.getpwuid(os.getuid()).pw_dir):
            (self.path / "config").write_text(_config(home, "all"))
        # when ssh reads its config for the second time, Host means the address
        (self.path / "again").write_text(_config(home, "final all"))

    def socket(self) -> Path:
        """Returns a path for the socket of a new connection."""
        return self.path / "c" / f"{next(self._numbers)}.sock"

    def config(self, again: bool) -> list[str]:
        """Returns the options that make ssh read the config of fleet's home, if ssh would read another one. again: ssh
        also applies the settings for the host's address."""
        file = self.path / ("again" if again else "config")
        return ["-F", str(file)] if file.exists() else []

    def pinned(self, pin: str, on_file: Iterable[str]) -> list[str]:
        """Returns the options that make ssh accept only the host key with this fingerprint. on_file: types of the
        host's keys in the known_hosts files."""
        types = ",".join(on_file) or "none"
        argv = ["/bin/sh", str(self.path / "pin"), pin.rstrip("="), types, "%f", "%H", "%t", "%K"]
        return ["-o", f"KnownHostsCommand={' '.join(argv)}", "-o", "VerifyHostKeyDNS=no"]

    def close(self) -> None:
        """Has the watcher end the remaining connections and remove the folder."""
        self._watch.communicate()


def _config(home: Path, last: str) -> str:
    """Returns the config that ssh would read if its ~ were this home. last: the Match line of its defaults."""
    ssh = f"{home}/.ssh"
    return (
        f'Include "{ssh}/config"\nMatch all\nInclude /etc/ssh/ssh_config\nMatch {last}\n'
        f'UserKnownHostsFile "{ssh}/known_hosts" "{ssh}/known_hosts2"\n'
    ).replace("%", "%%")

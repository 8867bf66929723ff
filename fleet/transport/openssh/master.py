"""One `ssh -N -M`: an authenticated connection, through whose socket others of this machine run commands; the folder of
the sockets, and what ends the connections when fleet is killed."""

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

from fleet.errors import ConnectError
from fleet.transport.local import Helper, end, finish, has_ended
from fleet.transport.ssh.dial import Deadline, os_error
from fleet.transport.ssh.endpoint import Endpoint

NOBODY = "fleet.invalid"  # an ssh that finds no connection to share gets nowhere by itself
END_SECONDS = 10.0
LISTEN_SECONDS = 0.002  # between its message that it is let in and its socket


class NoClient(ConnectError):
    """There is no ssh on this machine."""

    def __init__(self) -> None:
        super().__init__(
            "--transport openssh takes OpenSSH's own client, which is not on this machine",
            kind="config",
            hint="install it (Debian: apt install openssh-client), or use --transport ssh",
        )


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Raises NoClient or LimitError for what keeps `ssh` from being started."""
    try:
        yield
    except FileNotFoundError:
        raise NoClient from None
    except OSError as error:
        raise os_error(error, "ssh") from error


_DIALS = re.compile(rb"debug1: Connecting to \S+ \[([^\]]+)\] port ")


class Master(Helper):
    """Ends with abort(). control: its socket. refusals: the host's messages to a request for a way to another one.
    via: the gateway's. address: the number it was reached at; None where another machine, or a command, leads there."""

    def __init__(self, argv: Sequence[str], control: Path, via: Master | None) -> None:
        self.control, self.via = control, via
        self.address: str | None = None
        self.refusals: list[str] = []
        self._settled = threading.Event()
        self._ours = True  # nothing of it is the host's own message
        with starting():
            super().__init__(argv, "fleet-openssh")
        self.reader.add_done_callback(lambda _: self._settled.set())
        self._mark = control.with_name(str(self.process.pid))  # for the folder's watcher
        try:
            self._mark.touch()
        except OSError as error:  # the folder is gone: the transport was closed meanwhile
            self.abort()
            raise os_error(error, "ssh") from error

    def _hear(self, line: bytes) -> None:
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
        """True when it is connected, False when it has ended, None when neither came about in time. Interrupted."""
        if not deadline.wait(self._settled):
            return None
        return self.control.exists() and not self.broken

    @property
    def broken(self) -> bool:
        return has_ended(self.process)

    def lost(self) -> bool:
        """Is true where the connection is lost: then it does not answer any more, and ends when a busy machine comes to
        that."""
        if self.broken:
            return True
        argv = ["ssh", "-F", "none", "-S", str(self.control), "-O", "check", NOBODY]
        return finish(argv, b"", END_SECONDS)[0] != 0 and has_ended(self.process, END_SECONDS)

    def abort(self) -> None:
        """End it, and with it all that runs over it; never raises."""
        end(self.process, 0.0, 1.0)
        for path in (self.control, self._mark):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def through(gateway: Master | None, endpoint: Endpoint) -> list[str]:
    """Returns the options that lead through a gateway's connection, or through none. What ssh itself runs for a
    ProxyJump verifies the gateway's key as the user's config has it."""
    if gateway is None:
        return ["-o", "ProxyCommand=none"] if endpoint.proxy_command is None else []
    share = shlex.join(["ssh", "-F", "none", "-o", "LogLevel=FATAL", "-S", str(gateway.control)])
    return ["-o", f"ProxyCommand={share} -W '[%h]:%p' {NOBODY}", "-o", "ProxyUseFdpass=no"]


# A socket's path holds 108 bytes, and ssh appends 17 to it at first. Nothing in it may mean something to ssh.
_FIT = re.compile(r"/[A-Za-z0-9_./-]{,60}")
# It ends with fleet, however that ends. Renamed first, so that a connection that comes about just now finds no folder.
# What it is renamed to lies in the private folder too: no other user can have put anything there. Each connection, also
# one that is not through yet, has a file called as its process; that may by now be another's number.
_WATCH = """read x; mv "$1/c" "$1/over" || exit 0
for f in "$1/over"/*; do p=${f##*/}; grep -qsF "$1/c/" "/proc/$p/cmdline" && kill "$p"; done; rm -rf "$1" """
# The settings for ssh about a host key when the inventory pins one: any other is revoked; that one is good, unless a
# key of its type is on file, which then speaks for itself.
_PIN = """[ "$6" != NONE ] || exit 0
[ "$1" = "$3" ] || { echo "@revoked $4 $5 $6"; exit 0; }
case ",$2," in *",$5,"*) ;; *) echo "$4 $5 $6" ;; esac
"""


class Folder:
    """Private to this user, and gone with this process. home: what ~ means to fleet."""

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
        # in its second reading Host means the address
        (self.path / "again").write_text(_config(home, "final all"))

    def socket(self) -> Path:
        """A path for another connection's socket. A file named as a process next to it ends with fleet."""
        return self.path / "c" / f"{next(self._numbers)}.sock"

    def config(self, again: bool) -> list[str]:
        """Returns the options that make ssh read the config of fleet's home, where ssh itself would read another.
        again: its settings for the host's address hold, too."""
        file = self.path / ("again" if again else "config")
        return ["-F", str(file)] if file.exists() else []

    def pinned(self, pin: str, on_file: Iterable[str]) -> list[str]:
        """Returns the options that make ssh accept the host key with this fingerprint and no other. on_file: types of
        the keys that its files of known hosts have for the host."""
        types = ",".join(on_file) or "none"
        argv = ["/bin/sh", str(self.path / "pin"), pin.rstrip("="), types, "%f", "%H", "%t", "%K"]
        return ["-o", f"KnownHostsCommand={' '.join(argv)}", "-o", "VerifyHostKeyDNS=no"]

    def close(self) -> None:
        """Let the watcher end what still runs, and take the folder away."""
        self._watch.communicate()


def _config(home: Path, last: str) -> str:
    """The config of this home as ssh would read it if its ~ were there. last: when its defaults hold."""
    ssh = f"{home}/.ssh"
    return (
        f'Include "{ssh}/config"\nMatch all\nInclude /etc/ssh/ssh_config\nMatch {last}\n'
        f'UserKnownHostsFile "{ssh}/known_hosts" "{ssh}/known_hosts2"\n'
    ).replace("%", "%%")

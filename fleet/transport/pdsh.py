"""The pdsh transport: every command on a host is one `pdsh -R ssh`, over the connection of the openssh transport.

What was found of pdsh 2.34, and what is done about it:

- It gives the `ssh` that it starts no stdin, and splits PDSH_SSH_ARGS at blanks, quotes or not. So a script called ssh
  stands in its PATH: that takes pdsh's own stdin, and has the words that lead to the host's connection.
- It replaces %h, %u, %n and %% also in the command, which is sent with each % doubled.
- It passes on whole lines only, and of those what stands before a NUL: fleet/node/lines.py makes lines of everything.
- It takes a host's end for its own (-S) only as the largest of all, and has one stdin: one pdsh a command. That costs
  some milliseconds beside those of its ssh.
"""

from __future__ import annotations

import getopt
import os
import re
import shlex
import shutil
import subprocess
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from fleet.errors import ConnectError, ProtocolError, UsageError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.openssh.master import Folder, Master
from fleet.transport.openssh.transport import OpensshChannel, OpensshSession, OpensshTransport
from fleet.transport.program import python_line
from fleet.transport.ssh.endpoint import Endpoint
from fleet.transport.streams import STDERR_BYTES

LINE_BYTES = 1 << 20
_NO_PYTHON = b"fleet: no python3"
_BEGUN = b"\nFLEET-LINES\n"
_SHIM = """#!/bin/sh
PATH=$FLEET_PATH words=$FLEET_SSH
unset FLEET_PATH FLEET_SSH
eval "exec $words "'"$@"' <"/proc/$PPID/fd/0"
"""
# of ssh; those without effect here, or that would be in the way of what fleet says itself, are left out
_OPTIONS = "1246ab:c:e:fgi:kl:m:no:p:qstvxyAB:CD:E:F:GI:J:KL:MNO:P:Q:R:S:TVw:W:XYZ"
_IDLE = {f"-{letter}" for letter in "AEGKMNOQSTVWXYflnpqstv"}
_NOT_PDSHS = ("PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND", "DSHPATH", "WCOLL")


def _pdsh() -> str:
    """Where it is. UsageError where it is not, or cannot use ssh."""
    path = shutil.which("pdsh")
    if path is None:
        raise UsageError(
            "--transport pdsh takes pdsh, which is not on this machine",
            hint="install it (Debian: apt install pdsh; Rocky, with EPEL: dnf install pdsh-rcmd-ssh), or leave "
            "--transport out",
        )
    said = subprocess.run([path, "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    modules = re.search(r"rcmd modules: (\S+)", said.stdout + said.stderr)
    if modules and "ssh" not in modules[1].split(","):
        raise UsageError(
            f"this machine's pdsh cannot use ssh: it knows {modules[1]}",
            hint="install its module for that (Rocky, with EPEL: dnf install pdsh-rcmd-ssh), or leave --transport out",
        )
    return path


@cache
def _filter() -> str:
    return f"exec(base64.b64decode('{_base64((files('fleet') / 'node' / 'lines.py').read_bytes())}'));main()"


class PdshChannel(OpensshChannel):
    """A command on a host: a pdsh, whose lines are taken apart here."""

    _begun = False
    _rest = b""
    _own = b""  # what pdsh itself says

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        until = time.monotonic() + timeout
        while True:
            raw = super()._read(max(0.0, until - time.monotonic()))
            out, err = raw or (b"", b"")
            self._rest, self._own = self._rest + out, (self._own + err)[-STDERR_BYTES:]
            ended = raw == (b"", b"")
            said = self._lines() if self._begun else self._instead() if ended else self._noise()
            if any(said) or ended:
                return said
            if raw is None or time.monotonic() >= until:
                return None

    def recv_stderr(self) -> bytes:
        return super().recv_stderr() if self._begun else self._own

    def _instead(self) -> tuple[bytes, bytes]:
        """What was said where nothing begins any more."""
        out, self._rest = self._rest, b""
        if _NO_PYTHON in self._own:
            raise ConnectError(
                "no python3 on the node",
                host=self._host.name,
                kind="no-python",
                hint="pdsh carries lines of text, which python3 makes there: install it, or leave --transport out",
            )
        self._begun = True
        return out, self._own

    def _noise(self) -> tuple[bytes, bytes]:
        """What a login shell says first; not yet what the beginning may be part of."""
        noise, begun, rest = self._rest.partition(_BEGUN)
        if not begun:
            out, self._rest = noise[: -len(_BEGUN)], noise[-len(_BEGUN) :]
            return out, b""
        self._begun, self._rest = True, rest
        return self._lines()

    def _lines(self) -> tuple[bytes, bytes]:
        """stdout and stderr."""
        *lines, self._rest = self._rest.split(b"\n")
        try:
            out, err = (b"".join(b64decode(line[1:]) for line in lines if line[:1] == kind) for kind in (b"1", b"2"))
        except ValueError:
            raise ProtocolError("a line that is not base64", self._host.name) from None
        if len(self._rest) > LINE_BYTES:
            raise ProtocolError(f"a line of more than {LINE_BYTES} bytes", self._host.name)
        return out, err


class PdshSession(OpensshSession):
    """Access to one host. env: what its pdsh are started with."""

    def __init__(self, host: Host, master: Master, pdsh: str, env: Mapping[str, str]) -> None:
        super().__init__(host, master, [pdsh, "-R", "ssh", "-N", "-S", "-w", host.name.replace(":", "-")])
        self._env = env

    def _channel(self, command: str) -> PdshChannel:
        wrapped = f"import base64,sys;sys.argv.append('{_base64(command.encode())}');{_filter()}"
        line = python_line(self.host, wrapped).replace("%", "%%")
        return PdshChannel([*self._argv, line], self.host, self._master, self._env)


class PdshTransport(OpensshTransport):
    """Runs the pdsh of this machine. What PDSH_SSH_ARGS and PDSH_SSH_ARGS_APPEND say holds for the hosts; the inventory
    is over it, and host keys are verified whatever it says."""

    name = "pdsh"

    def __init__(
        self, options: ConnectOptions | None = None, *, home: Path | None = None, hosts: Iterable[Host] = ()
    ) -> None:
        self._pdsh, self._given = _pdsh(), _users_words()
        super().__init__(options, home=home, hosts=hosts)

    def resolve(self, host: Host, cancel: Cancel | None = None) -> Endpoint:
        given = dict(reversed(self._given))  # of two, ssh takes the first
        user, port = given.get("-l"), given.get("-p", "")
        host = replace(host, user=host.user or user, port=host.port or (int(port) if port.isdigit() else None))
        return super().resolve(host, cancel)

    def _more(self, host: Host, endpoint: Endpoint) -> list[str]:
        values = {"h": host.name, "u": endpoint.user, "n": "0", "%": "%"}
        words = [word for option, value in self._given if option not in _IDLE for word in (option, value) if word]
        return [re.sub(r"%([hun%])", lambda token: values[token[1]], word) for word in words]

    def _new_folder(self) -> Folder:
        folder = super()._new_folder()
        shim = folder.path / "bin" / "ssh"
        shim.parent.mkdir()
        shim.write_text(_SHIM)
        shim.chmod(0o700)
        shim.with_name("pdsh").symlink_to(self._pdsh)  # it looks for itself in PATH
        return folder

    def _session(self, host: Host, master: Master, argv: list[str]) -> PdshSession:
        env = {name: value for name, value in os.environ.items() if name not in _NOT_PDSHS}
        # nothing but the shim: where that cannot be started, no other ssh is
        env |= {"PATH": str(self._folder.path / "bin"), "FLEET_PATH": os.environ.get("PATH", os.defpath)}
        env |= {"PDSH_RCMD_TYPE": "ssh", "FLEET_SSH": shlex.join(argv)}
        return PdshSession(host, master, self._pdsh, env)


def _users_words() -> list[tuple[str, str]]:
    """The options that the user gives pdsh's ssh, in its order."""
    words = [word for name in ("PDSH_SSH_ARGS_APPEND", "PDSH_SSH_ARGS") for word in os.environ.get(name, "").split()]
    try:
        given = getopt.gnu_getopt(words, _OPTIONS)[0]
    except getopt.GetoptError as error:
        raise UsageError(
            f"PDSH_SSH_ARGS: {error}", hint="it holds options of ssh, with no quotes: pdsh parts them at blanks"
        ) from None
    named = ((pair, re.fullmatch(r"(?i)(port|user)[ =](.+)", pair[1])) for pair in given)
    pairs = ((f"-{'p' if found[1].lower() == 'port' else 'l'}", found[2]) if found else pair for pair, found in named)
    return [pair for pair in pairs if pair != ("-l", "%u")]


def _base64(data: bytes) -> str:
    return b64encode(data).decode()

"""The pdsh transport: every command on a host is one `pdsh -R ssh`, over the connection of the openssh transport.

pdsh 2.34 has these limits, which this module works around:

- It gives its `ssh` no stdin, and passes on only whole lines, up to a NUL. It splits PDSH_SSH_ARGS at blanks, even in
  quotes. So pdsh's PATH has a script called ssh. That script uses the streams with which pdsh was started, and knows
  the argv that leads to the host's connection.
- It expands %h, %u, %n and %% in the command, too. So each % of the command is doubled.
- It writes a message about an exit status to stderr, which is not the command's output. So pdsh's stderr is dropped.
- It reports the largest exit status of all hosts (-S), and has one stdin. So each command has a pdsh of its own, which
  costs a few milliseconds.
"""

from __future__ import annotations

import getopt
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fleet.errors import UsageError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.openssh.master import Folder, Master
from fleet.transport.openssh.transport import OpensshChannel, OpensshSession, OpensshTransport
from fleet.transport.ssh.endpoint import Endpoint

# pdsh has the channel's streams as its descriptors 3, 4 and 5, where its child finds them
_START = 'exec "$@" 3<&0 4>&1 5>&2 </dev/null >/dev/null 2>&1'
_SHIM = """#!/bin/sh
PATH=$FLEET_PATH command=$FLEET_SSH streams=/proc/$PPID/fd
unset FLEET_PATH FLEET_SSH
eval "exec $command "'"$@" <$streams/3 >$streams/4 2>$streams/5'
"""
# pdsh does not report a signal: a shell on the host waits for the command and returns 128+n
_WAIT = "exec sh -c 'exec 3>&2 2>/dev/null; (exec sh -c \"$1\" 2>&3 3>&-); exit $?' fleet"
# the options of ssh, and those that have no effect here or would conflict with fleet's own
_OPTIONS = "1246ab:c:e:fgi:kl:m:no:p:qstvxyAB:CD:E:F:GI:J:KL:MNO:P:Q:R:S:TVw:W:XYZ"
_WITHOUT_EFFECT = {f"-{letter}" for letter in "AEGKMNOQSTVWXYflnpqstv"}
_NOT_PDSHS = ("PDSH_SSH_ARGS", "PDSH_SSH_ARGS_APPEND", "DSHPATH", "WCOLL")


def _pdsh() -> str:
    """Returns pdsh's path. Raises UsageError if it is missing or cannot use ssh."""
    path = shutil.which("pdsh")
    if path is None:
        raise UsageError(
            "--transport pdsh takes pdsh, which is not on this machine",
            hint="install it (Debian: apt install pdsh; Rocky, with EPEL: dnf install pdsh-rcmd-ssh), or leave "
            "--transport out",
        )
    done = subprocess.run([path, "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    modules = re.search(r"rcmd modules: (\S+)", done.stdout + done.stderr)
    if modules and "ssh" not in modules[1].split(","):
        raise UsageError(
            f"this machine's pdsh cannot use ssh: it knows {modules[1]}",
            hint="install its module for that (Rocky, with EPEL: dnf install pdsh-rcmd-ssh), or leave --transport out",
        )
    return path


class PdshSession(OpensshSession):
    """Gives access to one host, with one pdsh for each command. env: the environment of each pdsh."""

    def __init__(self, host: Host, master: Master, pdsh: str, env: Mapping[str, str]) -> None:
        argv = ["/bin/sh", "-c", _START, "fleet", pdsh, "-R", "ssh", "-N", "-S", "-w", host.name.replace(":", "-")]
        super().__init__(host, master, argv)
        self._env = env

    def _channel(self, command: str) -> OpensshChannel:
        line = f"{_WAIT} {shlex.quote(command)}".replace("%", "%%")
        return OpensshChannel([*self._argv, line], self.host, self._master, self._env)


class PdshTransport(OpensshTransport):
    """Runs the pdsh of this machine. The options in PDSH_SSH_ARGS and PDSH_SSH_ARGS_APPEND apply to all hosts. The
    inventory overrides them, and host keys are verified in any case."""

    name = "pdsh"

    def __init__(
        self, options: ConnectOptions | None = None, *, home: Path | None = None, hosts: Iterable[Host] = ()
    ) -> None:
        self._pdsh, self._given = _pdsh(), _users_arguments()
        super().__init__(options, home=home, hosts=hosts)

    def resolve(self, host: Host, cancel: Cancel | None = None) -> Endpoint:
        given = dict(reversed(self._given))  # if an option is given twice, ssh takes the first
        user, port = given.get("-l"), given.get("-p", "")
        host = replace(host, user=host.user or user, port=host.port or (int(port) if port.isdigit() else None))
        return super().resolve(host, cancel)

    def _extra_options(self, host: Host, endpoint: Endpoint) -> list[str]:
        values = {"h": host.name, "u": endpoint.user, "n": "0", "%": "%"}
        arguments = [
            arg for option, value in self._given if option not in _WITHOUT_EFFECT for arg in (option, value) if arg
        ]
        return [re.sub(r"%([hun%])", lambda token: values[token[1]], arg) for arg in arguments]

    def _new_folder(self) -> Folder:
        folder = super()._new_folder()
        shim = folder.path / "bin" / "ssh"
        shim.parent.mkdir()
        shim.write_text(_SHIM)
        shim.chmod(0o700)
        shim.with_name("pdsh").symlink_to(self._pdsh)  # pdsh looks for itself in PATH
        return folder

    def _session(self, host: Host, master: Master, argv: list[str]) -> PdshSession:
        env = {name: value for name, value in os.environ.items() if name not in _NOT_PDSHS}
        # PATH has only the shim (the script called ssh): if the shim cannot be started, no other ssh is started
        env |= {"PATH": str(self._folder.path / "bin"), "FLEET_PATH": os.environ.get("PATH", os.defpath)}
        env |= {"PDSH_RCMD_TYPE": "ssh", "FLEET_SSH": shlex.join(argv)}
        return PdshSession(host, master, self._pdsh, env)


def _users_arguments() -> list[tuple[str, str]]:
    """Returns (option, value) of the options that the user gives pdsh's ssh, in the order of the ssh command line."""
    arguments = [arg for name in ("PDSH_SSH_ARGS_APPEND", "PDSH_SSH_ARGS") for arg in os.environ.get(name, "").split()]
    try:
        given = getopt.gnu_getopt(arguments, _OPTIONS)[0]
    except getopt.GetoptError as error:
        raise UsageError(
            f"PDSH_SSH_ARGS: {error}", hint="it holds options of ssh, with no quotes: pdsh parts them at blanks"
        ) from None
    named = ((pair, re.fullmatch(r"(?i)(port|user)[ =](.+)", pair[1])) for pair in given)
    pairs = ((f"-{'p' if found[1].lower() == 'port' else 'l'}", found[2]) if found else pair for pair, found in named)
    return [pair for pair in pairs if pair != ("-l", "%u")]

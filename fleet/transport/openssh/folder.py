"""The folder that the sockets of running connections lie in, and what ends those when fleet is killed."""

from __future__ import annotations

import itertools
import os
import pwd
import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fleet.transport.openssh.master import popen

# A socket's path holds 108 bytes, and ssh puts 17 behind it at first. Nothing in it may mean something to ssh.
_FIT = re.compile(r"/[A-Za-z0-9_./-]{,60}")
# It ends with fleet, however that ends. Renamed first, so that a connection that comes about just now finds no folder.
# What it is renamed to lies in the private folder too: nobody else can have put anything there. Each connection, also
# one that is not through yet, has a file called as its process; that may by now be another's number.
_WATCH = """read x; mv "$1/c" "$1/over" || exit 0
for f in "$1/over"/*; do p=${f##*/}; grep -qsF "$1/c/" "/proc/$p/cmdline" && kill "$p"; done; rm -rf "$1" """
# What ssh is told about a host key when the inventory pins one: any other is revoked; that one is good, unless a key of
# its type is on file, which then speaks for itself.
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
        self._watch = popen(argv, stdin=subprocess.PIPE, stdout=null, stderr=null)
        self._numbers = itertools.count(1)
        (self.path / "pin").write_text(_PIN)
        if home != Path(pwd.getpwuid(os.getuid()).pw_dir):
            (self.path / "config").write_text(_config(home, "all"))
        # in its second reading Host stands for the address
        (self.path / "again").write_text(_config(home, "final all"))

    def socket(self) -> Path:
        """A path for another connection's socket. What is called as a process beside it ends with fleet."""
        return self.path / "c" / f"{next(self._numbers)}.sock"

    def config(self, again: bool) -> list[str]:
        """What makes ssh read the config of fleet's home, where ssh itself would read another. again: what it says of
        the host's address holds, too."""
        file = self.path / ("again" if again else "config")
        return ["-F", str(file)] if file.exists() else []

    def pinned(self, pin: str, on_file: Iterable[str]) -> list[str]:
        """What makes ssh take the host key with this fingerprint and no other. on_file: types of the keys that its
        files of known hosts have for the host."""
        types = ",".join(on_file) or "none"
        words = ["/bin/sh", str(self.path / "pin"), pin.rstrip("="), types, "%f", "%H", "%t", "%K"]
        return ["-o", f"KnownHostsCommand={' '.join(words)}", "-o", "VerifyHostKeyDNS=no"]

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

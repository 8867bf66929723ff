"""Names the files that are sent only if git tracks them: secrets, and files that each machine makes for itself."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from fleet import own
from fleet.best_effort import best_effort
from fleet.model import Host
from fleet.protocol.state import HOME

MADE_HERE = frozenset({"__pycache__", ".cache", "node_modules"})
ENVIRONMENT = ("pyvenv.cfg", "conda-meta")
# the only tracked files whose content is searched for keys
KEY_NAMES = (".pem", ".key", ".ppk", ".p8", "_ecdsa", "_ecdsa_sk", "_ed25519", "_ed25519_sk", "_rsa", "_dsa")
PASSWORD_FILES, MOST_NOTED = "password-files", 100  # in ~/.fleet


def is_environment(folder: str) -> bool:
    return any(os.path.lexists(f"{folder}/{name}") for name in ENVIRONMENT)


def is_used(path: str, hosts: Sequence[Host], places: Sequence[str]) -> bool:
    """Returns whether the inventory starts a program in the folder `path` of the source. places: the source's folders
    on the head and on the hosts."""
    texts = "\n".join(filter(None, (text for host in hosts for text in (host.python, host.activate))))
    for found in re.finditer(rf"([^\s'\"=;:]*){re.escape(path)}/", texts):
        before = found[1].rstrip("/").removesuffix("/.")
        if found[1] in ("", "./") or found[1][-1] == "/" and any(is_same(before, place) for place in places):
            return True
    return False


def is_same(one: str, other: str) -> bool:
    """Returns whether two paths on a host may be the same folder."""
    one, other = sorted((one.rstrip("/"), other.rstrip("/")))  # a path that begins with "/" comes before one with "~"
    return one == other or other[:1] == "~" and one.endswith(other[1:])


def credentials(hosts: Sequence[Host]) -> frozenset[str]:
    """Returns the real paths of the files that fleet logs in with, or has logged in with."""
    named = [host.identity_file for host in hosts if host.identity_file]
    noted = own.lines_of(Path.home() / HOME / PASSWORD_FILES)
    return frozenset(os.path.realpath(os.path.expanduser(path)) for path in (*named, *noted))


def note_password_file(path: str) -> None:
    """Records the path of a password file, so that no later sync sends it."""
    real = os.path.realpath(path)
    if real not in own.lines_of(Path.home() / HOME / PASSWORD_FILES) and "\n" not in real:
        with best_effort("record the password file, which no sync may send"):
            own.add_line(Path.home(), PASSWORD_FILES, real, MOST_NOTED)

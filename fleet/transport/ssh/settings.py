"""Settings of one host, as a config gives them, and what they were asked for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConnectError

SEVERAL = ("identityfile", "certificatefile")
# {lower-case keyword: [(value, "FILE:LINE"), ...]}, for keywords that are set
Settings = dict[str, list[tuple[str, str]]]
# The keywords fleet heeds, and those it cannot and says so; ssh -G names a hundred more
HEEDED = (
    "hostname",
    "port",
    "user",
    "identityfile",
    "certificatefile",
    "identitiesonly",
    "identityagent",
    "hostkeyalias",
    "userknownhostsfile",
    "globalknownhostsfile",
    "revokedhostkeys",
    "proxyjump",
    "proxycommand",
)
UNHEEDED = {
    "addressfamily": "AddressFamily",
    "bindaddress": "BindAddress",
    "bindinterface": "BindInterface",
    "knownhostscommand": "KnownHostsCommand",
    "pkcs11provider": "PKCS11Provider",
}
_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]*")


@dataclass(frozen=True)
class Query:
    """What `ssh -o HostName=ADDRESS -l USER -p PORT NAME` would be told on its command line."""

    name: str
    address: str | None = None
    user: str | None = None
    port: int | None = None

    def argv(self) -> list[str]:
        for name in (self.name, self.address or self.name):
            if not _NAME.fullmatch(name):
                raise ConnectError(f"{name!r} is not a host name", kind="config")
        given = ["-l", self.user] if self.user else []
        given += ["-p", str(self.port)] if self.port else []
        given += ["-o", f"HostName={self.address.replace('%', '%%')}"] if self.address else []
        return [*given, "--", self.name]


def tokens(query: Query, found: Settings, home: Path, me: str) -> dict[str, str]:
    """What %x stands for, of the tokens that names of files may hold. me: the user on this machine."""

    def first(key: str, default: str) -> str:
        return found[key][0][0] if found.get(key) else default

    machine = os.uname().nodename
    values = {
        "%": "%",
        "d": str(home),
        "h": (query.address or first("hostname", query.name)).lower(),
        "i": str(os.getuid()),
        "j": first("proxyjump", ""),
        "k": first("hostkeyalias", query.name),
        "l": machine,
        "L": machine.split(".")[0],
        "n": query.name,
        "p": str(query.port or first("port", "22")),
        "r": query.user or first("user", me),
        "u": me,
    }
    return values | ({"C": found["%C"][0][0]} if "%C" in found else {})


def one_of(found: Settings, key: str) -> tuple[str | None, str | None]:
    """(the value that counts, "FILE:LINE"); (None, None) when it is not set."""
    return found[key][0] if found.get(key) else (None, None)


def merged(first: Settings, second: Settings) -> Settings:
    """Both, the first before the second."""
    keys: Iterable[str] = dict.fromkeys([*first, *second])
    return {k: first.get(k, []) + second.get(k, []) if k in SEVERAL else first.get(k) or second[k] for k in keys}

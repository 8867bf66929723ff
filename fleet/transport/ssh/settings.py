"""Defines which settings of an ssh_config are followed, and expands their tokens."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConnectError

SEVERAL = ("identityfile", "certificatefile")
# {lower-case keyword: [(value, "FILE:LINE"), ...]}, for keywords that are set
Settings = dict[str, list[tuple[str, str]]]
# keywords that fleet follows, and those that it cannot follow and reports; ssh -G prints a hundred more
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
_TOKEN = re.compile(r"\$\{(\w*)\}|%(.?)", re.DOTALL)
_VALUE = r"[A-Za-z0-9_./~@:+,-]+"
_HOP = r"(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*(?::[1-9][0-9]{0,3})?"
_FILES = rf"(?!(?i:none)\b){_VALUE}(?:[ \t]+(?!(?i:none)\b){_VALUE})*"
_FLAG, _NUMBER = r"(?i:yes|no|true|false)", r"[1-9][0-9]{0,4}"


def _forms(keywords: dict[str, str]) -> dict[str, re.Pattern[str]]:
    return {key: re.compile(form, re.ASCII) for form, keys in keywords.items() for key in keys.split()}


# Keywords that fleet follows, by the form of the values that fleet reads. ssh reads, or refuses, a value of another
# form.
FOLLOWED = _forms(
    {
        r"(?:[A-Za-z0-9_.:-]|%h)+": "hostname",
        r"[A-Za-z0-9_][A-Za-z0-9_.@-]*": "user",
        r"[1-9][0-9]{0,3}|[1-5][0-9]{4}": "port",
        rf"none|{_HOP}(?:,{_HOP})*": "proxyjump",
        _FLAG: "identitiesonly",
        _VALUE: "identityfile certificatefile identityagent hostkeyalias",
        _FILES: "userknownhostsfile globalknownhostsfile",
    }
)
# keywords that do not matter to fleet, by the form of their values
IRRELEVANT = _forms(
    {
        _FLAG: "batchmode checkhostip compression exitonforwardfailure forwardagent forwardx11 forwardx11trusted "
        "gssapiauthentication gssapidelegatecredentials hashknownhosts passwordauthentication tcpkeepalive "
        "visualhostkey",
        _NUMBER: "connecttimeout serveraliveinterval serveralivecountmax",
        r"yes|no|ask": "updatehostkeys",
        r"yes|no|ask|off|accept-new": "stricthostkeychecking",
        r"yes|no|ask|confirm": "addkeystoagent",
        r"yes|no|ask|auto|autoask": "controlmaster",
        rf"yes|no|{_NUMBER}[smhd]?": "controlpersist",
        r"(?:[\w./~@:-]|%[CLhlnpru])+": "controlpath",
        r"QUIET|FATAL|ERROR|INFO|VERBOSE": "loglevel",
        r"[A-Z][A-Z0-9_* \t]*": "sendenv",
    }
)
# Keywords of algorithms. Values in a distribution's file are right; ssh checks the values in a user's file.
IRRELEVANT_SYSTEM = IRRELEVANT | _forms(
    {
        r"[+^-]?[A-Za-z0-9@.,*-]+": "ciphers macs kexalgorithms gssapikexalgorithms hostkeyalgorithms requiredrsasize "
        "pubkeyacceptedalgorithms hostbasedacceptedalgorithms casignaturealgorithms",
    }
)


@dataclass(frozen=True)
class Query:
    """Describes the command line `ssh -o HostName=ADDRESS -l USER -p PORT NAME`."""

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
    """Returns the values of the %x tokens in file names. me: the user on this machine."""

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
    """Returns (the first value, its "FILE:LINE"), or (None, None) if the keyword is not set."""
    return found[key][0] if found.get(key) else (None, None)


def merged(first: Settings, second: Settings) -> Settings:
    """Returns the settings of both. Values of the first override those of the second; values of the keywords in SEVERAL
    are joined."""
    keys = dict.fromkeys([*first, *second])
    return {k: first.get(k, []) + second.get(k, []) if k in SEVERAL else first.get(k) or second[k] for k in keys}


def split_value(value: str) -> list[str]:
    """Returns the parts between the blanks, without quotes and comment. For a line that ssh reads, fleet uses the parts
    only to find the line of a value."""
    try:
        parts = shlex.split(value)
    except ValueError:
        parts = value.split()
    comment = next((i for i, part in enumerate(parts) if part.startswith("#")), len(parts))
    return parts[:comment]


def tilde(text: str, home: Path) -> str:
    """Expands ~ to `home`, and ~user to that user's home."""
    if text == "~" or text.startswith("~/"):
        return str(home) + text[1:]
    return os.path.expanduser(text)  # noqa: PTH111


def expand(text: str, tokens: Mapping[str, str]) -> str:
    """Expands %tokens and ${VARIABLES}. Raises ValueError for a token or variable without a value, which ssh refuses,
    too."""

    def value(match: re.Match[str]) -> str:
        if match[1] is not None:
            if match[1] not in os.environ:
                raise ValueError(f"the environment has no {match[1]}")
            return os.environ[match[1]]
        if match[2] not in tokens:
            raise ValueError(f"there is no token %{match[2]}")
        return tokens[match[2]]

    return _TOKEN.sub(value, text)

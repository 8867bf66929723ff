"""Log-ins as people have them at hand, "root@1.2.3.4:33021" and "ssh root@1.2.3.4 -p 33021", as fields of a host."""

from __future__ import annotations

import getopt
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fleet.inventory.fields import FieldError, is_ipv6, parse_field, shown
from fleet.inventory.slips import LOGIN

# ssh's own, as its getopt has them
_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
_FIELDS = {
    "-p": "port",
    "-l": "user",
    "-i": "identity_file",
    "-J": "proxy_jump",
    "port": "port",
    "user": "user",
    "identityfile": "identity_file",
    "proxyjump": "proxy_jump",
    "hostname": "address",
}
_HINT = "ssh root@10.0.0.1 -p 2222"


class Login(NamedTuple):
    """host: as it was written, a name, a node set or an address. fields: of a Host, still text. left: options of ssh
    that say nothing about the host. rest: words behind all that."""

    host: str
    fields: dict[str, str]
    left: tuple[str, ...]
    rest: Sequence[str]

    def values(self) -> dict[str, Any]:
        """The fields, parsed."""
        return {key: parse_field(key, text) for key, text in self.fields.items()}


def read_login(words: Sequence[str]) -> Login | None:
    """What a line's words say; None where they are no log-in. FieldError: ssh would not understand them either."""
    if len(words) > 1 and words[0] == "ssh" and not re.match(r"\w[\w-]*=", words[1]):  # else a host of that name
        return _ssh(words[1:])
    return _login(words[0], words[1:]) if "@" in words[0] or words[0].startswith("ssh://") else None


def _login(word: str, rest: Sequence[str]) -> Login | None:
    match = LOGIN.fullmatch(word)
    if not match:
        return None
    return Login(match["v6"] or match["host"], {key: match[key] for key in ("user", "port") if match[key]}, (), rest)


def _bracketed(word: str) -> str:
    """ssh takes root@fd00::1 as it is: what stands behind a ':' there is no port."""
    user, at, host = word.rpartition("@")
    return f"{user}{at}[{host}]" if is_ipv6(host) else word


def _ssh(words: Sequence[str]) -> Login:
    """Options, the host, options."""
    try:
        before, words = getopt.getopt(list(words), _OPTIONS)
        behind, rest = getopt.getopt(words[1:], _OPTIONS)
    except getopt.GetoptError as error:
        raise FieldError(f"ssh does not understand it: {error.msg}", _HINT) from None
    login = _login(_bracketed(words[0]), rest) if words else None
    if login is None:
        raise FieldError(f"behind ssh no host stands: {shown(' '.join(words))}", _HINT)
    left = list[str]()
    for option, value in [*before, *behind]:
        if option == "-o":  # Key=value, Key value
            option, value = (re.split(r"\s*[\s=]\s*", value.strip(), maxsplit=1) + [""])[:2]
        key = _FIELDS.get(option.lower() if len(option) > 2 else option)
        if key is None:
            left.append(f"{option} {value}".strip() if option.startswith("-") else f"-o {option}={value}")
        elif login.fields.setdefault(key, value) != value:
            raise FieldError(f"{key} is here twice")
    return login._replace(left=tuple(left))

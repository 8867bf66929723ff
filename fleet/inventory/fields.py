"""Defines the fields of a host and the values that each accepts, for YAML and hostfiles alike.

Every parser takes text and returns the value of a field of model.Host. It raises FieldError for text that the field
does not accept; its caller adds the file and the line. Values end up in argv, ssh configs and programs. So text that
could be an option, a pattern or an escape code is refused here.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from fleet.errors import InventoryError
from fleet.inventory.slips import login

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]*")
GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_NAME = 253  # what DNS allows a host name
MAX_SLOTS = 4096
MAX_TEXT = 4096
MAX_IMAGE = 512

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@\\-]*")
_HOSTNAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}=?")
_INT = re.compile(r"-?[0-9]{1,18}")
_JUMP = re.compile(r"(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>[^:]*))?")


class FieldError(InventoryError):
    """Reports a value that its field does not accept. The reader of the file adds the file and the line."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)


def printable(text: str, most: int = 60) -> str:
    """Returns text of a file or a node: shortened to `most` characters, then with its control characters escaped."""
    text = text if len(text) <= most else text[: most - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(text: str) -> str:
    """Returns text from a file as a message quotes it."""
    return f"'{printable(text)}'"


def suggest(token: str, known: Iterable[str]) -> str | None:
    """Returns a hint with the known token that is nearest to a misspelt one. Returns None if no token is near."""
    near = difflib.get_close_matches(token[:100], list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else None


def host_name(text: str) -> str:
    """Returns the text if logs, JSON, file names and node sets can hold it as a host's name. Else raises FieldError."""
    if not NAME.fullmatch(text):
        hint = "names are letters, digits and ._:%-, and start with a letter, a digit or _"
        if is_ipv6(text):
            hint = f"give the host a name, and {text} as its address"
        elif "@" in text:
            hint = login(text) or "the user has a key of its own: user"
        elif text.startswith("-") and NAME.fullmatch(text.lstrip("-")):
            hint = f"did you mean {text.lstrip('-')}? -x {text.lstrip('-')} leaves it out"
        elif text.startswith("^"):
            hint = f"-i {text[1:]} takes the hosts of a file"
        raise FieldError(f"{shown(text)} is not a host name", hint)
    if len(text) > MAX_NAME:
        raise FieldError(f"host name {shown(text)} is longer than {MAX_NAME} characters")
    if re.search(r"[0-9]{91}", text):  # ClusterShell's node sets hold numbers below 1e100
        raise FieldError(f"host name {shown(text)} holds a number of more than 90 digits")
    return text


def is_ipv6(text: str) -> bool:
    """Returns whether the text is an IPv6 address without a zone (ipaddress accepts anything as a zone)."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def address(text: str) -> str:
    """Returns the text if it is a host name, an IPv4 address, or an IPv6 address with or without a zone, such as
    fe80::1%eth0. Raises FieldError for other text."""
    if ":" in text:
        base, mark, zone = text.partition("%")
        if is_ipv6(base) and (not mark or _HOSTNAME.fullmatch(zone)):
            return text
        hint = "the port has a key of its own: port" if re.fullmatch(r"[^:]+:[0-9]+", text) else None
        raise FieldError(f"{shown(text)} is not a host name or an IP address", hint)
    if not _HOSTNAME.fullmatch(text) or len(text) > MAX_NAME or ".." in text:
        hint = "the user has a key of its own: user" if "@" in text else None
        raise FieldError(f"{shown(text)} is not a host name or an IP address", hint)
    if re.search(r"(^|\.)[0-9]+\.?$", text):
        # the resolver reads '1' as 0.0.0.1 and '10.1' as 10.0.0.1, which no user means
        try:
            ipaddress.IPv4Address(text)
        except ValueError:
            raise FieldError(f"{shown(text)} is not an IPv4 address", "it takes four numbers, 10.0.0.1") from None
    return text


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _INT.fullmatch(text) or (len(text) > 1 and text.lstrip("-").startswith("0")):
            raise FieldError(f"{shown(text)} is not a whole number", "digits only, without leading zeros")
        if not low <= int(text) <= high:
            raise FieldError(f"{text} is not between {low} and {high}")
        return int(text)

    return parse


def _devices(text: str) -> tuple[int, ...]:
    one = _integer(0, MAX_SLOTS - 1)
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        low = one(first)
        high = one(last) if dash else low
        if high < low:
            raise FieldError(f"device range {shown(part)} runs backwards")
        if not found.isdisjoint(range(low, high + 1)):
            raise FieldError(f"a device is named twice in {shown(text)}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def _matching(pattern: re.Pattern[str], what: str, hint: str | None = None) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if not pattern.fullmatch(text) or len(text) > MAX_NAME:
            raise FieldError(f"{shown(text)} is not {what}", hint)
        return text

    return parse


def _jump(text: str) -> str:
    for hop in text.split(","):
        match = _JUMP.fullmatch(hop.strip())
        if not match:
            raise FieldError(f"{shown(hop)} is not a jump host", "write [user@]host[:port], or a host of the inventory")
        if match["user"] is not None:
            _user(match["user"])
        address(match["v6"] if match["v6"] is not None else match["host"])
        if match["port"] is not None:
            port(match["port"])
    return ",".join(hop.strip() for hop in text.split(","))


def _line(text: str) -> str:
    text = text.strip()
    if not text:
        raise FieldError("is empty", "leave the key out instead")
    if not text.isprintable() or len(text) > MAX_TEXT:
        raise FieldError(f"{shown(text)} is not one printable line of at most {MAX_TEXT} characters")
    return text


def _path(text: str) -> str:
    text = _line(text)
    if text.startswith("-"):
        raise FieldError(f"{shown(text)} would be read as an option", "write ./ before it")
    return text


def instead_of_variable(text: str) -> str | None:
    """Returns a hint to write ~ in a path that begins with $HOME. Returns None for another path."""
    return f"write ~/{text.partition('/')[2]}" if text.startswith(("$HOME/", "${HOME}/")) else None


def _unexpanded(text: str) -> str:
    if hint := instead_of_variable(text):
        raise FieldError(f"{shown(text)}: variables are not expanded", hint)
    return _path(text)


def _rules(text: str) -> str:
    """Returns ids of rules. Whether such rules exist is checked elsewhere."""
    one = _matching(re.compile(r"[a-z][a-z0-9-]*"), "a rule's id", "'fleet check' shows it in brackets after a finding")
    return ",".join(one(part.strip()) for part in text.split(","))


def image(text: str) -> str:
    """Returns the name of a container image, or the path of its file. Raises FieldError."""
    if text.startswith("-") or not text.isprintable() or re.search(r"\s", text) or not 0 < len(text) <= MAX_IMAGE:
        raise FieldError(f"{shown(text)} is not a container image", "for instance pytorch:24.05, or train.sif")
    return text


def _host_key(text: str) -> str:
    return _fingerprint(text).rstrip("=")


port = _integer(1, 65535)
slots = _integer(1, MAX_SLOTS)
_user = _matching(_USER, "a user name")
_fingerprint = _matching(
    _FINGERPRINT,
    "a fingerprint",
    "write SHA256: and 43 characters, as 'ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub' shows it",
)


class Field(NamedTuple):
    """Describes a field of a host. parse: returns the value of a text, or raises FieldError. example, means: a value
    and the meaning, which the reference in docs/ shows."""

    parse: Callable[[str], Any]
    example: str
    means: str


# the fields of model.Host, without name and env, which are no plain text
FIELDS = {
    "address": Field(address, "203.0.113.10", "where SSH goes; default: the host's name"),
    "data_address": Field(address, "192.168.0.7", "where training traffic goes (`MASTER_ADDR`); default: `address`"),
    "user": Field(_user, "root", "who logs in; default: what `~/.ssh/config` has, else your own name"),
    "port": Field(port, "33", "sshd's port; default: what `~/.ssh/config` has, else 22"),
    "identity_file": Field(_path, "~/.ssh/id_ed25519", "the private key; default: as `ssh` would choose"),
    "proxy_jump": Field(
        _jump,
        "bastion",
        "`[user@]host[:port]`, several with commas between, or hosts of the inventory; `none`: no jump",
    ),
    "host_key": Field(_host_key, "SHA256:...", "the host key's fingerprint: no other key is believed"),
    "slots": Field(slots, "8", "ranks that a node runs by default; default: one for each GPU, else 1"),
    "devices": Field(_devices, "0-3,6", "GPU indexes that training may use; default: all"),
    "python": Field(
        _unexpanded,
        "/opt/train/bin/python",
        "the training interpreter: a path on the node, from the workdir where it is relative, or a name; default: "
        "`python3`",
    ),
    "activate": Field(_line, "source ~/train/bin/activate", "a shell line that runs before commands and ranks"),
    "workdir": Field(_unexpanded, "~/work", "where code lives; default: the path of the head's current folder"),
    "ignore": Field(
        _rules,
        "[gpu-power-cap, kernel]",
        "[rules](rules.md) that do not judge it: shown as silenced; what protects runs and code cannot be",
    ),
    "container": Field(
        image,
        "pytorch:24.05",
        "the image that training runs in, or its `.sif` or `.sqsh` file; `fleet check` compares it across hosts",
    ),
}
HOST_KEYS = (*FIELDS, "env")
# fields of a single machine: they cannot be defaults, nor be set for several hosts at once
OF_ONE_HOST = frozenset({"address", "data_address", "host_key"})


def parse_field(key: str, text: str) -> Any:
    """Returns the value of field `key`. Raises FieldError with the key."""
    if key not in FIELDS:
        raise unknown_key(key, HOST_KEYS)
    try:
        return FIELDS[key].parse(text)
    except FieldError as error:
        raise FieldError(f"{key}: {error.message}", error.hint) from None


def unknown_key(key: str, known: Iterable[str]) -> FieldError:
    known = list(known)
    return FieldError(f"unknown key {shown(key)}", suggest(key, known) or f"known keys: {', '.join(known)}")


def env_item(name: str, value: str) -> tuple[str, str]:
    """Returns a checked environment variable. Refuses FLEET_RUN_ID, by which a run is found."""
    if not ENV_NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise FieldError(f"env: {shown(name)} is not a variable name")
    if name == "FLEET_RUN_ID":
        raise FieldError("env: FLEET_RUN_ID is set by fleet itself")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise FieldError(f"env: {name} holds characters that are not text") from None
    if "\0" in value:
        raise FieldError(f"env: {name} holds a NUL character")
    return name, value

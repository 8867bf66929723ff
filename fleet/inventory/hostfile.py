"""Reads hostfiles: one host (or node set) on a line, in the dialects of DeepSpeed, Open MPI, MPICH and Colossal-AI.

    gpu1 slots=8                                    DeepSpeed.
    gpu2 slots=8 max_slots=8                        Open MPI; also max-slots.
    gpu3:8                                          MPICH; [fe80::1]:8 for an IPv6 address.
    gpu4                                            Colossal-AI.
    root@gpu5  root@10.0.0.5:33021                  As for ssh and scp.
    ssh root@10.0.0.6 -p 33021 -i ~/.ssh/id_x       A pasted line; also -l, -J and -o Port=33021.
    gpu[05-08] slots=4 user=root port=33 activate="source /opt/rh/devtoolset-7/enable" env=NCCL_DEBUG=WARN

Dialects may be mixed. The fields of a host follow its name as KEY=VALUE. A value with blanks needs quotes, and
env=NAME=VALUE may be repeated. '#' at the start of a token starts a comment.
"""

from __future__ import annotations

import getopt
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from fleet.inventory.build import Builder
from fleet.inventory.fields import (
    HOST_KEYS,
    NAME,
    FieldError,
    env_item,
    host_name,
    is_ipv6,
    parse_field,
    shown,
    slots,
    unknown_key,
)
from fleet.inventory.slips import LOGIN, is_like_a_port
from fleet.model import Inventory

_TOKEN = re.compile(r"""\s*(?:(?P<comment>\#.*)|(?P<token>(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'])+))""", re.DOTALL)
_QUOTED = re.compile(r""""((?:\\.|[^"\\])*)"|'([^']*)'""", re.DOTALL)
_MPICH = re.compile(r"(?P<name>[^:]+|\[(?P<v6>[^\[\]]*:[^\[\]]*)\]):(?P<slots>[^:]*)")
_MAX_SLOTS = ("max_slots", "max-slots")
_ONE_LINE = "write KEY=VALUE, without blanks around '=', and one host on a line"


class Line(NamedTuple):
    """Holds one line. name: a node set. values: field -> parsed value. login: whether the line is a log-in, such as
    root@gpu5. left: options of ssh that do not describe a host."""

    number: int
    name: str
    values: dict[str, Any]
    login: bool
    left: tuple[str, ...]


def parse_hostfile(text: str, source: str) -> Inventory:
    """Returns the inventory in a hostfile's text. Raises InventoryError with file, line and hint."""
    builder = Builder(source)
    lines = read_lines(text, builder)
    times = Counter(name for name, _ in {(line.name, line.values.get("port")) for line in lines})
    for number, name, values, login, left in lines:
        if left:
            entry = " ".join([name, *(f"{key}={quote(str(value))}" for key, value in values.items() if key != "env")])
            builder.fail(number, f"{shown(' '.join(left))} does not describe a host", hint=f"leave it out: {entry}")
        if login and times[name] > 1:  # several log-ins to one address: each host is named after its port
            builder.add_hosts(f"{name}-{values.get('port', 22)}", {"address": name, **values}, number)
        else:
            builder.add_hosts(name, values, number)
    return builder.build()


def read_lines(text: str, builder: Builder) -> list[Line]:
    """Returns the lines that name hosts. The builder reports lines that are not understood."""
    lines = list[Line]()
    for number, raw in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        name = None
        try:
            tokens = _tokens(raw)
            if not tokens:
                continue
            login = read_login([_unquoted(token) for token in tokens])
            name, values = _name(tokens[0]) if login is None else (login.host, login.values)
            rest = tokens[len(tokens) - len(login.rest) :] if login else tokens[1:]
            lines.append(Line(number, name, _values(rest, values), login is not None, login.left if login else ()))
        except FieldError as error:
            builder.fail(number, error.message, hint=error.hint, host=name)
    return lines


def _tokens(line: str) -> list[str]:
    """Returns the line's tokens. They keep their quotes, and the comment is left out."""
    tokens, position, line = [], 0, line.rstrip()
    while position < len(line):
        match = _TOKEN.match(line, position)
        if not match:
            raise FieldError(f"a quote is not closed in {shown(line[position:].strip())}")
        if match["comment"] is not None:
            break
        tokens.append(match["token"])
        position = match.end()
    return tokens


def _name(token: str) -> tuple[str, dict[str, Any]]:
    """Splits the first token into a node set and {"slots": 8} of MPICH's ':8'. A token with more colons is an IPv6
    address."""
    if "@" in token:
        host_name(token)
    match = _MPICH.fullmatch(token)
    if not match:
        if "=" in token:
            raise FieldError(f"{shown(token)} is where the host's name belongs", "write gpu1 slots=8")
        return token, {}
    if match["v6"] is not None and not is_ipv6(match["v6"]):
        raise FieldError(f"{shown(match['v6'])} is not an IPv6 address")
    if match["slots"].isdecimal() and is_like_a_port(int(match["slots"][:6])):
        host = match["v6"] or match["name"]
        host = host if NAME.match(host) else f"NAME address={host}"  # ::1 cannot be a name
        raise FieldError(
            f"after ':' MPICH writes the number of slots, and {match['slots'][:6]} looks like a port",
            f"{host} port={match['slots'][:6]}; if these are slots: {host} slots={match['slots'][:6]}",
        )
    try:
        return match["v6"] or match["name"], {"slots": slots(match["slots"])}
    except FieldError as error:
        raise FieldError(
            f"the number after ':' is the number of slots: {error.message}", "MPICH writes gpu1:8; a port is port=22"
        ) from None


def _values(tokens: list[str], values: dict[str, Any]) -> dict[str, Any]:
    """Adds the field values of KEY=VALUE tokens to `values`."""
    env: dict[str, str] = {}
    limit: int | None = None
    for token in tokens:
        key, equals, raw = token.partition("=")
        text = _unquoted(raw)
        if not equals:
            hint = f"did you mean 'slots={token}'?" if re.fullmatch(r"[0-9]+", token) else _ONE_LINE
            raise FieldError(f"{shown(token)} is not understood", hint)
        if key in _MAX_SLOTS and limit is None:
            try:
                limit = slots(text)
            except FieldError as error:
                raise FieldError(f"{key}: {error.message}") from None
        elif key == "env":
            name, equals, value = text.partition("=")
            if not equals:
                raise FieldError(f"env: {shown(name)} has no value", f"write env={name}=VALUE")
            if name in env:
                raise FieldError(f"env: {shown(name)} is here twice")
            checked, env[name] = env_item(name, value)
        elif key in values or key in _MAX_SLOTS:
            raise FieldError(f"{key} is here twice")
        elif key not in HOST_KEYS:
            raise unknown_key(key, (*HOST_KEYS, *_MAX_SLOTS))
        else:
            values[key] = parse_field(key, text)
    if limit is not None and values.get("slots", 0) > limit:
        raise FieldError(f"slots={values['slots']} is more than max_slots={limit}")
    return {**values, "env": env} if env else values


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda m: re.sub(r"\\(.)", r"\1", m[1]) if m[1] is not None else m[2], text)


def is_hostfile(text: str) -> bool:
    """Returns whether text is a hostfile and no YAML: no line reads 'key:' or '---'."""
    return not re.search(r"""(?m)^(?:---|["']?[\w.\[\],-]+["']?[ \t]*:(?:\s|$)|[{])""", text)


def quote(text: str) -> str:
    """Returns a value, quoted for a hostfile if necessary."""
    if re.fullmatch(r"[^\s\"'\\#]+", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


# -- log-ins as users copy them, "root@1.2.3.4:33021" and "ssh root@1.2.3.4 -p 33021"
# the options of ssh, in the form that getopt takes
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
    """Holds a log-in. host: as written: a name, a node set or an address. values: field of a Host -> parsed value.
    left: options of ssh that do not describe the host. rest: the tokens after the log-in."""

    host: str
    values: dict[str, Any]
    left: tuple[str, ...]
    rest: Sequence[str]


def read_login(tokens: Sequence[str]) -> Login | None:
    """Returns the log-in in a line's tokens, or None if the line is no log-in. Raises FieldError for tokens that ssh
    would refuse."""
    if len(tokens) > 1 and tokens[0] == "ssh" and not re.match(r"\w[\w-]*=", tokens[1]):  # ssh x=y: a host named ssh
        return _ssh(tokens[1:])
    return _login(tokens[0], tokens[1:]) if "@" in tokens[0] or tokens[0].startswith("ssh://") else None


def _login(destination: str, rest: Sequence[str]) -> Login | None:
    match = LOGIN.fullmatch(destination)
    if not match:
        return None
    values = {key: parse_field(key, match[key]) for key in ("user", "port") if match[key]}
    return Login(match["v6"] or match["host"], values, (), rest)


def _bracketed(destination: str) -> str:
    """Returns the destination with brackets around an IPv6 address, because ssh reads no port in root@fd00::1."""
    user, at, host = destination.rpartition("@")
    return f"{user}{at}[{host}]" if is_ipv6(host) else destination


def _ssh(argv: Sequence[str]) -> Login:
    try:
        before, argv = getopt.getopt(list(argv), _OPTIONS)
        after, rest = getopt.getopt(argv[1:], _OPTIONS)
    except getopt.GetoptError as error:
        raise FieldError(f"ssh does not understand it: {error.msg}", _HINT) from None
    login = _login(_bracketed(argv[0]), rest) if argv else None
    if login is None:
        raise FieldError(f"no host follows ssh: {shown(' '.join(argv))}", _HINT)
    left = list[str]()
    for option, value in [*before, *after]:
        if option == "-o":  # Key=value, Key value
            option, value = (re.split(r"\s*[\s=]\s*", value.strip(), maxsplit=1) + [""])[:2]
        key = _FIELDS.get(option.lower() if len(option) > 2 else option)
        if key is None:
            left.append(f"{option} {value}".strip() if option.startswith("-") else f"-o {option}={value}")
        elif login.values.setdefault(key, found := parse_field(key, value)) != found:
            raise FieldError(f"{key} is here twice")
    return login._replace(left=tuple(left))

"""Hostfiles: one host (or node set) on a line, in the dialects of DeepSpeed, Open MPI, MPICH and Colossal-AI.

    gpu1 slots=8                                    DeepSpeed
    gpu2 slots=8 max_slots=8                        Open MPI; also max-slots
    gpu3:8                                          MPICH; [fe80::1]:8 for an IPv6 address
    gpu4                                            Colossal-AI
    gpu[05-08] slots=4 user=root port=33 activate="source /opt/rh/devtoolset-7/enable" env=NCCL_DEBUG=WARN

Dialects may be mixed. Behind the name stand the fields of a host as KEY=VALUE; a value with blanks takes quotes,
and env=NAME=VALUE may be repeated. '#' at the start of a word starts a comment.
"""

from __future__ import annotations

import re
from typing import Any

from fleet.inventory.build import Builder
from fleet.inventory.fields import (
    HOST_KEYS,
    FieldError,
    env_item,
    host_name,
    is_ipv6,
    parse_field,
    shown,
    slots,
    unknown_key,
)
from fleet.inventory.slips import is_like_a_port
from fleet.model import Inventory

_WORD = re.compile(r"""\s*(?:(?P<comment>\#.*)|(?P<word>(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'])+))""", re.DOTALL)
_QUOTED = re.compile(r""""((?:\\.|[^"\\])*)"|'([^']*)'""", re.DOTALL)
_MPICH = re.compile(r"(?P<name>[^:]+|\[(?P<v6>[^\[\]]*:[^\[\]]*)\]):(?P<slots>[^:]*)")
_MAX_SLOTS = ("max_slots", "max-slots")


def parse_hostfile(text: str, source: str) -> Inventory:
    """The inventory that a hostfile's text describes; InventoryError with file, line and hint."""
    builder = Builder(source)
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        name = None
        try:
            words = _words(line)
            if words:
                name, count = _name(words[0])
                builder.add_hosts(name, _values(words[1:], count), number)
        except FieldError as error:
            builder.fail(number, error, host=name)
    return builder.build()


def _words(line: str) -> list[str]:
    """The line's words with their quotes still on; comments are gone."""
    words, position, line = [], 0, line.rstrip()
    while position < len(line):
        match = _WORD.match(line, position)
        if not match:
            raise FieldError(f"a quote is not closed in {shown(line[position:].strip())}")
        if match["comment"] is not None:
            break
        words.append(match["word"])
        position = match.end()
    return words


def _name(word: str) -> tuple[str, int | None]:
    """The first word: a node set, and MPICH's ':8' behind it. A word with more colons is an IPv6 address."""
    if "@" in word:
        host_name(word)  # which says what to write instead of root@10.0.0.1
    match = _MPICH.fullmatch(word)
    if not match:
        if "=" in word:
            raise FieldError(f"{shown(word)} stands where the host's name belongs", "write gpu1 slots=8")
        return word, None
    if match["v6"] is not None and not is_ipv6(match["v6"]):
        raise FieldError(f"{shown(match['v6'])} is not an IPv6 address")
    if match["slots"].isdecimal() and is_like_a_port(int(match["slots"][:6])):
        raise FieldError(
            f"behind ':' MPICH writes the number of slots, and {match['slots'][:6]} looks like a port",
            f"{match['v6'] or match['name']} port={match['slots'][:6]}; if these are slots: "
            f"{match['v6'] or match['name']} slots={match['slots'][:6]}",
        )
    try:
        return match["v6"] or match["name"], slots(match["slots"])
    except FieldError as error:
        raise FieldError(
            f"behind ':' stands the number of slots, {error.message}", "MPICH writes gpu1:8; a port is port=22"
        ) from None


def _values(words: list[str], count: int | None) -> dict[str, Any]:
    """KEY=VALUE words to field values."""
    values: dict[str, Any] = {}
    env: dict[str, str] = {}
    limit: int | None = None
    if count is not None:
        values["slots"] = count
    for word in words:
        key, equals, raw = word.partition("=")
        text = _QUOTED.sub(lambda m: re.sub(r"\\(.)", r"\1", m[1]) if m[1] is not None else m[2], raw)
        if not equals:
            raise FieldError(f"{shown(word)} is not understood", _hint(word))
        if key in _MAX_SLOTS and limit is None:
            try:
                limit = slots(text)
            except FieldError as error:
                raise FieldError(f"{key}: {error.message}") from None
        elif key == "env":
            name, _, value = text.partition("=")
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


def _hint(word: str) -> str:
    if re.fullmatch(r"[0-9]+", word):
        return f"did you mean 'slots={word}'?"
    return "write KEY=VALUE, without blanks around '=', and one host on a line"


def is_hostfile(text: str) -> bool:
    """Whether text without a telling file name is a hostfile and no YAML: no line reads 'word:' or '---'."""
    return not re.search(r"""(?m)^(?:---|["']?[\w.\[\],-]+["']?[ \t]*:(?:\s|$)|[{])""", text)


def quote(text: str) -> str:
    """A value as a hostfile writes it."""
    if re.fullmatch(r"[^\s\"'\\#]+", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'

"""Expands node sets, "gpu[01-04,07]", within limits and in the written order, with the help of ClusterShell.

ClusterShell itself sorts, and reads groups from config files whose entries are shell commands. It expands
"gpu[1-999999999]" in memory, and reads "gpu1[5-12]" as the 98 hosts gpu[15-112]. So fleet uses only two parts of
ClusterShell: RangeSet makes padded indexes of a bounded range, and NodeSet (RESOLVER_NOGROUP) does the algebra and the
folding. This module composes the names.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Container, Iterable
from typing import NamedTuple

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from ClusterShell.RangeSet import RangeSet, RangeSetException

from fleet.inventory.fields import FieldError, host_name, shown

MAX_HOSTS = 100_000
OPERATORS = {",": "update", "!": "difference_update", "&": "intersection_update", "^": "symmetric_difference_update"}

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,9}))?)?")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_OPERAND = re.compile(r"\s*(?P<operand>[@^]?(?:[^\s,!&^@\[\]]|\[[^\[\]]*\])+)")
_LOGIN = re.compile(r"\s*([^\s,!&^@\[\]]+@[^\s,!&^@\[\]]+)")
_OPERATOR = re.compile(r"\s*(?:([,!&^@])|$)")
_DEVICE = r"[0-9]+(?:-[0-9]+)?"
_FIRST_DEVICE = re.compile(rf"(.+):({_DEVICE})")
_IPV6 = re.compile(r"(?=(?:[^:]*:){2})[0-9a-fA-F:.]+(%[\w.-]+)?")
_MORE_DEVICES = re.compile(rf"(?:,{_DEVICE})+(?=\s*(?:[,!&^@]|$))")


class Term(NamedTuple):
    """Holds one operand of an expression, the operator before it, and devices as in "gpu1:0,2"."""

    operator: str
    operand: str
    devices: str | None


def expand(text: str) -> list[str]:
    """Returns the names of "a[3,1-2],b": a3, a1, a2, b, in the written order, with repetitions.

    It reads only ranges and commas, which define hosts; scan() reads operators and groups. Raises FieldError for text
    that is no node set or stands for too many hosts.
    """
    parts = [part.strip() for part in _split_commas(text)]
    if "" in parts:
        raise FieldError(f"{shown(text)}: there is nothing before or after a comma")
    if sum(_count(part) for part in parts) > MAX_HOSTS:
        raise FieldError(f"{shown(text)} stands for more than {MAX_HOSTS} hosts")
    return [name for part in parts for name in _expand_part(part)]


def scan(text: str, known: Container[str]) -> list[Term]:
    """Returns an expression's terms, in order. known: names of hosts. They decide whether "fe80::1" is a host with a
    device, and whether "root@gpu1" is two hosts."""
    terms: list[Term] = []
    operator, position = ",", 0
    while True:
        match = _OPERAND.match(text, position)
        if not match:
            hint = "to leave hosts out, use -x" if not terms and text.lstrip().startswith("!") else None
            raise FieldError(f"{shown(text)}: a host or a @group is missing", hint)
        login = _LOGIN.match(text, position)
        if login and match["operand"] not in known and login[1] in known:
            match = login
        operand, devices, position = match[1], None, match.end()
        with_devices = None if operand in known else _FIRST_DEVICE.fullmatch(operand)
        if with_devices and (with_devices[1] in known or not _IPV6.fullmatch(operand)):
            operand, devices = with_devices[1], with_devices[2]
            if more := _MORE_DEVICES.match(text, position):
                devices, position = devices + more[0], more.end()
        terms.append(Term(operator, operand, devices))
        separator = _OPERATOR.match(text, position)
        if not separator:
            raise FieldError(
                f"{shown(text)} is not understood from {shown(text[position:])} on",
                "hosts are joined by ',' and written without blanks",
            )
        if not separator[1]:
            return terms
        # an '@' after an operand joins, as DeepSpeed writes it; an '@' before an operand names a group
        operator, position = separator[1].replace("@", ","), separator.end()


def algebra(parts: Iterable[tuple[str, Iterable[str]]]) -> NodeSet:
    """Computes (operator, names) pairs from left to right. The NodeSet does not keep the written order."""
    result = NodeSet(resolver=RESOLVER_NOGROUP)
    for operator, names in parts:
        getattr(result, OPERATORS[operator])(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))
    return result


def fold(names: Iterable[str]) -> str:
    """Returns names as one node set, "gpu[01-04]", or joined by commas if they cannot be folded."""
    names = list(names)
    try:
        return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    except NodeSetException:
        return ",".join(names)


def _split_commas(text: str) -> list[str]:
    """Splits text without NUL at the commas outside of brackets, in linear time."""
    kept = _BRACKET.sub(lambda bracket: bracket[0].replace(",", "\0"), text)
    return [part.replace("\0", ",") for part in kept.split(",")]


def _ranges(body: str) -> list[str]:
    return [part.strip() for part in body.split(",")]


def _count(part: str) -> int:
    """Returns the number of names of a part without top-level commas. Does not make the names."""
    return math.prod(sum(_range_length(r) for r in _ranges(b)) for b in _BRACKET.findall(part))


def _range_length(text: str) -> int:
    match = _RANGE.fullmatch(text)
    if not match:
        raise FieldError(f"{shown(text)} is not a range", "write [1-4], [01-16/2] or [1,3-5]")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or step < 1:
        raise FieldError(f"range {shown(text)} is empty")
    return (last - first) // step + 1


def _expand_part(part: str) -> Iterable[str]:
    pieces = _BRACKET.split(part)
    if any(mark in plain for plain in pieces[::2] for mark in "[]"):
        raise FieldError(f"{shown(part)}: brackets do not match")
    try:
        choices = [
            [piece] if i % 2 == 0 else [index for text in _ranges(piece) for index in RangeSet(text)]
            for i, piece in enumerate(pieces)
        ]
    except RangeSetException as error:
        raise FieldError(f"{shown(part)} is not a node set: {error}") from None
    for combination in itertools.product(*choices):
        yield host_name("".join(combination))

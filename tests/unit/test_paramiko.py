"""What fleet uses of paramiko's private parts is there, in the adapter only; a packet without end is refused there."""

from __future__ import annotations

import ast
import inspect
import re
import socket
import struct
from functools import reduce
from pathlib import Path

import pytest

import fleet.transport.ssh
from fleet.transport.ssh.adapter import PRIVATE, Packets, paramiko

FOLDER = Path(fleet.transport.ssh.__file__).parent


def private(kind: type) -> set[str]:
    """Names of a class, and of its instances, that are its own."""
    set_in_init = re.findall(r"self\.(_[a-z]\w*)", inspect.getsource(kind))
    return {name for name in {*vars(kind), *set_in_init} if re.match("_[a-z]", name)}


def kind_of(name: str) -> type:
    kind: type = reduce(getattr, name.split("."), paramiko)
    return kind


@pytest.mark.parametrize("name", PRIVATE)
def test_what_fleet_uses_is_there(name: str) -> None:
    bases = [base for base in kind_of(name).__mro__ if base.__module__.startswith("paramiko")]
    there = set().union(*map(private, bases))
    assert set(PRIVATE[name].split()) <= there, f"paramiko {paramiko.__version__} has changed"


def names_in(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return (
        named
        | {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
        | {n.id for n in nodes if isinstance(n, ast.Name)}
    )


ADAPTER = ("adapter.py", "node_channel.py")


def test_the_adapter_uses_it_and_says_all_of_it() -> None:
    theirs = set().union(*(private(kind_of(name)) for name in PRIVATE))
    listed = {name for names in PRIVATE.values() for name in names.split()}
    assert set().union(*(names_in(FOLDER / name) for name in ADAPTER)) & theirs == listed
    own = {"_connect", "_conn", "_keys", "_closed"}  # also what fleet calls things of its own, and what a socket has
    for path in FOLDER.glob("*.py"):
        if path.name not in ADAPTER:
            assert names_in(path) & theirs - own == set(), path.name


def test_an_ssh_packet_of_4_gib_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack(">I", 2**32 - 4) + b"x" * 4092)
        packets = Packets(ours)
        try:
            with pytest.raises(paramiko.SSHException, match="announces"):
                packets.read_message()
        finally:
            packets.close()

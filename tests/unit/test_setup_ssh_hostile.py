"""A node that sends setup-ssh what its look never prints."""

from __future__ import annotations

import pytest

from fleet.errors import HostFailed, ProtocolError
from fleet.ops.setup_ssh import node
from tests.hostile import Node


def test_a_shell_that_never_stops_talking() -> None:
    with pytest.raises(ProtocolError, match="more than 64 MiB"):
        node.look(Node(*[b"y" * (1 << 20)] * 66), key_type=None)


@pytest.mark.parametrize("checksum", [b"1:-5", b"1:x", b"7", b"1:" + b"9" * 5000])
def test_setup_ssh_reads_no_file_of_odd_size(checksum: bytes) -> None:
    with pytest.raises(HostFailed):
        node.parse_answer(b"FILE config " + checksum + b"\nabc\nEND\n", "gpu1")


@pytest.mark.parametrize("name", ['id"x', "a\x0bHost", "../../x", "$(x)", ""])
def test_setup_ssh_takes_no_key_whose_name_is_more_than_one(name: str) -> None:
    """It goes into an ssh config of that node, and into the record of what setup-ssh made."""
    key = f"KEY {name} ssh-ed25519 {'A' * 68}\nEND\n"
    with pytest.raises(HostFailed, match="no name that a config can hold"):
        node.parse_answer(key.encode(), "gpu1")


def test_setup_ssh_misses_a_file() -> None:
    with pytest.raises(HostFailed, match="lacks"):
        node.look(Node(b"\nFLEET-SETUP-SSH\nFILE config -\nFILE ../x -\nEND\n"), key_type=None)

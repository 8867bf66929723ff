"""Where `fleet init` has hosts from: pasted lines, hostfiles, inventories, an ssh config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.errors import InventoryError
from fleet.inventory.find import parse
from fleet.ops.init.sources import of_ssh_config, read


def yaml(text: str) -> Any:
    return parse(text.encode(), "fleet.yaml")


def test_pasted_lines_get_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host node2 other*\n  User me\n")
    lines = b"ssh root@1.2.3.4 -p 33021 -L 8080:localhost:8080\nssh -p 33022 root@1.2.3.4\nroot@5.6.7.8\nroot@gpu1\n"
    given = read(lines, "<stdin>", None, tmp_path)
    assert given.inventory.names == ("node1", "node3", "node4", "gpu1")
    assert [(h.address, h.port) for h in given.inventory.hosts[:2]] == [("1.2.3.4", 33021), ("1.2.3.4", 33022)]
    assert given.notes == ("<stdin>:1: '-L 8080:localhost:8080' does not describe a host: left out",)
    old = yaml("hosts: {node1: {address: 5.6.7.8}, node3: {address: 9.9.9.9}}")
    assert read(lines, "<stdin>", old, tmp_path).inventory.names == ("node4", "node5", "node1", "gpu1")


def test_a_hostfile_and_an_inventory_keep_their_names(tmp_path: Path) -> None:
    assert read(b"10.0.0.1 slots=4\ngpu2:8\n", "hostfile", None, tmp_path).inventory.names == ("10.0.0.1", "gpu2")
    assert read(b"hosts: {a: {}, b: {port: 3}}", "x", None, tmp_path).inventory.names == ("a", "b")


def test_the_hosts_of_an_ssh_config(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    config = tmp_path / ".ssh/config"
    text = (
        "Include more\nHost gpu1 gpu1-*\n  HostName 10.0.0.1\n  Port 33\n  User me\n  IdentityFile ~/.ssh/x\n"
        "Host github.com\n  User git\nHost *\n  ProxyJump bastion\n"
        "# begin fleet 'x-123456'\nHost lab01\n  Port 1\n# end fleet 'x-123456'\n"
    )
    config.write_text(text)
    (tmp_path / ".ssh/more").write_text("Host gpu0\n")
    given = of_ssh_config(tmp_path)
    assert given.inventory.names[:2] == ("gpu0", "gpu1") and "github.com" not in given.inventory.names
    assert [(h.address, h.port, h.user) for h in given.inventory.hosts[:2]] == [
        (n, None, None) for n in ("gpu0", "gpu1")
    ]
    host = read(text.encode(), str(tmp_path / "other"), None, tmp_path).inventory.host("gpu1")
    assert (host.address, host.port, host.user, host.proxy_jump) == ("10.0.0.1", 33, "me", "bastion")
    config.write_text("Host *\n  User me\n")
    with pytest.raises(InventoryError, match="names no hosts"):
        of_ssh_config(tmp_path)

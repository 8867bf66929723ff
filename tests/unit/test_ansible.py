"""Inventories of ansible's: called so, and read by init."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.errors import InventoryError
from fleet.inventory.find import parse
from fleet.ops.init.sources import read

INI = """\
node1 ansible_host=10.0.0.1 ansible_user=me
[gpu]
node[2:3] ansible_ssh_port=33  # old spelling
[gpu:vars]
ansible_user = root
ansible_python_interpreter={{ where }}
[train:children]
gpu
[train:vars]
ansible_ssh_private_key_file=~/k
[all:children]
train
[here]
localhost ansible_connection=local
"""
YAML = """\
all:
  vars: {ansible_user: me}
  children:
    gpu:
      hosts:
        node1: {ansible_host: 10.0.0.1}
        node2:
      vars: {ansible_port: 33}
"""


@pytest.mark.parametrize(
    ("text", "name", "first", "second"),
    [
        (
            INI,
            "inventory.ini",
            ("node1", "10.0.0.1", "me", None, None),
            ("node2", "node2", "root", 33, "~/k"),
        ),
        (YAML, "site.yml", ("node1", "10.0.0.1", "me", 33, None), ("node2", "node2", "me", 33, None)),
    ],
)
def test_an_inventory_of_ansibles_is_called_one_and_read_by_init(
    text: str, name: str, first: Any, second: Any, tmp_path: Path
) -> None:
    with pytest.raises(InventoryError, match="is an inventory of ansible's") as caught:
        parse(text.encode(), name)
    assert caught.value.hint == f"fleet -i fleet.yaml init {name}"
    given = read(text.encode(), name, None, tmp_path)
    assert "localhost" not in given.inventory.names
    found = [(h.name, h.address, h.user, h.port, h.identity_file) for h in given.inventory.hosts[:2]]
    assert found == [first, second] and "ansible" in given.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "all: &a\n  children: {x: *a}\n  hosts: {h: {ansible_port: 1}}\n",
        "all:\n  hosts: [gpu1]\n",
        "[a:vars]\n[a]\ngpu1 x 'y\n",
    ],
)
def test_what_is_not_understood_of_one_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="not understood|nested deeper"):
        read(text.encode(), "site.yml", None, tmp_path)


def test_what_is_no_ansible_inventory_keeps_its_own_error() -> None:
    with pytest.raises(InventoryError, match="unknown key 'slot'"):
        parse(b"gpu1 slot=3\n", "hostfile")

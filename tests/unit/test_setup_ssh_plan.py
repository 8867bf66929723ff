"""The plan of setup-ssh, and the block that it puts into the head's ssh config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Inventory
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.record import Record
from tests.in_process import FleetOver

GPU1 = Host("gpu1", "10.0.0.1", data_address="192.168.0.1", user="me", port=33)
GPU2 = Host("gpu2", "gpu2", proxy_jump="gpu1")
EVERYONE = Inventory((GPU2, GPU1), source="cluster.yaml")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def plan(home: Path, inventory: Inventory = EVERYONE, config: str | None = None, **options: Any) -> Any:
    if config is not None:
        (home / ".ssh").mkdir(exist_ok=True)
        (home / ".ssh/config").write_text(config)
    return FleetOver(inventory=inventory, everyone=EVERYONE).plan.setup_ssh(**options).plan


def test_gateways_come_first_and_keep_their_names(tmp_path: Path) -> None:
    made = plan(tmp_path)
    assert [[h.name for h in level] for level in made.levels] == [["gpu1"], ["gpu2"]]
    assert made.levels[0][0].names == ("[10.0.0.1]:33", "[gpu1]:33", "[192.168.0.1]:33")
    only = plan(tmp_path, Inventory((GPU2,), source="cluster.yaml"))
    assert [(h.name, h.gateway) for h in only.all] == [("gpu1", True), ("gpu2", False)]
    assert [h.name for h in only.hosts] == ["gpu2"]
    # the block is about the whole inventory, whatever is selected
    assert only.head_block == made.head_block


def test_a_gateway_of_the_users_config_is_set_up_too(tmp_path: Path) -> None:
    made = plan(tmp_path, config="Host gpu1\n  ProxyJump jump@bastion:2200\n")
    assert [[h.name for h in level] for level in made.levels] == [["bastion"], ["gpu1"], ["gpu2"]]
    assert str(made.levels[0][0].endpoint) == "jump@bastion:2200" and made.levels[0][0].gateway


def test_the_head_leaves_to_the_users_config_what_the_inventory_does_not_say(tmp_path: Path) -> None:
    config = "Host gpu2\n  HostName 10.9.9.9\n  Port 44\n  User other\n  HostKeyAlias two\n"
    made = plan(tmp_path, config=config)
    entry = {e.name: e for e in made.head_entries}["gpu2"]
    assert (entry.hostname, entry.port, entry.user, entry.proxy_jump) == (None, None, None, "gpu1")
    assert made.levels[1][0].names == ("two", "[10.9.9.9]:44", "[gpu2]:44")
    # the nodes do not have that config: they are told all of it
    node = {e.name: e for e in made.node_entries}
    assert (node["gpu2"].hostname, node["gpu2"].port, node["gpu2"].user) == ("10.9.9.9", 44, "other")
    assert (node["gpu1"].hostname, node["gpu1"].port, node["gpu1"].user) == ("192.168.0.1", 33, "me")


def test_the_plan_is_the_same_with_fleets_block_in_the_config(tmp_path: Path) -> None:
    config = "Host 10.0.0.1\n  Port 55\nHost gpu2\n  User other\n"
    first = plan(tmp_path, config=config)
    before = Head(first, Record.load(tmp_path, EVERYONE.source))
    before.leads = frozenset(EVERYONE.names)
    before.write_block()
    again = plan(tmp_path)
    assert (again.head_block, again.node_block("k")) == (first.head_block, first.node_block("k"))
    assert again.levels == first.levels
    head = Head(again, Record.load(tmp_path, EVERYONE.source))
    head.check()
    assert head.leads == set(EVERYONE.names)
    head.write_block()
    assert head.changed == [] and (tmp_path / ".ssh/config").read_text().endswith(config)


def test_a_configured_identity_is_reused_unless_a_type_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    own = tmp_path / ".ssh/own"
    own.write_text("a key")
    config = f"Host *\n  IdentityFile {own}\n"
    assert {h.identity for h in plan(tmp_path, config=config).all} == {own}
    assert {h.identity for h in plan(tmp_path, key_type="rsa").all} == {tmp_path / ".ssh/id_rsa"}
    own.unlink()
    assert {h.identity for h in plan(tmp_path).all} == {tmp_path / ".ssh/id_ed25519"}


def test_dry_run_says_what_of_the_host_keys(tmp_path: Path) -> None:
    pinned = Host("gpu1", "10.0.0.1", host_key="SHA256:" + "A" * 43)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").write_text("gpu2 ssh-ed25519 aw==\n")
    everyone = Inventory((pinned, Host("gpu2", "gpu2"), Host("gpu3", "gpu3")), source="x")
    said = FleetOver(inventory=everyone, everyone=everyone).plan.setup_ssh().describe()["hosts"].values()
    expected = [f"must be {pinned.host_key}", "must be the one on file", "show and ask"]
    assert [host["host_key"] for host in said] == expected

"""The plan, the head's keys and the record: pure parts, and what is written on the head alone."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from fleet.errors import ConnectError, HostFailed
from fleet.model import Host, Inventory
from fleet.ops import setup_ssh
from fleet.ops.setup_ssh import files
from fleet.ops.setup_ssh.head import Head
from fleet.ops.setup_ssh.planning import SetupPlan
from fleet.ops.setup_ssh.record import Record, block_name
from fleet.requests.hosts import SetupSsh
from fleet.transport.ssh.hostkeys import HostKey

GPU1 = Host("gpu1", "10.0.0.1", data_address="192.168.0.1", user="me", port=33)
GPU2 = Host("gpu2", "gpu2", proxy_jump="gpu1")
EVERYONE = Inventory((GPU2, GPU1), source="cluster.yaml")


def plan(home: Path, inventory: Inventory = EVERYONE, config: str | None = None, **options: object) -> SetupPlan:
    if config is not None:
        (home / ".ssh").mkdir(exist_ok=True)
        (home / ".ssh/config").write_text(config)
    return setup_ssh.plan(inventory, EVERYONE, SetupSsh(**options), home)  # type: ignore[arg-type]


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
    key = HostKey("ssh-ed25519", b"k")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").write_text(f"gpu2 {key.text}\n")
    everyone = Inventory((pinned, Host("gpu2", "gpu2"), Host("gpu3", "gpu3")), source="x")
    said = setup_ssh.plan(everyone, everyone, SetupSsh(), tmp_path).describe()["hosts"].values()
    expected = [f"must be {pinned.host_key}", "must be the one on file", "show and ask"]
    assert [host["host_key"] for host in said] == expected


def test_block_names_differ_by_folder_and_stay(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "fleet.yaml").write_text("")
    one, two = (block_name(str(tmp_path / folder / "fleet.yaml")) for folder in ("a", "b"))
    assert one != two and one == block_name(str(tmp_path / "a" / ".." / "a" / "fleet.yaml"))
    assert " " not in block_name("od d\n>>> name") and "\n" not in block_name("od d\n>>> name")


# -- keys -------------------------------------------------------------------------------------------------
@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def test_a_missing_key_is_made_private_and_then_reused(tmp_path: Path) -> None:
    path = tmp_path / ".ssh" / "id_ed25519"
    before = os.umask(0)
    try:
        made = files.ensure_key(path, "ed25519")
    finally:
        os.umask(before)
    assert made.comment.endswith(b" fleet")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    again = files.ensure_key(path, "ed25519")
    assert again == made


@pytest.mark.parametrize("what", ["key", "any file", "link"])
def test_a_key_that_others_can_read_is_refused_and_no_file_is_changed(what: str, tmp_path: Path) -> None:
    path = tmp_path / "id's"
    if what == "key":
        files.ensure_key(path, "ed25519")
    else:
        path.write_text("somebody's")
    path.chmod(0o644)
    named = path
    if what == "link":
        named = tmp_path / "link"
        named.symlink_to(path)
    with pytest.raises(ConnectError, match=r"others can read the key .* \(mode 644\)") as caught:
        files.ensure_key(named, "ed25519")
    assert shlex.quote(str(named)) in str(caught.value.hint) and path.stat().st_mode & 0o777 == 0o644


def test_a_key_that_cannot_be_used_is_an_error_with_a_hint(tmp_path: Path) -> None:
    locked, orphan = tmp_path / "locked", tmp_path / "orphan"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    with pytest.raises(ConnectError, match="passphrase") as caught:
        files.ensure_key(locked, "ed25519")
    assert caught.value.hint and "ssh-add" in caught.value.hint
    (tmp_path / "junk").write_text("junk")
    (tmp_path / "junk").chmod(0o600)
    with pytest.raises(ConnectError, match="cannot be used"):
        files.ensure_key(tmp_path / "junk", "ed25519")
    orphan.with_name("orphan.pub").write_text("ssh-ed25519 AAAA")
    with pytest.raises(HostFailed, match="not its private key"):
        files.ensure_key(orphan, "ed25519")


def test_only_the_key_that_was_made_is_discarded(tmp_path: Path) -> None:
    path = tmp_path / "id"
    text = files.ensure_key(path, "ed25519").id
    assert not files.discard_key(path, text[:-3] + "AAA") and path.exists()
    assert files.discard_key(path, text) and list(tmp_path.iterdir()) == []
    assert not files.discard_key(path, text)


# -- the record -------------------------------------------------------------------------------------------
def test_the_record_comes_back_and_is_written_only_when_it_changed(tmp_path: Path) -> None:
    record = Record.load(tmp_path, "x.yaml")
    assert record.empty
    record.head.note("known_hosts", ["a \udcff", "b"])
    record.host("gpu1").note("known_hosts", ["b"])
    record.host("gpu1").keys["id_ed25519"] = "ssh-ed25519 AAAA"
    assert record.save() and not record.save()
    assert record.path.stat().st_mode & 0o777 == 0o600
    again = Record.load(tmp_path, "x.yaml")
    assert again.head == record.head and again.hosts == record.hosts and not again.save()
    record.path.write_text("{}")
    with pytest.raises(HostFailed, match="damaged"):
        Record.load(tmp_path, "x.yaml")

"""`fleet init` as it is typed; no host is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.inventory.find import parse
from fleet.ops import init
from fleet.ops.init.sources import Given
from tests.in_process import typed as run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    monkeypatch.setattr("fleet.cli.verbs.setup_ssh._terminal", lambda: False)
    return tmp_path


def test_hosts_that_are_there_are_found_by_name_and_by_address(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "fleet.yaml").write_text("defaults: {user: me}\nhosts: {a: {address: 1.2.3.4, port: 33}, b: {}}")
    (here / "given").write_text("hosts: {x: {address: 1.2.3.4, port: 33}, b: {}, y: {address: 1.2.3.4, port: 34}}")
    assert run(["init", "--dry-run", "--json", "given"]) == 0
    hosts = json.loads(capsys.readouterr().out)["plan"]["hosts"]
    assert {name: host["new"] for name, host in hosts.items()} == {"a": False, "b": False, "y": True}
    assert list(hosts) == ["a", "b", "y"] and hosts["y"]["user"] == "me"
    (here / "given").write_text("hosts: {a: {address: 1.2.3.5}}")
    assert run(["init", "--dry-run", "given"]) == 121
    assert "given: host a: fleet.yaml has it at 1.2.3.4, not at 1.2.3.5" in capsys.readouterr().err
    (here / "given").write_text("hosts: {y: {address: 1.2.3.4, port: 34}, z: {}}")
    assert run(["init", "--dry-run", "--json", "-w", "y,b", "given"]) == 0
    hosts = json.loads(capsys.readouterr().out)["plan"]["hosts"]
    assert {name: host["new"] for name, host in hosts.items()} == {"b": False, "y": True}


def test_dry_run_asks_nobody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "lines").write_text("ssh root@203.0.113.1 -p 33021\nroot@203.0.113.2\n")
    assert run(["init", "--dry-run", "lines"]) == 0
    assert "  node1: {address: 203.0.113.1, user: root, port: 33021}\n" in capsys.readouterr().out
    assert run(["init", "--dry-run", "--json", "lines"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["hosts"]["node2"] == {"new": True, "address": "203.0.113.2", "user": "root"}
    assert plan["inventory"] == "fleet.yaml" and not (here / "fleet.yaml").exists()


def test_without_a_terminal_nothing_is_chosen_for_anybody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / ".ssh").mkdir()
    (here / ".ssh/config").write_text("Host gpu1\n  Port 33\nHost gpu2\n")
    assert run(["init"]) == 2
    said = capsys.readouterr().err
    assert "names 2 hosts: gpu1, gpu2" in said and "which hosts are meant?" in said and "fleet init -w gpu1" in said
    assert run(["init", "--dry-run", "-w", "gpu2"]) == 0
    assert "gpu2: {}" in capsys.readouterr().out


def test_a_host_that_fleet_cannot_go_to_is_told_and_costs_no_other(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / ".ssh").mkdir()
    (here / ".ssh/config").write_text("Host gpu1\n  ProxyCommand nc %h %p\nHost gpu2\n  HostName 127.0.0.1\n  Port 1\n")
    assert run(["init", "-y", "--json"]) == 122
    hosts = json.loads(capsys.readouterr().out)["hosts"]
    assert "fleet runs no ProxyCommand" in hosts["gpu1"]["error"]["message"]
    assert "127.0.0.1 port 1" in hosts["gpu2"]["error"]["message"]


def test_a_hostfile_that_is_there_goes_before_the_ssh_config(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "hostfile").write_text("gpu1 slots=8\n")
    assert run(["init", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "gpu1: {slots: 8}" in said.out and "the hosts of ./hostfile" in said.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-i", "lab", "init"], 2, "the lab writes its own inventory"),
        (["-i", "hostfile", "init"], 2, "hostfile is a hostfile, fleet init writes YAML"),
        (["-i", "other.yaml", "init", ".ssh/config"], 121, "names no hosts"),
        (["init", "nosuch"], 121, "No such file"),
        (["init", "odd"], 121, "odd:1: host gpu1: 'x' is not understood"),
        (["init", "--transport", "openssh", "hostfile"], 2, "--transport"),
    ],
)
def test_what_it_refuses(
    here: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / ".ssh").mkdir()
    (here / ".ssh/config").write_text("Host github.com\n  User git\n")
    (here / "hostfile").write_text("gpu1\n")
    (here / "odd").write_text("gpu1 x\n")
    assert run(words) == code
    assert message in capsys.readouterr().err
    assert not (here / "fleet.yaml").exists()


def test_a_file_with_a_byte_order_mark_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"\xef\xbb\xbfhosts: {a: {}}\n")
    old = "hosts: {a: {}}\n"
    init.write(init.plan(path, old, Given(parse(old.encode(), "fleet.yaml"))), "hosts: {a: {slots: 2}}\n")
    assert path.read_bytes() == b"\xef\xbb\xbfhosts: {a: {slots: 2}}\n"


def test_where_nothing_can_be_written_nobody_is_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "lines").write_text("ssh root@198.18.0.9\n")
    assert run(["init", "-i", "/proc/no/fleet.yaml", "lines"]) == 1
    assert capsys.readouterr().err == "error: cannot write /proc/no/fleet.yaml: No such file or directory\n"

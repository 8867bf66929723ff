"""Where ranks meet: a number where the head knows one, the name where it would be the wrong machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.model import Host
from fleet.ops import pairs
from fleet.transport.ssh.transport import SshTransport
from tests.in_process import Outcome, command_line
from tests.plans import planned
from tests.scripted import Scripted


def meeting(host: Host, home: Path, given: str | None = None) -> str:
    return pairs.master(host, SshTransport(home=home), given)


@pytest.mark.parametrize(
    "address, known",
    [
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::1", "fd00::1"),
        ("localhost", "localhost"),
        ("no.such.invalid", "no.such.invalid"),
    ],
)
def test_numbers_stay_and_this_very_machine_is_nobody_elses(address: str, known: str, tmp_path: Path) -> None:
    assert meeting(Host("a", address), tmp_path) == known


def test_an_ssh_alias_is_what_the_ssh_config_says(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host gpu1\n  HostName 198.51.100.7\n")
    assert meeting(Host("gpu1", "gpu1"), tmp_path) == "198.51.100.7"
    assert meeting(Host("gpu1", "gpu1", data_address="10.9.9.9"), tmp_path) == "10.9.9.9"
    assert meeting(Host("gpu1", "gpu1"), tmp_path, "10.8.8.8") == "10.8.8.8"


def test_other_transports_have_no_say() -> None:
    assert pairs.master(Host("a", "10.0.0.1"), Scripted({})) == "10.0.0.1"


@pytest.mark.parametrize(
    "said, address",
    [("node1", "192.168.0.1"), ("10.0.0.1", "10.0.0.1"), ("elsewhere", "elsewhere"), ("fd00::1", "[fd00::1]")],
)
def test_a_master_called_by_its_name_in_the_inventory_is_met_at_its_address(
    said: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = "{node1: {address: 10.0.0.1, data_address: 192.168.0.1}, node2: {address: 10.0.0.2}}"
    (tmp_path / "fleet.yaml").write_text(f"hosts: {nodes}\n")

    def plan(master: str) -> Outcome:
        return command_line(["--json", "--dry-run", "launch", "--master-addr", master, "t.py"], None)

    assert plan(said).document()["plan"]["master"].rpartition(":")[0] == address
    refused = plan("node2")
    assert refused.code == 2 and "--master-addr node2: ranks meet at node rank 0, and that is node1" in refused.out


def test_automatic_ports_belong_to_the_run_and_stay_out_of_the_way() -> None:
    def ports(run: str) -> list[int]:
        return planned(Host("a", "a"), run=run).ports

    assert ports("a") == ports("a") != ports("b")
    assert all(15000 <= port < 29500 for number in range(100) for port in ports(f"run-{number}"))

"""Where ranks meet: a number where the head knows one, the name where it would be the wrong machine."""

from __future__ import annotations

from pathlib import Path

import pytest

import fleet
from fleet.cli.main import run
from fleet.engines.base import Start, World
from fleet.engines.command import AnyCommand
from fleet.errors import ConnectError, FleetError, PreflightError, UsageError
from fleet.events import Notice, silent
from fleet.model import Host, Inventory, Job, Node
from fleet.ops.run.plan.findings import refuse
from fleet.ops.run.plan.placement import candidate_ports
from fleet.ops.run.plan.plan import plan as make_plan
from fleet.ops.run.start import preflight
from fleet.ops.run.start.preflight import meeting_address
from fleet.requests.launch import Launch
from fleet.rules.rule import Finding
from fleet.transport.local import LocalTransport
from fleet.transport.ssh.transport import SshTransport


def meeting(host: Host, home: Path, **job: str) -> str:
    plan = make_plan(Inventory((host, Host("b", "b"))), Job("t.py", **job), Launch("t.py"), "r")  # type: ignore[arg-type]
    return meeting_address(plan, SshTransport(home=home))


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
    assert meeting(Host("gpu1", "gpu1"), tmp_path, master_addr="10.8.8.8") == "10.8.8.8"


@pytest.mark.parametrize(
    "said, address",
    [("node1", "192.168.0.1"), ("10.0.0.1", "10.0.0.1"), ("elsewhere", "elsewhere"), ("fd00::1", "fd00::1")],
)
def test_a_master_called_by_its_name_in_the_inventory_is_met_at_its_address(said: str, address: str) -> None:
    hosts = (Host("node1", "10.0.0.1", data_address="192.168.0.1"), Host("node2", "10.0.0.2"))
    job = Job("t.py", master_addr=said)
    assert make_plan(Inventory(hosts), job, Launch("t.py"), "r").world.master_addr == address
    with pytest.raises(UsageError, match="--master-addr node2: ranks meet at node rank 0, and that is node1"):
        make_plan(Inventory(hosts), Job("t.py", master_addr="node2"), Launch("t.py"), "r")


def test_other_transports_have_no_say() -> None:
    plan = make_plan(Inventory((Host("a", "10.0.0.1"), Host("b", "b"))), Job("t.py"), Launch("t.py"), "r")
    assert meeting_address(plan, LocalTransport()) == "10.0.0.1"


def test_automatic_ports_belong_to_the_run_and_stay_out_of_the_way() -> None:
    assert candidate_ports("a") == candidate_ports("a") != candidate_ports("b")
    assert all(15000 <= port < 29500 for i in range(100) for port in candidate_ports(f"run-{i}"))


def refusal(findings: list[Finding], errors: dict[str, FleetError]) -> FleetError:
    plan = make_plan(Inventory(tuple(Host(n, n) for n in "abc")), Job("t.py"), Launch("t.py"), "r")
    with pytest.raises(FleetError) as caught:
        refuse(plan, findings, errors, silent)
    return caught.value


def test_a_refusal_says_of_every_host_what_was_wrong_there() -> None:
    found = [Finding("x", "error", ("a", "b"), "no script", "r"), Finding("y", "warning", ("c",), "busy", "r")]
    error = refusal(found, {})
    assert isinstance(error, PreflightError)
    assert {name: e and e.message for name, e in error.hosts.items()} == {"a": "no script", "b": "no script", "c": None}

    error = refusal([Finding("x", "error", ("a",), "no script", "r")], {"b": ConnectError("is off", host="b")})
    assert isinstance(error, ConnectError) and "nothing was started" in error.message
    assert {name: e and e.kind for name, e in error.hosts.items()} == {"a": "preflight", "b": "unreachable", "c": None}


def test_a_launch_plans_once_and_refines_that_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    start = AnyCommand.start

    def counted(self: AnyCommand, job: Job, world: World, node: Node, python: str) -> Start:
        made.append(world.master_addr)
        return start(self, job, world, node, python)

    monkeypatch.setattr(AnyCommand, "start", counted)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").write_text("#!/bin/sh\n")
    (tmp_path / "job").chmod(0o755)
    (tmp_path / "fleet.yaml").write_text("hosts: {n1: {}}\n")
    assert run(["--transport", "local", "-q", "launch", "--engine", "command", "./job"]) == 0
    assert len(made) == 2


def test_a_name_that_a_run_cannot_have_is_changed_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text("hosts: {n1: {}}\n")
    words = ["--transport", "local", "launch", "--engine", "command", "--workdir", str(tmp_path), "--name"]
    for name, said in (
        ("a.b_c-1", ""),
        ("../x", "warning: the run's name is x, not '../x'\n  hint: "),
        ("lr 1e-4", "warning: the run's name is lr-1e-4, not 'lr 1e-4'\n  hint: "),
        ("n" * 49, f"warning: the run's name is {'n' * 48}, not "),
    ):
        code, told = run([*words, name, "true"]), capfd.readouterr().err
        assert code == 0 and said in told and ("the run's name is" in told) == bool(said), told


def test_a_live_run_keeps_another_from_its_start_and_from_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before anything is synced, and on the node itself where it has begun since preflight looked."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    for job in (tmp_path / "job", tmp_path / "code/job"):
        job.write_text("#!/bin/sh\nexec sleep 600\n")
        job.chmod(0o755)
    (tmp_path / "fleet.yaml").write_text("hosts: {n1: {}}\n")
    words = ["-i", str(tmp_path / "fleet.yaml"), "--transport", "local", "launch", "--engine", "command"]
    with fleet.open("fleet.yaml", transport="local").launch("./job", engine="command") as first:
        assert any(isinstance(each, Notice) and each.message.startswith(f"run {first.id}: ") for each in first)
        monkeypatch.chdir(tmp_path / "code")
        for option in (["--sync", "--workdir", str(tmp_path / "there")], ["--workdir", str(tmp_path)]):
            code, told = run([*words, *option, "./job"]), capfd.readouterr().err
            assert code == 123, told
            assert f"error: n1: run {first.id} of " in told and "1 rank on 1 node" in told, told
            assert f"stop {first.id}' ends it; '" in told and "--share ./job' starts beside it" in told, told
            assert "error: preflight refused, 1 finding; nothing was started anywhere" in told, told
            assert not (tmp_path / "there").exists() and "sync:" not in told and "start:" not in told
            monkeypatch.setattr(preflight, "findings", lambda *_, **__: [])
        first.stop()
        first.stop()

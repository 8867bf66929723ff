"""`fleet check` and `fleet kill-port` from the command line, on the local transport: exit codes, JSON, dry runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import run
from fleet.errors import ConnectError
from fleet.model import Host, Inventory
from fleet.ops import check, kill_port
from fleet.requests.hosts import Check, KillPort
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport

LONG = ("--timeout", "200")  # a busy machine's Python takes long to tell of itself


class SomeAreDown(LocalTransport):
    """Hosts whose name starts with "down" refuse."""

    def connect(self, host: Host, cancel: Cancel) -> Session:
        if host.name.startswith("down"):
            raise ConnectError("connection refused", host=host.name, kind="refused", hint="is sshd running?")
        return super().connect(host, cancel)


def hosts(*names: str, **fields: Any) -> Inventory:
    return Inventory(tuple(Host(name, name, **{"python": sys.executable, **fields}) for name in names))


def test_the_plan_is_what_the_probe_is_fed() -> None:
    inventory = Inventory((Host("a", "a", workdir="~/w", env={"B": "2"}), Host("b", "b")), env={"A": "1"})
    plan = check.plan(inventory, Check(timeout=3.0)).specs
    assert plan["a"] == {
        "python": None,
        "activate": None,
        "env": {"A": "1", "B": "2"},
        "workdir": "~/w",
        "deadline": 3.0,
    }
    assert plan["b"]["workdir"] is None


def test_facts_clock_and_findings() -> None:
    done = check.run(check.plan(hosts("a", "b"), Check(timeout=200.0)), Runtime(LocalTransport()))
    report = done.as_json()
    clock = report["hosts"]["a"]["facts"]["clock"]
    assert abs(clock["offset"]) <= clock["uncertainty"] < 200, "this machine's clock agrees with itself"
    assert [f["id"] for f in report["findings"] if f["hosts"] == ["a", "b"] and f["id"] == "hostname"]
    assert list(done.views) == ["a", "b"]


def test_an_error_among_the_findings_is_123() -> None:
    done = check.run(
        check.plan(hosts("a", "b", python="/nowhere/python"), Check(timeout=200.0)), Runtime(LocalTransport())
    )
    assert done.exit_code == 123
    assert [f.id for f in done.findings if f.severity == "error"] == ["python-missing"]


def test_an_unreachable_host_is_122_and_the_others_are_judged() -> None:
    done = check.run(
        check.plan(hosts("a", "down", "b", python="/nowhere/python"), Check(timeout=200.0)), Runtime(SomeAreDown())
    )
    assert done.exit_code == 122
    assert "python-missing" in {f.id for f in done.findings}
    report = done.as_json()
    assert report["hosts"]["down"]["error"]["kind"] == "refused" and report["hosts"]["a"]["ok"]


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps({"defaults": {"python": sys.executable}, "hosts": {"n1": {"env": {"TOKEN": "s3cret"}}}}))
    monkeypatch.chdir(tmp_path)
    return path


def fleet(*args: str) -> int:
    return run(["--transport", "local", *args])


def test_check_on_the_terminal(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("check", *LONG, "--engine", "command") == 0
    out = capsys.readouterr().out
    assert "n1" in out and sys.executable in out.replace("\n", "") and "1 host compared" in out
    assert "\x1b" not in out, "no colours where there is no terminal"


def test_no_torch_where_torchrun_is_to_run_is_an_error(
    inventory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "bare"], check=True)
    python = str(tmp_path / "bare/bin/python")
    inventory.write_text(json.dumps({"hosts": {"n1": {"python": python}}}))
    assert fleet("check", *LONG, "-q") == 123
    said = capsys.readouterr().out
    assert said.startswith(f"error   n1: needed for a run: torch is not installed for {python}  [module-missing]\n")
    assert "compared" not in said
    assert fleet("check", *LONG, "-q", "--engine", "command") == 0 and capsys.readouterr().out == ""


def test_check_json(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("check", *LONG, "--engine", "command", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verb"] == "check" and document["hosts"]["n1"]["facts"]["python"]["version"]
    assert isinstance(document["findings"], list)


def test_check_dry_run_shows_no_values(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("check", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "env: TOKEN" in out and "s3cret" not in out
    assert fleet("check", "--dry-run", "--json") == 0
    out = capsys.readouterr().out
    assert json.loads(out)["plan"]["n1"]["env"] == ["TOKEN"] and "s3cret" not in out


@pytest.mark.parametrize(
    "port", ["0", "65536", "x", "-1", "1-0", "5-", "-", "29500-99999", "1_0", " 80", "٣", "1e3", "", "9" * 5000]
)
def test_kill_port_refuses_what_is_no_port(inventory: Path, port: str) -> None:
    assert fleet("kill-port", "--", port) == 2


def test_kill_port_needs_a_port(inventory: Path) -> None:
    assert fleet("kill-port") == 2


LISTEN = (
    "import socket,time; s=socket.create_server(('127.0.0.1',0)); u=socket.socket(type=socket.SOCK_DGRAM);"
    "u.bind(('127.0.0.1',0)); print(s.getsockname()[1],flush=True);"
    "time.sleep(600)"
)


@pytest.fixture
def listener() -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", LISTEN, "\x1b[2J\x07\u202e"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FLEET_RUN_ID": "x-20260101-000000-abcd"},
        start_new_session=True,
    )
    assert process.stdout
    yield process, int(process.stdout.readline())
    process.kill()
    process.communicate()


Listener = tuple[subprocess.Popen[str], int]


def test_kill_port_does_not_act_unasked(
    inventory: Path, listener: Listener, capsys: pytest.CaptureFixture[str]
) -> None:
    process, port = listener
    assert fleet("kill-port", str(port)) == 2
    said = capsys.readouterr()
    assert str(process.pid) in said.out and "x-20260101-000000-abcd" in said.out and f"kill-port -y {port};" in said.err
    assert re.search(r"ALSO.*\d+/udp", said.out, re.DOTALL), "what it would take down with it is told before it is"
    assert "\x1b" not in said.out and "\x07" not in said.out
    assert fleet("kill-port", str(port), "--json") == 2
    assert fleet("kill-port", str(port), "--dry-run") == 0
    assert process.poll() is None


def test_kill_port_ends_it(inventory: Path, listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    process, port = listener
    assert fleet("kill-port", "-y", "--json", str(port)) == 0
    (entry,) = json.loads(capsys.readouterr().out)["hosts"]["n1"]["listeners"]
    assert (
        entry["ended"]
        and entry["pid"] == process.pid
        and entry["run_id"] == "x-20260101-000000-abcd"
        and entry["reason"] is None
    )
    assert process.wait(300) == -signal.SIGTERM
    assert fleet("kill-port", "-y", str(port)) == 0
    assert f"nothing listens on port {port}" in capsys.readouterr().out


def test_kill_port_dry_run_json(inventory: Path, listener: Listener, capsys: pytest.CaptureFixture[str]) -> None:
    process, port = listener
    assert fleet("kill-port", "--dry-run", "--json", f"{port}-{port}") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] and document["dry_run"] and process.poll() is None
    assert document["hosts"]["n1"]["listeners"][0]["ended"] is False


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_kill_port_asks_on_a_terminal(inventory: Path, listener: Listener, answer: str, code: int) -> None:
    process, port = listener
    head, terminal = os.openpty()
    fleet_bin = Path(sys.executable).with_name("fleet")
    try:
        command = subprocess.Popen(
            [fleet_bin, "--transport", "local", "kill-port", str(port)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(terminal)
        said = b""
        while b"[y/N]" not in said:
            said += os.read(head, 4096)
        assert process.poll() is None
        os.write(head, answer.encode())
        assert command.wait(300) == code
    finally:
        os.close(head)
    assert (process.poll() is not None or process.wait(300) is not None) if code == 0 else process.poll() is None


def test_kill_port_one_host_down(listener: Listener) -> None:
    process, port = listener
    inventory = hosts("n1", "down")
    runtime = Runtime(SomeAreDown())
    plan = kill_port.plan(inventory, KillPort([port]), kill_port.look(inventory, [port], runtime))
    assert [each.host for each in plan.targets] == ["n1"]
    report = kill_port.run(plan, runtime)
    assert report.exit_code == 122 and process.wait(300) is not None
    assert report.as_json()["hosts"]["n1"]["listeners"][0]["ended"]


# the master holds the socket too: it is what still listens after its worker's end, and it starts another one
PHOENIX = """
import os, socket, time
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    pid = os.fork()
    if not pid:
        time.sleep(600)
    os.waitpid(pid, 0)
"""


def test_kill_port_says_who_took_the_port_over() -> None:
    """The restarted worker was never shown: it is left, and the port counts as held."""
    master = subprocess.Popen(
        [sys.executable, "-c", PHOENIX], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert master.stdout
        port = int(master.stdout.readline())
        runtime = Runtime(LocalTransport())
        inventory = hosts("n1")
        found = kill_port.plan(inventory, KillPort([port], grace=2.0), kill_port.look(inventory, [port], runtime))
        while len(found.targets) < 2:
            found = kill_port.plan(inventory, KillPort([port], grace=2.0), kill_port.look(inventory, [port], runtime))
        workers = tuple(each for each in found.listeners if each.pid != master.pid)
        report = kill_port.run(replace(found, listeners=workers), runtime)
        assert report.exit_code == 1 and master.poll() is None
        listed = report.as_json()["hosts"]["n1"]["listeners"]
        assert [e["pid"] for e in listed if e["ended"]] == [workers[0].pid]
        left = [e for e in listed if not e["ended"]]
        assert master.pid in {e["pid"] for e in left}
        assert all("took the port over" in e["reason"] for e in left)
    finally:
        os.killpg(master.pid, signal.SIGKILL)
        master.communicate()

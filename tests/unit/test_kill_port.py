"""`fleet kill-port` from the command line: it shows what it would end, and ends nothing that was not shown."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet import open as open_fleet
from fleet.answers.hosts import Listening
from fleet.cli.main import run
from tests.in_process import Outcome, command_line
from tests.scripted import Message, Scripted


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps({"defaults": {"python": sys.executable}, "hosts": {"n1": {"env": {"TOKEN": "s3cret"}}}}))
    monkeypatch.chdir(tmp_path)
    return path


def fleet(*args: str) -> int:
    return run(["--transport", "local", *args])


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
    assert (
        str(process.pid) in said.out and "x-20260101-000000-abcd" in said.out and f"kill-port -y {port}\n" in said.err
    )
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


def test_a_program_has_the_listeners_with_attributes(inventory: Path, listener: Listener) -> None:
    process, port = listener
    report = open_fleet(transport="local").kill_port([port], agree=lambda plan: False)
    (entry,) = report.results[0].read(Listening).listeners
    assert (entry.port, entry.pid, entry.ended) == (port, process.pid, False) and entry.reason


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


# -- what a node reports -----------------------------------------------------------------------------------------------
def listens(pid: int) -> dict[str, Any]:
    who = {"pid": pid, "start": 1, "uid": 0, "user": "root", "own": True, "command": "python", "run_id": None}
    where = {"port": 8000, "protocol": "tcp", "address": "127.0.0.1"}
    return {**where, **who, "live": False, "age": 1.0, "refused": None, "also": []}


def node(ended: int, *there: dict[str, Any]) -> dict[str, list[Message]]:
    """Where a worker with pid 7 listens, until it is ended; then `there` do."""
    answer: Message = {"listeners": [*there], "ended": [ended], "reasons": {}}
    return {"kill_port scan": [{"listeners": [listens(7)]}], "kill_port end": [answer]}


def kill(*there: dict[str, Any]) -> Outcome:
    return command_line(["--json", "kill-port", "-y", "8000"], Scripted({"n1": node(7, *there)}))


def test_one_host_down(inventory: Path) -> None:
    inventory.write_text("hosts: [n1, down]\n")
    done = kill()
    assert done.code == 122 and done.document()["hosts"]["n1"]["listeners"][0]["ended"], done


def test_who_took_the_port_over_is_named(inventory: Path) -> None:
    """The restarted worker was never shown: it is left, and the port counts as held."""
    done = kill(listens(8), listens(9))
    listed = done.document()["hosts"]["n1"]["listeners"]
    assert done.code == 1 and [each["pid"] for each in listed if each["ended"]] == [7], done
    left = {each["pid"]: each["reason"] for each in listed if not each["ended"]}
    assert left.keys() == {8, 9} and all("took the port over" in reason for reason in left.values()), done

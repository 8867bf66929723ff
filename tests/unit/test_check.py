"""`fleet check` from the command line: exit codes, JSON, dry runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.ops.facts import sample
from tests.in_process import Outcome, command_line
from tests.scripted import Answer, Scripted

LONG = ("--timeout", "200")  # a busy machine's Python takes long to report on itself
BARE = {"python": {"path": None, "error": "/nowhere/python: no such program"}}


def check(nodes: Scripted, inventory: str, *options: str) -> Outcome:
    Path("fleet.yaml").write_text(inventory)
    return command_line(["--json", "check", *options], nodes)


def node(**facts: object) -> dict[str, Answer]:
    return {"probe": [{"facts": {"hostname": "n", **facts}}]}


def test_what_the_probe_is_fed(inventory: Path) -> None:
    nodes = Scripted({"a": node(), "b": node()})
    text = "env: {A: '1'}\nhosts: {a: {workdir: ~/w, env: {B: '2'}}, b: {}}\n"
    assert check(nodes, text, "--timeout", "3").code in (0, 123)
    specs = {host: spec for host, _, spec in nodes.sent}
    fed = {"python": None, "activate": None, "env": {"A": "1", "B": "2"}, "workdir": "~/w", "deadline": 3.0}
    fed |= {"modules": ["torch"], "health": True}
    fed["way"] = {"master": "a", "is_master": True, "own": None, "other": "b"}
    assert specs["a"] == fed and specs["b"]["workdir"] is None
    assert specs["b"]["way"] == {"master": "a", "is_master": False, "own": None, "other": "a"}


def test_facts_clock_and_findings(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inventory.write_text(json.dumps({"defaults": {"python": sys.executable}, "hosts": {"a": {}, "b": {}}}))
    fleet("--json", "check", *LONG)
    report = json.loads(capsys.readouterr().out)
    clock = report["hosts"]["a"]["facts"]["clock"]
    assert abs(clock["offset"]) <= clock["uncertainty"] < 200, "this machine's clock agrees with itself"
    assert [f["id"] for f in report["findings"] if f["hosts"] == ["a", "b"] and f["id"] == "hostname"]
    assert list(report["hosts"]) == ["a", "b"]


def test_an_error_among_the_findings_is_123(inventory: Path) -> None:
    done = check(Scripted({name: node(**BARE) for name in "ab"}), "hosts: [a, b]\n")
    assert done.code == 123
    assert [f["id"] for f in done.document()["findings"] if f["severity"] == "error"] == ["python-missing"]


def test_an_unreachable_host_is_122_and_the_others_are_judged(inventory: Path) -> None:
    done = check(Scripted({name: node(**BARE) for name in "ab"}), "hosts: [a, down, b]\n")
    report = done.document()
    assert done.code == 122 and "python-missing" in {f["id"] for f in report["findings"]}
    assert report["hosts"]["down"]["error"]["kind"] == "unreachable" and report["hosts"]["a"]["ok"]


def test_the_clock_is_read_at_the_middle_of_the_fastest_round_trip() -> None:
    slow, fast = sample(100.0, 107.0, 104.0), sample(100.0, 105.5, 101.0)
    assert slow == (2.0, 5.0) and fast == (0.5, 5.0)
    assert min(slow, fast, sample(100.0, 0.0, 104.0)) == fast
    assert min(fast, sample(100.0, 0.0, 99.0)) == fast, "our own clock was set back meanwhile"


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

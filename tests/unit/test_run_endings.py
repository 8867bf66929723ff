"""A run that could not begin, or a command line that names none: what is on record of it, here and in JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import fleet
from fleet.cli.main import run
from tests.in_process import command_line
from tests.scripted import Scripted, ends, lists, well


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_attach_without_a_run_ends_its_events_with_the_summary(here: Path) -> None:
    (here / "hostfile").write_text("localhost\n")
    done = command_line(["--json", "attach", "nosuch-run"], Scripted({"localhost": {"list_runs": lists()}}))
    assert done.code == 2 and done.document()["event"] == "summary"
    assert done.document()["error"]["message"].startswith("no run nosuch-run")


def test_a_command_line_that_is_refused_is_the_summary_alone(here: Path) -> None:
    """As docs/json.md has it: the version is that of events, and there are none."""
    words = ["--json", "launch"]
    refused = [command_line([*words, "t.py"], None)]
    (here / "fleet.yaml").write_text("hosts: [a]\n")
    refused.append(command_line([*words, "--nproc-per-node", "x", "t.py"], None))
    assert [done.code for done in refused] == [121, 2], "no inventory, no number"
    assert [json.loads(line)["event"] for done in refused for line in done.out.splitlines()] == ["summary"] * 2


def test_a_run_that_could_not_start_is_over_here(here: Path) -> None:
    (here / "hostfile").write_text("a\nb\n")
    full = {"event": "failed", "message": "no room for the run's folder", "hint": None}
    nodes = Scripted({"a": well(), "b": {**well(), "supervise": [full]}})
    words = ["launch", "--no-preflight", "--engine", "command", "--name", "t", "./t"]
    done = command_line(words, nodes)
    (found,) = fleet.runs()
    assert (found.state, found.exit_code, done.code) == ("failed", 1, 1), done
    summary = json.loads((Path(found.logs) / "summary.json").read_text())
    assert summary["stopped"] == f"{full['message']}; everything was stopped again", summary
    assert [host["error"] and host["error"]["message"] for host in summary["hosts"].values()] == [None, full["message"]]
    assert [each.run for each in fleet.runs(prune=True, keep=0)] == [found.run]


def test_room_on_a_disk_is_news_only_where_there_was_none(here: Path) -> None:
    (here / "hostfile").write_text("a\nb\n")
    runs = {"event": "status", "state": "running"}
    full = [{**runs, "disk_full": full} for full in (True, False)]
    nodes = Scripted({"a": well([runs, *ends(0)]), "b": well([runs, *full, *ends(1)])})
    done = command_line(["--json", "launch", "--no-preflight", "--engine", "command", "./t"], nodes)
    found = [(it["event"], it["host"]) for it in map(json.loads, done.out.splitlines()) if it.get("host")]
    assert [it for it in found if it[0] in ("full", "room")] == [("full", "b"), ("room", "b")], done


def test_a_run_that_begins_nowhere_has_its_ending(here: Path) -> None:
    (here / "fleet.yaml").write_text("hosts: {a: {address: 127.0.0.1}}\n")
    words = ["--transport", "local", "launch", "--no-preflight", "--workdir", str(here / "nowhere")]
    assert run(["--json", *words, "x.sh"]) == 1
    (known,) = fleet.runs()
    assert (known.state, known.exit_code) == ("failed", 1)
    summary = json.loads((Path(known.logs) / "summary.json").read_text())
    assert "cannot enter the folder" in summary["error"]["message"] and not summary["hosts"]["a"]["ok"]
    assert run(["--transport", "local", "attach"]) == 1
    assert not os.path.lexists("runs/latest"), "it never began"
    assert json.loads((Path(known.logs) / "summary.json").read_text()) == summary

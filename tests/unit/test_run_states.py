"""How a run stands, by what its nodes report of it: `fleet ps`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import run
from fleet.node.base.processes import myself
from fleet.node.gang.ends import run_end, stopped_by
from tests.in_process import command_line
from tests.run_folders import leads, run_folder
from tests.scripted import STOPPED, Scripted, about, lists, part

RUN, OTHER = "train-20261122-120000-ab12", "other-20261122-120000-0001"
Here = tuple[str, dict[str, Any]]  # a node's part of a run: its state, and what else its status has
WELL: Here = ("exited", {"engine_status": 0})
FAILED: Here = ("exited", {"engine_status": 1})
RUNNING: Here = ("running", {})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(**more: Any) -> Here:
    return "stopped", {"cause": "asked", **more}


@pytest.mark.parametrize(
    "parts, state",
    [
        ([RUNNING, RUNNING], "running"),
        ([RUNNING, WELL], "running"),
        ([RUNNING, ("stopping", {})], "stopping"),
        ([RUNNING, ("running", {"alive": False})], "lost"),
        ([WELL, WELL], "open"),
        ([WELL, FAILED], "open"),
        ([WELL, ("exited", {"verdict": run_end("done", "done", 0)})], "done"),
        ([WELL, ("exited", {"verdict": run_end("failure", "rank 1 failed", 3)})], "failed"),
        ([("stopped", {"cause": "lease"})], "failed"),
        ([asked(end=stopped_by("ada@head"))], "stopped"),
        ([asked(end=run_end("lost", "h9 was lost", 122, "h9"))], "failed"),
        ([asked(end=run_end("interrupt", "of a name", 130))], "stopped"),
    ],
)
def test_how_a_run_stands(parts: list[Here], state: str, here: Path) -> None:
    answers = {
        f"h{rank}": {"list_runs": lists(part(RUN, said, node_rank=rank, **more))}
        for rank, (said, more) in enumerate(parts)
    }
    (here / "hostfile").write_text("\n".join(answers) + "\n")
    (found,) = command_line(["--json", "ps", "--all"], Scripted(answers)).document()["runs"]
    assert (found["run"], found["state"], list(found["nodes"])) == (RUN, state, list(answers))


def test_ranks_of_a_node_that_does_not_answer_are_not_up(here: Path) -> None:
    (here / "hostfile").write_text("h\n")
    here_alone = Scripted({"h": {"list_runs": lists(part(RUN, about=about(nnodes=2)))}})
    assert "ranks up 1/2" in command_line(["ps"], here_alone).out


def test_no_live_run_needs_no_head(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "home").mkdir()
    monkeypatch.setenv("HOME", str(here / "home"))
    (here / "fleet.yaml").write_text("hosts: {me: {}}\n")
    leads(run_folder(Path("runs"), RUN), start=1, lease=36000.0)
    line = ["--transport", "local", "ps"]
    assert run([*line, "-w", "me"], typed=True) == 0
    assert "without its head" in capfd.readouterr().err, "other hosts may have it"
    assert run(line, typed=True) == 0
    said = capfd.readouterr()
    assert "no live run" in said.out and said.err == ""


# -- a run of this folder that lost its head ------------------------------------------------------------------------
MINUTE = 60.0


def reminded(folder: Path, minutes: float, capfd: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    """What a command of this folder warns of, where the last sign of life of who led the run was so long ago. more: of
    its state; start: of a process that is gone."""
    leads(folder, **{"start": 1, "lease": 60 * MINUTE, **more})
    os.utime(folder / "state.json", (0, time.time() - minutes * MINUTE - 1.0))
    capfd.readouterr()
    assert run(["hosts"], typed=True) == 0
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]


def test_a_run_that_lost_its_head_here_is_named_while_its_lease_lasts(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "hostfile").write_text("h\n")
    folder, me = run_folder(here / "runs", RUN), myself()
    alone = f"warning: run {RUN} has been without its head for 20 min; if it goes on, its nodes end it after 60 min"
    assert reminded(folder, 20, capfd) == reminded(folder, 20, capfd, boot="an earlier one") == [alone]
    assert reminded(folder, 20, capfd, start=me["start"]) == [], "it is led"
    for elsewhere in ({"machine": "login2"}, {"space": 1}):
        assert reminded(folder, 20, capfd, **elsewhere) == [], "it may be led: that is not known here"
    assert reminded(folder, 61, capfd) == [], "its nodes have ended it"
    assert reminded(folder, 20, capfd, leads=False) == [], "it was stopped here, or only looked on at"
    text = f"warning: run {RUN} has been unattended for 20 min: it goes on, and no process of this machine leads it"
    assert reminded(folder, 20, capfd, lease=None) == [text]
    (left,) = command_line(["--json", "runs"], None).document()["runs"]
    assert left["state"] == "unattended"
    (folder / "state.json").write_text('{"leader": 7}')
    assert run(["runs"], typed=True) == 0 and "Traceback" not in capfd.readouterr().err


def test_who_stops_a_run_here_that_nobody_leads_is_not_reminded_of_it(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "hostfile").write_text("h\n")
    folder = run_folder(here / "runs", RUN)
    assert reminded(folder, 20, capfd, lease=None) != []
    nodes = Scripted({"h": {"list_runs": lists(part(RUN)), "stop": [STOPPED]}})
    assert command_line(["stop", RUN], nodes).code == 0
    assert not (folder / "state.json").exists()


def test_a_stop_is_noted_in_the_folder_of_a_run_that_is_here(here: Path) -> None:
    (here / "hostfile").write_text("h\n")
    folder = run_folder(here / "runs", RUN)
    nodes = Scripted({"h": {"list_runs": lists(part(RUN), part(OTHER)), "stop": [STOPPED]}})
    for each in (RUN, OTHER):
        assert command_line(["stop", each], nodes).code == 0
    last = json.loads((folder / "events.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "stop" and last["reason"].startswith("stopped by ")
    assert [path.name for path in (here / "runs").iterdir()] == [RUN], "another head started the other one"

"""What spoils a run on a host, planted there: `fleet check` and `fleet launch` find it; and what only looks like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.virtual_lab import VirtualLab

WAITS = "#!/usr/bin/env python3\nimport time\nprint('waits', flush=True)\ntime.sleep(float(open('seconds').read()))\n"
SFT = "#!/bin/sh\nexec ./torchrun --nnodes $NNODES --node_rank=$NODE_RANK --master_addr={master} train.py\n"


def checked(lab: VirtualLab, *args: str) -> dict[str, list[str]]:
    done = lab.fleet("-i", "lab", "check", "--engine", "command", "--json", *args)
    return {finding["id"]: finding["hosts"] for finding in json.loads(done.stdout)["findings"]}


def launched(lab: VirtualLab, folder: Path, workdir: str, *args: str) -> list[dict[str, Any]]:
    command = ("launch", "--engine", "command", "--per", "node", "--workdir", workdir, "--json", *args)
    done = lab.fleet("-i", "lab", *command, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def found(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {event["id"]: event["hosts"] for event in events if event["event"] == "finding"}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for name, text in {"torchrun": WAITS, "seconds": "0", "sft.sh": SFT.format(master="$(hostname)")}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def test_data_that_is_another_now(ready_lab: VirtualLab, code: Path, tmp_path: Path) -> None:
    data = tmp_path / "set"
    data.mkdir()
    for name in ("a", "b"):
        (data / name).write_bytes(b"x" * 5000)
    assert ready_lab.fleet("-i", "lab", "sync", "--data", f"{data}:/var/planted/").returncode == 0
    first, second, third = ready_lab.names
    assert "data-changed" not in checked(ready_lab)
    ready_lab.sh(first, "chmod 600 /var/planted/set/a")  # nobody's data is another for that
    ready_lab.sh(second, "truncate -s 17 /var/planted/set/a")
    ready_lab.sh(third, "mv /var/planted/set /var/planted/elsewhere")
    assert checked(ready_lab)["data-changed"] == [second, third]
    events = launched(ready_lab, code, "~/planted", "--sync", "./torchrun")
    assert found(events)["data-changed"] == [second, third]
    (said,) = (event["message"] for event in events if event.get("id") == "data-changed")
    assert "/var/planted/set/a" in said and "/var/planted/set/b" not in said
    for name in ready_lab.names:  # as it is on all, it is meant
        ready_lab.sh(name, "rm -rf /var/planted")
    assert "data-changed" not in checked(ready_lab)


def test_a_workdir_that_was_moved_and_linked_back(ready_lab: VirtualLab, code: Path) -> None:
    assert ready_lab.fleet("-i", "lab", "sync", str(code), "--to", "~/moved").returncode == 0
    moved, linked, _ = ready_lab.names
    ready_lab.sh(moved, "mv ~/moved /var/moved && ln -s /var/moved ~/moved")
    ready_lab.sh(linked, "cp -a ~/moved /var/moved && mv ~/moved ~/gone && ln -s /var/moved ~/moved")
    events = launched(ready_lab, code, "~/moved", "./torchrun")
    assert not {"code-not-synced", "code-differs", "code-changed", "files-changed"} & set(found(events))
    ready_lab.sh(moved, "echo >> /var/moved/seconds")
    assert found(launched(ready_lab, code, "~/moved", "./torchrun"))["files-changed"] == [moved]


@pytest.mark.slow
@pytest.mark.parametrize("master", ["$(hostname)", "$MASTER_ADDR"])
def test_a_launcher_that_each_node_was_given_with_itself_as_the_master(
    ready_lab: VirtualLab, code: Path, master: str
) -> None:
    (code / "sft.sh").write_text(SFT.format(master=master))
    (code / "seconds").write_text("50")
    events = launched(ready_lab, code, f"~/apart{len(master)}", "--sync", "./sft.sh")
    said = [event for event in events if event["event"] == "advice" and event["id"] == "apart"]
    if master == "$MASTER_ADDR":
        assert said == []
    else:
        (one,) = said
        assert "each wait for the others at themselves" in one["message"], one
        assert all(name in one["message"] for name in ready_lab.names[1:]) and "$MASTER_ADDR" in one["remedy"]

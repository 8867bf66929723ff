"""The start of a run on all of its nodes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.in_process import command_line
from tests.scripted import Message, Scripted, Spec, ends, well

STARTED: Message = {"event": "started", "pid": 1, "dir": "/r"}
FULL: Message = {"event": "failed", "message": "no room", "hint": None}


@pytest.mark.parametrize("fails", [False, True])
def test_the_first_node_is_there_before_any_other_begins(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("b\na\nc\n")
    begun, another = list[str](), threading.Event()

    def begin(host: str, spec: Spec) -> list[Message]:
        begun.append(host)
        if host != "b":
            another.set()
        elif another.wait(0.3):
            begun.append("too early")
        return [FULL if fails and host == "b" else STARTED]

    nodes = Scripted(
        {
            host: {**well(ends(rank)), "supervise": lambda spec, host=host: begin(host, spec)}
            for rank, host in enumerate("bac")
        }
    )
    done = command_line(["--json", "launch", "--engine", "command", "./t"], nodes)
    assert done.code == fails and begun[0] == "b" and sorted(begun[1:]) == ([] if fails else ["a", "c"]), (done, begun)
    if fails:
        wrong = {name: host["error"] and host["error"]["message"] for name, host in done.document()["hosts"].items()}
        assert wrong == {"b": "no room", "a": None, "c": None}, done
    else:
        assert '"step": "start", "hosts": 3' in done.out, done

"""What `fleet launch` makes of what its nodes report before the start: it begins on all of them, or on none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.in_process import Outcome, command_line
from tests.scripted import Answer, Message, Scripted, about, ends, well

MISSING = {"script": {"path": "/w/t", "exists": False, "executable": False, "sha256": None}}
SYNCED = {"code": {"folder": "/w", "state": "/s", "digest": "0" * 64, "half": False, "busy": None}}
LIVE = {"run": "first-20260101-000000-0000", "about": about(), "devices": None}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hostfile").write_text("a\nb\nc\n")


def launch(nodes: Scripted, *options: str) -> Outcome:
    return command_line(["launch", "--engine", "command", *options, "./t"], nodes)


def kinds(document: dict[str, Any]) -> list[str | None]:
    return [host["error"] and host["error"]["kind"] for host in document["hosts"].values()]


def test_a_refusal_says_of_every_host_what_was_wrong_there() -> None:
    nodes = Scripted({"a": well(**MISSING), "b": well(**MISSING), "c": well(**SYNCED)})
    document = launch(nodes, "--json").document()
    assert (document["exit_code"], kinds(document)) == (123, ["preflight", "preflight", None]), document
    assert "the script /w/t does not exist" in document["hosts"]["a"]["error"]["message"]
    document = launch(Scripted({"a": well(**MISSING), "c": well()}), "--json").document()
    assert (document["exit_code"], kinds(document)) == (122, ["preflight", "unreachable", None]), document
    assert "nothing was started" in document["error"]["message"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.b_c-1", ""),
        ("../x", "warning: the run's name is x, not '../x'\n  hint: "),
        ("lr 1e-4", "warning: the run's name is lr-1e-4, not 'lr 1e-4'\n  hint: "),
        ("n" * 49, f"warning: the run's name is {'n' * 48}, not "),
    ],
)
def test_a_name_that_a_run_cannot_have_is_changed_and_that_is_said(name: str, said: str) -> None:
    done = launch(Scripted({"a": well(ends(0))}), "-w", "a", "--name", name)
    assert done.code == 0 and " ".join(said.split()) in " ".join(done.err.split()), done
    assert ("the run's name is" in done.err) == bool(said), done


BESIDE: list[Message] = [{"event": "neighbours", "runs": [LIVE]}]


@pytest.mark.parametrize(
    ("node", "options", "asked"),
    [
        (well(runs=[LIVE]), [], ["probe"]),
        ({"neighbours": BESIDE}, ["--sync"], ["neighbours"]),  # before anything is synced
        ({**well(), "supervise": BESIDE}, [], ["probe", "supervise", "stop"]),  # it has begun since preflight looked
    ],
)
def test_a_live_run_keeps_another_from_its_start_and_from_its_code(
    node: dict[str, Answer], options: list[str], asked: list[str]
) -> None:
    nodes = Scripted({"a": node})
    done = launch(nodes, "-w", "a", *options)
    said = " ".join(done.err.split())
    assert done.code == 123 and "error: a: run first-20260101-000000-0000 of ada@head" in said, done
    assert "1 rank on 1 node" in said and "stop first-20260101-000000-0000' ends it; '" in said, done
    assert "--share ./t' starts alongside it" in said and "sync:" not in said and "start:" not in said, done
    assert "error: preflight refused, 1 finding; nothing was started anywhere" in said, done
    assert [program for _, program, _ in nodes.sent] == asked

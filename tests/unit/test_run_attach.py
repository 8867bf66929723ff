"""`fleet attach` to a run whose nodes begin one after the other: all of them are followed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.in_process import Outcome, command_line
from tests.run_folders import Leader, an_id, run_folder
from tests.scripted import Answer, Message, Scripted, Spec, about, ends, lists, part

RUN, OTHER = an_id("r"), an_id("other")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fleet.ops.run.find.attach.ASK_AGAIN_SECONDS", 0.0)
    (tmp_path / "hostfile").write_text("a\nb\n")
    run_folder(tmp_path / "runs", RUN)


def node(node_rank: int, *reports: Spec | None, follows: list[list[Message]]) -> dict[str, Answer]:
    """A node that gives these reports of the run, one each time that it is asked; the last one from then on. None: it
    does not know of it. follows: what it sends to who follows it, the first time, the second, ..."""
    left, sent = [*reports], [*follows]

    def report(spec: Spec) -> list[Message]:
        found = left.pop(0) if len(left) > 1 else left[0]
        return lists(*([part(RUN, node_rank=node_rank, **found)] if found else []))

    return {"list_runs": report, "follow": lambda spec: sent.pop(0)}


def attach(*nodes: dict[str, Answer]) -> Outcome:
    return command_line(["attach", "latest"], Scripted(dict(zip("ab", nodes, strict=True))))


def test_who_attaches_as_a_run_begins_follows_all_of_its_nodes() -> None:
    began: Spec = {"about": about(time.time(), nnodes=2)}
    first = node(0, began, follows=[ends(0, b"of a\n")])
    second = node(1, None, None, began, follows=[ends(1, b"of b\n")])
    done = attach(first, second)
    assert (done.code, sorted(done.out.splitlines())) == (0, ["[a:0] of a", "[b:1] of b"]), done


def test_who_looked_on_until_the_leader_was_gone_follows_the_attempt_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have begun some since. The word that was typed may mean another run by then."""
    monkeypatch.setattr("fleet.ops.run.find.attach.MOMENT_SECONDS", 0.0)
    folder = tmp_path / "runs" / RUN
    before, after = ({"about": about(1.0, max_restarts=2, attempt=attempt)} for attempt in (0, 2))
    (tmp_path / "hostfile").write_text("a\n")
    leader, asked = Leader(folder), list[Spec]()
    one = node(0, before, after, follows=[])

    def follow(spec: Spec) -> list[Message]:
        asked.append(spec)
        return ends(0, b"goes on\n")

    def report(spec: Spec) -> Sequence[Message]:
        if not (folder.parent / OTHER).exists():
            threading.Timer(1.0, leader.release).start()
            (folder.parent / "latest").symlink_to(RUN)
            run_folder(folder.parent, OTHER)
        elif (link := folder.parent / "latest").exists():
            link.unlink()
            link.symlink_to(OTHER)
        return known(spec)

    known = one["list_runs"]
    assert callable(known)
    done = command_line(["attach", "latest"], Scripted({"a": {"list_runs": report, "follow": follow}}))
    assert (done.code, [spec["attempt"] for spec in asked]) == (0, [2]), done
    assert (folder / ".attempt").read_text() == "2" and not (folder.parent / OTHER / "a").exists()


def test_of_an_old_run_no_other_node_comes() -> None:
    began: Spec = {"about": about(time.time() - 3600.0, nnodes=2)}
    done = attach(node(0, began, follows=[ends(0, b"of a\n")]), node(1, None, began, follows=[]))
    assert done.out == "[a:0] of a\n" and "1 of its 2 nodes are known here" in done.err, done


def test_who_attaches_waits_for_all_nodes_of_another_attempt() -> None:
    """Its first node begins before the others."""
    before, after = ({"about": about(time.time(), nnodes=2, max_restarts=1, attempt=attempt)} for attempt in (0, 1))
    first = node(0, before, after, follows=[ends(0, b"a fails\n", 7), ends(0, b"a goes on\n", attempt=1)])
    second = node(1, before, before, after, follows=[ends(1, b"b fails\n", 7), ends(1, b"b goes on\n", attempt=1)])
    done = attach(first, second)
    assert done.code == 0 and sorted(done.out.splitlines()) == [
        "[a:0] a fails",
        "[a:0] a goes on",
        "[b:1] b fails",
        "[b:1] b goes on",
    ], done

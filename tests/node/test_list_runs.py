"""What a node tells of its runs, and how one of them is detached from its head."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from fleet.ops.runs.find import read
from fleet.protocol.decode import decode
from fleet.protocol.messages.run import RunsHere
from tests.node.nodes import Running, answer, final, folder_of, ranks_argv, supervise_spec, until

ABOUT = {
    "engine": "command",
    "script": "x.py",
    "owner": "me@head",
    "started": 1.0,
    "nnodes": 1,
    "world_size": 1,
    "master": "10.0.0.1:29500",
    "restarts": False,
}


def runs(home: Path, *, live: bool = True, prefix: str = "") -> list[str]:
    said = decode(RunsHere, answer("run.list_runs", {"prefix": prefix, "live": live}, home))
    return [found["run"] for found in said["runs"]]


def test_live_runs_and_those_that_ended(run: str, home: Path) -> None:
    assert runs(home, live=False) == [], "no folder yet"
    argv = ranks_argv("echo hello; exec sleep 60")
    assert answer("run.supervise", supervise_spec(run, argv, about=ABOUT), home)["event"] == "started"
    until(lambda: "hello" in answer("run.list_runs", {"prefix": run, "live": True}, home)["runs"][0]["last"])
    (found,) = decode(RunsHere, answer("run.list_runs", {"prefix": "", "live": True}, home))["runs"]
    assert (found["about"], found["alive"], found["ended"]) == (ABOUT, True, [])
    assert found["silent"] is not None and found["last"] == "hello"
    assert runs(home, prefix="no") == []
    (folder_of(home, run).parent / "odd").mkdir()
    (folder_of(home, run).parent / "odd/spec.json").write_text("[")
    (folder_of(home, run).parent / "copy").mkdir()  # of a run is none
    shutil.copy(folder_of(home, run) / "spec.json", folder_of(home, run).parent / "copy")
    assert answer("run.stop", {"run": run, "grace": 60.0, "reason": "x"}, home)["left"] == []
    assert (runs(home), runs(home, live=False)) == ([], [run])
    (found,) = decode(RunsHere, answer("run.list_runs", {"prefix": "", "live": False}, home))["runs"]
    assert [end["signal"] for end in found["ended"]] == [15] and not found["alive"]


def test_a_run_whose_head_waits_with_another_attempt(run: str, home: Path) -> None:
    about = {**ABOUT, "max_restarts": 3}
    assert answer("run.supervise", supervise_spec(run, ["false"], about=about), home)["event"] == "started"
    final(home, run)
    pause = {"run": run, "attempt": 1, "ports": [], "pause": 600.0}

    def found() -> dict[str, Any]:
        said = answer("run.list_runs", {"prefix": run, "live": True}, home)["runs"]
        return {"state": said[0]["status"]["state"], "alive": said[0]["alive"]} if said else {}

    assert found() == {}
    with Running("run.ready", pause, home):
        until(lambda: found() == {"state": "restarting", "alive": True})
    until(lambda: found() == {})  # its head is gone
    with Running("run.ready", pause, home) as waiting:
        until(lambda: found() != {})
        assert answer("run.stop", {"run": run, "grace": 1.0, "reason": "x"}, home)["was"] == "gone"
        (said,) = [frame.json() for frame in waiting.frames() if frame.kind == b"J"]
    assert said["forbidden"] and found() == {}


def test_a_detached_run_outlives_its_lease(run: str, home: Path) -> None:
    spec = supervise_spec(run, ranks_argv("sleep 4"), lease=1.0)
    assert answer("run.supervise", spec, home)["event"] == "started"
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        follow.send({"op": "detach"})
        until(lambda: answer("run.list_runs", {"prefix": "", "live": True}, home)["runs"][0]["lease"] is None)
    time.sleep(2)
    assert runs(home) == [run], "nobody renews it, and it needs nobody"
    assert final(home, run)["state"] == "exited"


def test_who_looks_on_renews_nothing_and_what_is_there_now_comes_at_once(run: str, home: Path) -> None:
    spec = supervise_spec(run, ranks_argv("echo hello; sleep 60"), lease=3.0)
    assert answer("run.supervise", spec, home)["event"] == "started"
    until(lambda: (folder_of(home, run) / "rank0.out").exists() and (folder_of(home, run) / "rank0.out").stat().st_size)
    said = answer("run.follow", {"run": run, "offsets": {}, "once": True, "passive": True}, home)
    assert said["event"] == "end" and said["sizes"]["rank0.out"] == 6
    with Running("run.follow", {"run": run, "offsets": {}, "passive": True}, home) as follow:
        while not (folder_of(home, run) / "status.json").read_text().count("lease"):
            follow.send({"op": "ping"})
            time.sleep(0.2)
    assert final(home, run)["cause"] == "lease"


def test_what_is_odd_hides_no_other_run(run: str, home: Path) -> None:
    root = home / ".fleet/runs"
    node = os.uname().nodename
    odd: dict[str, tuple[object, object]] = {
        "a-run": ({"ranks": [0]}, {"state": "exited"}),
        "no-ranks": ({"ranks": 7}, {"state": "exited"}),
        "no-state": ({"ranks": [0]}, {"state": {}}),
        "no-pids": ({"ranks": [0]}, {"state": "exited"}),
        f"shared@{node}": ({"ranks": [1]}, {"state": "exited"}),
    }
    for name, (spec, status) in odd.items():
        (root / name).mkdir(parents=True)
        told = {"run": name.partition("@")[0], "node": node, **dict(spec)}  # type: ignore[call-overload]
        (root / name / "spec.json").write_text(json.dumps(told))
        (root / name / "status.json").write_text(json.dumps(status))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (root / "no-pids/pid").write_text(json.dumps({"boot": boot, "pid": "x", "start": 1, "guardian": 5}))
    said = decode(RunsHere, answer("run.list_runs", {"prefix": "", "live": False}, home))["runs"]
    known, unread = read(said)
    assert [each["run"] for each in known] == ["a-run", "shared"]
    assert sorted(unread) == ["no-pids", "no-ranks", "no-state"]
    assert read([5, {"run": "\x1b[2J"}, {"run": "x" * 999}]) == ([], ["a run"] * 3)

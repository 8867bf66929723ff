"""What a node tells of its runs, and how one of them is detached from its head."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet.codec import Misfit, decode
from fleet.model import Host
from fleet.node.base import run_folder
from fleet.node.gang.ends import stopped_by
from fleet.node.run.start import engine
from fleet.ops.run.find.find import FoundRun, read
from fleet.ops.run.plan.options import new_run_id
from fleet.protocol.messages.run import Followed, Neighbours, RunsHere
from fleet.protocol.state import PROTOCOL
from tests.node.nodes import Running, answer, final, folder_of, marked, ranks_argv, supervise_spec, until

ABOUT = {
    "engine": "command",
    "script": "x.py",
    "owner": "me@head",
    "started": 1.0,
    "nnodes": 1,
    "hosts": {},
    "world_size": 1,
    "master": "10.0.0.1:29500",
    "attempt": 0,
    "max_restarts": 0,
    "spares": 0,
    "stall_timeout": None,
    "least": 0,
    "stop_grace": 30.0,
    "max_log": 0,
}


def runs(home: Path, *, live: bool = True, prefix: str = "") -> list[str]:
    said = decode(RunsHere, answer("run.list_runs", {"prefix": prefix, "live": live}, home))
    return [found["run"] for found in said["runs"]]


def test_live_runs_and_those_that_ended(run: str, home: Path) -> None:
    assert runs(home, live=False) == [], "no folder yet"
    argv = ranks_argv("echo hello; exec sleep 1000")
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
    folder = str(folder_of(home, run))
    until(lambda: not run_folder.live_supervisors(folder))  # its guardian looks around before it ends
    (found,) = decode(RunsHere, answer("run.list_runs", {"prefix": "", "live": False}, home))["runs"]
    assert [end["signal"] for end in found["ended"]] == [15] and not found["alive"], found


def test_ranks_that_live_are_counted_whatever_earlier_ones_left(run: str, home: Path) -> None:
    """An elastic engine has started rank 0 again, and given its number to another one before."""
    argv = ranks_argv(f"until [ -e {home}/go ]; do sleep 0.1; done")
    about = {**ABOUT, "least": 1}
    assert answer("run.supervise", supervise_spec(run, argv, about=about), home)["event"] == "started"
    for rank in (0, 1):
        (folder_of(home, run) / f"rank{rank}.json").write_text(json.dumps({"rank": rank, "status": 1, "attempt": 0}))

    def up() -> int:
        (found,) = decode(RunsHere, answer("run.list_runs", {"prefix": run, "live": False}, home))["runs"]
        shown = FoundRun(run, {"n1": Host("n1", "n1")}, {"n1": found}).seen
        assert shown.ranks_up + shown.ranks_ended == 1 and shown.nodes["n1"].ranks_up == shown.ranks_up
        return int(found["up"])

    until(lambda: up() == 1)
    (home / "go").touch()
    until(lambda: up() == 0)
    final(home, run)


# right behind its look at the status the run ends
ENDS_MEANWHILE = """
import time
from fleet.node.base import run_folder
from fleet.node.run import list_runs
look = run_folder.read_status
def read_status(path):
    status = look(path)
    open(%r, "w").close()
    while run_folder.live_supervisors(path):
        time.sleep(0.02)
    return status
run_folder.read_status = list_runs.read_status = read_status
"""


def test_a_run_that_ends_while_it_is_looked_at_has_not_lost_its_supervisor(run: str, home: Path) -> None:
    argv = ["sh", "-c", f"until [ -e {home}/go ]; do sleep 0.1; done"]
    assert answer("run.supervise", supervise_spec(run, argv, about=ABOUT), home)["event"] == "started"
    for first, state, lives in ((ENDS_MEANWHILE % f"{home}/go", "running", True), ("", "exited", False)):
        (found,) = answer("run.list_runs", {"prefix": run, "live": False}, home, first=first)["runs"]
        assert (found["status"]["state"], found["alive"]) == (state, lives)


def test_of_a_run_of_another_protocol_little_is_read(run: str, home: Path) -> None:
    """It is listed, its logs come, and it is stopped, whatever else its files hold there."""
    argv = ranks_argv("echo hello; exec sleep 1000")
    assert answer("run.supervise", supervise_spec(run, argv, about=ABOUT), home)["event"] == "started"
    until(lambda: "hello" in answer("run.list_runs", {"prefix": run, "live": True}, home)["runs"][0]["last"])
    folder = folder_of(home, run)
    spec = json.loads((folder / "spec.json").read_text())
    (folder / "spec.json").write_text(
        json.dumps({**spec, "protocol": PROTOCOL + 1, "about": {"attempt": 0, "owner": 7}})
    )
    (folder / "status.json").write_text('{"state": "running", "end": [], "began": "at noon"}')
    (folder / "rank7.json").write_text('{"rank": "seven"}')
    (found,) = read(decode(RunsHere, answer("run.list_runs", {"prefix": "", "live": True}, home))["runs"])[0]
    assert (found["protocol"], found["status"], found["last"]) == (PROTOCOL + 1, {"state": "running"}, "hello")
    with Running("run.follow", {"run": run, "offsets": {}, "once": True, "passive": True}, home) as follow:
        frames = list(follow.frames())
    assert b"".join(frame.payload for frame in frames if frame.kind == b"O") == b"hello\n"
    told = [decode(Followed, frame.json()) for frame in frames if frame.kind == b"J"]
    assert not [it for it in told if it["event"] == "rank"] and told[-1]["event"] == "end"
    assert answer("run.stop", {"run": run, "grace": 1.0, "reason": "x"}, home)["was"] == "running"
    assert runs(home) == [] and not marked(run)


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
    with Running("run.ready", {**pause, "pause": 0.0}, home) as waiting:
        said = next(frame.json() for frame in waiting.frames() if frame.kind == b"J")
        assert not said["forbidden"] and found() == {"state": "starting", "alive": True}, "until the attempt begins"
    until(lambda: found() == {})
    with Running("run.ready", pause, home) as waiting:
        until(lambda: found() != {})
        asked = {"run": run, "grace": 1.0, "reason": "stopped by me", "end": stopped_by("me")}
        assert answer("run.stop", asked, home)["was"] == "gone"
        (said,) = [frame.json() for frame in waiting.frames() if frame.kind == b"J"]
    assert said["forbidden"] and found() == {}
    (ended,) = answer("run.list_runs", {"prefix": run, "live": False}, home)["runs"]
    assert (ended["status"]["state"], ended["verdict"]["message"]) == ("exited", "stopped by me")
    late = supervise_spec(run, ["false"], about={**about, "attempt": 1})
    assert answer("run.supervise", late, home)["forbidden"]


# where it is known after each step
STEPS = """
import os
from fleet.node.base import run_folder
rename = os.rename
def step(one, other, **how):
    rename(one, other, **how)
    with open(%r, "a") as steps:
        steps.write("known\\n" if run_folder.run_folder(%r) else "unknown\\n")
os.rename = step
"""
OLD_LIBC = """
import ctypes
ctypes.CDLL = lambda *args, **how: object()
"""


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_run_is_known_at_every_moment_of_a_restart(run: str, home: Path, tmp_path: Path, exchanges: bool) -> None:
    """Also where the one that begins it gets no processor amid its steps."""
    assert answer("run.supervise", supervise_spec(run, ["echo", "first"], about=ABOUT), home)["event"] == "started"
    final(home, run)
    folder, steps = folder_of(home, run), tmp_path / "steps"
    (folder / "checkpoints").mkdir()
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    if exchanges and not engine.exchange(str(tmp_path / "one"), str(tmp_path / "other")):
        pytest.skip("no file system that exchanges names")
    spec = supervise_spec(run, ["true"], about={**ABOUT, "attempt": 1})
    first = STEPS % (str(steps), run) + ("" if exchanges else OLD_LIBC)
    assert answer("run.supervise", spec, home, first=first)["event"] == "started"
    assert final(home, run)["engine_status"] == 0
    assert run_folder.attempt_of(run_folder.read_json(f"{folder}/spec.json")) == 1
    assert (folder / "attempt0/node.log").read_text() == "first\n" and (folder / "checkpoints").is_dir()
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(f".{run}")]
    assert "known" in steps.read_text() and ("unknown" not in steps.read_text() or not exchanges)


def test_a_spare_knows_of_the_run_before_it_takes_part(run: str, home: Path) -> None:
    """It may be the only one who does: the node that it replaces is gone."""
    spec = supervise_spec(run, ["true"], about={**ABOUT, "spares": 1})
    part = {name: spec[name] for name in ("node_rank", "ranks", "cwd", "lease", "grace", "node_timeout", "about")}
    pause = {"run": run, "attempt": 1, "ports": [], "pause": 600.0, "part": {**part, "host": "n9", "devices": None}}
    live = {"prefix": run, "live": True}
    with Running("run.ready", pause, home) as waiting:
        until(lambda: answer("run.list_runs", live, home)["runs"])
        (found,) = decode(RunsHere, answer("run.list_runs", live, home))["runs"]
        assert (found["host"], found["status"]["state"], found["about"]) == ("n9", "restarting", spec["about"])
        assert answer("run.stop", {"run": run, "grace": 1.0, "reason": "stopped by me"}, home)["left"] == []
        (said,) = [frame.json() for frame in waiting.frames() if frame.kind == b"J"]
    assert said["forbidden"] and not answer("run.list_runs", live, home)["runs"]


def test_a_spare_that_stood_by_takes_part(run: str, home: Path) -> None:
    spec = supervise_spec(run, ["true"], about={**ABOUT, "spares": 1})
    part = {name: spec[name] for name in ("node_rank", "ranks", "cwd", "lease", "grace", "node_timeout", "about")}
    ready = {"run": run, "attempt": 1, "ports": [], "part": {**part, "host": "n9", "devices": None}}
    with Running("run.ready", ready, home) as waiting:
        assert not next(frame.json() for frame in waiting.frames() if frame.kind == b"J")["forbidden"]
        later = {**spec, "about": {**ABOUT, "spares": 0, "attempt": 1}}
        assert answer("run.supervise", later, home)["event"] == "started"
    assert final(home, run)["engine_status"] == 0


def test_a_detached_run_outlives_its_lease(run: str, home: Path) -> None:
    """Beyond the lease: test_ending.py."""
    spec = supervise_spec(run, ranks_argv(f"until [ -e {home}/go ]; do sleep 0.1; done"), lease=900.0)
    assert answer("run.supervise", spec, home)["event"] == "started"
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        follow.send({"op": "detach"})
        until(lambda: answer("run.list_runs", {"prefix": "", "live": True}, home)["runs"][0]["lease"] is None)
    assert runs(home) == [run], "nobody renews it, and it needs nobody"
    (home / "go").touch()
    assert final(home, run)["state"] == "exited"


def test_who_looks_on_renews_nothing_and_what_is_there_now_comes_at_once(run: str, home: Path) -> None:
    spec = supervise_spec(run, ranks_argv("echo hello; sleep 1000"), lease=900.0)
    assert answer("run.supervise", spec, home)["event"] == "started"
    until(lambda: (folder_of(home, run) / "rank0.out").exists() and (folder_of(home, run) / "rank0.out").stat().st_size)
    said = answer("run.follow", {"run": run, "offsets": {}, "once": True, "passive": True}, home)
    assert said["event"] == "end" and said["sizes"]["rank0.out"] == 6
    lease = folder_of(home, run) / "lease"
    with Running("run.follow", {"run": run, "offsets": {}, "passive": True}, home) as follow:
        next(follow.frames())
        os.utime(lease, (1, 1))
        follow.send({"op": "ping"})
    assert follow.process.returncode == 0 and lease.stat().st_mtime == 1, "it has read all that it was sent"
    answer("run.stop", {"run": run, "grace": 0.0, "reason": "over"}, home)


def test_what_is_odd_hides_no_other_run(run: str, home: Path) -> None:
    root = home / ".fleet/runs"
    node = os.uname().nodename
    odd: dict[str, tuple[object, object]] = {
        an_id("a-run"): ({"ranks": [0]}, {"state": "exited"}),
        an_id("no-ranks"): ({"ranks": 7}, {"state": "exited"}),
        an_id("no-state"): ({"ranks": [0]}, {"state": {}}),
        an_id("no-pids"): ({"ranks": [0]}, {"state": "exited"}),
        f"{an_id('shared')}@{node}": ({"ranks": [1]}, {"state": "exited"}),
    }
    for name, (spec, status) in odd.items():
        (root / name).mkdir(parents=True)
        told = {"run": name.partition("@")[0], "node": node, **dict(spec)}  # type: ignore[call-overload]
        (root / name / "spec.json").write_text(json.dumps(told))
        (root / name / "status.json").write_text(json.dumps(status))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (root / an_id("no-pids") / "pid").write_text(json.dumps({"boot": boot, "pid": "x", "start": 1, "guardian": 5}))
    said = decode(RunsHere, answer("run.list_runs", {"prefix": "", "live": False}, home))["runs"]
    known, unread = read(said)
    assert [each["run"] for each in known] == [an_id("a-run"), an_id("shared")]
    assert sorted(unread) == [an_id("no-pids"), an_id("no-ranks"), an_id("no-state")]
    for name in ("notes", "latest", ".lock", "attempt0"):  # a folder that fleet did not make is no run
        shutil.copytree(root / an_id("a-run"), root / name)
        (root / name / "spec.json").write_text(json.dumps({"run": name, "node": node, "ranks": [0]}))
    assert answer("run.list_runs", {"prefix": "", "live": False}, home)["runs"] == said


@pytest.mark.parametrize("live", [True, False])
def test_a_run_that_a_reboot_ended_is_still_known(live: bool, home: Path) -> None:
    """Its last status is of before: that says running for ever."""
    folder = home / ".fleet/runs" / an_id("rebooted")
    folder.mkdir(parents=True)
    spec = {"run": folder.name, "node": os.uname().nodename, "protocol": PROTOCOL, "ranks": [0], "host": "n1"}
    (folder / "spec.json").write_text(json.dumps({**spec, "about": ABOUT}))
    (folder / "status.json").write_text('{"state": "running", "time": 1.0}')
    (folder / "pid").write_text('{"boot": "an earlier one", "pid": 1, "start": 1}')
    (found,) = read(decode(RunsHere, answer("run.list_runs", {"prefix": "", "live": live}, home))["runs"])[0]
    assert (found["status"]["state"], found["status"]["cause"], found["alive"]) == ("lost", "reboot", False)


def test_a_run_that_left_nothing_behind_shares_nothing_with_another(home: Path) -> None:
    """Its supervisor is gone, and could not write how it ended; or the node was restarted."""
    folder = home / ".fleet/runs" / an_id("left")
    folder.mkdir(parents=True)
    spec = {"run": folder.name, "node": os.uname().nodename, "protocol": PROTOCOL, "ranks": [0], "host": "n1"}
    (folder / "spec.json").write_text(json.dumps({**spec, "about": ABOUT}))
    (folder / "status.json").write_text('{"state": "running", "time": 1.0}')
    asked = {"run": None, "devices": None}
    assert decode(Neighbours, answer("run.neighbours", asked, home))["runs"] == []
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, "FLEET_RUN_ID": folder.name}) as rank:
        try:
            found = decode(Neighbours, answer("run.neighbours", asked, home))["runs"]
        finally:
            rank.kill()
    assert [it["run"] for it in found] == [folder.name]


@pytest.mark.parametrize(
    "word",
    [5, "", "x", "latest", "../x", ".lock", "attempt0", "\x1b[2J", "x" * 999, "a\nb-20260101-000000-0000"]
    + ["../x-20260101-000000-0000", "-x-20260101-000000-0000", "x-20260101-000000-000G", "x-2026010\u0661-000000-0000"]
    + ["x-20260101-000000-0000\n", ".x-20260101-000000-0000", "-20260101-000000-0000", "x-20260101-000000-0000@n"],
)
def test_what_is_no_runs_id_is_no_message(word: object) -> None:
    """An id is a name of a folder on the head, and what users type means one: "latest" is no id."""
    with pytest.raises(Misfit):
        decode(RunsHere, {"event": "runs", "runs": [{"run": an_id("x")}, {"run": word}]})
    with pytest.raises(Misfit):
        decode(Neighbours, {"event": "neighbours", "runs": [{"run": word, "about": None, "devices": None}]})
    with pytest.raises(ValueError, match="not a run id"):
        run_folder.run_names(str(word))
    made = new_run_id(str(word), str(word))
    assert run_folder.run_names(made)[0] == made, "what fleet itself makes of any name is one"


def an_id(name: str) -> str:
    return f"{name}-20260101-000000-0000"

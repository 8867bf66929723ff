"""A run's supervisor on its node: what it starts, what ends it, and that nothing of the run is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from fleet.node.base import processes, run_folder
from fleet.node.gang.timed_out import HOLD_SECONDS
from fleet.node.run.supervise import prune_runs
from fleet.ops.sessions import START
from fleet.protocol import files
from tests.node.nodes import (
    PYTHON,
    Running,
    alive,
    another,
    answer,
    final,
    folder_of,
    marked,
    ranks_argv,
    read_json,
    supervise_spec,
    until,
)

STUBBORN = "trap '' TERM; echo $$ > $PIDS/stubborn; sleep 1000 & while :; do sleep 0.2; done"


def start(home: Path, run: str, argv: list[object], **changes: object) -> dict[str, object]:
    said = answer("run.supervise", supervise_spec(run, argv, **changes), home)
    assert said["event"] == "started", said
    return said


def owners(home: Path, run: str) -> tuple[int, int]:
    record = read_json(folder_of(home, run) / "pid")
    return record["pid"], record["guardian"]["pid"]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_exit_status_of_the_engine_and_output(home: Path, run: str) -> None:
    start(home, run, ["sh", "-c", r"printf 'a\r\377b'; echo e >&2; exit 3"])
    status = final(home, run)
    assert (status["state"], status["engine_status"], status["signal"], status["left"]) == ("exited", 3, None, [])
    assert (folder_of(home, run) / "node.log").read_bytes() == b"a\r\xffbe\n"


def test_a_signal_that_ended_the_engine(home: Path, run: str) -> None:
    start(home, run, ["sh", "-c", "kill -9 $$"])
    status = final(home, run)
    assert (status["state"], status["engine_status"], status["signal"]) == ("exited", None, 9)


NASTY = ["it's", '72" tall', "$(id)", "a\nb", "*", "%n", "", "é\udcff", "x" * 100_000]


@pytest.mark.parametrize("activate", [None, "true"])
def test_argv_and_env_arrive_byte_for_byte(home: Path, run: str, activate: str | None) -> None:
    code = "import os,sys;sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode,[*sys.argv[1:],os.environ['V']])))"
    start(home, run, ["/usr/bin/env", "python3", "-c", code, *NASTY], env={"V": NASTY[2]}, activate=activate)
    final(home, run)
    said = (folder_of(home, run) / "node.log").read_bytes()
    assert said == b"\0".join(item.encode("utf-8", "surrogateescape") for item in [*NASTY, NASTY[2]])


def test_env_expand_cwd_and_activate(home: Path, run: str) -> None:
    (home / "work").mkdir()
    start(
        home,
        run,
        ["sh", "-c", "echo $A $B $C; pwd; umask"],
        env={"A": "$HOME"},
        cwd="~/work",
        env_expand={"B": "${HOME}/x:$NOT_THERE", "C": "~/y"},
        activate="export A=active",
    )
    final(home, run)
    lines = (folder_of(home, run) / "node.log").read_text().splitlines()
    assert lines[:2] == [f"active {home}/x: {home}/y", f"{home}/work"]
    assert int(lines[2], 8) == os.umask(os.umask(0o22)), "the run's own files have the user's umask"


def test_the_working_folder_is_pwd_and_python_does_not_hold_lines_back(home: Path, run: str) -> None:
    """By its names, as a shell's cd has it; what the user sets stays."""
    (home / "real/work").mkdir(parents=True)
    (home / "link").symlink_to(home / "real")
    show = ["env"]
    start(home, run, show, cwd="~/link/../link/work/", env_expand={"OUT": "$PWD/out"})
    final(home, run)
    lines = (folder_of(home, run) / "node.log").read_text().splitlines()
    assert {f"PWD={home}/link/work", f"OUT={home}/link/work/out", "PYTHONUNBUFFERED=1"} <= set(lines)
    other = another(run)
    start(home, other, show, cwd="link/work", env={"PYTHONUNBUFFERED": "", "PWD": "mine"})
    final(home, other)
    lines = (folder_of(home, other) / "node.log").read_text().splitlines()
    assert {"PWD=mine", "PYTHONUNBUFFERED="} <= set(lines)


def test_the_folder_holds_what_is_told_of_it(home: Path, run: str) -> None:
    start(home, run, ranks_argv("echo x", "true"))
    final(home, run)
    told = {name.replace("<R>", rank) for names, _ in files.OF_A_RUN for name in names.split(", ") for rank in "01"}
    # .new: the space that the last status was to take
    held = {path.name for path in folder_of(home, run).iterdir() if path.suffix not in (".new", ".tmp")}
    assert {"rank1.out", "rank0.err", "rank1.json", "spec.json", "lease", "node.log"} <= held <= told


def test_the_folder_is_private_and_holds_no_values_of_variables(home: Path, run: str) -> None:
    start(home, run, ["true"], env={"TOKEN": "s3cret-value"}, env_expand={"OTHER": "s3cret-value"})
    final(home, run)
    folder = folder_of(home, run)
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
        assert b"s3cret" not in path.read_bytes(), path
    assert read_json(folder / "spec.json")["env"] == ["TOKEN"]


def test_what_cannot_be_started_says_why(home: Path, run: str) -> None:
    said = answer("run.supervise", supervise_spec(run, ["no-such-engine"]), home)
    assert said["event"] == "failed" and "no-such-engine" in said["message"] and said["hint"]
    assert final(home, run)["state"] == "stopped"
    said = answer("run.supervise", supervise_spec(another(run), ["true"], cwd="/no/such"), home)
    assert said["event"] == "failed" and "/no/such" in said["message"] and "--sync" in said["hint"]
    said = answer("run.supervise", supervise_spec("../evil", ["true"]), home)
    assert said["event"] == "failed" and "not a run id" in said["message"]
    assert not [p for p in (home / ".fleet/runs").iterdir() if p.name.startswith(".")]


def test_a_run_id_is_used_once(home: Path, run: str) -> None:
    start(home, run, ["sleep", "1000"])
    said = answer("run.supervise", supervise_spec(run, ["true"]), home)
    assert said["event"] == "failed" and "exists already" in said["message"]
    assert marked(run), "the first one goes on"


def test_nodes_that_share_a_home_folder_do_not_collide(home: Path, run: str) -> None:
    start(home, run, ["sleep", "0.1"])
    final(home, run)
    spec = folder_of(home, run) / "spec.json"
    spec.write_text(json.dumps({**read_json(spec), "node": "another-node"}))
    start(home, run, ["sleep", "1000"])
    mine = f"{run}@{os.uname().nodename}"
    assert read_json(folder_of(home, mine) / "status.json")["state"] == "running"
    assert answer("run.stop", {"run": run, "grace": 1, "reason": "test"}, home)["was"] == "running"
    assert not marked(run)


def test_neither_supervisor_nor_foreground_carries_the_mark(home: Path, run: str) -> None:
    start(home, run, ["sleep", "1000"])
    assert len(marked(run)) == 1
    assert not set(owners(home, run)) & set(marked(run))


def test_it_outlives_its_session(home: Path, run: str) -> None:
    start(home, run, ["sleep", "1000"])
    for pid, own_pipes in zip(owners(home, run), (1, 0), strict=True):

        def pipes(of: int = pid) -> set[str]:
            found = set()
            for link in Path(f"/proc/{of}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # it looks at files, and closes them
                    found.add(os.readlink(link))
            return found - {"/dev/null", "/dev/kmsg"}

        until(lambda wanted=own_pipes, open_=pipes: len(open_()) == wanted)  # it answers, then it closes that pipe
        os.kill(pid, signal.SIGHUP)
        assert os.getsid(pid) != os.getsid(0)
    os.kill(owners(home, run)[0], signal.SIGKILL)
    status = final(home, run)
    assert status["state"] == "lost", "the guardian lives"
    assert "signal 9" in status["reason"], "and so did the supervisor"


def test_signals_for_ranks_are_passed_on(home: Path, run: str) -> None:
    """The supervisor's and the guardian's, past a launcher that takes no notice; the run goes on."""
    rank = "trap 'echo got >> $PIDS/got' USR1; echo > $PIDS/up; until [ -e $PIDS/go ]; do sleep 0.1; done"
    start(home, run, ranks_argv(rank), env={"PIDS": str(home)}, grace=900.0)
    until((home / "up").exists)
    for number, owner in enumerate(owners(home, run), 1):
        os.kill(owner, signal.SIGUSR1)
        until(lambda got="got\n" * number: (home / "got").exists() and (home / "got").read_text() == got)
    (home / "go").touch()
    status = final(home, run)
    assert (status["state"], status["engine_status"], status["left"]) == ("exited", 0, [])


# -- stopping -----------------------------------------------------------------------------------------------
def test_term_reaches_each_process_once(home: Path, run: str) -> None:
    """The grace: test_ending.py."""
    rank = "trap 'echo got >> $PIDS/got' TERM; echo > $PIDS/up; until [ -e $PIDS/go ]; do sleep 0.1; done"
    start(home, run, ranks_argv(rank), env={"PIDS": str(home)}, grace=900.0)
    until((home / "up").exists)
    os.kill(owners(home, run)[0], signal.SIGTERM)
    until((home / "got").exists)
    (home / "go").touch()
    status = final(home, run)
    assert (status["state"], status["left"], status["cause"]) == ("stopped", [], "signal")
    assert (home / "got").read_text() == "got\n", "one TERM is one TERM, whatever it went through"
    assert not marked(run)


def test_what_a_rank_starts_to_save_its_work_has_the_whole_grace(home: Path, run: str) -> None:
    saves = "trap 'sh -c \"sleep 0.5; touch ~/saved\"; exit 0' TERM; touch ~/up; while :; do sleep 0.05; done"
    start(home, run, ranks_argv(saves), grace=100.0)
    until((home / "up").exists)
    answer("run.stop", {"run": run, "grace": 100.0, "reason": "asked"}, home)
    assert (home / "saved").exists() and not marked(run)
    assert read_json(folder_of(home, run) / "rank0.json")["status"] == 0


def test_a_second_request_hurries(home: Path, run: str) -> None:
    start(home, run, ["sh", "-c", STUBBORN], env={"PIDS": str(home)}, grace=900.0)
    until((home / "stubborn").exists)
    stop = folder_of(home, run) / "stop"
    for grace in (900, 0):
        (home / "new").write_text(json.dumps({"grace": grace, "reason": "asked"}))
        (home / "new").rename(stop)
        until(lambda: read_json(stop.with_name("status.json"))["state"] != "running")
    status = final(home, run)
    assert (status["state"], status["reason"], status["left"]) == ("stopped", "asked", [])


def test_a_daemon_of_a_rank_is_ended_with_the_run(home: Path, run: str) -> None:
    daemon = "setsid sh -c 'trap \"\" TERM; echo $$ > $PIDS/daemon; exec sleep 1000' & "
    daemon += "until [ -s $PIDS/daemon ]; do sleep 0.05; done; exit 4"
    start(home, run, ranks_argv(daemon), env={"PIDS": str(home)})
    assert final(home, run)["engine_status"] == 4
    assert not alive(int((home / "daemon").read_text()))


def test_a_daemon_that_cleared_its_environment_is_ended_too(home: Path, run: str) -> None:
    hidden = f"setsid env -i sh -c 'trap \"\" TERM; echo $$ > {home}/hidden; while :; do sleep 1; done' & "
    start(home, run, ranks_argv(hidden + f"until [ -s {home}/hidden ]; do sleep 0.05; done"))
    assert final(home, run)["left"] == []
    assert not alive(int((home / "hidden").read_text()))


UP = 'until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.01; done'


@pytest.mark.parametrize(
    ("rank", "named"),
    [
        (["sh", "-c", f"sleep 4711 & {UP}; sleep 4712 & {UP}; exit 0"], ["sleep 4711", "sleep 4712"]),
        (["sh", "-c", "(sleep 0.1) & exit 0"], []),  # it ends by itself
        (["sh", "-c", "setsid sleep 4711 & exit 0"], []),  # a daemon
        (["sh", "-c", "sleep 4711 & exit 3"], []),  # which is what there is to be said of it
        ([PYTHON, "-c", "import subprocess; subprocess.Popen(['sleep', '4711'])"], []),
    ],
)
def test_what_a_script_leaves_in_its_background_is_named(
    home: Path, run: str, rank: list[str], named: list[str]
) -> None:
    argv = ["env", "RANK=0", "LOCAL_RANK=0", {"python": True}, {"run_dir": "rank.py"}, *rank]
    start(home, run, argv, grace=9.0)
    status = final(home, run)
    assert sorted(line for behind in status["behind"] for line in behind["commands"]) == named
    assert not named or [(behind["rank"], behind["count"]) for behind in status["behind"]] == [(0, 2)]
    assert not marked(run)


def test_it_is_named_too_where_no_time_is_left_to_ask_it(home: Path, run: str) -> None:
    rank = ["sh", "-c", "sleep 4711 & exit 0"]
    start(home, run, ["env", "RANK=0", "LOCAL_RANK=0", {"python": True}, {"run_dir": "rank.py"}, *rank], grace=0.0)
    assert [behind["count"] for behind in final(home, run)["behind"]] == [1]


def test_two_runs_never_touch_each_other(home: Path, run: str) -> None:
    other = run[:-1] + "1"
    start(home, run, ["sh", "-c", STUBBORN], env={"PIDS": str(home)}, grace=0.3)
    start(home, other, ["sleep", "1000"])
    try:
        until((home / "stubborn").exists)
        assert answer("run.stop", {"run": run, "grace": 0.3, "reason": "x"}, home) == {
            "event": "stopped",
            "left": [],
            "was": "running",
        }
        assert len(marked(other)) == 1 and not marked(run)
        assert read_json(folder_of(home, other) / "status.json")["state"] == "running"
    finally:
        answer("run.stop", {"run": other, "grace": 0, "reason": "x"}, home)
    assert not marked(other)


def test_lease(home: Path, run: str) -> None:
    """When it holds: test_ending.py."""
    start(home, run, ["sleep", "1000"], lease=0.5, node_timeout=900.0)
    status = final(home, run)
    assert (status["state"], status["cause"]) == ("stopped", "lease")
    assert not marked(run)


def test_who_follows_renews_the_lease(home: Path, run: str) -> None:
    start(home, run, ["sleep", "1000"], lease=900.0)
    lease = folder_of(home, run) / "lease"
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        os.utime(lease, (1, 1))
        follow.send({"op": "ping"})
        until(lambda: lease.stat().st_mtime > 1)


def test_what_started_it_follows_it(home: Path, run: str) -> None:
    with Running(START, supervise_spec(run, ["sh", "-c", "echo hello"]), home) as node:
        assert [frame.json()["event"] for frame in node.frames() if frame.kind == b"J"] == ["started"]
        node.send({"run": run, "offsets": {}})
        said = list(node.frames())
        assert b"hello\n" in [frame.payload for frame in said if frame.kind == b"O"], said
        assert said[-2].json() == {"event": "end", "sizes": {"node.log": 6}}, said
    with Running(START, supervise_spec(another(run), ["true"]), home) as node:
        assert len(list(node.frames())) == 2
        folder = folder_of(home, another(run))
        until(lambda: read_json(folder / "status.json")["state"] == "exited")
        # its guardian has no parent that waits for it
        until(lambda: subprocess.run(["pgrep", "-P", str(node.process.pid)], capture_output=True).returncode == 1)
        node.process.stdin.close()
        assert node.process.wait(60) == 0, "nothing is to be followed"


# -- what is killed -----------------------------------------------------------------------------------------
def test_killed_supervisor_the_guardian_ends_the_run(home: Path, run: str) -> None:
    start(home, run, ranks_argv(STUBBORN), env={"PIDS": str(home)}, grace=0.5)
    until((home / "stubborn").exists)
    os.kill(owners(home, run)[0], signal.SIGKILL)
    status = final(home, run)
    assert status["state"] == "lost" and "signal 9" in status["reason"] and status["left"] == []
    assert not marked(run)


def test_a_supervisor_that_is_killed_while_it_ends_its_part_leaves_why(home: Path, run: str) -> None:
    start(home, run, ranks_argv(STUBBORN), env={"PIDS": str(home)}, grace=900.0)
    until((home / "stubborn").exists)
    supervisor, _ = owners(home, run)
    os.kill(supervisor, signal.SIGTERM)
    path = folder_of(home, run) / "status.json"
    stopping = until(lambda: path.exists() and (found := read_json(path))["state"] == "stopping" and found)
    os.kill(supervisor, signal.SIGKILL)
    for pid in marked(run):
        os.kill(pid, signal.SIGKILL)
    status = final(home, run)
    assert (status["state"], status["cause"], status["began"]) == ("lost", "signal", stopping["began"])


@pytest.mark.parametrize("wrote", ["ValueError: x", "Timed out waiting 1ms for recv operation to complete"])
def test_ranks_of_a_node_live_until_it_is_known_where_they_are_after_a_time_out(
    home: Path, run: str, wrote: str
) -> None:
    late = "trap 'touch ~/told; exit 1' TERM; touch ~/up; while :; do sleep 0.05; done"
    start(home, run, ranks_argv(f"until [ -e ~/up ]; do sleep 0.05; done; echo '{wrote}' >&2; exit 1", late))
    until((folder_of(home, run) / "rank0.json").exists)
    if wrote.startswith("Timed"):
        time.sleep(1.0)
        assert not (home / "told").exists()
        run_folder.request_stop(str(folder_of(home, run)), 9.0, "rank 0 failed")
    assert final(home, run)["engine_status"] is not None
    assert (home / "told").exists() and not marked(run)


def test_a_time_out_of_an_earlier_attempt_holds_nothing(home: Path, run: str) -> None:
    """As under an engine that starts ranks again: their logs go on."""
    late = "trap 'touch ~/told; exit 1' TERM; touch ~/up; while :; do sleep 0.05; done"
    plain = "until [ -e ~/up ]; do sleep 0.05; done; echo 'ValueError: x' >&2; exit 1"
    before = 'echo Timed out waiting 1ms for recv operation to complete > $FLEET_RUN_DIR/rank0.err; exec "$@"'
    start(home, run, ["sh", "-c", before, "sh", *ranks_argv(plain, late)])
    began = final(home, run)["began"]
    ended = read_json(folder_of(home, run) / "rank0.json")
    assert ended["begins"][1] > 0 and began - ended["time"] < HOLD_SECONDS and (home / "told").exists()


# As the supervisor looks for a stop request, that comes, and the engine was killed just before it.
KILLED_BEFORE = """
import os, signal
from fleet.node.base.run_folder import request_stop
from fleet.node.run.start.supervisor import Supervisor
look = Supervisor.look
def at_once(self):
    if self.ended is None and os.path.exists(os.path.expanduser("~/stubborn")):
        os.kill(self.engine, signal.SIGKILL)
        os.waitid(os.P_PID, self.engine, os.WEXITED | os.WNOWAIT)
        request_stop(self.folder, 0.0, "rank 0 failed")
    look(self)
Supervisor.look = at_once
"""


def test_an_engine_that_was_killed_was_not_stopped_though_both_are_seen_at_once(home: Path, run: str) -> None:
    spec = supervise_spec(run, ranks_argv(STUBBORN), env={"PIDS": str(home)})
    assert answer("run.supervise", spec, home, first=KILLED_BEFORE)["event"] == "started"
    status = final(home, run)
    assert (status["state"], status["signal"], status["cause"]) == ("exited", 9, "engine")


def test_a_guardian_that_ends_the_run_is_not_ended_itself(home: Path, run: str) -> None:
    """A stop on a full disk is a signal to whoever keeps the run."""
    rank = "trap 'touch ~/told' TERM; touch ~/up; until [ -e ~/go ]; do sleep 0.05; done"
    start(home, run, ranks_argv(rank), grace=900.0)
    until((home / "up").exists)
    supervisor, guardian = owners(home, run)
    os.kill(supervisor, signal.SIGKILL)
    until((home / "told").exists)
    os.kill(guardian, signal.SIGTERM)
    (home / "go").touch()
    assert final(home, run)["state"] == "lost"
    assert not marked(run)


def test_killed_guardian_the_supervisor_goes_on(home: Path, run: str) -> None:
    start(home, run, ["sh", "-c", "until [ -e ~/go ]; do sleep 0.05; done; exit 5"])
    os.kill(owners(home, run)[1], signal.SIGKILL)
    (home / "go").touch()
    assert final(home, run)["engine_status"] == 5


def test_both_killed_the_engine_hears_of_it(home: Path, run: str) -> None:
    start(home, run, ["sleep", "1000"])
    for pid in reversed(owners(home, run)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not marked(run))


def test_killed_engine_its_ranks_are_ended(home: Path, run: str) -> None:
    """On a busy node: test_ending.py."""
    start(home, run, ranks_argv(STUBBORN), env={"PIDS": str(home)})
    until((home / "stubborn").exists)
    until(lambda: (home / "stubborn").read_text().endswith("\n"))
    wrapper = parent(int((home / "stubborn").read_text()))
    os.kill(parent(wrapper), signal.SIGKILL)
    status = final(home, run)
    assert (status["state"], status["signal"], status["left"]) == ("exited", 9, [])
    assert not alive(int((home / "stubborn").read_text()))
    assert read_json(folder_of(home, run) / "rank0.json")["signal"] == 9, "killed, and on record as such"


def test_ended_runs_are_kept_up_to_a_number_and_a_size(home: Path, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never one that lives, one of another node, or one that ended just now."""
    start(home, run, ["sleep", "1000"])
    runs = home / ".fleet/runs"
    node = os.uname().nodename
    for number in range(23):
        old = runs / f"old-{number:02}"
        old.mkdir()
        (old / "spec.json").write_text(json.dumps({"node": "elsewhere" if number == 0 else node}))
        (old / "status.json").write_text(json.dumps({"state": "running" if number == 1 else "exited", "left": []}))
        (old / "rank0.out").write_text("x")
        ended = time.time() - 9999 + number
        os.utime(old / "status.json", (ended, ended))
    large = runs / "old-20/rank0.out"
    with large.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    start(home, another(run), ["true"])
    final(home, another(run))
    until(lambda: not (runs / "old-02").exists())
    kept = {path.name for path in runs.iterdir()}
    assert {run, another(run), "old-00", "old-01"} <= kept and "old-03" not in kept and "old-04" in kept
    assert len(kept) == 1 + 2 + 20, "the live one, another node's, one whose end is not known, 20 that ended"
    monkeypatch.setenv("HOME", str(home))
    prune_runs(20, 1 << 20)
    kept = {path.name for path in runs.iterdir()}
    assert {"old-21", "old-22", run, another(run), "old-00", "old-01"} == kept
    for folder, days in ((runs / "old-21", 29), (runs / "old-22", 31)):
        os.utime(folder / "status.json", (time.time() - days * 86400,) * 2)
    prune_runs()
    assert {path.name for path in runs.iterdir()} == kept - {"old-22"}
    answer("run.stop", {"run": run, "grace": 0}, home)


def test_a_container_that_a_restart_of_the_node_has_cut_short_is_removed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    podman = home / "podman"
    podman.write_text(f'#!/bin/sh\necho "$@" >> {home}/typed\n')
    podman.chmod(0o755)
    for name, boot, state in (
        ("cut-20260101-000000-abcd", "other", "running"),
        ("lives-20260101-000000-abcd", processes.boot_id(), "running"),
        ("over-20260101-000000-abcd", "other", "exited"),
    ):
        folder = home / ".fleet/runs" / name
        folder.mkdir(parents=True)
        container = {"runtime": "podman", "path": str(podman), "image": "train:1"}
        (folder / "spec.json").write_text(
            json.dumps({"node": os.uname().nodename, "run": name, "container": container})
        )
        (folder / "status.json").write_text(json.dumps({"state": state, "left": []}))
        (folder / "pid").write_text(json.dumps({"pid": 1 << 22, "start": 1, "boot": boot}))
    prune_runs()
    assert (home / "typed").read_text() == f"rm --force --time=0 fleet-cut-20260101-000000-abcd-{run_folder.NODE}\n"


def test_a_run_whose_head_waits_with_another_attempt_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    for name in ("waits", "over"):
        folder = home / ".fleet/runs" / name
        folder.mkdir(parents=True)
        (folder / "spec.json").write_text(json.dumps({"node": os.uname().nodename}))
        (folder / "status.json").write_text(json.dumps({"state": "exited", "left": []}))
    waiting = {**processes.identity(os.getpid()), "boot": processes.boot_id(), "state": "restarting"}
    (home / ".fleet/runs/waits/next").write_text(json.dumps(waiting))
    prune_runs(0)
    assert [path.name for path in (home / ".fleet/runs").iterdir()] == ["waits"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_said_and_the_end_is_on_record(tmp_path: Path, run: str) -> None:
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(home)], check=True)
    try:
        start(home, run, ranks_argv("head -c 1000000 /dev/zero; head -c 1000000 /dev/zero; exit 7"))
        status = final(home, run)
        assert (status["engine_status"], status["disk_full"]) == (7, True)
        assert read_json(folder_of(home, run) / "rank0.json")["status"] == 7
        said = answer("run.supervise", supervise_spec(another(run), ["true"]), home)
        assert said["event"] == "failed" and "No space left" in said["message"] and "disk full" in said["hint"]
        assert [p.name for p in (home / ".fleet/runs").iterdir()] == [run]
        with Running("run.follow", {"run": run, "offsets": {"rank0.out": 1}}, home) as follow:
            last = [frame.json() for frame in follow.frames() if frame.kind == b"J"][-1]
        assert last["sizes"]["rank0.out"] == (folder_of(home, run) / "rank0.out").stat().st_size > 1000
    finally:  # a guardian looks around there before it ends
        until(lambda: subprocess.run(["umount", str(home)], check=False).returncode == 0)

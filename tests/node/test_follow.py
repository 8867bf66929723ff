"""Following a run: every byte once, whatever is killed; ranks' ends; stop requests; a supervisor that is gone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.node.base.processes import forked, rank_wrappers
from fleet.node.gang.ends import run_end
from fleet.node.run.follow import Follower
from fleet.protocol.state import PROTOCOL
from tests.node.nodes import Running, answer, final, folder_of, marked, ranks_argv, read_json, supervise_spec, until

# 100,000 lines with \r, bytes that are no UTF-8, and a last line without its newline
WRITER = r"""
import os, sys
out, err, rank = sys.stdout.buffer, sys.stderr.buffer, os.environ["RANK"].encode()
for n in range(100000):
    out.write(b"rank %s step %d \r %d%%\xff\xc3(\n" % (rank, n, n // 1000))
    if n % 100 == 0:
        err.write(b"\r%d it/s" % n)
        err.flush()
out.write(b"rank %s: the end \xe2\x82" % rank)
"""


class Copy:
    """What a head holds of a run's files."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.messages: list[dict[str, Any]] = []

    def offsets(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    def follow(self, run: str, home: Path, kill_after: int | None = None) -> None:
        """Follow to the end, or kill it after so many bytes."""
        streams: dict[int, str] = {}
        taken = 0
        with Running("run.follow", {"run": run, "offsets": self.offsets()}, home) as follow:
            for frame in follow.frames():
                if frame.kind == b"O":
                    self.files[streams[frame.stream]] += frame.payload
                    assert len(frame.payload) <= 65536
                    taken += len(frame.payload)
                    if kill_after is not None and taken >= kill_after:
                        follow.process.kill()
                        return
                elif frame.kind == b"J":
                    message = frame.json()
                    self.messages.append(message)
                    if message["event"] == "stream":
                        streams[message["id"]] = message["name"]
                        held = self.files.setdefault(message["name"], bytearray())
                        assert message["offset"] == len(held)

    def named(self, event: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["event"] == event]


def start(home: Path, run: str, argv: list[Any], **changes: Any) -> None:
    assert answer("run.supervise", supervise_spec(run, argv, **changes), home)["event"] == "started"


def test_every_byte_of_8_ranks_across_follows_that_are_killed(home: Path, run: str) -> None:
    (home / "writer.py").write_text(WRITER)
    start(home, run, ranks_argv(*["exec python3 ~/writer.py"] * 8))
    copy = Copy()
    for size in (1, 100_000, 3_000_000, 5_000_000):
        copy.follow(run, home, kill_after=size)
    copy.follow(run, home)
    folder = folder_of(home, run)
    expected = sorted(["node.log", *(f"rank{n}.{end}" for n in range(8) for end in ("out", "err"))])
    assert sorted(copy.files) == expected
    for name, data in copy.files.items():
        assert hashlib.sha256(data).digest() == hashlib.sha256((folder / name).read_bytes()).digest(), name
    for n in range(8):
        assert copy.files[f"rank{n}.out"].count(b"\n") == 100_000
        assert copy.files[f"rank{n}.out"].endswith(b"rank %d: the end \xe2\x82" % n)
    assert copy.named("end")[0]["sizes"] == {name: (folder / name).stat().st_size for name in expected}
    assert copy.named("status")[-1]["state"] == "exited"
    assert {message["rank"] for message in copy.named("rank")} == set(range(8))


def test_after_the_end_it_is_all_there_at_once(home: Path, run: str) -> None:
    start(home, run, ranks_argv("echo out; exit 3"))
    final(home, run)
    copy = Copy()
    copy.follow(run, home)
    assert bytes(copy.files["rank0.out"]) == b"out\n"
    assert (copy.named("rank")[0]["status"], copy.named("status")[-1]["engine_status"]) == (3, 3)


def test_offsets_that_make_no_sense(home: Path, run: str) -> None:
    start(home, run, ["echo", "hello"])
    final(home, run)
    for given, expected in ((999, 6), (-1, 0), ("x", 0), (None, 0), (2, 2)):
        with Running("run.follow", {"run": run, "offsets": {"node.log": given}}, home) as follow:
            said = [frame.json() for frame in follow.frames() if frame.kind == b"J"]
        assert [m["offset"] for m in said if m["event"] == "stream"] == [expected]


def test_a_node_tells_its_clock_again_and_again(home: Path, run: str) -> None:
    before = time.time()
    start(home, run, ["sleep", "1000"])
    sent: list[float] = []
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        for frame in follow.frames():
            message = frame.json() if frame.kind == b"J" else {}
            if message.get("event") == "clock":
                sent.append(message["sent"])
                if len(sent) == 3:
                    follow.send({"op": "stop", "grace": 1, "reason": "enough"})
    assert len(sent) >= 3 and before <= sent[0] <= sent[-1] <= time.time()


def test_of_an_elastic_run_a_node_reports_how_many_ranks_live(home: Path, run: str) -> None:
    argv = ranks_argv(f"until [ -e {home}/go ]; do sleep 0.1; done")
    about = {"engine": "torchrun", "least": 1}
    assert answer("run.supervise", supervise_spec(run, argv, about=about), home)["event"] == "started"
    reports: list[int] = []
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        for frame in follow.frames():
            message = frame.json() if frame.kind == b"J" else {}
            if message.get("event") == "clock":
                reports.append(message["up"])
                if reports[-1] == 1:
                    follow.send({"op": "stop", "grace": 1, "reason": "enough"})
    assert 1 in reports and set(reports) <= {0, 1}


def test_who_looks_on_waits_for_the_verdict_and_the_first_one_stays(home: Path, run: str) -> None:
    start(home, run, ["true"])
    final(home, run)
    with Running("run.follow", {"run": run, "offsets": {}, "waits": True}, home) as follow:
        frames = follow.frames()
        told = [next(frame.json() for frame in frames if frame.kind == b"J" and frame.json()["event"] == "status")]
        for code in (3, 4):
            verdict = run_end("failure", f"exit code {code}", code)
            asked = {"run": run, "grace": 0.0, "reason": "over", "attempt": 0, "end": verdict, "verdict": verdict}
            assert answer("run.stop", asked, home)["verdict"]["code"] == 3
        told += [frame.json() for frame in frames if frame.kind == b"J"]
    said = [it for it in told if it["event"] in ("status", "verdict", "end")]
    assert [it["event"] for it in said] == ["status", "verdict", "end"] and said[1]["verdict"]["code"] == 3, told
    later = Copy()
    later.follow(run, home)
    assert [it["verdict"]["code"] for it in later.named("verdict")] == [3]


def test_no_such_run(home: Path, run: str) -> None:
    for name in (run, "../x", ""):
        with Running("run.follow", {"run": name, "offsets": {}}, home) as follow:
            frames = list(follow.frames())
        assert frames[0].json()["event"] == "failed" and frames[-1].json() == {"exit_status": 1}


def test_a_failing_rank_is_told_soon_with_its_last_words_before(home: Path, run: str) -> None:
    start(home, run, ranks_argv("sleep 1; echo Traceback >&2; exit 3", "sleep 1000"))
    said: list[str] = []
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        for frame in follow.frames():
            said.append(frame.payload.decode() if frame.kind == b"O" else frame.json().get("event", ""))
            if said[-1] == "rank" and said.count("rank") == 1:  # at the next one it may have ended
                follow.send({"op": "stop", "grace": 1, "reason": "a rank failed"})
        last = frame.json()
    assert said.index("Traceback\n") < said.index("rank")
    assert last == {"exit_status": 0} and final(home, run)["reason"] == "a rank failed"
    assert not marked(run)


def test_who_failed_and_who_was_stopped_for_it_are_told_apart_also_late(home: Path, run: str) -> None:
    """The node stops the others by itself: no head need be there, or have heard of it in time."""
    start(home, run, ranks_argv("exit 3", "exec sleep 1000"))
    until((folder_of(home, run) / "rank0.json").exists)
    answer("run.stop", {"run": run, "grace": 100.0, "reason": "rank 0 on n1 failed"}, home)
    copy = Copy()
    copy.follow(run, home)
    stopped = {message["rank"]: "until" in message for message in copy.messages if message["event"] == "rank"}
    assert stopped == {0: False, 1: True}, copy.messages


def test_garbage_on_the_control_lines_changes_nothing(home: Path, run: str) -> None:
    start(home, run, ["sh", "-c", f"until [ -e {home}/go ]; do sleep 0.1; done; echo fine"])
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        for line in (
            b"\xff\xfe\n",
            b"[1]\n",
            b"null\n",
            b'"stop"\n',
            b'{"op": "stop", "grace": []}\n',
            b"{\n",
            b"\n",
            b'{"op": "stop"}\n',
            b'{"op": "nonsense"}\n',
            b"x" * 100_000 + b"\n",
        ):
            follow.raw(line)
        (home / "go").touch()
        frames = list(follow.frames())
    assert frames[-1].json() == {"exit_status": 0}
    assert final(home, run)["state"] == "exited"


def test_end_of_file_ends_it_and_leaves_the_run(home: Path, run: str) -> None:
    start(home, run, ["sleep", "1000"])
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        next(follow.frames())
    assert follow.process.returncode == 0
    assert marked(run)


def test_supervisor_and_guardian_killed_it_ends_what_is_left(home: Path, run: str) -> None:
    stubborn = "trap '' TERM; touch ~/up; while :; do sleep 0.2; done"
    start(home, run, ranks_argv(stubborn, "setsid sh -c \"trap '' TERM; sleep 1000\""))
    until((home / "up").exists)
    record = read_json(folder_of(home, run) / "pid")
    copy = Copy()
    os.kill(record["guardian"]["pid"], signal.SIGKILL)
    os.kill(record["pid"], signal.SIGKILL)
    copy.follow(run, home)
    assert copy.named("status")[-1]["state"] == final(home, run)["state"] == "lost"
    assert copy.messages[-1]["event"] == "end"
    assert not marked(run)


def test_a_run_whose_folder_was_removed_is_ended_and_that_is_what_is_told(home: Path, run: str) -> None:
    start(home, run, ranks_argv("touch ~/up; exec sleep 1000"))
    until((home / "up").exists)
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        frames = follow.frames()
        next(frames)
        folder = folder_of(home, run)
        until(lambda: shutil.rmtree(folder, ignore_errors=True) or not folder.exists())  # the supervisor writes there
        said = [frame.json() for frame in frames if frame.kind == b"J"]
    assert "status" in [message["event"] for message in said], said
    status = [message for message in said if message["event"] == "status"][-1]
    assert (status["state"], status["cause"]) == ("lost", "removed"), said
    assert "folder" in status["reason"], status
    assert not marked(run)


def test_a_supervisor_of_before_a_reboot_is_not_mistaken_for_ours(home: Path, run: str) -> None:
    start(home, run, ["sleep", "1000"])
    path = folder_of(home, run) / "pid"
    record = path.read_text()
    path.write_text(record.replace(read_json(path)["boot"], "another-boot"))
    strangers = [json.loads(record)["guardian"]["pid"], json.loads(record)["pid"]]
    for pid in strangers:  # who have no word of their own
        os.kill(pid, signal.SIGSTOP)
    try:
        copy = Copy()
        copy.follow(run, home)
        status = copy.named("status")[-1]
        assert (status["state"], status["cause"]) == ("lost", "reboot"), copy.messages
    finally:
        for pid in strangers:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def small_home(tmp_path: Path) -> Iterator[Path]:
    """A home folder that is soon full."""
    home = tmp_path / "small"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(home)], check=True)
    yield home
    until(lambda: subprocess.run(["umount", str(home)], check=False).returncode == 0)


def test_a_full_disk_keeps_no_head_from_its_run(small_home: Path, run: str) -> None:
    """It comes, or comes again, where nothing can be noted any more."""
    start(small_home, run, ranks_argv("while sleep 0.1; do head -c 50000 /dev/zero; echo more; done 2>/dev/null"))
    until(lambda: os.statvfs(small_home).f_bavail == 0)
    with Running("run.follow", {"run": run, "offsets": {}, "term": 1}, small_home) as follow:
        follow.send({"op": "stop", "grace": 0.2})
        events = [frame.json()["event"] for frame in follow.frames() if frame.kind == b"J"]
    assert "failed" not in events and "superseded" not in events
    assert final(small_home, run)["cause"] == "asked"


def test_a_full_disk_is_said_while_the_run_goes_on_and_so_is_room(small_home: Path, run: str) -> None:
    start(small_home, run, ranks_argv("while sleep 0.1; do head -c 50000 /dev/zero; echo more; done 2>/dev/null"))
    said = []
    with Running("run.follow", {"run": run, "offsets": {}}, small_home) as follow:
        for frame in follow.frames():
            if frame.kind == b"J" and "disk_full" in frame.json():
                said.append(frame.json())
                if len(said) == 1:
                    subprocess.run(["mount", "-o", "remount,size=64m", str(small_home)], check=True)
                elif len(said) == 2:
                    follow.send({"op": "stop", "grace": 0.2})
    full = {"event": "status", "state": "running", "disk_full": True}
    assert said[:2] == [full, {**full, "disk_full": False}]
    assert final(small_home, run)["cause"] == "asked"


RANKS_THEN_LINGER = """RANK=1 LOCAL_RANK=1 "$@" sh -c 'sleep 2; echo late' &
until [ -e $FLEET_RUN_DIR/rank1.out ]; do sleep .02; done
RANK=0 LOCAL_RANK=0 "$@" true; wait; exec sleep 4711"""


def test_an_engine_that_has_no_rank_left_is_not_waited_for(home: Path, run: str) -> None:
    """The head has heard of every rank's end, on all nodes. One that lives, whoever forgot it, keeps its engine."""
    argv = ["bash", "-c", RANKS_THEN_LINGER, "engine", {"python": True}, {"run_dir": "rank.py"}]
    start(home, run, argv, ranks=[0])
    folder, told = folder_of(home, run), False
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        messages: list[dict[str, Any]] = []
        for frame in follow.frames():
            if frame.kind == b"J":
                messages.append(frame.json())
                if messages[-1]["event"] == "rank" and not told:
                    told = True
                    follow.send({"op": "over"})
    assert (folder / "rank1.out").read_bytes() == b"late\n" and read_json(folder / "rank1.json")["status"] == 0
    status = final(home, run)
    assert (status["state"], status["engine_status"], status["signal"], status["left"]) == ("exited", 0, None, [])
    assert not marked(run)


def test_ranks_that_ended_between_two_looks_are_told_of_as_they_ended(tmp_path: Path) -> None:
    """The one that failed, before those that its engine ended for it, whatever their numbers."""
    written = {"rank0": {"time": 2.0}, "rank1": {"time": 1.0}, "status": {"time": 0.5}, "spec": {"protocol": PROTOCOL}}
    for name, record in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name, **record}))
    told = Follower({"run": "r", "offsets": {}, "once": True}, str(tmp_path)).look()
    assert [(event["event"], event["name"]) for event in told] == [
        *(("rank", "rank1"), ("rank", "rank0"), ("status", "status"))
    ]


def test_a_node_keeps_only_so_much_of_what_the_leader_has(home: Path, run: str) -> None:
    """Who reads on slowly meanwhile, and who comes later, hear where the rest begins; nobody is sent zeros."""
    size = 8_000_000
    argv = ranks_argv(f"head -c {size} /dev/zero | tr '\\0' x; exec sleep 1000")
    start(home, run, argv, about={"max_log": 100_000})
    log = folder_of(home, run) / "rank0.out"
    until(lambda: log.exists() and log.stat().st_size == size)
    (log.parent / "metrics.jsonl").write_bytes(b"x" * 500_000)
    took = log.stat().st_blocks
    spec = {"run": run, "offsets": {}}
    with Running("run.follow", spec, home) as slow, Running("run.follow", {**spec, "term": 1}, home) as leader:
        frames = slow.frames()
        while next(frames).kind != b"O":
            pass
        leader.send(
            {
                "op": "have",
                "sizes": {"metrics.jsonl": 500_000, "rank0.out": 5_000_000, "../spec.json": 9, "rank7.out": 5},
            }
        )
        until(lambda: log.stat().st_blocks * 512 < 3_200_000)
        leader.send({"op": "have", "sizes": {"rank0.out": size}})
        until(lambda: log.stat().st_blocks * 512 < 200_000)
        assert b"\0" not in (log.parent / "metrics.jsonl").read_bytes(), "samples are lines, and stay"
        begins = read_json(log.parent / "trimmed")["rank0.out"]
        assert size - 200_000 < begins <= size - 100_000 and log.stat().st_size == size and took > 10_000
        at, came = 0, b""
        while at + len(came) < size:
            frame = next(frames)
            if frame.kind == b"O":
                came += frame.payload
            elif frame.json()["event"] == "stream":
                assert frame.json()["name"] != "rank0.out" or frame.json()["offset"] == begins
                at, came = begins, b""
            assert not came.strip(b"x")
    with Running("run.follow", {**spec, "once": True}, home) as late:
        told = [frame.json() for frame in late.frames() if frame.kind == b"J"]
    offsets = {m["id"]: (m["name"], m["offset"]) for m in told if m["event"] == "stream"}
    assert ("rank0.out", begins) in offsets.values() and told[-1]["sizes"]["rank0.out"] == size


def test_a_wrapper_that_has_forked_its_rank_is_one() -> None:
    """Until the rank is executed, /proc shows two processes of that name."""
    ready, done = os.pipe(), os.pipe()

    def wrap() -> None:
        Path("/proc/self/comm").write_text("fleet-rank")
        os.write(ready[1], b"%d" % forked(lambda: os.read(done[0], 1)))
        os.read(done[0], 1)

    wrapper = forked(wrap)
    child = int(os.read(ready[0], 20))
    found = rank_wrappers([wrapper, child])
    os.write(done[1], b"..")
    os.waitpid(wrapper, 0)
    for descriptor in ready + done:
        os.close(descriptor)
    assert found == [wrapper]

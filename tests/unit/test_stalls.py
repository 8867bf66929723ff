"""What the silence of a run means: told once, at the right time, and never for what this machine did not see."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Node
from fleet.node.gang.elastic import gang_of
from fleet.node.gang.ends import RankEnd, stopped_by
from fleet.node.gang.gang import Gang
from fleet.node.gang.silence import EARLY_SECONDS, MUTE_SECONDS, QUIET_SECONDS, Watch
from fleet.node.gang.timed_out import HOLD_SECONDS
from fleet.ops.run.end.failure import before_stop
from fleet.ops.run.follow.stacks import TAKE_SECONDS, Taking
from fleet.ops.run.follow.stalls import Stalls
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord, about_of
from fleet.ops.sessions import ANSWER_SECONDS
from fleet.protocol.messages.run import Verdict
from fleet.protocol.messages.stacks import RankStack
from fleet.rules.ended import ended_by
from fleet.rules.stacks import Place
from fleet.transport.base import ConnectOptions
from fleet.transport.local import LocalTransport
from tests.clock import HandClock
from tests.scripted import Scripted


def test_a_host_that_does_not_tell_its_stacks_costs_not_those_of_the_others() -> None:
    assert ANSWER_SECONDS + ConnectOptions().connect_timeout < TAKE_SECONDS


def told(
    watch: Watch,
    until: float,
    spoke: Sequence[float],
    ends: Sequence[float] = (),
    running: int = 4,
    step: float = 1.0,
    blind: bool = False,
) -> list[tuple[float, str]]:
    """(when, what) until then, of a run that began at 0: when its ranks wrote, and when some ended well."""
    found, now = [], 0.0
    while now < until:
        now += step
        last = max((when for when in spoke if when <= now), default=0.0)
        over = [when for when in ends if when <= now]
        kind = watch.look(now, last, over, running + len(ends) - len(over), blind)
        if kind:
            found.append((now, kind))
    return found


def test_others_that_are_done_make_a_straggler() -> None:
    assert told(Watch(None, 0.0), 179, [10.0], [20.0, 20.0, 20.0], 1) == [(80.0, "straggler")]


def test_a_stall_is_told_once_and_another_one_only_when_it_is_twice_as_long() -> None:
    assert told(Watch(None, 0.0), 9000, [10.0], [20.0, 20.0], 1) == [(80.0, "straggler")]
    speaks = [100.0, 200.0, 400.0]
    assert [when for when, _ in told(Watch(None, 0.0), 600, speaks, [20.0, 20.0], 1)] == [80.0, 320.0]


def test_who_left_early_is_told_once_whatever_others_write() -> None:
    speaks = [float(n) for n in range(400)]
    assert told(Watch(None, 0.0), 400, speaks, [20.0], 3) == [(80.0, "early")]
    assert told(Watch(None, 0.0), 400, speaks, [20.0, 20.0], 1) == [(80.0, "early")], "the last one is at work"
    assert told(Watch(None, 0.0), 79, [], [20.0], 3) == []
    assert told(Watch(None, 0.0), 200, [], [20.0], 0) == [], "all have ended"


def test_plain_silence() -> None:
    assert told(Watch(None, 0.0), 1000, [10.0])[0] == (10.0 + QUIET_SECONDS, "silent")
    assert told(Watch(None, 0.0), MUTE_SECONDS + 9, [])[0] == (MUTE_SECONDS, "silent"), "imports take their time"
    assert told(Watch(None, 0.0), 5000, [float(n) for n in range(0, 5000, 299)]) == []
    slow = [float(n) for n in range(0, 9000, 400)]  # a line an epoch
    assert told(Watch(None, 0.0), 9000, slow) == [(700.0, "silent")]


def test_the_users_own_limit() -> None:
    assert told(Watch(30.0, 0.0), 100, [10.0]) == [(40.0, "stalled")]
    assert told(Watch(30.0, 0.0), 100, []) == [(30.0, "stalled")], "from the start on"
    assert told(Watch(30.0, 0.0), 100, [10.0], [25.0], 3)[0] == (55.0, "stalled"), "an end is progress"
    watch = Watch(30.0, 0.0)
    assert told(watch, 41, [10.0]) == [(40.0, "stalled")]
    assert not watch.still_stalled(1.0) and watch.still_stalled(31.0)


@pytest.mark.parametrize("blind", [True, False])
def test_what_was_not_seen_is_no_silence(blind: bool) -> None:
    if blind:
        assert told(Watch(30.0, 0.0), 500, [], blind=True) == []
    else:  # this machine was suspended between two looks
        assert told(Watch(30.0, 0.0), 500, [], step=40.0) == []
    assert EARLY_SECONDS == 60.0


@pytest.mark.parametrize(
    ("rank", "host", "named"), [(3, "n2", (3, "n2", 1)), (77, "n2", (2, "n2", 0)), (None, "n1", (1, "n1", 1))]
)
def test_the_odd_one_out_is_the_failure(
    tmp_path: Path, rank: int | None, host: str, named: tuple[int, str, int]
) -> None:
    """Also where a script has started ranks by an engine of its own, which numbers them."""
    nodes = (Node(Host("n1", "10.0.0.1"), 0, 2, 0), Node(Host("n2", "10.0.0.2"), 1, 2, 2))
    record = RunRecord("r", nodes, tmp_path / "r", about_of({}, stall_timeout=9.0))
    gang = Gang({"n1": (0, [0, 1]), "n2": (1, [2, 3])})
    stalls = Stalls(record, gang, RunFolder(tmp_path), None, print)  # type: ignore[arg-type]
    told: RankStack = {"rank": 1, "pid": 1, "by": "kernel", "state": "S", "waits": "", "threads": [], "why": None}
    found = [] if rank is None else [Place((rank,), (host,), "fetch (s.py:1)", told, odd=True)]
    failure = stalls._failure(found, {"n1": [1], "n2": [2, 3]}, "x")
    assert (failure.rank, failure.host, failure.local_rank) == named
    assert (failure.what, failure.exit_code) == ("stalled", 124) and "for 9 s (--stall-timeout): x" in str(failure.why)


def test_stacks_of_a_node_are_lines_of_a_file_and_no_more(tmp_path: Path) -> None:
    """People are told to cat it."""
    record = RunRecord("r", (Node(Host("n1", "10.0.0.1"), 0, 1, 0),), tmp_path, about_of({}))
    stalls = Stalls(record, Gang({"n1": (0, [0])}), RunFolder(tmp_path), None, print)  # type: ignore[arg-type]
    frame: Any = {"name": "f\n-- 2099-01-01\x1b[2J", "file": "/a\u2028b.py", "line": 1, "native": False}
    thread: Any = {"name": "x", "main": True, "frames": [frame]}
    told: Any = {"rank": 0, "pid": 1, "by": "py-spy", "state": "S", "waits": "w\x9b", "threads": [thread], "why": None}
    taking = Taking("silent", record, {}, LocalTransport())
    taking.places = [Place((0,), ("n1",), "f\n(x)", told)]
    taking.remarks.append("\x07" + "y" * 9999)
    text = stalls._text(taking)
    assert len(text) == 6 and all(line.isprintable() and len(line) < 5000 for line in text), text


def test_a_rank_that_timed_out_is_no_reason_to_stop_before_others_have_too(tmp_path: Path) -> None:
    """Who is stopped a moment before it times out is not missing, and of who is the stack is there."""
    nodes = tuple(Node(Host(f"n{n}", "10.0.0.1"), n, 1, n) for n in range(3))
    record = RunRecord("r", nodes, tmp_path / "r", about_of({}, engine="command"))
    gang, clock = Gang({f"n{n}": (n, [n]) for n in range(3)}), HandClock()
    stalls = Stalls(record, gang, RunFolder(tmp_path), Scripted({}), lambda *words: None, clock)

    def ends(rank: int, text: str) -> Verdict | None:
        end = gang.rank_ended(RankEnd(f"n{rank}", rank, rank, 0, 1, None, clock.time()))
        return stalls.held(end, text, ended_by(text, 1))

    def looks(seconds: float) -> Verdict | None:
        clock.sleep(seconds)
        return stalls.look(clock.monotonic(), blind=False)

    assert ends(0, "Timed out waiting 600000ms for recv operation to complete") is None
    assert stalls.held(gang.node_status("n0", {"state": "exited", "engine_status": 1})) is None, "its launcher's end"
    assert looks(1) is None and ends(1, "Connection closed by peer") is None
    assert looks(HOLD_SECONDS - 3) is None
    assert ends(2, 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: x'), "its own"
    assert stalls.held(stopped_by("ada@head")) is not None, "who asks for a stop has it"
    end = looks(3)
    assert end is not None and end["first"] is not None and end["first"]["rank"] == 0
    other = Stalls(record, gang, RunFolder(tmp_path), Scripted({}), lambda *words: None, clock)
    assert other.held(end, "ValueError") == end and other.held(None, "Timed out waiting 1ms for send operation") is None


OWN = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
LATE = f"{OWN}RuntimeError: Timed out waiting 1000ms for recv operation to complete\n"


@pytest.mark.parametrize(
    ("text", "status", "until", "ends"),
    [
        (f"{OWN}ValueError: x\n", 1, None, True),
        (f"{OWN}ValueError: x\n", 1, 9999, True),
        (f"{OWN}ValueError: x\n", 1, 0, False),  # it was written after SIGTERM
        (f"{OWN}ValueError: x\n".replace("<module>", "put"), 3, None, False),  # it had handled that
        ("", 1, None, False),
        ("bye\n", None, None, False),
        (LATE, 1, None, False),
        (
            f"{LATE}\nDuring handling of the above exception, another exception occurred:\n\n{OWN}OSError: x\n",
            1,
            None,
            False,
        ),
        *(
            (f"{OWN}{error}\n", 1, None, False)
            for error in (
                "ConnectionError: peer gone",
                "ConnectionResetError: [Errno 104] Connection reset by peer",
                "ConnectionRefusedError: [Errno 111] Connection refused",
                "BrokenPipeError: [Errno 32] Broken pipe",
                "RuntimeError: Broken pipe",
                "EOFError",
                "TimeoutError: timed out",
                "botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL",
                "torch.distributed.DistNetworkError: The client socket has failed to connect to (h, 2)",
                "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
                "RuntimeError: [gloo/transport/tcp/pair.cc:553] connect [10.0.0.1]:32: No route to host",
            )
        ),
    ],
)
def test_an_error_that_may_follow_from_a_time_out_does_not_end_the_hold(
    tmp_path: Path, text: str, status: int | None, until: int | None, ends: bool
) -> None:
    record = RunRecord("r", (Node(Host("n1", "10.0.0.1"), 0, 2, 0),), tmp_path, about_of({}, engine="command"))
    gang, clock = Gang({"n1": (0, [0, 1])}), HandClock()
    stalls = Stalls(record, gang, RunFolder(tmp_path), Scripted({}), lambda *words: None, clock)
    assert stalls.held(gang.rank_ended(RankEnd("n1", 0, 0, 0, 1, None, 1.0)), LATE, ended_by(LATE, 1)) is None
    end = RankEnd("n1", 0, 1, 1, status, None if status else 9, 2.0, until=until)
    log = text if until is None else text[:until]
    verdict = stalls.held(gang.rank_ended(end), log, before_stop(end, lambda *_, **__: log))
    assert (verdict is not None) == ends


def test_a_hang_of_an_earlier_taking_is_blamed_for_nothing(tmp_path: Path) -> None:
    record = RunRecord("r", (Node(Host("n1", "10.0.0.1"), 0, 2, 0),), tmp_path / "r", about_of({}))
    gang, clock = Gang({"n1": (0, [0, 1])}), HandClock()
    stalls = Stalls(record, gang, RunFolder(tmp_path / "r"), Scripted({}), lambda *words: None, clock)
    gang.collective, gang.at = ("x", "y", []), {1: "load (t.py:4)"}
    end = gang.rank_ended(RankEnd("n1", 0, 0, 0, 1, None, clock.time()))
    assert stalls.held(end, "Timed out waiting 1ms for recv operation") is None and gang.collective is None
    assert not gang.at
    stalls = Stalls(record, gang, RunFolder(tmp_path / "r"), Scripted({}), lambda *words: None, clock)
    stalls.look(0.0, blind=False)  # it has just begun to look
    gang.collective, stalls._quiet_since = ("x", "y", []), clock.monotonic()
    clock.sleep(1.0)
    stalls.look(stalls._quiet_since, blind=False)
    assert gang.collective is not None
    clock.sleep(1.0)
    stalls.look(clock.monotonic(), blind=False)
    assert gang.collective is None, "the run has gone on"


def test_ranks_that_their_engine_starts_again_count_as_running(tmp_path: Path) -> None:
    record = RunRecord("r", (Node(Host("n1", "10.0.0.1"), 0, 2, 0),), tmp_path / "r", about_of({}))
    for restarts, running in ((False, {"n1": [1]}), (True, {"n1": [0, 1]})):
        gang = gang_of({"n1": (0, [0, 1])}, int(restarts))
        gang.rank_ended(RankEnd("n1", 0, 0, 0, 0, None, 1.0))
        stalls = Stalls(record, gang, RunFolder(tmp_path), None, print)  # type: ignore[arg-type]
        assert stalls._running() == running
    gang.nodes["n1"].ended = True
    assert stalls._running() == {}

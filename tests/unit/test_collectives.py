"""A hang by its collective: dumps of torch's flight recorder, read as plain values, and judged."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.answers.runs import StacksThere
from fleet.codec import decode
from fleet.model import Host, Result
from fleet.node.base.errors import Refused
from fleet.node.run.calls import calls_of, load, ras_of
from fleet.node.run.plain_pickle import MAX_STEPS
from fleet.ops.run.follow.stacks import hang_of, ras_lines
from fleet.ops.run.plan.placement import Known
from fleet.protocol.messages.stacks import MAX_RAS, Recorded
from fleet.rules.collectives import Hang, hang
from tests import plans
from tests.recorded import REAL, Called, dump_of

ALL = {"0": range(4)}
STEP = ("0", "all_reduce", (8,))


def found(folder: Path, dumps: Mapping[int, Any]) -> dict[int, Recorded]:
    """The dumps as a node reports them."""
    folder.mkdir(exist_ok=True)
    for rank, dump in dumps.items():
        data = dump if isinstance(dump, bytes) else pickle.dumps(dump, protocol=2)
        (folder / f"calls{rank}").write_bytes(data)
    return {it["rank"]: decode(Recorded, it) for it in calls_of(str(folder), {}, True)}


def judged(
    folder: Path, calls: Mapping[int, Sequence[Called]], at: Mapping[int, str] | None = None, **more: Any
) -> Hang | None:
    groups = more.pop("groups", ALL)
    own = {rank: {name: ranks for name, ranks in groups.items() if rank in ranks} for rank in calls}
    dumps = {rank: dump_of(each, own[rank], written=time.time(), **more) for rank, each in calls.items()}
    return hang(found(folder, dumps), at or {})


def test_the_rank_that_did_not_come_is_named_with_its_line(tmp_path: Path) -> None:
    came = [(*STEP, True), (*STEP, False)]
    it = judged(tmp_path, {0: came, 1: came, 2: came, 3: came[:1]}, {3: "load_shard (train.py:20)"})
    assert it is not None and (it.collective, it.waiting, it.missing, it.unknown) == (
        "all_reduce 2",
        (0, 1, 2),
        (3,),
        (),
    )
    assert re.sub("for 9[0-9] s", "for 90 s", it.message) == (
        "ranks 0-2 wait in all_reduce 2 of default_pg (ranks 0-3), pending for 90 s; rank 3 has not come: it is in "
        "load_shard (train.py:20)"
    )
    assert it.remedy.startswith("what did rank 3 do meanwhile?")


def test_without_its_stack_a_missing_rank_is_named_with_its_last_call(tmp_path: Path) -> None:
    came = [(*STEP, True), (*STEP, False)]
    it = judged(tmp_path, {0: came, 1: came, 2: came, 3: came[:1]})
    assert it is not None and it.message.endswith("has not come: it called all_reduce 1 in all_reduce (train.py:15)"), (
        it
    )


def test_with_a_missing_dump_no_rank_is_blamed(tmp_path: Path) -> None:
    came = [(*STEP, True), (*STEP, False)]
    it = judged(tmp_path, {0: came, 1: came, 3: came[:1]})
    assert it is not None and (it.missing, it.unknown) == ((), (2,))
    assert re.sub("for 9[0-9] s", "for 90 s", it.message) == (
        "ranks 0-1 wait in all_reduce 2 of default_pg (ranks 0-3), pending for 90 s; no dump shows whether rank 2 came"
    )


def test_what_a_full_recorder_has_forgotten_is_not_known(tmp_path: Path) -> None:
    groups = {"0": range(4), "7": range(2)}
    one = [("7", "barrier", (1,), True), ("7", "barrier", (1,), False), (*STEP, True)]
    other = [("7", "barrier", (1,), True), (*STEP, True)]
    rest = [(*STEP, True)]
    calls = {0: one, 1: other, 2: rest, 3: rest}
    sure = judged(tmp_path / "a", calls, groups=groups)
    assert sure is not None and sure.missing == (1,)
    dumps = {0: dump_of(one, groups, written=time.time()), 1: dump_of(other, groups, written=time.time(), forgotten=1)}
    unsure = hang(found(tmp_path / "b", dumps), {})
    assert unsure is not None and (unsure.missing, unsure.unknown) == ((), (1,))


def test_ranks_that_go_on_are_no_hang(tmp_path: Path) -> None:
    came = [(*STEP, True), (*STEP, False)]
    assert judged(tmp_path, {0: came, 1: came, 2: came, 3: came[:1]}, waits=50) is None
    assert judged(tmp_path, dict.fromkeys(range(4), came[:1])) is None


def test_a_long_queue_of_a_gpu_that_goes_on_is_no_hang(tmp_path: Path) -> None:
    """Python called it long ago; the GPU came through an earlier one just now, of whatever group."""
    groups = {"0": range(4), "7": range(4)}
    came = [("7", "all_reduce", (8,), True), (*STEP, False), ("7", "all_reduce", (8,), False)]
    for through, is_hang in ((5.0, False), (70.0, True)):
        dumps = {rank: dump_of(came, groups, written=time.time(), waits=300.0) for rank in range(4)}
        for dump in dumps.values():
            dump["entries"][0]["time_discovered_completed_ns"] = int((time.time() - through) * 1e9)
        it = hang(found(tmp_path / str(through), dumps), {})
        assert (it is not None) is is_hang and (it is None or re.search("pending for 7[0-9] s", it.message)), it


def test_all_came_and_it_does_not_end(tmp_path: Path) -> None:
    it = judged(tmp_path, dict.fromkeys(range(4), [(*STEP, False)]))
    assert it is not None and not it.missing and it.message.startswith("all ranks called all_reduce 1 of default_pg")


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (("0", "all_reduce", (16,), False), "rank 2 calls all_reduce of [16] Float -> [16] Float"),
        (("0", "barrier", (1,), False), "rank 2 calls barrier of [1] Float -> [1] Float"),
    ],
)
def test_ranks_that_call_something_else_are_named(tmp_path: Path, odd: Called, says: str) -> None:
    calls = {rank: [(*STEP, False)] for rank in range(4)} | {2: [odd]}
    it = judged(tmp_path, calls)
    assert it is not None and it.missing == (2,) and says in it.message, it
    assert "ranks 0-1,3 call all_reduce of [8] Float" in it.message and "train.py:15" in it.message, it
    even = judged(tmp_path, calls | {3: [odd]})
    assert even is not None and even.missing == () and "ranks do not agree on call 1" in even.message


def test_sizes_of_ranks_may_differ_where_that_is_the_operation(tmp_path: Path) -> None:
    calls = {rank: [("0", "all_to_all_single", (rank,), False)] for rank in range(3)} | {3: []}
    it = judged(tmp_path, calls)
    assert it is not None and it.missing == (3,) and it.message.endswith("has called nothing of that group"), it


def test_a_circle_of_groups_blames_no_rank(tmp_path: Path) -> None:
    groups = {"1": (0, 1), "2": (0, 1)}
    calls = {0: [("1", "all_reduce", (8,), False)], 1: [("2", "all_reduce", (8,), False)]}
    it = judged(tmp_path, calls, groups=groups)
    assert it is not None and not it.missing and "wait in another group: rank" in it.message, it


def test_a_dump_from_before_the_others_came_shows_nothing(tmp_path: Path) -> None:
    came = [(*STEP, True), (*STEP, False)]
    dumps = {rank: dump_of(came[: 1 + (rank != 3)], ALL, written=time.time()) for rank in range(4)}
    found(tmp_path, dumps)
    for seconds, missing, unknown in ((5, (3,), ()), (50, (), (3,))):
        os.utime(tmp_path / "calls3", (time.time() - seconds,) * 2)
        it = hang({it["rank"]: decode(Recorded, it) for it in calls_of(str(tmp_path), {}, True)}, {})
        assert it is not None and (it.missing, it.unknown) == (missing, unknown), it


@pytest.mark.parametrize(("state", "missing", "unknown"), [("scheduled", (), (1,)), ("completed", (1,), ())])
def test_a_rank_that_may_wait_for_another_one_in_a_recv_is_not_named(
    tmp_path: Path, state: str, missing: tuple[int, ...], unknown: tuple[int, ...]
) -> None:
    """Also where it has called something of another group since."""
    groups = {"0": range(2), "9": range(2)}
    dumps = {
        0: dump_of([(*STEP, False)], groups, written=time.time()),
        1: dump_of([("9", "recv 0<-1", (8,), False), (*STEP, True)], groups, written=time.time()),
    }
    first, second = dumps[1]["entries"]
    first.update(is_p2p=True, state=state)
    second.update(process_group=("7", "undefined"))
    it = hang(found(tmp_path, dumps), {})
    assert it is not None and (it.missing, it.unknown) == (missing, unknown), it
    assert missing or it.message.endswith("; rank 1 is in a call between two ranks, or one of gloo's"), it


def test_a_rank_whose_last_call_is_of_gloos_is_not_named(tmp_path: Path) -> None:
    dumps = {
        0: dump_of([(*STEP, True), (*STEP, False)], {"0": range(2)}, written=time.time()),
        1: dump_of([(*STEP, True), ("0", "barrier", (1,), False)], {"0": range(2)}, written=time.time()),
    }
    dumps[1]["entries"][1]["profiling_name"] = "gloo:barrier"
    it = hang(found(tmp_path, dumps), {})
    assert it is not None and (it.missing, it.unknown) == ((), (1,)), it


@pytest.mark.parametrize("waits", [3.0, 70.0])
def test_a_rank_that_waits_in_another_group_is_held_whatever_its_age_and_number(tmp_path: Path, waits: float) -> None:
    """Rank 2 is behind in b, where rank 0 has come to a later call."""
    groups = {"a": (0, 1), "b": (1, 2)}
    now = time.time()
    dumps = {
        0: dump_of([("a", "all_reduce", (8,), False)], {"a": groups["a"]}, written=now),
        1: dump_of([("b", "all_reduce", (8,), False)], {"b": groups["b"]}, written=now, waits=waits),
    }
    it = hang(found(tmp_path, dumps), {})
    assert it is not None and it.missing == (), it
    dumps[2] = dump_of([], {"b": groups["b"]}, written=now)
    it = hang(found(tmp_path, dumps), {})
    assert it is not None and it.missing in ((), (2,) if waits > 60 else ()) and "look for" not in it.remedy, it


def test_an_older_group_of_that_name_shows_not_that_its_rank_came(tmp_path: Path) -> None:
    """Rank 1 has not made it again."""
    made_again, old = [(*STEP, False)], [(*STEP, True)] * 5
    it = judged(tmp_path / "a", {0: made_again, 1: old}, groups={"0": range(2)})
    assert it is not None and (it.missing, it.unknown) == ((), (1,)) and "all ranks" not in it.message, it
    it = judged(tmp_path / "b", {0: made_again, 1: old[:1]}, groups={"0": range(2)})
    assert it is not None and it.missing == () and it.message.endswith("; rank 1 is through it"), it


@pytest.mark.parametrize("ranks", [[*range(8193)], [0, 1, "2"], [0, 1, True], [0, -1], [0, 1 << 40], "0123", {"0": 1}])
def test_members_that_are_cut_or_odd_are_not_known(tmp_path: Path, ranks: Any) -> None:
    dump = dump_of([(*STEP, False)], {"0": range(2)}, written=time.time())
    dump["pg_config"]["0"]["ranks"] = json.dumps(ranks)
    it = hang(found(tmp_path, {0: dump, 1: dump}), {})
    assert it is not None and it.ranks == () and it.message.endswith("which other ranks are to come"), it


def test_a_young_call_is_of_a_step_that_takes_its_time(tmp_path: Path) -> None:
    """Python runs ahead of the GPU."""
    assert judged(tmp_path, dict.fromkeys(range(4), [(*STEP, False)]), waits=50) is None


def test_calls_that_are_coalesced_end_with_their_last(tmp_path: Path) -> None:
    """torch gives all of them one number, and only the last entry, "coalesced", ever ends."""
    parts = [("0", "_allgather_base", (8,), False), ("0", "_allgather_base", (4,), False), ("0", "coalesced", (), True)]
    dump = dump_of([*parts, (*STEP, True)], ALL, written=time.time())
    for entry, number in zip(dump["entries"], (1, 1, 1, 2), strict=True):
        entry["collective_seq_id"] = number
    assert hang(found(tmp_path / "a", dict.fromkeys(range(4), dump)), {}) is None
    stuck = dump_of([*parts[:2], ("0", "coalesced", (), False)], ALL, written=time.time())
    for entry in stuck["entries"]:
        entry["collective_seq_id"] = 1
    it = hang(found(tmp_path / "b", {0: dump, 1: stuck, 2: stuck, 3: stuck}), {})
    assert it is not None and it.collective == "coalesced 1" and it.waiting == (1, 2, 3) and not it.missing


def test_a_group_that_was_made_again_counts_anew(tmp_path: Path) -> None:
    dump = dump_of([(*STEP, True), (*STEP, False), (*STEP, True)], ALL, written=time.time())
    dump["entries"][2].update(pg_id=9, collective_seq_id=1)
    assert hang(found(tmp_path, dict.fromkeys(range(4), dump)), {}) is None


def test_groups_of_one_name_and_other_ranks_are_two(tmp_path: Path) -> None:
    one, two = ({"5": ranks} for ranks in ((0, 1), (2, 3)))
    first = dump_of([("5", "all_reduce", (8,), False)], one, written=time.time())
    second = dump_of([("5", "barrier", (1,), False)], two, written=time.time())
    it = hang(found(tmp_path, {0: first, 1: first, 2: second, 3: second}), {})
    assert it is not None and not it.missing and it.message.startswith("all ranks called "), it


def drawn(seed: int) -> tuple[dict[int, list[Called]], dict[str, Sequence[int]], int | None]:
    """A run of 4 ranks in groups of all, rows and columns: (its calls, groups, the rank that leaves at some call). The
    others go on as far as they get: each call is through where all members come to it."""
    draw = random.Random(seed)
    groups = {"0": range(4), "1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}
    order = [draw.choice(["all", "row", "column"]) for _ in range(12)]
    leaver, at = draw.choice([None, 0, 1, 2, 3]), draw.randrange(12)
    mine = [
        [{"all": "0", "row": "12"[rank // 2], "column": "34"[rank % 2]}[kind] for kind in order] for rank in range(4)
    ]
    ends = {rank: at if rank == leaver else 12 for rank in range(4)}
    done, stuck = dict.fromkeys(range(4), 0), set[int]()
    while len(stuck) < 4:  # each rank goes on until its call lacks another
        stuck = set()
        for rank in range(4):
            if done[rank] >= ends[rank]:
                stuck.add(rank)
                continue
            name = mine[rank][done[rank]]
            number = mine[rank][: done[rank] + 1].count(name)
            came = [mine[it][: min(done[it] + 1, ends[it])].count(name) >= number for it in groups[name]]
            if all(came):
                done[rank] += 1
            else:
                stuck.add(rank)
    calls: dict[int, list[Called]] = {
        rank: [
            (name, "all_reduce", (8,), number < done[rank])
            for number, name in enumerate(mine[rank][: min(done[rank] + 1, ends[rank])])
        ]
        for rank in range(4)
    }
    waits = any(not call[3] for each in calls.values() for call in each)
    return calls, groups, leaver if waits else None


@pytest.mark.parametrize("seed", range(200))
def test_of_drawn_runs_the_one_that_left_is_named_and_no_other(tmp_path: Path, seed: int) -> None:
    calls, groups, leaver = drawn(seed)
    it = judged(tmp_path, calls, groups=groups)
    assert (it.missing if it else ()) == (() if leaver is None else (leaver,)), it


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_of_drawn_runs_with_a_dump_less_no_other_rank_is_named(tmp_path: Path, seed: int) -> None:
    calls, groups, leaver = drawn(seed)
    for away in range(4):
        it = judged(tmp_path / str(away), {r: each for r, each in calls.items() if r != away}, groups=groups)
        assert it is None or it.missing in ((), (leaver,)), it
        assert it is None or away not in it.missing


def test_a_real_dump_is_read_and_gloo_is_not_judged(tmp_path: Path) -> None:
    (it,) = found(tmp_path, {0: REAL.read_bytes()}).values()
    assert it == {"rank": 0, "whole": True, "groups": [], "why": None, "old": it["old"], "apart": True}


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/never",)


@pytest.mark.parametrize(
    "dump",
    [
        pickle.dumps({"entries": [Evil()]}, protocol=2),
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": {}}),
        pickle.dumps({"entries": [{"process_group": 3}]})[:-9],
        REAL.read_bytes()[:900],
        b"",
        b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
        b"\xff" * 300,
        b"\x80\x02}.",
        b"\x80\x02](t.",
        b"\x80\x02}(]K\x01u.",
        b"X\xff\xff\xff\xff.",
        b"e.",
        b"h\x07.",
    ],
)
def test_what_is_no_plain_dump_is_refused(tmp_path: Path, dump: bytes) -> None:
    (it,) = found(tmp_path, {0: dump}).values()
    assert it["why"] and it["groups"] == [] and not Path("/tmp/never").exists()


@pytest.mark.parametrize(
    ("dump", "why"),
    [
        (b"", "it is cut short"),
        (b"\x80\x02](X\x05\x00\x00\x00ab", "it is cut short"),
        (b"\x80\x02](J\x05\x00", "it is cut short"),
        (b"\x80\x02]K", "it is cut short"),
        pytest.param(b"]" * (MAX_STEPS + 1) + b".", f"it has more than {MAX_STEPS} values", id="many"),
        (b"\x80\x02cos\nsystem\n.", "it is no pickle of plain values: 0x63"),
        (b"\x80\x02\x95" + bytes(8) + b"].", "it is no pickle of plain values: 0x95"),
    ],
)
def test_it_is_reported_why_a_dump_is_refused(dump: bytes, why: str) -> None:
    with pytest.raises(Refused, match=f"its dump cannot be read: {why}$"):
        load(dump)


@pytest.mark.parametrize("name", [b"ab\xff", b"\xed\xa0\x80"])
def test_a_name_that_is_no_utf_8_costs_no_dump(name: bytes) -> None:
    data = pickle.dumps({"entries": ["NAME"]}, protocol=2)
    whole = data.replace(b"X\x04\x00\x00\x00NAME", b"X" + len(name).to_bytes(4, "little") + name)
    assert load(whole) == {"entries": [name.decode("utf-8", "replace")]}


def test_a_memo_of_a_huge_number_takes_no_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    (it,) = found(tmp_path, {0: b"\x80\x02Nr\xff\xff\xff\x0f."}).values()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert it["why"] and most < 1 << 20, (it, most)


@pytest.mark.parametrize("seed", range(100))
def test_plain_values_are_read_as_pickle_reads_them(seed: int) -> None:
    draw = random.Random(seed)

    def value(depth: int) -> Any:
        kinds: list[Any] = [None, True, False, 7, -7, 300, 70_000, 1 << 40, -(1 << 70), 0.5, "", "x", "é" * 300, (), []]
        if depth == 0 or draw.random() < 0.3:
            return draw.choice(kinds)
        many = [value(depth - 1) for _ in range(draw.choice([0, 1, 2, 3, 5]))]
        return draw.choice([list, tuple, lambda them: {f"k{n}": it for n, it in enumerate(them)}])(many)

    it = {"entries": [value(4) for _ in range(draw.choice([1, 300]))]}
    assert load(pickle.dumps(it, protocol=2)) == it


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_dump_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    draw, data = random.Random(seed), bytearray(REAL.read_bytes())
    for _ in range(draw.choice([1, 5, 50])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    (it,) = found(tmp_path, {0: bytes(data)}).values()  # which decodes it
    hang({0: it}, {})


def test_a_dump_of_before_its_process_or_of_none_that_lives_here_is_not_read(tmp_path: Path) -> None:
    data = pickle.dumps(dump_of([(*STEP, True)], ALL, written=time.time()), protocol=2)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            for rank in range(3):
                (tmp_path / f"calls{rank}").write_bytes(data)
            os.utime(tmp_path / "calls0", (time.time() - 30,) * 2)
            pids = {0: process.pid, 1: process.pid}
            shown = {it["rank"]: it["why"] for it in calls_of(str(tmp_path), pids, False)}
            assert shown == {0: "it has written no new dump", 1: None}
            shown = {it["rank"]: it["why"] for it in calls_of(str(tmp_path), pids, True)}
            assert shown == {0: "it has written no new dump", 1: None, 2: None}
        finally:
            process.kill()


def test_of_a_rank_on_two_hosts_the_newest_dump_that_can_be_read_counts(tmp_path: Path) -> None:
    came = [(*STEP, True), (*STEP, False)]
    dumps = {rank: dump_of(came[: 1 + (rank != 3)], ALL, written=time.time()) for rank in range(4)}
    each = found(tmp_path, dumps)
    old: Recorded = {**each[0], "rank": 3, "old": 20.0}
    none: Recorded = {**each[3], "why": "it has written no dump", "groups": []}
    for order in ([old, none], [none, old]):
        hosts = [StacksThere(calls=(order[0],)), StacksThere(calls=(*each.values(),)), StacksThere(calls=(order[1],))]
        it = hang_of([Result(f"n{n}", True, answer=there) for n, there in enumerate(hosts)], [])
        assert it is not None and it.missing == (3,), it


def test_an_old_dump_is_not_read_while_a_new_one_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that cannot be read, before it has changed."""
    read = list[int]()
    monkeypatch.setattr("fleet.node.run.calls.load", lambda data: read.append(len(data)) or load(data))
    monkeypatch.setattr("fleet.node.run.calls.PIPE_SECONDS", 0.4)
    pipes = list[int]()
    for rank in range(2):
        os.mkfifo(tmp_path / f"calls{rank}.pipe")
        pipes.append(os.open(tmp_path / f"calls{rank}.pipe", os.O_RDONLY | os.O_NONBLOCK))
    (tmp_path / "calls0").write_bytes(REAL.read_bytes())
    os.utime(tmp_path / "calls0", (time.time() - 90,) * 2)
    (tmp_path / "calls1").write_bytes(b"half")
    os.utime(tmp_path / "calls1", (time.time() + 5,) * 2)
    assert [bool(it["why"]) for it in calls_of(str(tmp_path), {}, True)] == [True, True] and read == [4]
    for pipe in pipes:
        os.close(pipe)


def test_odd_values_in_a_dump_are_bounded(tmp_path: Path) -> None:
    draw = random.Random(3)
    deep: list[Any] = []
    for _ in range(60):
        deep = [deep, deep]
    odd: list[Any] = [
        None,
        "x" * 5000,
        -1,
        1 << 200,
        deep,
        {},
        [[1] * 5000] * 500,
        1.5,
        b"x",
        True,
        ("0", "default_pg"),
    ]
    for number in range(200):
        dump = dump_of([(*STEP, True), (*STEP, False)], ALL, written=time.time())
        for entry in dump["entries"]:
            for name in draw.sample(sorted(entry), 4):
                entry[name] = draw.choice(odd)
        dump[draw.choice(sorted(dump))] = draw.choice(odd)
        (it,) = found(tmp_path, {0: dump}).values()  # which decodes it
        assert len(repr(it)) < 200_000, number
        hang({0: it}, {})


def test_a_link_or_a_pipe_in_the_place_of_a_dump_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(REAL.read_bytes())
    (tmp_path / "calls0").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "calls1")
    assert [bool(it["why"]) for it in calls_of(str(tmp_path), {}, True)] == [True, True]


def test_a_dump_is_requested_at_the_pipe_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "calls0").write_bytes(pickle.dumps(dump_of([(*STEP, True)], ALL, written=time.time()), protocol=2))
    os.utime(tmp_path / "calls0", (1, 1))
    os.mkfifo(tmp_path / "calls0.pipe")
    pipe = os.open(tmp_path / "calls0.pipe", os.O_RDONLY | os.O_NONBLOCK)

    def rank() -> None:
        while not os.read(pipe, 9):
            time.sleep(0.01)
        now = pickle.dumps(dump_of([(*STEP, True), (*STEP, False)], ALL, written=time.time()), protocol=2)
        with open(tmp_path / "calls0", "wb") as f:
            f.write(now[:500])
            f.flush()
            time.sleep(0.2)
            f.write(now[500:])

    thread = threading.Thread(target=rank, daemon=True)
    thread.start()
    (it,) = calls_of(str(tmp_path), {}, True)
    thread.join()
    assert it["why"] is None and it["groups"][0]["last"] == 2, it
    os.utime(tmp_path / "calls0", (1, 1))
    (old,) = calls_of(str(tmp_path), {}, True)
    assert old["why"] == "it has written no new dump", old
    os.close(pipe)


RAS = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    peer, _ = server.accept()
    sent = b""
    while not sent.endswith(b"verbose status\\n"):
        sent += peer.recv(100)
    peer.sendall(b"OK\\nJob summary\\n\\x1b[31mMissing: rank 3\\n" + b"x" * int(sys.argv[1]))
"""


@pytest.mark.parametrize("length", [0, 100_000])
def test_the_report_of_nccls_ras_is_read_from_a_process_of_the_run_alone(length: int) -> None:
    run = f"ras-20261130-101010-{os.getpid() % 0x10000:04x}"
    env = {**os.environ, "FLEET_RUN_ID": run}
    with subprocess.Popen([sys.executable, "-c", RAS, str(length)], env=env, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            assert ras_of("another-run", port) == ""
            found = ras_of(run, port)
        finally:
            server.kill()
    assert found.startswith("OK\nJob summary\n\x1b[31mMissing: rank 3\n") and len(found) <= MAX_RAS
    lines = ras_lines([Result("gpu1", True, answer=StacksThere()), Result("gpu2", True, answer=StacksThere(ras=found))])
    assert lines[:2] == ["NCCL's RAS on gpu2:", "    OK"]


@pytest.mark.parametrize(
    ("version", "size", "file"),
    [
        ("2.7.1+cu126", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("2.8.0", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.10.0", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.11.0", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        ("2.13.0+cpu", "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        (None, "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    ],
)
def test_the_recorder_is_switched_on_by_the_names_of_that_torch(version: str | None, size: str, file: str) -> None:
    known = {"gpu1": Known(seen={"torch": {"version": version}} if version else {})}
    names = {size, file, "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}

    def planned(**more: Any) -> Mapping[str, str]:
        return plans.planned(Host("gpu1", "gpu1"), **more).refine(known).nodes[0].env_expand

    assert planned() == {}
    assert planned(flight_recorder=True).keys() == names
    assert planned(flight_recorder=True)[file] == "$FLEET_RUN_DIR/calls"
    assert planned(flight_recorder=True, env={file: "/scratch/dump_"}) == {}
    assert planned(flight_recorder=True, env_expand={size: "$N"}) == {size: "$N"}

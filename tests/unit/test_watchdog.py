"""Who waited until it timed out, against all ranks: lines as NCCL's watchdogs and gloo write them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fleet.node.gang.timed_out import timed_out
from fleet.rules.waited import who_waited
from tests.failures import ASKED, End, failed, gave_up, of_rank, trace

GLOO = (
    "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 4000ms for recv operation to complete"
)
CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [198.18.0.13]:32948"
NONE_MISSING = "all 4 ranks waited until it timed out, none is missing"


def line(rank: int, number: int, kind: str = "ALLREDUCE") -> str:
    return (
        f"[rank{rank}]:[E816 01:45:40.183009389 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn=5056, NumelOut=5056, Timeout(ms)=600000) "
        "ran for 600026 milliseconds before timing out.\n"
    )


def why(said: dict[int, str]) -> str | None:
    found = who_waited(said, {})
    return found and found[0]


def test_a_rank_in_another_collective() -> None:
    said = {rank: line(rank, 80078) for rank in range(8)}
    said[7] = line(7, 80078, "BROADCAST")
    assert why(said) == "ranks 0-6 waited in ALLREDUCE 80078; rank 7 in BROADCAST 80078"


def test_a_rank_that_is_behind() -> None:
    said = {0: line(0, 96117), 1: line(1, 96117), 2: line(2, 64088)}
    assert why(said) == "ranks 0-1 waited in ALLREDUCE 96117; rank 2 in ALLREDUCE 64088"


def test_a_rank_that_never_came() -> None:
    said = {0: line(0, 5), 1: "loading a batch\n", 2: line(2, 5), 3: line(3, 5)}
    assert why(said) == "ranks 0,2-3 waited in ALLREDUCE 5; rank 1 did not: stuck elsewhere, or gone"
    found = who_waited(said, {0: "all_reduce (t.py:9)", 1: "load (t.py:4)"})
    assert found is not None and found[0] == "ranks 0,2-3 waited in ALLREDUCE 5; rank 1 was in load (t.py:4)"


def test_nobody_is_named_where_it_cannot_be_told() -> None:
    assert who_waited({0: "", 1: ""}, {}) is None
    assert who_waited({0: line(0, 5), 1: "", 2: ""}, {}) is None
    closed = {rank: of_rank(rank, trace(CLOSED)) for rank in (1, 2)}
    assert who_waited({0: of_rank(0, trace(GLOO)), **closed}, {}) is None  # who came late has that, too
    for said in ({rank: line(rank, 5) for rank in range(4)}, {0: line(0, 5), 1: line(1, 6)}):
        found = who_waited(said, {})
        assert found is not None and found[2] == [] and "none is missing" in found[0]


STORE = "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/{}"


def test_a_world_that_is_larger_than_the_run_is_named() -> None:
    found = who_waited({rank: of_rank(rank, trace(STORE.format(4))) for rank in range(4)}, {})
    assert found is not None and found[0] == "ranks 0-3 waited for rank 4, and the run has 4 ranks"
    assert "world_size" in found[1] and not found[2]


def test_a_rank_that_was_late_at_the_beginning_lacks_no_data() -> None:
    found = who_waited({0: of_rank(0, trace(STORE.format(1))), 1: "tokenizing\n"}, {1: "tokenize (t.py:3)"})
    assert found is not None and found[0] == "rank 0 waited until it timed out; rank 1 was in tokenize (t.py:3)"
    assert found[1].startswith("what did rank 1 do before init_process_group?") and found[2] == [1]


@pytest.mark.parametrize(
    ("text", "waited"),
    [
        (trace(GLOO), True),
        (gave_up(0), True),
        (trace(GLOO) + "\nDuring handling of the above exception, another exception occurred:\n\n" + trace("E: x"), 1),
        (trace(GLOO) + "Exception ignored in: <function f at 0x1>\n" + trace("E: x"), True),
        (trace(GLOO) + trace("ValueError: x"), False),
        (of_rank(0, trace(GLOO)) + "\n" + of_rank(0, trace("ValueError: x")), False),
        (f"caught: {GLOO}\nstep 1\nstep 2\n" + trace("ValueError: x"), False),
        ("Timed out after " * 4000 + "[rank0]: \n" * 4000, False),
    ],
)
def test_what_a_rank_raised_since_it_timed_out_is_its_end(text: str, waited: bool) -> None:
    began = time.process_time()
    assert timed_out(text) == waited
    assert time.process_time() - began < 1.0


def test_ranks_of_a_script_with_numbers_of_their_own_are_not_those_of_the_run() -> None:
    """Of a torchrun that a script starts on each node."""
    wrote = trace(STORE.format(9))
    texts = {node: of_rank(8 * node, wrote) + of_rank(8 * node + 1, wrote) for node in (0, 1)}
    assert who_waited(texts, {}) is None
    assert who_waited({rank: trace(STORE.format(4)) for rank in range(4)}, {}) is None, "who wrote it is not known"


BARRIER = "RuntimeError: Rank 2 failed to pass monitoredBarrier in 30000 ms"
JOINED = "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 3/4 clients joined."


@pytest.mark.parametrize(
    ("texts", "missing"),
    [
        ({0: GLOO, 1: CLOSED, 3: GLOO}, (2,)),
        ({0: BARRIER, 1: CLOSED, 3: CLOSED}, (2,)),
        ({0: JOINED, 1: JOINED, 3: JOINED}, (2,)),
        ({0: STORE.format(2), 1: STORE.format(9), 3: CLOSED}, (2,)),  # of which the run has no such rank
        ({0: STORE.format(2), 1: STORE.format(2), 3: STORE.format(2)}, (2,)),
        ({0: GLOO, 1: GLOO, 2: GLOO, 3: GLOO}, ()),
        ({0: GLOO, 1: CLOSED, 2: CLOSED, 3: CLOSED}, ()),
    ],
)
def test_who_is_missing_is_where_to_look(
    texts: dict[int, str], missing: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ends: dict[int, End] = {rank: (100.0 + rank / 10, 1, None) if rank in texts else ASKED for rank in range(4)}
    report = failed(ends, {rank: of_rank(rank, trace(text)) for rank, text in texts.items()})
    first = report.data["first_failure"]
    assert tuple(first["missing"]) == missing and first["rank"] == 0
    if missing:
        assert "rank 2 did not" in first["why"] and "rank 2" in first["hint"]
        assert report.data["next"][0] == "fleet logs train-20261122-060000-0a1b --rank 2 --tail 100"
    else:
        assert first["why"] == NONE_MISSING or first["why"] == GLOO
        assert "rank 0 --err" in report.data["next"][0] and "never came" not in first["hint"]

"""Of ranks whose watchdogs gave up, the odd one is named: lines as NCCL's watchdogs write them."""

from __future__ import annotations

from fleet.rules.stacks import odd_one_out


def line(rank: int, number: int, kind: str = "ALLREDUCE") -> str:
    return (
        f"[rank{rank}]:[E816 01:45:40.183009389 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={number}, OpType={kind}, NumelIn=5056, NumelOut=5056, Timeout(ms)=600000) "
        "ran for 600026 milliseconds before timing out.\n"
    )


def test_a_rank_in_another_collective() -> None:
    said = {rank: line(rank, 80078) for rank in range(8)}
    said[7] = line(7, 80078, "BROADCAST")
    assert odd_one_out(said) == "ranks 0-6 waited in ALLREDUCE 80078; rank 7 in BROADCAST 80078"


def test_a_rank_that_is_behind() -> None:
    said = {0: line(0, 96117), 1: line(1, 96117), 2: line(2, 64088)}
    assert odd_one_out(said) == "ranks 0-1 waited in ALLREDUCE 96117; rank 2 in ALLREDUCE 64088"


def test_a_rank_that_never_came() -> None:
    said = {0: line(0, 5), 1: "loading a batch\n", 2: line(2, 5), 3: line(3, 5)}
    assert odd_one_out(said) == "ranks 0,2-3 waited in ALLREDUCE 5; rank 1 did not: stuck elsewhere, or gone"


def test_nobody_is_named_where_it_cannot_be_told() -> None:
    assert odd_one_out({0: "", 1: ""}) is None
    assert odd_one_out({rank: line(rank, 5) for rank in range(4)}) is None
    assert odd_one_out({0: line(0, 5), 1: line(1, 6)}) is None
    assert odd_one_out({0: line(0, 5), 1: "", 2: ""}) is None

"""Stacks of ranks: folded by where they stand, the odd one out named, in words."""

from __future__ import annotations

import pytest

from fleet.protocol.messages.stacks import Frame, RankStack
from fleet.rules.stacks import in_short, lines, place_of, places, plain_name, remarks

SITE = "/opt/conda/lib/python3.11/site-packages/"
TRAIN = "/root/work/train.py"


def frame(name: str, file: str, line: int = 0) -> Frame:
    return {"name": name, "file": file, "line": line, "native": not line}


WAITS = [
    frame("pthread_cond_wait", "/lib/libc.so.6"),
    frame("c10d::Work::wait(std::chrono::duration<long, std::ratio<1, 1000> >)", SITE + "torch/lib/libtorch_cpu.so"),
    frame("all_reduce", SITE + "torch/distributed/distributed_c10d.py", 3252),
    frame("_exception_logger.<locals>.wrapper", SITE + "torch/distributed/c10d_logger.py", 83),
    frame("main", TRAIN, 20),
    frame("<module>", TRAIN, 40),
]
LOADS = [
    frame("wait", "/opt/conda/lib/python3.11/threading.py", 324),
    frame("get", "/opt/conda/lib/python3.11/queue.py", 180),
    frame("_MultiProcessingDataLoaderIter._try_get_data", SITE + "torch/utils/data/dataloader.py", 1133),
    frame("__next__", SITE + "torch/utils/data/dataloader.py", 631),
    frame("main", TRAIN, 18),
    frame("<module>", TRAIN, 40),
]


def stack(rank: int, frames: list[Frame], by: str = "py-spy", why: str | None = None, waits: str = "") -> RankStack:
    threads = [
        {"name": "pin_memory", "main": False, "frames": [frame("poll", "/opt/conda/lib/python3.11/select.py", 1)]},
        {"name": "MainThread", "main": True, "frames": frames},
    ]
    return {"rank": rank, "pid": 7, "by": by, "state": "S", "waits": waits, "threads": threads, "why": why}  # type: ignore[typeddict-item]


def bare(frames: list[Frame]) -> list[Frame]:
    """As faulthandler has them: no native ones, functions without what they are in."""
    python = [each for each in frames if not each["native"]]
    return [{**each, "name": each["name"].rpartition(".")[2]} for each in python]


def test_the_odd_one_out_is_named() -> None:
    found = {f"gpu{node + 1}": [stack(node * 8 + n, WAITS) for n in range(8)] for node in range(4)}
    found["gpu4"][7] = stack(31, LOADS, waits="futex_do_wait")
    found["gpu2"][0] = stack(8, bare(WAITS), "faulthandler", "no py-spy there")
    where = places(found)
    assert in_short(where) == ("ranks 0-30 in all_reduce (train.py:20); rank 31 on gpu4 in DataLoader (train.py:18)")
    assert list(lines(where)) == [
        "ranks 0-30 on gpu[1-4] in all_reduce (train.py:20)",
        "    pthread_cond_wait                        libc.so.6",
        "    c10d::Work::wait                         torch/lib/libtorch_cpu.so",
        "    all_reduce                               torch/distributed/distributed_c10d.py:3252",
        "    wrapper                                  torch/distributed/c10d_logger.py:83",
        "    main                                     train.py:20",
        "    <module>                                 train.py:40",
        "rank 31 on gpu4 in DataLoader (train.py:18), the odd one out",
        "    wait                                     threading.py:324",
        "    get                                      queue.py:180",
        "    _MultiProcessingDataLoaderIter._try_get_data torch/utils/data/dataloader.py:1133",
        "    __next__                                 torch/utils/data/dataloader.py:631",
        "    main                                     train.py:18",
        "    <module>                                 train.py:40",
        "    futex_do_wait                            kernel",
    ]
    assert list(remarks(found)) == ["gpu2: by faulthandler only: no py-spy there"]
    assert [place.odd for place in where] == [False, True]
    assert where[1].as_json()["ranks"] == (31,) and where[1].as_json()["at"] == "DataLoader (train.py:18)"


def test_threads_are_shown_where_asked_for() -> None:
    shown = list(lines(places({"n1": [stack(0, LOADS)]}), threads=True))
    assert shown[0] == "rank 0 on n1 in DataLoader (train.py:18)" and shown[1] == "  thread MainThread"
    assert shown[-2:] == ["  thread pin_memory", "    poll                                     select.py:1"]


def test_nobody_is_odd_without_a_majority() -> None:
    where = places({"n1": [stack(0, WAITS), stack(1, LOADS)]})
    assert not any(place.odd for place in where)
    assert places({}) == [] and in_short([]) == ""


def test_another_way_to_the_same_place_is_not_odd() -> None:
    deeper = [frame("wait", SITE + "torch/distributed/distributed_c10d.py", 90), *WAITS[2:]]
    deeper[0]["name"] = "all_reduce"
    where = places({"n1": [stack(0, WAITS), stack(1, WAITS), stack(2, deeper), stack(3, LOADS)]})
    assert [(place.ranks, place.odd) for place in where] == [((0, 1), False), ((2,), False), ((3,), True)]
    assert in_short(where) == "ranks 0-2 in all_reduce (train.py:20); rank 3 on n1 in DataLoader (train.py:18)"


@pytest.mark.parametrize(
    ("frames", "at"),
    [
        (WAITS, "all_reduce (train.py:20)"),
        (LOADS, "DataLoader (train.py:18)"),
        ([frame("fetch", TRAIN, 4), frame("<module>", TRAIN, 9)], "fetch (train.py:4)"),
        ([frame("clock_nanosleep", "/lib/libc.so.6"), frame("fetch", TRAIN, 4)], "fetch (train.py:4)"),
        ([frame("gc", "<frozen importlib._bootstrap>", 690), frame("<module>", TRAIN, 2)], "import (train.py:2)"),
        (
            [
                frame("<module>", SITE + "torch/utils/data/dataloader.py", 30),
                frame("exec_module", "<frozen importlib._bootstrap>", 940),
                frame("<module>", TRAIN, 2),
            ],
            "import (train.py:2)",
        ),
        ([frame("all_reduce", SITE + "torch/x.py", 3)], "all_reduce (torch/x.py:3)"),
        ([frame("do_wait", "kernel")], "do_wait (kernel)"),
        ([], "an unknown place"),
    ],
)
def test_a_place_in_a_few_words(frames: list[Frame], at: str) -> None:
    assert place_of(stack(0, frames)) == at


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("<module>", "<module>"),
        ("f.<locals>.<lambda>", "<lambda>"),
        ("pybind11::cpp_function::initialize<pybind11::cpp_function::cpp_fu", "pybind11::cpp_function::initialize"),
        ("(anonymous namespace)::run()", "(anonymous namespace)::run()"),
    ],
)
def test_names(name: str, plain: str) -> None:
    assert plain_name(name) == plain

"""Runs that failed, each in a way of its own: what their nodes said and their ranks wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fleet.cli.run.follow import show_summary
from fleet.cli.run.launch_view import LaunchView
from fleet.model import Host, Inventory, Job, Report
from fleet.node.gang.ends import Failure, RankEnd, run_end
from fleet.node.gang.gang import Gang
from fleet.ops.run.end.summary import decide, summarise
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.plan.plan import plan
from fleet.protocol.messages.run import KernelLine, Why
from fleet.requests.launch import Launch

HOSTS = [f"gpu{n}" for n in range(1, 5)]
End = tuple[float, int | None, int | None]  # when, status, signal
ASKED = (100.3, None, 15)
LAMENT = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[198.18.0.13]:32948. This is typically caused by a remote worker crashing. Check the logs of the remote worker "
    "before reporting an error."
)


def trace(exception: str, line: str = "loss = step(batch)") -> str:
    return (
        'Traceback (most recent call last):\n  File "/root/work/train.py", line 61, in <module>\n    main()\n'
        f'  File "/root/work/train.py", line 48, in main\n    {line}\n{exception}\n'
    )


def of_rank(rank: int, text: str) -> str:
    """As torch writes an uncaught exception."""
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def raised(rank: int, what: str = "ValueError: rank {} is negative") -> str:
    """As torch writes what a rank raised. what: the exception, with {} for the rank."""
    lines = ["Traceback (most recent call last):", '  File "t.py", line 3, in f', "    f()", what.format(rank)]
    return of_rank(rank, "\n".join(lines))


def gave_up(rank: int, number: int = 4711) -> str:
    timeout = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
    )
    return (
        f"[rank{rank}]:[E1122 06:00:00.000 ProcessGroupNCCL.cpp:632] {timeout}\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 PG GUID "
        f"0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: {timeout}\n"
    )


def failed(
    ends: Mapping[int, End],
    texts: Mapping[int, str] | None = None,
    *,
    kernel: Mapping[str, list[KernelLine]] | None = None,
    lost: tuple[str, ...] = (),
    until: Mapping[int, int] | None = None,
    skew: Mapping[str, float] | None = None,
    stalled: int | None = None,
    outs: Mapping[int, str] | None = None,
) -> Report:
    """A run of four ranks on four hosts, in runs/ of the current folder. The first failure has all stopped at 100.2.
    until: by rank, bytes of its stderr when SIGTERM came. skew: seconds by which clocks are ahead. stalled: the rank
    for which the others waited, until the run was stopped for its silence. outs: what ranks wrote to stdout."""
    hosts = Inventory(tuple(Host(name, f"198.18.0.{10 + n}", slots=1) for n, name in enumerate(HOSTS, 1)))
    run = "train-20261122-060000-0a1b"
    record = plan(hosts, Job("train.py"), Launch("t.py", runs_dir=Path("runs")), run).record(0.0)
    folder = RunFolder.create(Path("runs"), run)
    logs = {name: folder.node(name) for name in HOSTS}
    gang = Gang({name: (rank, [rank]) for rank, name in enumerate(HOSTS)})
    for rank, name in enumerate(HOSTS):
        node = gang.nodes[name]
        ahead = (skew or {}).get(name, 0.0)
        node.clock.receive(50.0 + ahead, 50.0)
        node.ended = True
        logs[name].write(f"rank{rank}.err", 0, (texts or {}).get(rank, "").encode())
        logs[name].write(f"rank{rank}.out", 0, (outs or {}).get(rank, "").encode())
        node.status = {
            "state": "exited",
            "cause": "engine",
            "began": 101.0 + ahead,
            "kernel": (kernel or {}).get(name, []),
        }
        if rank in ends:
            when, status, signal = ends[rank]
            end = RankEnd(name, rank, rank, 0, status, signal, when + ahead, until=(until or {}).get(rank))
            gang.rank_ended(end)
    for name in lost:
        gang.node_lost(name, 85.0, {"kind": "lost", "message": "silent for 15 s", "hint": "the link to it is cut"})
    if stalled is not None:
        why: Why = {"kind": "stalled", "message": "no rank wrote anything", "hint": "a longer --stall-timeout"}
        gang.stall = Failure(HOSTS[stalled], stalled, 124, 100.2, stalled, 0, what="stalled", why=why)
    gang.stop(run_end("failure", "a rank failed", 1), 100.2)
    folder.release()
    return summarise(record, gang, logs, list(lost), 61.2, decide(record, gang, logs))


def show(report: Report, view: LaunchView | None = None) -> None:
    """Has the end of the run told on the terminal. view: of what was shown of it before."""
    show_summary(report, view or LaunchView(HOSTS))


def oom(rank: int | None = None) -> KernelLine:
    text = "Out of memory: Killed process 28892 (python3) total-vm:221384kB, anon-rss:72192kB, UID:0 oom_score_adj:0"
    return {"text": text, "time": 99.9, "rank": rank}


def an_assertion_on_one_rank() -> Report:
    mine = of_rank(2, trace("AssertionError: loss is NaN at step 20", "assert loss == loss"))
    others = {rank: of_rank(rank, trace(LAMENT)) for rank in (1, 3)}
    ends = {0: ASKED, 1: (100.3, 1, None), 2: (100.0, 1, None), 3: (100.4, 1, None)}
    return failed(ends, {2: mine, **others})


def a_rank_that_left_with_0() -> Report:
    texts = {rank: of_rank(rank, trace(LAMENT)) for rank in (0, 1, 3)}
    return failed({0: (100.1, 1, None), 1: (100.0, 1, None), 2: (98.5, 0, None), 3: (100.3, 1, None)}, texts)


def a_rank_that_hung_behind_its_error() -> Report:
    texts = {rank: of_rank(rank, trace(LAMENT)) for rank in (0, 1, 3)}
    texts[2] = of_rank(2, trace("ValueError: batch 17 is empty")) + "[W] destroy_process_group() was not called\n"
    return failed({0: (100.1, 1, None), 1: (100.0, 1, None), 2: ASKED, 3: ASKED}, texts)


def a_rank_that_was_killed() -> Report:
    texts = {rank: of_rank(rank, trace(LAMENT)) for rank in (1, 3)}
    return failed({0: ASKED, 1: (100.3, 1, None), 2: (100.0, None, 9), 3: (100.4, 1, None)}, {**texts, 2: "step 20\n"})


def a_rank_without_memory() -> Report:
    texts = {1: of_rank(1, trace(LAMENT)), 2: "Saved checkpoint at step 20 to ckpt/last.pt\n"}
    return failed({0: ASKED, 1: (100.3, 1, None), 2: (100.0, None, 9), 3: ASKED}, texts, kernel={"gpu3": [oom(2)]})


def a_node_that_was_cut_off() -> Report:
    return failed({0: ASKED, 2: ASKED, 3: ASKED}, lost=("gpu2",))


def a_gpu_that_fell_off_the_bus() -> Report:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    lines: list[KernelLine] = [{"text": xid, "time": 12.0, "rank": None}]
    ends = {0: (100.0, None, 6), 1: (100.3, None, 6), 2: (100.4, None, 6), 3: ASKED}
    return failed(ends, {rank: gave_up(rank) for rank in range(3)}, kernel={"gpu4": lines})


def a_rank_that_was_behind() -> Report:
    ends = {rank: (100.0 + rank / 10, None, 6) for rank in range(4)}
    return failed(ends, {rank: gave_up(rank, 4711 - 90 * (rank == 3)) for rank in range(4)})


def no_module_on_any_rank() -> Report:
    text = trace("ModuleNotFoundError: No module named 'tqdm'", "import tqdm")
    return failed({rank: (100.0 + rank / 100, 1, None) for rank in range(4)}, dict.fromkeys(range(4), text))


def a_syntax_error() -> Report:
    text = '  File "/root/work/train.py", line 2\n    print("a"\n         ^\nSyntaxError: \'(\' was never closed\n'
    return failed({rank: (100.0 + rank / 100, 1, None) for rank in range(4)}, dict.fromkeys(range(4), text))


# each, with who is named on the first line, and why on the second
FAILURES: dict[Callable[[], Report], tuple[str, str]] = {
    an_assertion_on_one_rank: ("rank 2 on gpu3", "AssertionError: loss is NaN at step 20"),
    a_rank_that_left_with_0: ("rank 1 on gpu2", "rank 2 on gpu3 had ended with exit code 0, 1.5 s before"),
    a_rank_that_hung_behind_its_error: ("rank 2 on gpu3", "ValueError: batch 17 is empty"),
    a_rank_that_was_killed: ("rank 2 on gpu3", "killed by SIGKILL, and not by the kernel"),
    a_rank_without_memory: ("rank 2 on gpu3", "out of memory: the kernel killed python3"),
    a_node_that_was_cut_off: ("gpu2 (node rank 1) was lost", "silent for 15 s"),
    a_gpu_that_fell_off_the_bus: ("rank 0 on gpu1", "on gpu4: a GPU has fallen off the bus"),
    a_rank_that_was_behind: ("rank 0 on gpu1", "rank 3 in ALLREDUCE 4621"),
    no_module_on_any_rank: ("rank 0 on gpu1", "ModuleNotFoundError: No module named 'tqdm'"),
    a_syntax_error: ("rank 0 on gpu1", "SyntaxError: '(' was never closed"),
}

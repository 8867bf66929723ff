"""When a line of the kernel's log is the cause of a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.node.gang.ends import Failure, RankEnd
from fleet.node.gang.gang import Gang
from fleet.ops.run.end.failure import cause_on_other_host, hint, kernel_lines
from fleet.ops.run.kept.record import RunRecord, about_of
from fleet.protocol.messages.run import KernelLine
from fleet.rules.ended import ended_by
from tests.failures import LAMENT, gave_up, of_rank, trace

OOM = (
    "Out of memory: Killed process 28892 (python3) total-vm:221384kB, anon-rss:72192kB, file-rss:6608kB, "
    "shmem-rss:0kB, UID:0 pgtables:208kB oom_score_adj:0"
)


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def told(text: str, time: float = 100.0, rank: int | None = None) -> dict[str, Any]:
    return {"text": text, "time": time, "rank": rank}


def found(
    failure: Failure, text: str = "", missing: tuple[int, ...] = (), other: str | None = None, **lines: Any
) -> str | None:
    """other: what the rank of b had written when it failed."""
    gang = Gang({"a": (0, (0,)), "b": (1, (1,)), "c": (2, (2,))})
    if other is not None:
        gang.rank_ended(RankEnd("b", 1, 1, 0, 1, None, 100.6))
    for host, offset in (("a", 0.0), ("b", 50.0)):  # b's clock is behind by 50 s
        gang.nodes[host].clock.receive(100.0, 100.0 + offset)
        gang.nodes[host].status = {"kernel": lines.get(host, [])}
    status = 137 if failure.what == "supervisor" else failure.exit_code
    cause = ended_by(text, status, kernel_lines(failure, gang))
    host, cause = cause_on_other_host(cause, failure, gang, missing, lambda host, rank: other or "")
    return host if cause.kernel else None


def failure(
    host: str = "a", signal: int | None = 9, time: float = 100.5, rank: int | None = 0, what: str = "rank"
) -> Failure:
    return Failure(host, 0, 128 + signal if signal else 1, time, rank, 0, signal, what)


def test_memory_ran_out_for_a_rank_that_was_killed_just_then() -> None:
    assert found(failure(), a=[told(OOM)]) == "a"
    assert found(failure("b", time=151.0), b=[told(OOM)]) == "b"
    assert found(failure(), a=[told(OOM, time=10.0)]) is None
    assert found(failure(), a=[told(OOM, time=10.0, rank=0)]) == "a"
    assert found(failure(signal=None), a=[told(OOM)]) is None
    assert found(
        failure(signal=None), "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", a=[told(OOM)]
    )
    assert found(failure(signal=1, rank=None, what="supervisor"), a=[told(OOM)]) == "a"
    assert found(failure(), b=[told(OOM)]) is None
    assert found(failure(), a=[told(OOM, rank=1)]) is None


@pytest.mark.parametrize(
    ("text", "signal"),
    [("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", None), ("", 9)],
    ids=["worker", "rank"],
)
def test_memory_is_blamed_only_where_the_kernel_says_so(text: str, signal: int | None) -> None:
    status = 128 + signal if signal else 1
    line: KernelLine = {"text": OOM, "time": 0.0, "rank": None}
    by_kernel = [ended_by(text, status, kernel) for kernel in (None, [], [line])]
    unknown, by_hand, memory = [cause.remedy or "" for cause in by_kernel]
    assert "killed from outside: 'fleet exec -w {host} -- dmesg' shows whether" in unknown and "kill -9" not in unknown
    assert "kill -9" in by_hand and "dmesg" not in by_hand, by_hand
    assert "a smaller batch" in memory, memory
    assert not any("mostly" in it or "batch" in it for it in (unknown, by_hand))


@pytest.mark.parametrize(("signal", "hinted"), [(15, True), (1, False), (None, False)])
def test_a_rank_that_was_ended_from_outside(signal: int | None, hinted: bool, tmp_path: Path) -> None:
    record = RunRecord("r", (), tmp_path, about_of({}))
    assert bool(hint(failure(signal=signal), record)) == hinted


def test_a_broken_gpu_explains_what_cuda_says_and_the_laments_of_others() -> None:
    early = told(XID, time=3.0)
    assert found(failure(signal=None), "RuntimeError: CUDA error: unspecified launch failure", a=[early]) == "a"
    assert found(failure(signal=None), "ValueError: learning rate is negative", a=[early]) is None
    assert found(failure(signal=6), gave_up(0), missing=(1,), b=[early]) == "b"
    assert found(failure(signal=6), gave_up(0), missing=(1,), b=[told(OOM)]) is None
    assert found(failure(signal=None), "ValueError: no", missing=(1,), b=[early]) is None


def test_a_host_is_blamed_only_where_the_rank_that_the_others_miss_was_there() -> None:
    disk = told("I/O error, dev sdc, sector 2048", time=3.0)
    assert found(failure(signal=6), gave_up(0), missing=(2,), b=[told(XID, time=3.0)]) is None
    assert found(failure(signal=6), gave_up(0), b=[told(XID, time=3.0)]) is None
    assert found(failure(signal=6), gave_up(0), other=gave_up(1), b=[told(XID, time=3.0)]) == "b"
    assert found(failure(signal=6), gave_up(0), missing=(2,), other=gave_up(1), b=[told(XID, time=3.0)]) is None
    assert found(failure(signal=None), of_rank(0, trace(LAMENT)), other=of_rank(1, trace(LAMENT)), b=[disk]) is None

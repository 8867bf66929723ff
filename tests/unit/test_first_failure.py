"""The first failure by evidence: drawn orders of what ranks raise, lament, and do when they are told to end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fleet.answers.runs import RunSummary
from tests.failures import HOSTS, LAMENT, End, failed, of_rank, trace

OWN = (
    "ConnectionResetError: [Errno 104] Connection reset by peer",  # of redis, of S3
    "botocore.exceptions.ConnectionClosedError: Connection was closed before we received a valid response",
    "AssertionError: loss is NaN at step 20",
    "OSError: [Errno 5] Input/output error",
    "RuntimeError: CUDA error: device-side assert triggered",
    "ValueError: batch 17 is empty",
)
ANSWERS = (
    "RuntimeError: checkpointing before exit",
    "KeyboardInterrupt",
    "SystemExit: 143",
    "OSError: [Errno 9] Bad fd",
)


WARNS = "/opt/lib/x.py:3: FutureWarning: torch.load is to change\n  warnings.warn(\n"


@pytest.mark.parametrize(
    ("err", "out", "log", "why"),
    [
        (WARNS, trace("ValueError: batch 17 is empty"), "out", "ValueError: batch 17 is empty"),
        ("", "step 3\nLoss is nan, stopping training\n", "out", "Loss is nan, stopping training"),
        (WARNS, "step 3\nLoss is nan, stopping training\n", "out", "Loss is nan, stopping training"),
        (WARNS, "step 3\n", "err", None),
        (trace("ValueError: mine"), trace("OSError: handled"), "err", "ValueError: mine"),
        (WARNS, trace("OSError: handled") + "step 4\n" * 3, "err", None),
    ],
)
def test_a_cause_that_only_stdout_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, err: str, out: str, log: str, why: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    first = failed({2: (100.0, 1, None)}, {2: err}, outs={2: out}).read(RunSummary).first_failure
    assert first is not None and (first.why, Path(first.log).name) == (why, f"rank2.{log}")


def drawn(seed: int) -> tuple[int, str, dict[int, End], dict[int, str], dict[int, int], dict[str, float]]:
    """(the rank that caused it, its exception, ends, texts, until, skew)."""
    rng = random.Random(f"first failure {seed}")
    cause, exception = rng.randrange(4), rng.choice(OWN)
    hangs = rng.random() < 0.4
    ends, texts, until = dict[int, End](), dict[int, str](), dict[int, int]()
    noise = "step 19: retrying after ConnectionResetError\n" * rng.randrange(3)
    texts[cause] = noise + of_rank(cause, trace(exception))
    if hangs:  # in its clean-up, until it is told to end
        until[cause], ends[cause] = len(texts[cause]), (100.4 + rng.random(), None, 15)
        texts[cause] += of_rank(cause, trace(rng.choice(ANSWERS))) * rng.randrange(2)
    else:
        ends[cause] = (100.0, 1, None)
    others = [rank for rank in range(4) if rank != cause]
    kinds = [rng.choice(("laments", "answers", "dies", "done")) for _ in others]
    if hangs:
        kinds[rng.randrange(3)] = "laments"  # or nobody had been told to end
    for rank, kind in zip(others, kinds, strict=True):
        when = 100.1 + rng.random() / 10
        if kind == "laments":
            ends[rank], texts[rank] = (when, 1, None), of_rank(rank, trace(LAMENT))
        elif kind == "answers":
            texts[rank] = "step 20\n" * rng.randrange(3)
            until[rank], ends[rank] = len(texts[rank]), (when + rng.choice((-0.09, 0.2)), 1, None)
            texts[rank] += of_rank(rank, trace(rng.choice(ANSWERS)))
        elif kind == "dies":
            until[rank], ends[rank] = 0, (when - 0.09, None, 15)
        else:
            ends[rank] = (when, 0, None)
    skew = {host: rng.choice((0.0, 0.0, 3600.0, -7.5)) for host in HOSTS}
    return cause, exception, ends, texts, until, skew


@pytest.mark.parametrize("seed", range(200))
def test_who_raised_before_a_stop_came_is_named(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cause, exception, ends, texts, until, skew = drawn(seed)
    report = failed(ends, texts, until=until, skew=skew)
    first = report.data["first_failure"]
    assert first["rank"] == cause, (first["rank"], ends, until)
    assert exception in first["why"] or first["why"] in exception, first["why"]
    follows = {rank: group["follows"] for group in report.data["tracebacks"] for rank in group["ranks"]}
    assert not any(follows[rank] for rank in follows if rank == cause)
    assert all(follows[rank] for rank in follows if rank != cause), follows

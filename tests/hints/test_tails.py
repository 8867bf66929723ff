"""The ends of what ranks wrote, each with the hint that it deserves, or none: tails.txt. A hint that is wrong costs an
evening, one that is missing costs a look: of those that deserve none, none may have one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fleet.rules.ended import ended_by
from tests.failures import of_rank

MISLEADING = (
    "step 17: CUDA out of memory, retrying with half the batch\n"
    "WARNING:root:ConnectionResetError: [Errno 104] Connection reset by peer, retrying in 3 s\n"
    "Traceback (most recent call last):\n"
    '  File "/root/work/store.py", line 7, in put\n'
    "    s3.put(x)\n"
    "OSError: [Errno 98] Address already in use\n"
    "put failed, trying again\n" + "".join(f"step {n}: loss 0.{n}\n" for n in range(18, 60))
)


def shaped(shape: str, text: str) -> str:
    if shape == "l":
        return text + "\n"
    kind, _, file = shape.partition(":")
    if kind == "h":
        return f"{MISLEADING}{text}\n"
    frame = f'  File "{file}", line 20, in call\n    work()\n' if file else ""
    way = 'Traceback (most recent call last):\n  File "/root/work/train.py", line 9, in <module>\n    main()\n'
    trace = f"{way}{frame}{text}\n"
    return {"t": trace, "n": MISLEADING + trace}.get(kind) or of_rank(int(kind[1:]), trace)


LINES = [line for line in (Path(__file__).parent / "tails.txt").read_text().splitlines() if line[0] != "#"]
CASES = [tuple(part.strip() if n < 3 else part[1:] for n, part in enumerate(line.split("|", 3))) for line in LINES]


IDS = [f"{n}-{case[0]}" for n, case in enumerate(CASES)]


@pytest.mark.parametrize(("origin", "expected", "shape", "text"), CASES, ids=IDS)
def test_the_hint_is_true_or_none(origin: str, expected: str, shape: str, text: str) -> None:
    cause = ended_by(shaped(shape, text.replace("\\n", "\n")))
    assert cause.remedy is None if expected == "-" else expected in (cause.remedy or ""), cause


def test_the_corpus_is_large_enough() -> None:
    """At least 150, 30 of them behind lines that mislead, 30 that deserve none."""
    counts = Counter("none" if expected == "-" else "hint" for _, expected, _, _ in CASES)
    misled = sum(shape in "nh" or "trying" in text or "Exception i" in text for _, _, shape, text in CASES)
    print(dict(counts), "misled", misled)
    assert len(CASES) >= 150 and counts["none"] >= 30 and misled >= 30


@pytest.mark.parametrize(("status", "decides"), [(1, True), (None, True), (134, True), (3, False), (2, False)])
def test_an_exception_that_ends_a_python_ends_it_with_1(status: int | None, decides: bool) -> None:
    text = shaped("t", "OSError: [Errno 98] Address already in use") + "gave up\n"
    assert (ended_by(text, status).remedy is not None) == decides


def test_a_process_that_aborts_at_its_exit_ended_with_what_it_wrote_before() -> None:
    """Gloo's threads do so now and then, where a process group was not destroyed."""
    words, aborts = "config error: --lr must be below 1, got 3.0", "terminate called without an active exception\n"
    assert ended_by(f"{MISLEADING}{words}\n{aborts}", 134).why == words
    for nothing in (MISLEADING, ""):
        assert ended_by(f"{nothing}{aborts}", 134).why == "SIGABRT: native code gave up"
    assert ended_by(f"{words}\n{aborts}{aborts}", 134).why == words, "two processes of one log"


@pytest.mark.parametrize("words", ["Using device cuda:0", "all done, bye", "model has 12 layers", "test error: 0.12"])
def test_what_a_process_that_aborts_wrote_before_is_a_cause_only_where_it_complains(words: str) -> None:
    """One that ended well aborts at its exit, too."""
    assert ended_by(f"{words}\nterminate called without an active exception\n", 134).why == (
        "SIGABRT: native code gave up"
    )


@pytest.mark.parametrize(
    ("line", "brings"),
    [
        ("zcat: /data/a: No such file or directory", True),
        ("/usr/bin/cp: cannot stat '/data/a': No such file or directory", True),
        ("ls: cannot access ‘/data/a’: No such file or directory", True),
        ("tee: /data/a: No such file or directory", False),  # it is to be written
        ("cp: cannot create regular file '/data/a': No such file or directory", False),
        ("env: ‘/data/a’: No such file or directory", False),  # a program, which one file rarely is
        ("./run.sh: /data/a: No such file or directory", False),
    ],
)
def test_data_that_a_tool_cannot_read_is_brought(line: str, brings: bool) -> None:
    assert ("'fleet sync --data /data/a' brings" in (ended_by(f"{line}\n", 1).remedy or "")) == brings

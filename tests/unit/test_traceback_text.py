"""Tracebacks in what ranks wrote: which are equal, which is the last, and the cause in a line."""

from __future__ import annotations

import pytest

from fleet.rules.ended import ended_by
from fleet.rules.tracebacks import exception_of, identity, split
from tests.failures import raised as trace


def test_parts_of_a_text() -> None:
    text = (
        "a\n"
        + trace(0)
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + trace(0)
        + "\nb\n"
        + trace(1)
        + "\nc"
    )
    found = [(is_trace, text.splitlines()[first]) for is_trace, first, _ in split(text.splitlines())]
    header = "Traceback (most recent call last):"
    assert found == [(False, "a"), (True, f"[rank0]: {header}"), (False, ""), (True, f"[rank1]: {header}"), (False, "")]
    assert identity(trace(1)) == identity(trace(22)) != identity(trace(1, "KeyError: {}"))
    assert identity(trace(1)) != identity(trace(1).replace("line 3", "line 4"))
    assert exception_of("Traceback (most recent call last):\n  x\nE: a\nb") == "E: a\nb"
    assert exception_of("Traceback (most recent call last):\n  x") == exception_of(header) == ""


def test_what_a_launcher_adds_tells_nothing() -> None:
    """A shell script that starts torchrun, or accelerate, itself."""
    launcher = trace(0, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ").rstrip()
    table = "=====\nt.py FAILED\n-----\nRoot Cause (first observed failure):\n[0]:\n  exitcode  : 1 (pid: 77)\n====="
    accelerate = trace(0, "subprocess.CalledProcessError: Command '['/usr/bin/python3', 't.py']' returned non-zero")
    for text in (f"{trace(1)}\n{launcher}\n{table}", f"{trace(1)}\n{accelerate}"):
        cause = ended_by(text)
        assert cause.why == "ValueError: rank 1 is negative" and "ChildFailed" not in (cause.traceback or "")
    assert "ChildFailedError" in (ended_by(launcher).traceback or "")


def test_a_syntax_error_is_one_too() -> None:
    text = '  File "/w/t.py", line 2\n    print("a"\n         ^\nSyntaxError: \'(\' was never closed'
    assert ended_by("before\n" + text + "\n\nafter").traceback == text and exception_of(text).startswith("SyntaxError")
    inside = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    import bad\n' + text
    assert ended_by(inside).traceback == inside
    assert ended_by(inside).why == ended_by(text).why == "SyntaxError: '(' was never closed"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (trace(0), "ValueError: rank 0 is negative"),
        ("usage: t.py\nt.py: error: unrecognized arguments: --x\n", "t.py: error: unrecognized arguments: --x"),
        ("terminate called\n  what():  CUDA error: misaligned address\n", "CUDA error: misaligned address"),
        ("Fatal Python error: Segmentation fault\n", "Fatal Python error: Segmentation fault"),
        ("loss 3\nloss 2\n", None),
        ("RuntimeError: late\nall is well: no error: 3\n", "RuntimeError: late"),
    ],
)
def test_the_cause_in_a_line(text: str, cause: str | None) -> None:
    assert ended_by(text).why == cause

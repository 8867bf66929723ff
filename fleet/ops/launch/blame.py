"""Whose fault it was, where a rank only laments what happened to another one. Pure, but for the tails of logs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from fleet.ops.launch.gang import SIGTERM, Failure, Gang
from fleet.rules.hints import hint_for
from fleet.rules.tracebacks import exception_of, last_of, split

Tail = Callable[..., str]
# what a rank raises because it was told to end
_TOLD = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|\w*(?:SIGTERM|Signal|Preempt)\w*)\b")
MAX_LINES = 20  # of an error's message and what stands behind it: a rank that goes on after one writes more


def laments(text: str) -> bool:
    """Whether a rank's last words tell of another one's death only."""
    hint = hint_for(text)
    return hint is not None and hint.collateral


def raised(text: str) -> bool:
    """Whether a rank's last words are an error of its own."""
    trace = last_of(text)
    if trace is None or not exception_of(trace) or _TOLD.match(exception_of(trace)) or laments(text):
        return False
    lines = text.splitlines()
    end = max(end for is_trace, _, end in split(lines) if is_trace)
    return len(lines) - end + len(exception_of(trace).splitlines()) <= MAX_LINES


def blamed(failure: Failure, gang: Gang, tail: Tail) -> Failure:
    """The failure of the rank that raised an error of its own but ended later than those whom it left: a rank may hang
    in its clean-up for as long as it likes."""
    if failure.rank is None or failure.what != "rank" or not laments(tail(failure.host, failure.rank)):
        return failure
    ends = sorted(gang.last_attempts(), key=lambda end: gang.nodes[end.host].clock.on_head(end.time))
    end = next((end for end in ends if end.failed and raised(tail(end.host, end.rank))), None)
    if end is None:
        return failure
    told = end.signal == SIGTERM
    return replace(
        failure,
        host=end.host,
        node_rank=end.node_rank,
        rank=end.rank,
        local_rank=end.local_rank,
        signal=None if told else end.signal,
        exit_code=failure.exit_code if told else end.exit_code,
    )

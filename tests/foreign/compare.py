"""Where two outcomes of one program differ, once what no two runs have alike is named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.foreign.program import Program
from tests.foreign.sides import Outcome

# pattern -> what it is: in the place of what it matches stands <that>
VARIES = {
    r"0x[0-9a-f]{6,}": "address",
    r"\d{4}-\d\d-\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d+)?": "time",
    r"\[([A-Z])\d{4} \d\d:\d\d:\d\d\.\d+": "time",
    r"\b[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ \d+\b": "time and pid",
    r"\b\d\d:\d\d:\d\d\b": "time",
    r"(?<=[\w.\]]:)\d{5}\b|(?<=_127\.0\.0\.1_)\d{5}(?=_)": "port",
    r"\bpid[:=]? ?\d+|(?<=\[)PID \d+|\bprocess \d+|\(pid \d+\)": "pid",
    r"(?<=/tmp/torchelastic_)\w{8}$|\bpsm_\w{8}|\btmp[a-z0-9_]{8}\b|\b(?<=pymp-)\w+": "random name",
}
AGENTS, LOGGED = "/tmp/torchelastic_", ("torchrun", "accelerate", "colossalai")
# what the shell by hand says of a command that a signal ended
SHELLS = re.compile(rb"^bash: line \d+: +\d+ (Segmentation fault|Aborted|Killed|Terminated)\b.*\n", re.M)


@dataclass(frozen=True)
class Difference:
    """why: its reason, where it is known; empty where not."""

    what: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.why})" if self.why else f"UNKNOWN: {self.what}"


# what is another under fleet than by hand, whatever the program
KNOWN = {
    r"left .* only by hand: process ": "no process outlives its run",
    r"left .* only by hand: /tmp/torchinductor_root$": "of torchrun's agent, when the first node's has gone before it",
}


def differences(program: Program, hand: Outcome, fleet: Outcome) -> list[Difference]:
    found = [*exits(program, hand, fleet), *fleet.odd, *outputs(program, hand, fleet)]
    found += [*files(program, hand, fleet), *leftovers(program, hand, fleet)]
    known = {**KNOWN, **program.known}
    result = []
    for what in found:
        why = [reason for pattern, reason in known.items() if re.search(pattern, what, re.S)]
        result.append(Difference(what, why[0] if why else ""))
    return result


def exits(program: Program, hand: Outcome, fleet: Outcome) -> Iterable[str]:
    if hand.code != fleet.code:
        wrong = hand if hand.code != program.code else fleet
        yield f"exit code {hand.code} by hand, {fleet.code} by fleet: {wrong.said[-600:]!r}"
    elif fleet.code != program.code:
        yield f"exit code {fleet.code}, not {program.code}: {fleet.said[-600:]!r}"


# -- outputs ------------------------------------------------------------------------------------------------------
def outputs(program: Program, hand: Outcome, fleet: Outcome) -> Iterable[str]:
    if len(fleet.logs) != len(hand.logs):
        yield f"logs of {sorted(hand.logs)} by hand, {sorted(fleet.logs)} by fleet"
        return
    mine, theirs = plain(program, fleet, hand.merged), plain(program, hand, hand.merged)
    if program.floating:
        if Counter(mine.values()) != Counter(theirs.values()):
            both = (b"".join(b"".join(streams) for streams in sorted(side.values())) for side in (theirs, mine))
            yield from differing("some rank", "output", *both)
        return
    for key, streams in theirs.items():
        for name, by_hand, by_fleet in zip(("stdout", "stderr"), streams, mine.get(key, ()), strict=False):
            who = f"rank {key[1]}" + (f" of attempt {key[0]}" if any(attempt for attempt, _ in theirs) else "")
            yield from differing(who, "output" if hand.merged else name, by_hand, by_fleet)


def plain(program: Program, outcome: Outcome, merged: bool) -> dict[tuple[int, int], tuple[bytes, ...]]:
    """Each rank's streams, normalised; one, with sorted lines, where the other side has but one."""
    result = {}
    for key, streams in sorted(outcome.logs.items()):
        texts = [normal(SHELLS.sub(b"", text), program.varies) for text in streams]
        if merged:
            lines = [line for text in texts for line in text.splitlines(True)]
            texts = [b"".join(sorted(lines))]
        elif not program.ordered:
            texts = [b"".join(sorted(text.splitlines(True))) for text in texts]
        result[key] = tuple(texts)
    return result


def normal(text: bytes, more: Mapping[str, str]) -> bytes:
    for pattern, name in {**more, **VARIES}.items():
        text = re.sub(pattern.encode(), f"<{name}>".encode(), text, flags=re.M)
    return text


def differing(who: str, stream: str, hand: bytes, fleet: bytes) -> Iterable[str]:
    if hand == fleet:
        return
    only_hand, only_fleet = Counter(hand.splitlines()), Counter(fleet.splitlines())
    only_hand, only_fleet = only_hand - only_fleet, only_fleet - only_hand
    if not only_hand and not only_fleet:
        yield f"{who}: {stream} has its lines in another order, or other ends of lines"
    for side, lines in (("hand", only_hand), ("fleet", only_fleet)):
        if lines:
            first = "; ".join(repr(line[:300].decode(errors="replace")) for line in list(lines)[:6])
            yield f"{who}: {stream} has {lines.total()} lines only by {side}: {first}"


# -- files --------------------------------------------------------------------------------------------------------
def files(program: Program, hand: Outcome, fleet: Outcome) -> Iterable[str]:
    for node in sorted(hand.files):
        mine, theirs = (named(program, outcome.files[node]) for outcome in (fleet, hand))
        for side, only in (("hand", theirs.keys() - mine.keys()), ("fleet", mine.keys() - theirs.keys())):
            if only:
                yield f"files on node {node} only by {side}: {', '.join(sorted(only)[:8])}"
        for path in sorted(mine.keys() & theirs.keys()):
            loose = program.loose and re.search(program.loose, path)
            last = 2 if loose else None
            if mine[path][:last] != theirs[path][:last]:
                yield f"{path} on node {node} is {theirs[path][:3]} by hand, {mine[path][:3]} by fleet"


def named(program: Program, found: dict[str, list[object]]) -> dict[str, list[object]]:
    return {normal(path.encode(), program.varies).decode(): what for path, what in found.items()}


def leftovers(program: Program, hand: Outcome, fleet: Outcome) -> Iterable[str]:
    for node in sorted(hand.left):
        if program.launcher in LOGGED:  # the agent's folder: by hand it is elsewhere, by --log-dir
            fleet.left[node] = Counter(path for path in fleet.left[node].elements() if not path.startswith(AGENTS))
        theirs, mine = (
            Counter(normal(path.encode(), program.varies).decode() for path in outcome.left[node].elements())
            for outcome in (hand, fleet)
        )
        for side, only in (("hand", theirs - mine), ("fleet", mine - theirs)):
            for path in only:
                yield f"left on node {node} only by {side}: {path}"

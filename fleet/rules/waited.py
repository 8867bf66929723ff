"""Ranks that waited for others until it timed out, against all ranks of the run: who is missing, or nobody. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.rules.advice import UNEVEN
from fleet.rules.ended import ended_by
from fleet.rules.stacks import ranks_text
from fleet.rules.worked_out import DIFFER, NAMED, TIMED_OUT

_IN = re.compile(r"WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+)")
_TIMED_OUT = re.compile(rf"{TIMED_OUT}|{NAMED}|Timed out after .* waiting for clients")
_NAMED = re.compile(NAMED)


@dataclass(frozen=True)
class Waited:
    """why, remedy: in words. missing: ranks that did not come to where the others waited, of which some are known."""

    why: str
    remedy: str
    missing: Sequence[int] = ()


def who_waited(said: Mapping[int, str]) -> Waited | None:
    """said: the end of what each rank of the run wrote. None: nobody timed out, or it is not to be told who came."""
    waited = {rank: text for rank, text in said.items() if _TIMED_OUT.search(text)}
    places = {rank: _place(text) for rank, text in waited.items()}
    if not waited:
        return None
    usual, count = Counter(places.values()).most_common(1)[0]
    by_place = {place: [rank for rank, it in places.items() if it == place] for place in sorted(set(places.values()))}
    there = by_place.pop(usual)
    elsewhere = [rank for ranks in by_place.values() for rank in ranks]
    most = f"{ranks_text(there)} waited {f'in {usual}' if usual else 'until it timed out'}"
    named = {int(rank) for text in waited.values() for it in _NAMED.finditer(text) for rank in _ranks(it)} - {*waited}
    missing = sorted(named) or [r for r in said if r not in waited and not ended_by(said[r]).collateral]
    if elsewhere and count > max(map(len, by_place.values())):
        others = [f"{ranks_text(ranks)} {f'in {place}' if place else 'elsewhere'}" for place, ranks in by_place.items()]
        return _missing("; ".join([most, *others]), sorted(elsewhere))
    if missing and len(missing) <= count and not elsewhere:
        return _missing(f"{most}; {ranks_text(missing)} did not: stuck elsewhere, or gone", missing)
    if len(waited) == len(said):
        return Waited(f"all {len(said)} ranks waited until it timed out, none is missing", f"look for {DIFFER}")
    return None


def _missing(why: str, ranks: Sequence[int]) -> Waited:
    who = "their logs say where they were" if len(ranks) > 1 else "its log says where it was"
    return Waited(why, f"{ranks_text(ranks)}: {who}; uneven data? {UNEVEN}", tuple(ranks))


def _place(text: str) -> str:
    """Returns "ALLREDUCE 4711", as NCCL's watchdog writes it, "" where the text does not say."""
    found = _IN.search(text)
    return f"{found['kind']} {found['number']}" if found else ""


def _ranks(found: re.Match[str]) -> list[str]:
    return re.findall(r"\d+", found["missing"] or found["late"])

"""Ranks that waited for others until it timed out, against all ranks of the run: the missing ranks, or none. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleet.node.gang.ends import ranks_text
from fleet.rules.advice import UNEVEN
from fleet.rules.ended import ended_by
from fleet.rules.worked_out import DIFFER, NAMED, TIMED_OUT

_IN = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)")
_TIMED_OUT = re.compile(rf"{TIMED_OUT}|{NAMED}|Timed out after .* waiting for clients")


def timed_out(text: str) -> bool:
    """Returns whether a rank that wrote this waited for others in vain."""
    return _TIMED_OUT.search(text) is not None


def who_waited(said: Mapping[int, str]) -> tuple[str, str, list[int]] | None:
    """Returns (why, remedy, ranks that did not come to where the others waited). said: the end of what each rank of the
    run wrote. None: no rank timed out, or it is not known which came."""
    places = dict[str, list[int]]()
    for rank, text in said.items():
        if timed_out(text):
            found = _IN.search(text)
            places.setdefault(f"in {found[2]} {found[1]}" if found else "until it timed out", []).append(rank)
    if not places:
        return None
    usual, there = max(places.items(), key=lambda it: len(it[1]))
    elsewhere = {place: ranks for place, ranks in sorted(places.items()) if place != usual}
    waited = {rank for ranks in places.values() for rank in ranks}
    named = {
        int(rank) for text in said.values() for it in re.findall(NAMED, text) for rank in re.findall(r"\d+", str(it))
    }
    missing = sorted(named - waited) or [r for r in said if r not in waited and not ended_by(said[r]).collateral]
    more = [f"{ranks_text(missing)} did not: stuck elsewhere, or gone"]
    if elsewhere:
        missing = sorted(waited.difference(there)) if len(there) > max(map(len, elsewhere.values())) else []
        more = [f"{ranks_text(ranks)} {place}" for place, ranks in elsewhere.items()]
    if missing and len(missing) <= len(there):
        why = "; ".join([f"{ranks_text(there)} waited {usual}", *more])
        return why, f"what did {ranks_text(missing)} do meanwhile? Uneven data: {UNEVEN}", missing
    why = f"all {len(said)} ranks waited until it timed out, none is missing"
    return (why, f"look for {DIFFER}", []) if len(waited) == len(said) else None

"""Compares the ranks that timed out while they waited with all ranks of the run, and finds the missing ones. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fleet.model import grouped
from fleet.node.gang.ends import ranks_text
from fleet.node.gang.timed_out import NAMED, timed_out
from fleet.rules.advice import UNEVEN
from fleet.rules.ended import ended_by
from fleet.rules.worked_out import DIFFER

_IN = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)")
_BEGINS = re.compile(r"wait timeout after \d+ms, keys: /default_pg/|waiting for clients")  # init_process_group's own
_WRITER = re.compile(r"^\[rank(\d+)\]:", re.MULTILINE)  # the rank number that torch has in that process


def meanwhile(missing: Sequence[int]) -> str:
    """Returns the next step if these ranks did not come."""
    return f"what did {ranks_text(missing)} do meanwhile? Uneven data: {UNEVEN}"


def who_waited(texts: Mapping[int, str], at: Mapping[int, str]) -> tuple[str, str, list[int]] | None:
    """Returns (why, remedy, missing ranks); missing ranks did not come to the place where the others waited. Returns
    None if no rank timed out, or if it is not known which ranks came: a script may give its ranks other numbers. texts:
    rank -> the end of its output, for all ranks. at: rank -> its place, by its stack."""
    writers = {rank: set(map(int, _WRITER.findall(text))) for rank, text in texts.items()}
    if any(numbers - {rank} for rank, numbers in writers.items()):
        return None
    late = ((rank, _IN.search(text)) for rank, text in texts.items() if timed_out(text))
    places = grouped((f"in {in_[2]} {in_[1]}" if in_ else "until it timed out", rank) for rank, in_ in late)
    if not places:
        return None
    usual, there = max(places.items(), key=lambda it: len(it[1]))
    elsewhere = {place: ranks for place, ranks in sorted(places.items()) if place != usual}
    waited = {rank for ranks in places.values() for rank in ranks}
    named = {
        int(rank) for text in texts.values() for it in re.findall(NAMED, text) for rank in re.findall(r"\d+", str(it))
    }
    if named and not named & texts.keys():
        if not all(writers[rank] for rank in waited):
            return None
        why = f"{ranks_text(sorted(waited))} waited for {ranks_text(sorted(named))}, and the run has {len(texts)} ranks"
        return why, "leave world_size out of init_process_group: the environment has this run's", []
    others = texts.keys() - waited
    missing = sorted(named & others) or [rank for rank in sorted(others) if not ended_by(texts[rank]).collateral]
    seen = [
        f"{ranks_text(ranks)} {'was' if len(ranks) == 1 else 'were'} in {place}"
        for place, ranks in grouped((at[rank], rank) for rank in missing if rank in at).items()
    ]
    more = seen or [f"{ranks_text(missing)} did not: stuck elsewhere, or gone"]
    if elsewhere:
        missing = sorted(waited.difference(there)) if len(there) > max(map(len, elsewhere.values())) else []
        more = [f"{ranks_text(ranks)} {place}" for place, ranks in elsewhere.items()]
    if missing and len(missing) <= len(there):
        why = "; ".join([f"{ranks_text(there)} waited {usual}", *more])
        step = f"what did {ranks_text(missing)} do before init_process_group? A longer timeout=..., or that after it"
        return why, step if any(_BEGINS.search(texts[rank]) for rank in there) else meanwhile(missing), missing
    why = f"all {len(texts)} ranks waited until it timed out, none is missing"
    return (why, f"look for {DIFFER}", []) if len(waited) == len(texts) else None

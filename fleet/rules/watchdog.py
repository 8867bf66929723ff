"""Which rank the timeouts of NCCL's watchdogs point at: each rank tells in what it waited. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from fleet.inventory.nodeset import fold

_WAITED = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+)"
)


def odd_one_out(said: Mapping[int, str]) -> str | None:
    """said: the last words of each rank. What the few did that most did not; None where they do not tell."""
    found = {rank: _WAITED.search(text) for rank, text in said.items()}
    waited = {rank: f"{it['kind']} {it['number']}" for rank, it in found.items() if it}
    if not waited:
        return None
    usual, count = Counter(waited.values()).most_common(1)[0]
    where = {place: [rank for rank, its in waited.items() if its == place] for place in set(waited.values()) - {usual}}
    most = f"{_ranks(rank for rank, its in waited.items() if its == usual)} waited in {usual}"
    if where and count > max(map(len, where.values())):
        return "; ".join([most, *(f"{_ranks(ranks)} in {place}" for place, ranks in sorted(where.items()))])
    silent = [rank for rank in said if rank not in waited]
    if silent and not where and len(silent) < count:
        return f"{most}; {_ranks(silent)} did not: stuck elsewhere, or gone"
    return None


def _ranks(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return f"rank{'s' * (len(listed) > 1)} {fold(map(str, listed)).strip('[]')}"

"""Every event of a run that the code emits is told of in fleet/ops/run/kept/kinds.py (docs/json.md), and no other."""

from __future__ import annotations

from tests.events import COMMON, documented, emitted

EMITTED = list(emitted())
LINE = "add it to fleet/ops/run/kept/kinds.py, then: python -m tools.reference"


def test_every_event_is_documented() -> None:
    told = documented()
    missing = []
    for each in EMITTED:
        if each.kind is None:
            missing.append(f"{each.where}: give the event's kind as a plain word, so that it can be found")
        elif each.kind not in told:
            missing.append(f"{each.where}: event {each.kind!r} is not documented: {LINE}")
        elif lacks := each.fields - told[each.kind] - COMMON:
            missing.append(f"{each.where}: event {each.kind!r}: no word of {sorted(lacks)}: {LINE}, in backticks")
    assert not missing, "\n".join(missing)


def test_every_event_that_is_documented_is_emitted() -> None:
    there = {each.kind for each in EMITTED}
    assert len(there) > 20
    gone = sorted(documented().keys() - there)
    assert not gone, f"nothing emits {gone} any more: take the lines out of fleet/ops/run/kept/kinds.py (a new VERSION)"

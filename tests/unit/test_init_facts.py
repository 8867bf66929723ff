"""Whatever facts fit, an inventory comes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.inventory.find import parse
from fleet.ops.init import choose
from fleet.protocol.messages.facts import Facts
from tests.liar import steady
from tests.schemas import fitting


def yaml(text: str) -> Any:
    return parse(text.encode(), "fleet.yaml")


@steady
@given(st.lists(fitting(Facts), min_size=1, max_size=3), st.booleans())
def test_whatever_facts_fit_an_inventory_comes_of_it(told: list[Any], added: bool) -> None:
    given = yaml("hosts: [n0, n1, n2]")
    facts = {f"n{number}": each for number, each in enumerate(told)}
    candidates = {name: choose.addresses(each, f"{name}.example") for name, each in facts.items()}
    reached = {name: [each.text for each in own] for name, own in candidates.items()}
    found = choose.findings_of(given, facts, candidates, reached)
    filled = replace(given, hosts=tuple(replace(host, **found[host.name].fields) for host in given.hosts))
    old = "hosts:\n  n0:\n" if added else None
    new = frozenset(given.names) - ({"n0"} if added else set())
    text, left = choose.proposed(Path("f"), old, filled, new, {name: each.remark for name, each in found.items()})
    assert yaml(text).hosts == filled.hosts and not left
    assert all(set(choose.row("x", host, found[host.name])) for host in filled.hosts)

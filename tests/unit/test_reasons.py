"""Sentences of one cause are one, with what differs between them folded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fleet.errors import Reason
from fleet.rules.causes import by_cause


def folded(*texts: str) -> str:
    causes = by_cause([(f"h{i}", text, None) for i, text in enumerate(texts)])
    assert len(causes) == 1
    return causes[0].message


@pytest.mark.parametrize(
    "values, said",
    [
        (["x"] * 9, "x"),
        (["a1", "a2", "a3"], "a[1-3]"),
        (["7", "9"], "7, 9"),
        (["7", "9", "10", "3"], "3 to 10"),
        (["1.5 GiB", "900 MiB"], "1.5 GiB, 900 MiB"),
        (["p q", "r"], "p q, r"),
        ([f"SHA256:{c}+/" for c in "abcde"], "SHA256:a+/, SHA256:b+/, SHA256:c+/ and 2 more"),
        (["/a b", "/a c", "/a d", "/a e"], "/a b,c,d,e"),
        (["{y}", "{x}"], "{y}, {x}"),
    ],
)
def test_what_differs_is_folded_as_what_it_is(values: list[str], said: str) -> None:
    assert folded(*(Reason("is {x}, no {more}", x=value) for value in values)) == f"is {said}, no {{more}}"


def test_numbers_that_a_node_says_are_details_and_names_paths_and_versions_are_not() -> None:
    said = "{} bytes are to be written to /data2, {} are free on gpu1 (3.11.2), pids {}"
    texts = [Reason.of_node(said.format(9, i, f"{i}, 4")) for i in range(5)]
    assert folded(*texts) == said.format(9, "0 to 4", "0, 4, 1, 4, 2, 4 and 2 more")
    differing = [Reason.of_node(f"{path} holds 3") for path in ("/data2", "/data3", "gpu4", "1.2.3")]
    assert len({r.template for r in differing}) == 4


def test_a_template_of_a_node_reaches_nothing_of_ours() -> None:
    nasty = Reason.of_node("{0.__class__} {n0:>999999999} 7 {n0}")
    assert str(nasty) == "{0.__class__} {n0:>999999999} 7 {n0}"
    assert isinstance(SimpleNamespace(x=nasty).x + " more", Reason)


def test_reasons_whose_details_have_one_name() -> None:
    """Of two gateways in a row, each names its own."""
    inner = Reason("gateway {gateway}: ", gateway="inner") + Reason("refused by {gateway_}", gateway_="x")
    both = Reason("gateway {gateway}: ", gateway="outer") + inner
    assert both == "gateway outer: gateway inner: refused by x"
    assert sorted(both.details.values()) == ["inner", "outer", "x"] and len(both.details) == 3
    assert both + Reason(" {gateway}", gateway="4th") == f"{both} 4th"

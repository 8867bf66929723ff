"""Finds the slow links between hosts, as the smallest set of causes, and reports the error counts of InfiniBand
ports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

from fleet.errors import Reason
from fleet.inventory.nodeset import fold
from fleet.rules.pairs import MOST_PAIRS, Pair, Shape, all_pairs, causes, listed
from fleet.rules.rule import MISSING, Finding, Rule, View

SLOW = 0.6  # a link is slow below this share of the median


def slow_pairs(rates: Mapping[Pair, float]) -> set[Pair]:
    """Returns the pairs whose links are slow compared with the others. Fewer than three links are not compared."""
    usual = median(rates.values()) if len(rates) > 2 else 0.0
    return {pair for pair, rate in rates.items() if rate < SLOW * usual}


def links(view: View) -> Any:
    return Links(view["links"]) if view.get("links") else MISSING


class Links(NamedTuple):
    """Holds the measurements of `check --network` from one host: other host -> {"mbit" (Mbit/s), "rtt_ms", "mtu",
    "again", "least"}. "least": the link may be faster, because the sender's processor was the limit."""

    to: Mapping[str, Mapping[str, Any]]


def slow(rule: Rule, values: Mapping[str, Links]) -> Iterator[Finding]:
    """Yields findings on hosts whose links are slow compared with the others', and on the slow pairs that these hosts
    do not explain. A link with `least` is not judged."""
    rates = {
        (a, b): link["mbit"]
        for a, of in values.items()
        for b, link in of.to.items()
        if b in values and not link["least"]
    }
    pairs = slow_pairs(rates)
    if not pairs:
        return
    usual = median(rates.values())
    found = causes([*values], pairs, rates)
    few = len([cause for cause in found if cause.shape in ("pair", "one")]) <= MOST_PAIRS
    for cause in found if few else [it for it in found if it.shape not in ("pair", "one")]:
        text = Reason(_SLOW[cause.shape], one=cause.hosts[0], hosts=fold(cause.hosts), other=cause.hosts[-1])
        yield rule.found(cause.hosts, text + _rates(rates, cause.pairs, usual))
    if not few:
        names, hosts = listed([it for it in found if it.shape in ("pair", "one")], [*values])
        yield rule.found(hosts, Reason("{pairs}: slow", pairs=names) + _rates(rates, all_pairs(found), usual))


def _rates(rates: Mapping[Pair, float], pairs: Iterable[Pair], usual: float) -> str:
    found = sorted(round(rates[pair]) for pair in pairs)
    span = f"{found[0]}" + f" to {found[-1]}" * (found[0] != found[-1])
    return f": {span} Mbit/s, elsewhere {usual:.0f}"


_SLOW: Mapping[Shape, str] = {
    "host": "{one}: all of its links are slow",
    "in": "{one}: what it receives is slow",
    "out": "{one}: what it sends is slow",
    "split": "links between {hosts} and the others are slow",
    "pair": "the link between {one} and {other} is slow",
    "one": "from {one} to {other} it is slow",
}


PORT = "'ethtool NAME' there shows speed and duplex: a cable, a switch port at a lower speed, another load on it?"
COUNTED = "a cable or transceiver: 'perfquery -x' there shows whether they grow while a run trains"
RULES = (
    Rule("ways-slow", links, "slow", "the ways between hosts", PORT, "warning"),
    Rule("infiniband-errors", "infiniband_errors", "clear", "errors that ports have counted", COUNTED, "info"),
)

"""What keeps hosts from each other, found from which of them reach which: drawn networks, held to the faults that they
were made of."""

from __future__ import annotations

import time
from itertools import combinations, permutations
from random import Random
from typing import NamedTuple

import pytest

from fleet.ops.network import circle
from fleet.ops.pairs import partners
from fleet.rules.judge import RULES
from fleet.rules.links import Links
from fleet.rules.links import slow as slow_links
from fleet.rules.pairs import Cause, Pair, Seen, causes, closed, stalled
from fleet.rules.rule import Finding

WAYS = next(rule for rule in RULES if rule.id == "ways")


class Fault(NamedTuple):
    pairs: frozenset[Pair]
    splits: bool = False


def faults(names: list[str]) -> list[Fault]:
    """Returns what may be wrong with a network of these hosts, each with the pairs that do not work then."""
    every = [*permutations(names, 2)]
    sets = [{p for p in every if p[n] == a} for a in names for n in (0, 1)]
    sets += [{p for p in every if a in p} for a in names]
    sets += [{(a, b), (b, a)} for a, b in combinations(names, 2)] + [{p} for p in every]
    sides = [side for size in range(2, len(names) - 1) for side in combinations(names, size)]
    split = [{p for p in every if (p[0] in side) != (p[1] in side)} for side in sides]
    return [Fault(frozenset(each)) for each in sets] + [Fault(frozenset(each), True) for each in split]


def fewest(bad: frozenset[Pair], possible: list[Fault]) -> int:
    """Returns how many faults it takes to explain exactly these pairs; networks are not split twice."""
    inside = [fault for fault in possible if fault.pairs <= bad]
    for size in range(len(bad) + 1):
        for some in combinations(inside, size):
            if frozenset[Pair]().union(*(each.pairs for each in some)) == bad and sum(each.splits for each in some) < 2:
                return size
    raise AssertionError


@pytest.mark.parametrize("seed", range(20))
def test_the_fewest_causes_are_found(seed: int) -> None:
    rng = Random(seed)
    for _ in range(50):
        names = [f"h{n}" for n in range(rng.randint(2, 6))]
        possible = faults(names)
        drawn = rng.sample(possible, rng.choice((1, 1, 2)))
        if sum(each.splits for each in drawn) > 1:
            continue
        bad = frozenset[Pair]().union(*(each.pairs for each in drawn))
        found = causes(names, bad, permutations(names, 2))
        assert set[Pair]().union(*(cause.pairs for cause in found)) == bad
        assert len(found) <= fewest(bad, possible), (bad, found)


def shapes(names: str, *bad: str) -> list[tuple[str, str]]:
    pairs = [(pair[0], pair[1]) for pair in bad]
    return [(cause.shape, "".join(cause.hosts)) for cause in causes([*names], pairs, permutations(names, 2))]


@pytest.mark.parametrize(
    "names, bad, expected",
    [
        ("abcd", "ba ca da", [("in", "a")]),
        ("abcd", "ab ac ad", [("out", "a")]),
        ("abcd", "ba ca da ab ac ad", [("host", "a")]),
        ("abcd", "bd db", [("pair", "bd")]),
        ("abcd", "bd", [("one", "bd")]),
        ("ab", "ab ba", [("pair", "ab")]),
        ("abcd", "ac ca ad da bc cb bd db", [("split", "ab")]),
        ("abcd", "ba ca da ac bc dc", [("in", "a"), ("in", "c")]),
        ("abcd", "", []),
    ],
)
def test_a_fault_has_its_shape(names: str, bad: str, expected: list[tuple[str, str]]) -> None:
    assert shapes(names, *bad.split()) == expected


def test_a_pair_that_was_not_tried_says_nothing() -> None:
    tried = [("a", "b"), ("b", "a"), ("c", "b"), ("b", "c")]
    assert causes(["a", "b", "c"], [("a", "b"), ("c", "b")], tried) == [
        Cause("in", ("b",), frozenset({("a", "b"), ("c", "b")}))
    ]


def found(how: dict[Pair, str], nccl: bool = False, judge: object = closed) -> list[Finding]:
    names = sorted({name for pair in how for name in pair})
    every = {pair: how.get(pair, "open") for pair in permutations(names, 2)}
    values = {
        name: Seen({b: it for (a, b), it in every.items() if a == name}, f"10.0.0.{n}", "eth1", 9000, nccl)
        for n, name in enumerate(names, 1)
    }
    return [*judge(WAYS, values)]  # type: ignore[operator]


def test_what_this_runs_backend_does_not_dial_is_a_warning() -> None:
    """gloo dials from the higher address only, NCCL from either side."""
    for pair, nccl, severity in (
        (("a", "b"), False, "warning"),
        (("b", "a"), False, "error"),
        (("a", "b"), True, "error"),
    ):
        (finding,) = found({pair: "silent", ("c", "a"): "open"}, nccl)
        assert (finding.severity, finding.hosts) == (severity, pair), finding
        assert finding.message.endswith(f"(no answer); {pair[1]} reaches {pair[0]}")


def test_several_hosts_of_one_fault_are_one_finding() -> None:
    (finding,) = found({(a, b): "refused" for a in "abcd" for b in "bc" if a != b})
    assert finding.hosts == ("b", "c") and "no other host reaches them" in finding.message
    assert "(refused)" in finding.message and "exec -w b,c -- nft" in finding.remedy


def test_what_is_not_known_is_no_finding() -> None:
    assert found({("a", "b"): "unknown", ("b", "a"): "unknown"}) == []


def test_large_packets_that_are_lost() -> None:
    how = {pair: "stalled" for pair in permutations("abcd", 2) if "c" in pair}
    assert found(how) == []
    (finding,) = found(how, judge=stalled)
    assert finding.hosts == ("c",) and "c: large packets of 9000 bytes between it and the others" in finding.message
    assert "dev eth1 mtu 1500" in finding.remedy


def test_partners_of_many_hosts_are_the_same_for_check_and_launch() -> None:
    names = [f"n{n}" for n in range(1000)]
    found = partners(names)
    assert found == partners(names) and max(map(len, found.values())) <= 36
    assert all(
        {names[0], names[n - 1], names[(n + 1) % 1000]} - {name} <= {*found[name]} for n, name in enumerate(names)
    )
    assert all(name not in others for name, others in found.items())
    assert sum(map(len, partners(names[:64]).values())) == 64 * 63


@pytest.mark.parametrize("count", [2, 3, 4, 5, 16, 63])
def test_in_each_round_a_host_sends_or_receives_and_after_all_it_has_sent_to_each(count: int) -> None:
    names = [f"n{n}" for n in range(count)]
    rounds = circle(names)
    assert len(rounds) == 2 * (count - 1 + count % 2)
    for one in rounds:
        busy = [name for sender, others in one.items() for name in (sender, *others) if others]
        assert len(busy) == len({*busy}) >= count // 2 * 2
    met = [(name, other) for one in rounds for name, others in one.items() for other in others]
    assert sorted(met) == sorted(permutations(names, 2))


def rates(slow: dict[Pair, float], least: bool = False) -> list[Finding]:
    every = {pair: slow.get(pair, 9400.0) for pair in permutations("abcd", 2)}
    values = {
        a: Links({b: {"mbit": rate, "least": least} for (one, b), rate in every.items() if one == a}) for a in "abcd"
    }
    return [*slow_links(WAYS, values)]


def test_a_slow_host_is_told_from_its_partners() -> None:
    (finding,) = rates({pair: 940.0 for pair in permutations("abcd", 2) if pair[0] == "c"})
    assert finding.hosts == ("c",) and finding.message == "c: what it sends is slow: 940 Mbit/s, elsewhere 9400"
    (finding,) = rates({("a", "b"): 100.0})
    assert finding.message == "from a to b it is slow: 100 Mbit/s, elsewhere 9400"
    assert rates({("a", "b"): 100.0}, least=True) == [], "the processor was the limit"
    assert rates({}) == []


def test_many_pairs_are_one_finding() -> None:
    pairs = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "c"), ("d", "b")]
    (finding,) = rates(dict.fromkeys(pairs, 100.0))
    assert finding.message.startswith("a -> b, a -> c, b -> c, c -> d and 2 more: slow: 100 Mbit/s, elsewhere")
    (finding,) = found(dict.fromkeys(pairs, "silent"))
    assert finding.message == "a -> b, a -> c, b -> c, c -> d and 2 more do not reach each other (no answer)"
    assert finding.hosts == ("a", "b", "c", "d")


def test_a_large_network_in_two_halves_is_one_cause_at_once() -> None:
    names = [f"h{n:03}" for n in range(500)]
    tried = {(a, b) for a, others in partners(names).items() for b in others}
    half = {*names[:250]}
    bad = {pair for pair in tried if (pair[0] in half) != (pair[1] in half)}
    began = time.process_time()
    (found,) = causes(names, bad, tried)
    assert (found.shape, found.pairs) == ("split", bad)
    assert time.process_time() - began < 10  # it took minutes, each pair against all others

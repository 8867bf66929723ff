"""Who sends to whom, and what becomes of those that hold others up, told step by step."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.delivery.chain.judge import Judge, Verdict
from fleet.delivery.chain.member import Member
from fleet.delivery.chain.order import SOURCE, Chain, Order
from fleet.delivery.chain.source import ways
from fleet.model import Host

MB = 10**6
Rates = Mapping[str, float] | Callable[[str, str], float]  # bytes/s of a hop, perhaps by its sender


class Story:
    """A broadcast without its nodes: everyone advances at its rate, who is given up is gone."""

    def __init__(self, *names: str, todo: int = 10_000 * MB, limit: int | None = 1000 * MB) -> None:
        self.chain = Chain([(name, todo) for name in names], 0.0, limit)
        self.judge = Judge(self.chain, tried=limit is not None)
        self.chain.orders()
        self.now = 0.0
        self.told: list[tuple[str, str, str]] = []
        self.verdicts: list[Verdict] = []

    def run(self, seconds: float, rates: Rates, silent: str = "", pause: float = 0.2) -> Story:
        end = self.now + seconds
        while self.now < end:
            self.now = round(self.now + pause, 3)
            self.step(pause, rates, silent)
            self.judged(self.judge.tick(self.now))
        return self

    def judged(self, verdicts: list[Verdict]) -> list[Verdict]:
        for verdict in verdicts:
            self.verdicts.append(verdict)
            self.told.append((verdict.name, verdict.action, verdict.kind))
            if verdict.action == "out":
                self.chain.remove(verdict.name)
        self.chain.orders()
        return verdicts

    def step(self, pause: float, rates: Rates, silent: str) -> None:
        for name, hop in list(self.chain.hops.items()):
            if name in silent:
                continue
            sender = self.chain.sender_of(name)
            rate = rates.get(name, 0.0) if isinstance(rates, Mapping) else rates(name, sender)
            room = self.chain.hops[sender].received if sender else hop.todo
            at = hop.received if hop.away else min(hop.received + int(rate * pause), max(room, hop.received))
            self.chain.record_report(name, at, at, self.now)
            hop.done = at >= hop.todo
        self.chain.orders()

    def broke(self, sender: str, receiver: str, kind: str, why: str = "x") -> list[Verdict]:
        link = self.chain.links[receiver]
        assert link.sender == sender
        return self.judged(self.judge.broke(sender, link.epoch, kind, why))

    @property
    def order(self) -> str:
        return "".join(name for name, hop in self.chain.hops.items() if not hop.away)


def pairs(chain: Chain) -> dict[str, str]:
    """Receiver -> sender."""
    return {receiver: order.sender for receiver, order in chain.links.items()}


def chain_of(*names: str) -> Chain:
    return Story(*names).chain


# -- the order ------------------------------------------------------------------------------------------------
def test_a_chain_in_the_order_of_the_inventory() -> None:
    assert pairs(chain_of("a", "b", "c")) == {"a": SOURCE, "b": "a", "c": "b"}


def test_the_gap_closes_wherever_it_is_epochs_grow_and_nothing_is_ordered_twice() -> None:
    chain = chain_of("a", "b", "c", "d")
    assert chain.orders() == []
    for gone, orders in (
        ("b", [Order("a", "c", 5)]),
        ("d", []),
        ("a", [Order(SOURCE, "c", 6)]),
        ("nobody", []),
    ):
        chain.remove(gone)
        assert chain.orders() == orders


def test_one_that_is_done_goes_on_sending_and_needs_nobody() -> None:
    chain = chain_of("a", "b", "c")
    chain.hops["b"].done = True
    chain.remove("a")  # b has all, c has b
    assert chain.orders() == []
    chain.remove("b")
    assert chain.orders() == [Order(SOURCE, "c", 4)]


# -- silence --------------------------------------------------------------------------------------------------
def test_silence_sets_one_aside_and_long_silence_is_death() -> None:
    story = Story("a", "b", "c").run(2, {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB})
    assert story.told == []
    story.run(3, {"a": 10 * MB, "c": 10 * MB}, silent="b")
    assert story.told == [("b", "aside", "lost")] and story.order == "ac"
    assert pairs(story.chain) == {"a": SOURCE, "c": "a"}
    story.run(8, {"a": 10 * MB, "c": 10 * MB}, silent="b")
    assert story.told[1:] == []
    story.run(3, {"a": 10 * MB, "c": 10 * MB}, silent="b")
    assert story.told[1:] == [("b", "out", "dead")] and "no sign of life" in story.verdicts[1].reason


def test_one_that_speaks_again_is_back_at_the_end() -> None:
    rates = {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB}
    story = Story("a", "b", "c").run(2, rates).run(3, rates, silent="b").run(20, rates)
    assert story.told == [("b", "aside", "lost")] and story.order == "acb"
    assert story.chain.hops["b"].received > 190 * MB


def test_where_words_are_far_apart_nobody_is_silent_soon() -> None:
    rates = {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB, "d": 10 * MB}
    story = Story("a", "b", "c", "d")
    story.judge = Judge(story.chain, 0.9, True)
    for _ in range(5):
        story.run(2.7, rates, silent="b", pause=0.9).run(1.8, rates, pause=0.9)
    assert "aside" not in {action for _, action, _ in story.told}


def test_silence_of_one_that_takes_bytes_is_a_full_link() -> None:
    story = Story("a", "b", "c").run(2, {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB})
    for step in range(1, 20):
        story.chain.sent("a", step * MB, story.now)
        story.run(0.2, {"a": 10 * MB}, silent="b")
    assert story.told == []


def test_a_head_that_was_held_up_blames_nobody() -> None:
    story = Story("a", "b").run(2, {"a": MB, "b": MB})
    assert story.judge.tick(9.0) == []


def test_a_head_that_slept_blames_nobody_for_anything() -> None:
    rates = {"a": 10 * MB, "b": 10 * MB}
    story = Story("a", "b").run(6, rates)
    story.now += 40
    assert story.judge.tick(story.now) == []
    assert story.run(20, rates).told == []


def test_one_that_comes_back_late_has_time_to_receive() -> None:
    rates = {"a": 10 * MB, "b": 10 * MB}
    story = Story("a", "b").run(2, rates).run(11, rates, silent="b")
    assert story.told == [("b", "aside", "lost")]
    assert story.run(3, {**rates, "b": 0.0}).told == [("b", "aside", "lost")]


def test_all_silent_at_once_is_the_heads_own_trouble() -> None:
    rates = {"a": MB, "b": MB, "c": MB}
    assert Story("a", "b", "c").run(2, rates).run(6, rates, silent="abc").told == []


def test_the_silence_of_one_that_has_all_costs_it_nothing_but_its_place() -> None:
    story = Story("a", "b", todo=10 * MB).run(2, {"a": 10 * MB, "b": MB})
    story.run(3, {"b": MB}, silent="a")
    assert story.told == [("a", "aside", "lost")] and pairs(story.chain) == {"b": SOURCE}


# -- speed ----------------------------------------------------------------------------------------------------
def test_a_crawling_node_goes_to_the_end_and_is_given_up_when_all_others_are_through() -> None:
    rates = {"a": 25 * MB, "b": 2.5 * MB, "c": 25 * MB, "d": 25 * MB}
    story = Story("a", "b", "c", "d", todo=1000 * MB).run(30, rates)
    assert story.told == [("b", "last", "slow")] and story.order == "acdb"
    story.run(40, rates)
    # it may be its sender's fault: the source itself is to find out
    assert story.told[1:] == [("b", "direct", "slow"), ("b", "out", "slow")]
    assert "it crawls: 2.5 MB/s, where others have 25.0 MB/s" in story.verdicts[2].reason


def test_two_crawling_ones_are_given_up_though_each_has_the_other_to_wait_for() -> None:
    rates = {"a": 25 * MB, "b": 2.5 * MB, "c": 25 * MB, "d": 2.5 * MB, "e": 25 * MB}
    story = Story(*rates, todo=1000 * MB).run(120, rates)
    assert {name for name, action, _ in story.told if action == "out"} == {"b", "d"}
    assert all(story.chain.hops[name].done for name in "ace")


def test_this_machine_among_the_hosts_is_faster_than_its_link_and_nobody_crawls() -> None:
    rates = {"here": 1000 * MB, "a": 25 * MB, "b": 25 * MB}
    assert all(hop.done for hop in Story(*rates, todo=2000 * MB).run(120, rates).chain.hops.values())
    rates = {"here": 1000 * MB, "a": 25 * MB}
    story = Story(*rates, todo=2000 * MB).run(120, rates)
    assert story.told == [] and story.chain.hops["a"].done


def test_a_node_with_a_slow_way_out_costs_nobody_its_data() -> None:
    def rates(name: str, sender: str) -> float:
        return 2 * MB if sender == "a" else 25 * MB

    story = Story("a", "b", "c", "d", "e", todo=2000 * MB).run(200, rates)
    assert [(name, action) for name, action, _ in story.told] == [("b", "last"), ("a", "last")]
    assert all(hop.done for hop in story.chain.hops.values()) and len(story.chain.hops) == 5


def test_a_first_node_that_crawls_is_found_out_by_trying_another() -> None:
    rates = {"a": 2.5 * MB, "b": 25 * MB, "c": 25 * MB}
    story = Story("a", "b", "c", todo=1000 * MB, limit=None).run(80, rates)
    assert story.told == [("a", "last", "trial"), ("a", "direct", "slow"), ("a", "out", "slow")]
    assert story.chain.hops["c"].done


def test_the_trial_is_one_and_blames_nobody() -> None:
    rates = {"a": 25 * MB, "b": 25 * MB, "c": 25 * MB}
    story = Story("a", "b", "c", todo=1000 * MB, limit=None).run(80, rates)
    assert story.told == [("a", "last", "trial")]
    assert all(hop.done for hop in story.chain.hops.values())
    assert Story("a", "b", "c", todo=400 * MB, limit=None).run(80, rates).told == []


def test_one_that_crawls_as_first_gives_that_place_back() -> None:
    def rates(name: str, sender: str) -> float:
        return 2 * MB if (name, sender) == ("b", SOURCE) else 25 * MB

    story = Story("a", "b", "c", todo=2000 * MB, limit=None).run(200, rates)
    assert story.told == [("a", "last", "trial"), ("b", "last", "slow")]
    assert all(hop.done for hop in story.chain.hops.values())


def test_what_slows_everybody_down_is_nobodys_fault() -> None:
    names = ("a", "b", "c", "d")
    story = Story(*names, todo=3000 * MB, limit=None).run(20, dict.fromkeys(names, 25.0 * MB))
    story.run(60, dict.fromkeys(names, 2.0 * MB)).run(200, dict.fromkeys(names, 25.0 * MB))
    assert {action for _, action, _ in story.told} <= {"last"}
    assert all(story.chain.hops[name].done for name in names)


def test_half_the_speed_is_no_crawl_nor_is_a_crawl_that_is_over_soon() -> None:
    assert Story("a", "b").run(20, {"a": 25 * MB, "b": 12 * MB}).told == []
    assert Story("a", "b", todo=40 * MB).run(8, {"a": 25 * MB, "b": 5 * MB}).told == []


def test_one_that_receives_nothing_though_there_is_something() -> None:
    story = Story("a", "b").run(70, {})
    assert story.told[:2] == [("a", "last", "stalled"), ("b", "last", "stalled")]
    assert ("a", "out", "stalled") in story.told and story.order == ""


def test_the_least_limit_is_no_stall() -> None:
    assert Story("a", "b", todo=1 * MB, limit=1000).run(200, {"a": 1000.0, "b": 1000.0}).told == []


# -- links ----------------------------------------------------------------------------------------------------
def test_a_broken_link_is_dialled_again_then_its_end_gets_another_sender() -> None:
    story = Story("a", "b", "c")
    for _ in range(3):
        assert story.broke("a", "b", "lost", "reset") == []
    [verdict] = story.broke("a", "b", "lost", "reset")
    assert (verdict.name, verdict.action) == ("b", "last") and "host a" in verdict.reason
    assert pairs(story.chain) == {"a": SOURCE, "c": "a", "b": "c"}


def test_news_of_an_old_link_or_of_anothers_is_no_news() -> None:
    story = Story("a", "b", "c")
    assert story.judge.broke("a", 3, "protocol", "x") == story.judge.broke("b", 2, "protocol", "x") == []
    story.chain.remove("b")
    story.chain.orders()
    assert story.judge.broke("a", 2, "protocol", "x") == []


def test_nobody_is_out_by_the_word_of_another() -> None:
    """Not even where this machine's own link to it broke before."""
    story = Story("a", "e", "b")
    for _ in range(4):
        story.broke(SOURCE, "a", "lost")
    assert story.order == "eba"
    assert [v.action for v in story.broke("b", "a", "protocol")] == ["direct"]
    assert [v.action for v in story.broke(SOURCE, "a", "protocol")] == ["out"]


def test_one_that_accuses_two_others_is_the_one_to_be_last() -> None:
    story = Story("e", "a", "b")
    assert [(v.name, v.action) for v in story.broke("e", "a", "protocol")] == [("a", "last")]
    assert [(v.name, v.action) for v in story.broke("e", "b", "protocol")] == [("e", "last")]
    assert story.order == "bae" and not any(hop.direct for hop in story.chain.hops.values())


def test_a_wall_between_two_is_gone_around_and_at_the_end_named() -> None:
    story = Story("a", "b", "c")
    assert story.broke("a", "b", "unreachable", "timed out") == []
    [verdict] = story.broke("a", "b", "unreachable", "timed out")
    assert (verdict.name, verdict.action, verdict.kind) == ("b", "last", "unreachable")
    assert story.broke("c", "b", "unreachable", "refused") == []
    [verdict] = story.broke("c", "b", "unreachable", "refused")
    assert verdict.action == "direct" and "host a and host c cannot reach it" in verdict.reason
    assert pairs(story.chain) == {"a": SOURCE, "c": "a", "b": SOURCE}
    assert story.broke(SOURCE, "b", "unreachable", "refused") == []
    [verdict] = story.broke(SOURCE, "b", "unreachable", "refused")
    assert verdict.action == "out" and "host a and host c and this machine cannot reach it" in verdict.reason


def test_two_that_cannot_reach_each_other_are_both_served() -> None:
    story = walls(Story("a", "b"), {("a", "b"), ("b", "a")})
    assert [action for _, action, _ in story.told] == ["direct"] and pairs(story.chain) == {"a": SOURCE, "b": SOURCE}


def test_what_is_wrong_is_asked_for_again_then_blamed_on_the_link_that_brought_it() -> None:
    story = Story("e", "a", "b")
    for name in "ab":  # what e made up has gone through a
        assert story.judged(story.judge.corrupt(name, story.chain.links[name].epoch)) == []
    assert pairs(story.chain) == {"e": SOURCE, "a": "e", "b": "a"}
    story.judged(story.judge.corrupt("a", story.chain.links["a"].epoch))
    assert story.told == [("a", "last", "corrupt")] and story.order == "eba"
    for _ in range(2):
        story.judged(story.judge.corrupt("b", story.chain.links["b"].epoch))
    assert story.told[1:] == [("e", "last", "corrupt")] and story.order == "bae"
    assert story.judge.corrupt("b", 1) == []  # of a link that is no more


def walls(story: Story, shut: set[tuple[str, str]]) -> Story:
    """Links between these two fail, until there is none left."""
    for _ in range(200):
        links = [one for one in story.chain.links.values() if (one.sender, one.receiver) in shut]
        if not links:
            return story
        story.broke(links[0].sender, links[0].receiver, "unreachable", "no route")
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_one_that_cannot_dial_anybody_is_last_and_served(count: int) -> None:
    names = [chr(ord("a") + n) for n in range(count)]
    for bad in names:
        story = walls(Story(*names), {(bad, other) for other in names})
        assert not any(action == "out" for _, action, _ in story.told), story.told
        assert len(story.chain.hops) == count


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_one_that_nobody_can_dial_is_the_only_one_given_up(count: int) -> None:
    names = [chr(ord("a") + n) for n in range(count)]
    for bad in names:
        story = walls(Story(*names), {(other, bad) for other in [SOURCE, *names]})
        assert [name for name, action, _ in story.told if action == "out"] == [bad], story.told
        assert "cannot reach it" in story.verdicts[-1].reason and len(story.chain.hops) == count - 1


def test_a_source_that_reaches_nobody_says_so_soon() -> None:
    names = [f"n{n}" for n in range(64)]
    story = walls(Story(*names), {(SOURCE, name) for name in names})
    assert len(story.told) < 64 + 8 and not story.chain.hops
    assert "this machine cannot reach it, nor any other" in story.verdicts[-1].reason


def test_walls_at_random_come_to_an_end() -> None:
    names = list("abcdef")
    for seed in range(300):
        chance = random.Random(seed)
        shut = {(s, r) for s in [SOURCE, *names] for r in names if chance.random() < chance.choice([0.1, 0.3, 0.6])}
        story = walls(Story(*names), shut)
        assert len(story.told) <= 60


def test_a_tunnel_that_gets_no_thread_is_a_way_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its sender tries the next way, and reports that one."""

    def limited(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    host = Host("n1", "n1")
    session: Any = SimpleNamespace(host=host, start=lambda _: SimpleNamespace(send=lambda _: None))
    member = Member(host, [], "token", session=session, need={"address": "n1", "port": 1, "addresses": ["n1"]})
    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(OSError, match="does not allow another thread"):
        ways(member)[-1][1]()

"""Who sends to whom, and what becomes of those that hold others up, told step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fleet.delivery.chain.judge import Judge, Verdict
from fleet.delivery.chain.order import SOURCE, Chain, Order

MB = 10**6
Rates = Mapping[str, float] | Callable[[str, str], float]  # bytes/s of a hop, perhaps by its sender


class Story:
    """A broadcast without its nodes: everyone advances at its rate, verdicts are carried out."""

    def __init__(self, *names: str, todo: int = 10_000 * MB, limited: bool = True) -> None:
        self.chain = Chain([(name, todo) for name in names], 0.0)
        self.judge = Judge(self.chain, 0.0, limited)
        self.chain.orders()
        self.now = 0.0
        self.told: list[tuple[str, str, str]] = []
        self.verdicts: list[Verdict] = []

    def run(self, seconds: float, rates: Rates, silent: str = "", pause: float = 0.2) -> Story:
        end = self.now + seconds
        while self.now < end:
            self.now = round(self.now + pause, 3)
            self.step(pause, rates, silent)
            for verdict in self.judge.tick(self.now):
                self.verdicts.append(verdict)
                self.told.append((verdict.name, verdict.action, verdict.kind))
                change = {
                    "aside": self.chain.set_aside,
                    "last": self.chain.to_end,
                    "out": self.chain.remove,
                    "first": self.chain.to_front,
                }
                change[verdict.action](verdict.name)
        return self

    def step(self, pause: float, rates: Rates, silent: str) -> None:
        for name, hop in {**self.chain.hops, **self.chain.away}.items():
            if name in silent:
                continue
            sender = self.chain.sender_of(name)
            rate = rates.get(name, 0.0) if isinstance(rates, Mapping) else rates(name, sender)
            room = self.chain.hops[sender].received if sender else hop.todo
            at = (
                min(hop.received + int(rate * pause), max(room, hop.received))
                if name in self.chain.hops
                else hop.received
            )
            self.chain.heard(name, at, at, self.now)
            if at >= hop.todo:
                self.chain.done(name)
            if name in self.chain.away:
                self.chain.rejoin(name)

    @property
    def order(self) -> str:
        return "".join(self.chain.hops)


def pairs(chain: Chain) -> dict[str, str]:
    return {sender: order.receiver for sender, order in chain.links.items()}


def chain_of(*names: str) -> Chain:
    return Story(*names).chain


# -- the order ------------------------------------------------------------------------------------------------
def test_a_chain_in_the_order_of_the_inventory() -> None:
    assert pairs(chain_of("a", "b", "c")) == {SOURCE: "a", "a": "b", "b": "c"}


def test_epochs_grow_and_nothing_is_ordered_twice() -> None:
    chain = chain_of("a", "b")
    assert chain.orders() == []
    assert chain.remove("a") == [Order(SOURCE, "b", 3)]


def test_the_gap_closes_wherever_it_is() -> None:
    chain = chain_of("a", "b", "c", "d")
    assert chain.remove("b") == [Order("a", "c", 5)]
    assert chain.remove("d") == []
    assert chain.remove("a") == [Order(SOURCE, "c", 6)]
    assert chain.remove("nobody") == []


def test_one_that_is_done_goes_on_sending_and_needs_nobody() -> None:
    chain = chain_of("a", "b", "c")
    chain.done("b")
    # its sender dies: b has all, c has b
    assert chain.remove("a") == []
    assert pairs(chain) == {SOURCE: "a", "b": "c"}
    assert chain.remove("b") == [Order(SOURCE, "c", 4)]


def test_to_the_end_and_back_from_silence() -> None:
    chain = chain_of("a", "b", "c")
    assert chain.to_end("a") == [Order(SOURCE, "b", 4), Order("c", "a", 5)]
    assert chain.set_aside("b") == [Order(SOURCE, "c", 6)]
    assert chain.rejoin("b") == [Order("a", "b", 7)]
    assert pairs(chain) == {SOURCE: "c", "c": "a", "a": "b"}


# -- silence --------------------------------------------------------------------------------------------------
def test_silence_sets_one_aside_and_long_silence_is_death() -> None:
    story = Story("a", "b", "c").run(2, {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB})
    assert story.told == []
    story.run(3, {"a": 10 * MB, "c": 10 * MB}, silent="b")
    assert story.told == [("b", "aside", "lost")] and story.order == "ac"
    story.run(12, {"a": 10 * MB, "c": 10 * MB}, silent="b")
    assert story.told[1:] == []
    story.run(4, {"a": 10 * MB, "c": 10 * MB}, silent="b")
    assert story.told[1:] == [("b", "out", "lost")] and "no sign of life" in story.verdicts[1].reason


def test_when_only_a_silent_one_is_waited_for_its_death_comes_sooner() -> None:
    rates = {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB}
    story = Story("a", "b", "c", todo=40 * MB).run(2, rates).run(11, rates, silent="b")
    assert story.told == [("b", "aside", "lost"), ("b", "out", "lost")]


def test_one_that_speaks_again_is_back_at_the_end() -> None:
    rates = {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB}
    story = Story("a", "b", "c").run(2, rates).run(3, rates, silent="b").run(20, rates)
    assert story.told == [("b", "aside", "lost")] and story.order == "acb"
    assert story.chain.hops["b"].received > 190 * MB


def test_when_everyone_speaks_late_nobody_is_silent() -> None:
    rates = {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB, "d": 10 * MB}
    story = Story("a", "b", "c", "d").run(4, rates, pause=0.9)
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
    story = Story("a", "b").run(2, rates).run(17, rates, silent="b")
    assert story.told == [("b", "aside", "lost")]
    assert story.run(3, {**rates, "b": 0.0}).told == [("b", "aside", "lost")]


def test_all_silent_at_once_is_the_heads_own_trouble() -> None:
    rates = {"a": MB, "b": MB, "c": MB}
    assert Story("a", "b", "c").run(2, rates).run(6, rates, silent="abc").told == []


def test_the_silence_of_one_that_has_all_costs_it_nothing_but_its_place() -> None:
    story = Story("a", "b", todo=10 * MB).run(2, {"a": 10 * MB, "b": MB})
    story.run(3, {"b": MB}, silent="a")
    assert story.told == [("a", "out", "lost")] and pairs(story.chain) == {SOURCE: "b"}


# -- speed ----------------------------------------------------------------------------------------------------
def test_a_crawling_node_goes_to_the_end_and_is_given_up_when_all_others_are_through() -> None:
    rates = {"a": 25 * MB, "b": 2.5 * MB, "c": 25 * MB, "d": 25 * MB}
    story = Story("a", "b", "c", "d", todo=1000 * MB).run(30, rates)
    assert story.told == [("b", "last", "slow")] and story.order == "acdb"
    story.run(30, rates)
    assert story.told[1:] == [("b", "out", "slow")] and "it crawls: 2.5 MB/s, where host d" in story.verdicts[1].reason


def test_a_node_with_a_slow_way_out_costs_nobody_its_data() -> None:
    def rates(name: str, sender: str) -> float:
        return 2 * MB if sender == "a" else 25 * MB

    story = Story("a", "b", "c", "d", "e", todo=2000 * MB).run(200, rates)
    assert [(name, action) for name, action, _ in story.told] == [("b", "last"), ("a", "last")]
    assert all(hop.done for hop in story.chain.hops.values()) and len(story.chain.hops) == 5


def test_a_first_node_that_crawls_is_found_out_by_trying_another() -> None:
    rates = {"a": 2.5 * MB, "b": 25 * MB, "c": 25 * MB}
    story = Story("a", "b", "c", todo=1000 * MB, limited=False).run(80, rates)
    assert story.told == [("a", "last", "trial"), ("a", "out", "slow")]
    assert story.chain.hops["c"].done


def test_the_trial_is_one_and_blames_nobody() -> None:
    rates = {"a": 25 * MB, "b": 25 * MB, "c": 25 * MB}
    story = Story("a", "b", "c", todo=1000 * MB, limited=False).run(80, rates)
    assert story.told == [("a", "last", "trial")]
    assert all(hop.done for hop in story.chain.hops.values())
    assert Story("a", "b", "c", todo=400 * MB, limited=False).run(80, rates).told == []


def test_one_that_crawls_as_first_gives_that_place_back() -> None:
    def rates(name: str, sender: str) -> float:
        return 2 * MB if (name, sender) == ("b", SOURCE) else 25 * MB

    story = Story("a", "b", "c", todo=2000 * MB, limited=False).run(200, rates)
    assert story.told == [("a", "last", "trial"), ("b", "last", "slow")]
    assert all(hop.done for hop in story.chain.hops.values())


def test_what_slows_everybody_down_is_nobodys_fault() -> None:
    names = ("a", "b", "c", "d")
    story = Story(*names, todo=3000 * MB, limited=False).run(20, dict.fromkeys(names, 25.0 * MB))
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


# -- links ----------------------------------------------------------------------------------------------------
def test_a_broken_link_is_dialled_again_then_its_end_gets_another_sender() -> None:
    story = Story("a", "b", "c")
    for epoch in (2, 4, 5):
        assert story.judge.broken("a", epoch, True, "reset") == "redial"
        story.chain.redial("a")
    [verdict] = verdicts(story, "a", 6, True, "reset")
    assert (verdict.name, verdict.action) == ("b", "last") and "host a" in verdict.reason


def test_the_word_of_one_that_sends_to_nobody_any_more_counts_for_nothing() -> None:
    story = Story("a", "b")
    [verdict] = verdicts(story, "a", 2, True, "x", True)
    assert (verdict.name, verdict.action, verdict.kind) == ("b", "first", "protocol")
    story.chain.to_front("b")
    assert story.judge.broken("a", 2, True, "x", True) == []


def test_one_that_accuses_another_again_is_the_one_to_be_last() -> None:
    story = Story("a", "b", "c")
    assert verdicts(story, "a", 2, True, "x", True)[0].action == "first"
    story.chain.to_front("b")
    story.chain.set_aside("b")
    story.chain.rejoin("b")
    story.chain.to_end("c")
    assert story.order == "abc"
    [verdict] = verdicts(story, "a", story.chain.links["a"].epoch, True, "x", True)
    assert (verdict.name, verdict.action, verdict.kind) == ("a", "last", "protocol")


def test_a_wall_between_two_is_gone_around_and_at_the_end_named() -> None:
    story = Story("a", "b", "c")
    assert story.judge.broken("a", 2, False, "timed out") == "redial"
    story.chain.redial("a")
    [verdict] = verdicts(story, "a", 4, False, "timed out")
    assert (verdict.name, verdict.action, verdict.kind) == ("b", "last", "unreachable")
    assert story.chain.to_end("b") == [Order("a", "c", 5), Order("c", "b", 6)]
    assert story.judge.broken("c", 6, False, "refused") == "redial"
    story.chain.redial("c")
    [verdict] = verdicts(story, "c", 7, False, "refused")
    assert verdict.action == "first" and "host a and host c cannot reach it" in verdict.reason
    assert story.chain.to_front("b")[0] == Order(SOURCE, "b", 8)
    assert story.judge.broken(SOURCE, 8, False, "refused") == "redial"
    story.chain.redial(SOURCE)
    verdict = verdicts(story, SOURCE, story.chain.links[SOURCE].epoch, False, "refused")[0]
    assert verdict.action == "out" and verdict.hint and "--via rsync" in verdict.hint


def walls(story: Story, shut: set[tuple[str, str]]) -> Story:
    """Links between these two fail, until there is none left."""
    change = {"last": story.chain.to_end, "out": story.chain.remove, "first": story.chain.to_front}
    for _ in range(200):
        order = next(
            (
                o
                for o in story.chain.links.values()
                if (o.sender, o.receiver) in shut
                and o.receiver in story.chain.hops
                and not story.chain.hops[o.receiver].done
            ),
            None,
        )
        if order is None:
            return story
        answer = story.judge.broken(order.sender, order.epoch, False, "no route")
        if answer == "redial":
            story.chain.redial(order.sender)
            continue
        for verdict in answer:
            story.told.append((verdict.name, verdict.action, verdict.kind))
            story.verdicts.append(verdict)
            if verdict.name in story.chain.hops:
                change[verdict.action](verdict.name)
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


def verdicts(story: Story, *news: Any) -> list[Verdict]:
    answer = story.judge.broken(*news)
    assert answer != "redial"
    return answer


def test_news_of_an_old_link_is_no_news() -> None:
    story = Story("a", "b")
    story.chain.remove("b")
    assert story.judge.broken("a", 2, True, "reset") == []


def test_a_link_that_breaks_while_its_end_is_away_is_made_anew_when_it_is_back() -> None:
    story = Story("a", "b")
    story.chain.set_aside("b")
    assert story.judge.broken("a", 2, True, "reset") == []
    assert story.chain.rejoin("b") == [Order("a", "b", 3)]

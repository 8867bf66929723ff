"""Who sends to whom, and who is cut out, told step by step."""

from __future__ import annotations

from fleet.ops.broadcast.chain import SOURCE, Chain, Cut, Order

MB = 10**6


def pairs(chain: Chain) -> dict[str, str | None]:
    return {sender: order.receiver for sender, order in chain.links.items()}


def started(*names: str, todo: int = 10_000 * MB) -> Chain:
    chain = Chain([(name, todo) for name in names], 0.0)
    chain.orders()
    return chain


def run(chain: Chain, rates: dict[str, float], begin: float, end: float) -> list[Cut]:
    """Everyone advances at its rate (bytes/s; None: says nothing) until somebody is cut."""
    now = begin
    while now < end:
        now = round(now + 0.2, 3)
        for name, rate in rates.items():
            if name in chain.members:
                at = chain.members[name].received + int(rate * 0.2)
                chain.heard(name, at, at, now)
        if cuts := chain.tick(now):
            return cuts
    return []


def test_a_chain_in_the_order_of_the_inventory() -> None:
    assert pairs(started("a", "b", "c")) == {SOURCE: "a", "a": "b", "b": "c"}


def test_epochs_grow_and_nothing_is_ordered_twice() -> None:
    chain = started("a", "b")
    assert chain.orders() == []
    assert chain.remove("a") == [Order(SOURCE, "b", 3)]


def test_the_gap_closes_wherever_it_is() -> None:
    chain = started("a", "b", "c", "d")
    assert chain.remove("b") == [Order("a", "c", 5)]
    assert chain.remove("d") == []
    assert chain.remove("a") == [Order(SOURCE, "c", 6)]
    assert chain.remove("nobody") == []


def test_one_that_is_done_goes_on_sending_and_needs_nobody() -> None:
    chain = started("a", "b", "c")
    chain.done("b")
    # its sender dies: b has all, c has b
    assert chain.remove("a") == []
    assert pairs(chain) == {SOURCE: "a", "b": "c"}
    assert chain.remove("b") == [Order(SOURCE, "c", 4)]


def test_silence_cuts_one_out() -> None:
    chain = started("a", "b", "c")
    assert run(chain, {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB}, 0, 2) == []
    cuts = run(chain, {"a": 10 * MB, "c": 0}, 2, 6)
    assert [(c.name, c.kind) for c in cuts] == [("b", "lost")]


def test_silence_of_one_that_takes_bytes_is_a_full_link() -> None:
    chain = started("a", "b", "c")
    run(chain, {"a": 10 * MB, "b": 10 * MB, "c": 10 * MB}, 0, 2)
    for step in range(10, 30):
        chain.sent("a", step * MB, step / 5)
        chain.heard("a", 30 * MB, 30 * MB, step / 5)
        chain.heard("c", 15 * MB, 15 * MB, step / 5)
        assert chain.tick(step / 5) == []


def test_a_head_that_was_held_up_blames_nobody() -> None:
    chain = started("a", "b")
    run(chain, {"a": MB, "b": MB}, 0, 2)
    assert chain.tick(9.0) == []


def test_all_silent_at_once_is_the_heads_own_trouble() -> None:
    chain = started("a", "b", "c")
    run(chain, {"a": MB, "b": MB, "c": MB}, 0, 2)
    assert run(chain, {}, 2, 8) == []


def test_a_crawling_node_is_cut_and_not_those_behind_it() -> None:
    chain = started("a", "b", "c", "d")
    cuts = run(chain, {"a": 25 * MB, "b": 2.5 * MB, "c": 2.5 * MB, "d": 2.5 * MB}, 0, 20)
    assert [(c.name, c.kind) for c in cuts] == [("b", "slow")]
    chain.remove("b")
    assert run(chain, {"a": 25 * MB, "c": 25 * MB, "d": 25 * MB}, 20, 40) == []


def test_a_node_with_a_slow_way_out_does_not_cost_all_behind_it() -> None:
    chain = started("a", "b", "c", "d", "e")
    slow = {"a": 25 * MB, "b": 2 * MB, "c": 2 * MB, "d": 2 * MB, "e": 2 * MB}
    out = []
    for begin in range(0, 100, 20):
        for cut in run(chain, slow, begin, begin + 20):
            out.append(cut.name)
            chain.remove(cut.name)
    assert out == ["b", "c"]


def test_half_the_speed_is_no_crawl_nor_is_a_crawl_that_is_over_soon() -> None:
    assert run(started("a", "b"), {"a": 25 * MB, "b": 12 * MB}, 0, 20) == []
    chain = started("a", "b", todo=40 * MB)
    assert run(chain, {"a": 25 * MB, "b": 5 * MB}, 0, 8) == []


def test_a_broken_link_is_dialled_again_then_given_up() -> None:
    chain = started("a", "b")
    for epoch in (2, 3, 4):
        assert chain.broken("a", epoch, True, "reset") == Order("a", "b", epoch + 1)
    cut = chain.broken("a", 5, True, "reset")
    assert isinstance(cut, Cut) and cut.name == "b" and "host a" in cut.reason


def test_a_wall_between_two_is_named_with_its_way_around() -> None:
    chain = started("a", "b")
    assert isinstance(chain.broken("a", 2, False, "timed out"), Order)
    cut = chain.broken("a", 3, False, "timed out")
    assert isinstance(cut, Cut) and cut.kind == "unreachable"
    assert "host a cannot reach it" in cut.reason and cut.hint and "--via rsync" in cut.hint


def test_news_of_an_old_link_is_no_news() -> None:
    chain = started("a", "b")
    chain.remove("b")
    assert chain.broken("a", 2, True, "reset") is None


def test_one_that_receives_nothing_though_there_is_something() -> None:
    chain = started("a", "b")
    cuts = run(chain, {"a": 0, "b": 0}, 0, 30)
    assert [(c.name, c.kind) for c in cuts] == [("a", "stalled")]

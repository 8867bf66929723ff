"""The benchmark's arithmetic: ratios within rounds, turns that rotate, peers that are missing or fail named."""

from __future__ import annotations

import sys

from tests.bench import followed
from tests.bench.harness import Contestant, Done, command, race, ratios, record, table


def contestant(name: str, log: list[str], output: str = "ok", missing: str | None = None) -> Contestant:
    def run() -> Done:
        log.append(name)
        return Done(0, output)

    return Contestant(name, run, lambda done: None if done.output == "ok" else done.output, missing)


def test_contestants_take_turns_in_a_rotating_order() -> None:
    log: list[str] = []
    race("t", [contestant("a", log), contestant("b", log)], 3)
    assert "".join(log) == "ba" + "ab" + "ba" + "ab"  # the first round is a warm-up


def test_missing_and_failing_peers_are_named_and_stop_taking_part() -> None:
    log: list[str] = []
    own, bad = contestant("own", log), contestant("bad", log, "no")
    gone = contestant("gone", log, missing="not installed")
    race("t", [own, gone, bad], 2)
    assert (log.count("own"), log.count("gone"), log.count("bad")) == (3, 0, 1)
    text = table("T", own, [gone, bad], {"bad": 0.5})
    assert "| gone | missing: not installed |" in text
    assert "| bad | failed: no | | < 0.5 |" in text


def test_ratios_are_taken_within_rounds() -> None:
    own, peer = contestant("own", []), contestant("peer", [])
    own.seconds, peer.seconds = [1.0, 20.0, 3.0], [2.0, 10.0, 4.0]
    assert ratios(own, peer) == [0.5, 2.0, 0.75]
    assert "| peer | 4.000 (2.000-10.000) | 0.75 (0.50-2.00) | < 1 met |" in table("T", own, [peer], {"peer": 1.0})
    assert "not met" in table("T", own, [peer], {"peer": 0.75})
    assert record("T", own, [peer], {})["title"] == "T"


def test_a_command_gives_its_status_and_both_streams() -> None:
    done = command([sys.executable, "-c", "import sys; print('o'); print('e', file=sys.stderr); sys.exit(3)"])()
    assert (done.status, done.output) == (3, "o\ne\n")


def test_a_figure_says_whether_its_aim_was_met() -> None:
    figures = [
        followed.Figure("idle", "3 %", "< 2 %", False),
        followed.Figure("memory", "0 MiB", "< 1 MiB"),
        followed.Figure("shown", "99 %"),
    ]
    assert followed.table("T", figures).splitlines()[4:] == [
        "| idle | 3 % | < 2 % not met |",
        "| memory | 0 MiB | < 1 MiB met |",
        "| shown | 99 % |  |",
    ]

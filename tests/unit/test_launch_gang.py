"""The gang rule: who failed first, by corrected clocks, and what must not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model import Host, Inventory, Job
from fleet.node.gang.elastic import gang_of
from fleet.node.gang.ends import Clock, RankEnd, run_end
from fleet.node.gang.gang import Gang
from fleet.node.gang.verdict import About, Outputs, decide, own_link
from fleet.ops.run.follow.follow import FollowEvent
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.launch.loop import Run
from fleet.ops.run.plan.plan import plan
from fleet.protocol.messages.run import EndedBy, RunState, Verdict, Why
from fleet.requests.launch import Launch
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport

SILENT: Why = {"kind": "lost", "message": "silent for 15 s", "hint": None}


def end(
    host: str, rank: int, time: float, status: int | None = 0, signal: int | None = None, attempt: int = 0
) -> RankEnd:
    return RankEnd(host, {"a": 0, "b": 1}[host], rank, 0, status, signal, time, attempt)


def gang(
    offsets: dict[str, float] | None = None, ranks: Mapping[str, Sequence[int]] | None = None, least: int = 0
) -> Gang:
    g = gang_of({host: (rank, (ranks or {}).get(host, ())) for rank, host in enumerate("ab")}, least)
    for host, offset in (offsets or {}).items():
        g.nodes[host].clock.receive(100.0 + offset, 100.0)
    return g


def told(reason: Verdict | None) -> tuple[object, ...] | None:
    return reason and (reason["by"], reason["message"], reason["code"], reason["host"])


def test_all_well_is_no_failure() -> None:
    g = gang()
    assert g.rank_ended(end("a", 0, 10.0)) is None
    assert g.node_status("a", {"state": "exited", "engine_status": 0, "time": 10.1}) is None
    assert g.first() is None


def test_the_first_failure_is_the_earliest_on_the_heads_clock() -> None:
    # b's clock is an hour ahead: its rank failed later by its own word, earlier in truth
    g = gang({"a": 0.0, "b": 3600.0})
    assert g.rank_ended(end("a", 0, 105.0, 1))
    g.rank_ended(end("b", 3, 3703.0, 7))
    first = g.first()
    assert first and (first.host, first.rank, first.exit_code) == ("b", 3, 7)


def test_what_ends_after_the_stop_does_not_count() -> None:
    g = gang({"a": 0.0, "b": 0.0})
    reason = g.rank_ended(end("b", 3, 103.0, 3))
    assert reason and g.stop(reason, 103.1)
    assert not g.stop(run_end("failure", "again", 1), 103.2)
    g.rank_ended(end("a", 0, 103.15, None, 15))
    g.rank_ended(end("a", 1, 103.2, 1))
    first = g.first()
    assert first and (first.rank, first.exit_code) == (3, 3)


def test_who_was_stopped_by_another_head_is_no_reason_to_stop() -> None:
    """Which follows the run, too, and may have heard of the failure first."""
    g = gang()
    assert g.rank_ended(end("a", 0, 11.0, None, 15)._replace(asked=True)) is None
    reason = g.rank_ended(end("b", 2, 10.0, 7))
    assert told(reason) == ("failure", "rank 2 on b failed", 7, "b")
    first = g.first()
    assert first and (first.rank, first.exit_code) == (2, 7)


def test_what_another_head_had_it_stopped_for_is_taken_up() -> None:
    """By who leads it later: ranks that it had ended did not fail, and their node ended nothing by itself."""
    g = gang({"a": 0.0, "b": 0.0})
    g.rank_ended(end("a", 0, 100.2, None, 15)._replace(asked=True))
    lost = gang().node_lost("b", 99.0, SILENT)
    g.node_status("a", {"state": "stopped", "cause": "asked", "began": 100.0, "time": 100.5, "end": lost})
    first = g.first()
    assert lost and g.end == lost and first and (first.host, first.what, first.exit_code) == ("b", "node", 122)
    assert first.why and first.why["message"] == "silent for 15 s"


@pytest.mark.parametrize("by", ["interrupt", "stop"])
def test_what_a_user_wanted_at_another_head_is_no_failure(by: EndedBy) -> None:
    g = gang({"a": 0.0})
    ended = run_end(by, "in whatever words", 130, who="root@head1")
    g.rank_ended(end("a", 0, 100.2, None, 15)._replace(asked=True))
    reason = g.node_status("a", {"state": "stopped", "cause": "asked", "began": 100.0, "time": 100.5, "end": ended})
    assert reason == ended and g.by_hand and g.first() is None


def test_after_a_stop_without_a_failure_nothing_failed() -> None:
    g = gang({"a": 0.0})
    g.stop(run_end("interrupt", "interrupted", 130), 104.0)
    assert g.rank_ended(end("a", 0, 104.01, 3)) is None
    assert g.node_status("a", {"state": "stopped", "time": 104.2}) is None
    assert g.first() is None


def test_the_engines_sigterm_to_neighbours_is_never_the_cause_within_a_tie() -> None:
    g = gang({"b": 0.0})
    g.rank_ended(end("b", 2, 103.00, None, 15))
    g.rank_ended(end("b", 3, 103.05, 9))
    first = g.first()
    assert first and (first.rank, first.exit_code) == (3, 9)


def test_laments_about_another_rank_are_never_the_cause_within_a_tie() -> None:
    g = gang({"a": 0.0, "b": 0.0})
    g.rank_ended(end("a", 0, 103.00, 1))
    g.rank_ended(end("b", 3, 103.05, 1))
    first = g.first(lambda e: e.rank == 0)
    assert first and first.rank == 3
    first = g.first(lambda e: True)
    assert first and first.rank == 0


def test_signals_become_128_plus_n() -> None:
    g = gang()
    g.rank_ended(end("a", 0, 1.0, None, 9))
    first = g.first()
    assert first and (first.exit_code, first.signal) == (137, 9)


@pytest.mark.parametrize("signal, first", [(9, (None, "engine", 137)), (None, (0, "rank", 143))])
def test_ranks_that_an_engine_took_with_it_are_not_its_cause(signal: int | None, first: tuple[object, ...]) -> None:
    """A busy supervisor notices them first. An engine that nobody killed ended because of the rank."""
    g = gang({"a": 0.0})
    g.rank_ended(end("a", 0, 105.0, None, 15))
    status: RunState = {"state": "exited", "engine_status": None if signal else 143, "signal": signal, "began": 105.2}
    g.node_status("a", {**status, "time": 105.2})
    found = g.first()
    assert found and (found.rank, found.what, found.exit_code) == first


def test_an_engine_that_was_killed_is_the_cause_though_its_ranks_are_heard_of_first() -> None:
    """All are stopped because of them before a busy supervisor notices."""
    g = gang({"a": 0.0})
    reason = g.rank_ended(end("a", 0, 105.0, None, 15))
    assert reason and g.stop(reason, 105.1)
    g.node_status("a", {"state": "exited", "signal": 9, "began": 105.3, "time": 105.4})
    found = g.first()
    assert found and (found.what, found.exit_code) == ("engine", 137)


def test_who_ended_its_part_and_is_lost_then_is_named_for_what_it_reported() -> None:
    g = gang({"a": 0.0})
    reason = g.node_status("a", {"state": "stopping", "cause": "signal", "began": 100.0, "time": 100.0})
    assert reason and g.stop(reason, 100.1)
    g.node_lost("a", 108.0, SILENT)
    found = g.first()
    assert found and (found.what, found.exit_code) == ("signal", 1)


def test_a_link_that_goes_down_while_all_are_stopped_is_no_cause() -> None:
    g = gang({"a": 0.0, "b": 0.0})
    reason = g.rank_ended(end("b", 3, 100.0, 7))
    assert reason and g.stop(reason, 100.1)
    for host in "ab":
        g.node_lost(host, 104.0, SILENT)
    assert own_link(g) is not None
    verdict = decide(About("run", "torchrun", 0), g, Outputs())
    assert verdict and (verdict["by"], verdict["code"], verdict["unknown"]) == ("failure", 7, ["a", "b"])


def test_an_engine_that_fails_without_a_failed_rank_is_named() -> None:
    g = gang({"a": 0.0})
    reason = g.node_status("a", {"state": "exited", "engine_status": 2, "time": 101.0})
    assert told(reason) == ("failure", "the engine on a failed", 2, "a")
    first = g.first()
    assert first and (first.what, first.exit_code, first.rank) == ("engine", 2, None)


def test_torchruns_1_does_not_hide_the_ranks_own_code() -> None:
    g = gang({"a": 0.0})
    g.rank_ended(end("a", 1, 101.0, 42))
    g.node_status("a", {"state": "exited", "engine_status": 1, "time": 101.2})
    first = g.first()
    assert first and (first.what, first.exit_code) == ("rank", 42)


def test_a_lost_node_explains_what_others_say_later() -> None:
    g = gang({"a": 0.0, "b": 0.0})
    reason = g.rank_ended(end("a", 0, 108.0, 1))
    assert reason and g.stop(reason, 108.1)
    g.node_lost("b", 102.0)
    first = g.first()
    assert first and (first.what, first.host, first.exit_code) == ("node", "b", 122)


def test_nodes_whose_silence_a_busy_machine_saw_one_after_the_other_fell_silent_at_once() -> None:
    g = gang()
    for host, when in (("a", 100.0), ("b", 108.0)):
        g.node_lost(host, when, SILENT)
    failure = own_link(g)
    assert failure is not None and failure.what == "link"
    g.node_lost("b", 130.0, SILENT)
    assert own_link(g) is None


def test_a_node_that_stops_itself_stops_all() -> None:
    g = gang({"b": 0.0})
    reason = g.node_status("b", {"state": "stopped", "reason": "lease", "time": 101.0})
    assert told(reason) == ("failure", "b: lease", 1, "b")
    first = g.first()
    assert first and (first.host, first.exit_code) == ("b", 1)


def test_ranks_without_an_end_are_known() -> None:
    g = gang(ranks={"a": range(2)})
    g.rank_ended(end("a", 0, 1.0))
    assert g.nodes["a"].unaccounted == [1]


def test_the_clock_takes_the_fastest_message() -> None:
    clock = Clock()
    clock.receive(50.0, 103.0)
    clock.receive(60.0, 110.5)
    clock.receive(70.0, 125.0)
    assert clock.here(60.0) == pytest.approx(110.5)


def test_a_stop_that_came_as_a_signal_is_no_cause_of_its_own() -> None:
    g = gang({"a": 0.0})
    reason = g.rank_ended(end("a", 1, 103.0, 1))
    assert reason and g.stop(reason, 103.01)
    g.rank_ended(end("a", 0, 103.03, None, 15))
    g.node_status("a", {"state": "stopped", "cause": "signal", "began": 103.02, "time": 103.05, "disk_full": True})
    first = g.first()
    assert first and (first.what, first.rank, first.exit_code) == ("rank", 1, 1)


@pytest.mark.parametrize(
    ("cause", "code"), [("lease", 124), ("frozen", 122), ("signal", 1), ("supervisor", 1), ("removed", 1)]
)
def test_a_node_that_ended_its_ranks_is_the_cause_and_they_are_not(cause: str, code: int) -> None:
    g = gang({"a": 0.0})
    reason = g.rank_ended(end("a", 0, 103.0, None, 15))
    assert reason and g.stop(reason, 103.1)
    g.node_status("a", {"state": "stopped", "cause": cause, "began": 102.99, "time": 103.5})
    first = g.first()
    assert first and (first.what, first.rank, first.exit_code) == (cause, None, code)


def test_a_run_is_over_when_every_rank_of_it_has_ended_well() -> None:
    g = gang(ranks={"a": [0, 1], "b": [2]})
    for host, rank in (("a", 0), ("b", 2)):
        g.rank_ended(end(host, rank, 10.0))
        assert not g.all_well
    g.rank_ended(end("a", 1, 10.0))
    assert g.all_well
    g.stop(run_end("stop", "asked", 130), 11.0)
    assert not g.all_well


@pytest.mark.parametrize("failing", [True, False])
def test_an_engine_that_may_start_ranks_again_decides_itself(failing: bool) -> None:
    g = gang(ranks={"a": [0]}, least=int(not failing))
    g.rank_ended(end("a", 0, 10.0, 3 if failing else 0))
    assert not g.all_well


@given(st.data())
def test_whatever_the_clocks_say_the_first_is_the_first(data: st.DataObject) -> None:
    """Clocks are off by up to a day; of each node's messages one came at once, the others are late by up to a minute.
    They tell of what was long ago, as of a run that ended before anybody looked."""
    hosts = [f"h{n}" for n in range(data.draw(st.integers(2, 5)))]
    off = {host: data.draw(st.floats(-86400, 86400)) for host in hosts}
    ends = [1000.0 + 0.2 * n for n in data.draw(st.permutations(range(len(hosts))))]
    g = Gang({host: (n, ()) for n, host in enumerate(hosts)})
    for rank, (host, when) in enumerate(zip(hosts, ends, strict=True)):
        delays = [data.draw(st.floats(0, 0.05)), *data.draw(st.lists(st.floats(0, 60), max_size=4))]
        sent = 2000.0
        for delay in data.draw(st.permutations(delays)):
            sent += 1
            g.nodes[host].clock.receive(sent + off[host], sent + delay)
        g.rank_ended(RankEnd(host, rank, rank, 0, 1, None, when + off[host]))
        assert -1e-6 <= g.nodes[host].clock.here(when + off[host]) - when <= 0.05 + 1e-6
    first = g.first()
    assert first is not None and first.host == hosts[ends.index(min(ends))]


def test_a_failure_that_is_heard_of_late_is_the_first_all_the_same(tmp_path: Path) -> None:
    """A busy machine, or the connection to one node, may hold it up: the nodes have told their clocks before."""
    hosts = Inventory(tuple(Host(name, name, slots=1) for name in "ab"))
    record = plan(hosts, Job("t.py"), Launch("t.py"), "r").record(0.0)
    run = Run(record, RunFolder.create(tmp_path, "r"), {}, Runtime(LocalTransport()))
    for host in "ab":
        run._on_message(FollowEvent(host, "message", {"event": "clock", "up": None, "sent": 90.0}, 90.01))
    killed = {"event": "rank", "rank": 1, "signal": 9, "time": 100.0, "sent": 100.0}
    lost = {"event": "rank", "rank": 0, "status": 1, "time": 100.2, "sent": 100.2}
    run._on_message(FollowEvent("a", "message", lost, 100.21))
    run._on_message(FollowEvent("b", "message", killed, 100.9))
    first = run.gang.first()
    assert first is not None and (first.host, first.signal) == ("b", 9)
    run.folder.release()


def test_a_clock_that_drifts_is_followed() -> None:
    clock = Clock()
    for minute in range(3 * 24 * 60):  # 100 ppm slow, three days long
        true = minute * 60.0
        clock.receive(true * (1 - 1e-4), true + 0.01)
    assert abs(clock.here(true * (1 - 1e-4)) - true) < 0.1
    assert len(clock.fastest) < 20

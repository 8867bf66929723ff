"""`--nnodes MIN:MAX`: what a node's loss means while enough are left."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.node.gang.elastic import ElasticGang
from fleet.node.gang.ends import RankEnd, run_end, stopped_by

State = dict[str, Any]
KILLED: State = {"state": "lost", "reason": "the supervisor was killed", "cause": "supervisor", "time": 10.0}
FROZEN: State = {
    "state": "stopping",
    "reason": "the node was frozen for 20 s",
    "cause": "frozen",
    "time": 10.0,
}
AGENT_KILLED: State = {"state": "exited", "signal": 9, "time": 10.0}
WELL: State = {"state": "exited", "engine_status": 0, "time": 20.0}


@pytest.fixture
def gang() -> ElasticGang:
    return ElasticGang({host: (rank, [rank]) for rank, host in enumerate("abcd")}, 2)


def end(host: str, rank: int, time: float, status: int | None, signal: int | None = None, attempt: int = 0) -> RankEnd:
    return RankEnd(host, "abcd".index(host), rank, 0, status, signal, time, attempt)


@pytest.mark.parametrize("status", [KILLED, FROZEN, AGENT_KILLED])
def test_it_goes_on_while_enough_are_left(gang: ElasticGang, status: State) -> None:
    assert gang.node_status("b", status) is None and gang.away == {"b"}
    gang.rank_ended(end("a", 0, 10.1, 1))
    assert gang.node_lost("c", 12.0) is None
    for host in "ad":
        assert gang.node_status(host, WELL) is None
    assert gang.first() is None


def test_one_too_few_ends_it_and_is_named(gang: ElasticGang) -> None:
    assert gang.node_lost("b", 12.0) is None and gang.node_lost("c", 13.0) is None
    reason = gang.node_lost("d", 14.0)
    assert reason and "1 of 4 nodes are left, --nnodes asks for 2" in reason["message"]
    gang.stop(reason, 14.5)
    failure = gang.first()
    assert failure and failure.what == "node" and "asks for 2" in gang.needed


def test_nothing_goes_on_without_the_node_where_ranks_meet(gang: ElasticGang) -> None:
    reason = gang.node_lost("a", 12.0)
    assert reason and "ranks meet there" in reason["message"]


def test_who_is_back_counts_again(gang: ElasticGang) -> None:
    for host in "bcbcbc":
        assert gang.node_status(host, KILLED) is None
        gang.back(host)
    assert not gang.away and gang.nodes["b"].state == "starting"


def test_an_agent_that_gives_up_ends_it_for_all(gang: ElasticGang) -> None:
    gang.rank_ended(end("b", 1, 10.0, 7))
    reason = gang.node_status("b", {"state": "exited", "engine_status": 1, "time": 10.5})
    assert reason and reason["message"] == "the engine on b failed"
    gang.stop(reason, 11.0)
    failure = gang.first()
    assert failure and (failure.rank, failure.exit_code) == (1, 7)


def test_a_stop_that_was_asked_for_is_one(gang: ElasticGang) -> None:
    assert gang.node_status("b", {"state": "stopped", "cause": "asked", "end": stopped_by("ada@head"), "time": 10.0})
    assert not gang.away


def test_what_another_head_had_it_stopped_for_is_what_ended_it(gang: ElasticGang) -> None:
    """That one saw first that no rank lives. No node went."""
    gang.rank_ended(end("a", 0, 9.0, 3))
    other = run_end("failure", "rank 0 on a failed", 3, "a")
    reason = gang.node_status("a", {"state": "stopping", "cause": "asked", "end": other, "time": 10.0, "began": 10.0})
    assert reason == other and not gang.away
    gang.stop(reason, 10.0)
    failure = gang.first()
    assert failure and (failure.host, failure.rank, failure.exit_code) == ("a", 0, 3)


# -- no rank lives ---------------------------------------------------------------------------------------
@pytest.fixture
def three() -> ElasticGang:
    return ElasticGang({host: (rank, [rank]) for rank, host in enumerate("abc")}, 2)


def tell(gang: ElasticGang, time: float, **up: int) -> None:
    """How many ranks live on each host."""
    for host, count in up.items():
        gang.nodes[host].up = count, time


def test_a_rank_that_fails_when_the_others_are_done_ends_it(three: ElasticGang) -> None:
    """torchrun would wait for a second node until its rendezvous times out."""
    three.rank_ended(end("b", 1, 50.0, 0))
    three.rank_ended(end("c", 2, 50.5, 0))
    tell(three, 59.0, a=1, b=0, c=0)
    assert not three.at_an_end, "a rank lives"
    three.rank_ended(end("a", 0, 60.0, 3))
    assert not three.at_an_end
    tell(three, 61.0, a=0, b=0, c=0)
    assert not three.at_an_end, "others may begin at that moment"
    tell(three, 70.0, a=0, b=0)
    assert not three.at_an_end, "nothing was heard of c since"
    tell(three, 70.0, c=0)
    reason = three.dead_end()
    assert three.at_an_end and reason and (reason["by"], reason["code"], reason["host"]) == ("failure", 3, "a")
    assert reason["message"] == "rank 0 on a failed; 1 of 3 nodes can start ranks again, --nnodes asks for 2"
    three.stop(reason, 71.0)
    failure = three.first()
    assert failure and (failure.rank, failure.exit_code) == (0, 3) and not three.at_an_end


def test_enough_that_can_start_ranks_are_left_to_their_engine(three: ElasticGang) -> None:
    three.rank_ended(end("a", 0, 50.0, 0))
    for host in "bc":
        three.rank_ended(end(host, "abc".index(host), 60.0, 1))
    tell(three, 70.0, a=0, b=0, c=0)
    assert not three.at_an_end


def test_a_rank_that_its_engine_ended_to_meet_others_is_not_done(three: ElasticGang) -> None:
    """It has a handler for SIGTERM, and ends with 0."""
    three.rank_ended(end("a", 0, 50.0, 1))
    for host in "bc":
        three.rank_ended(end(host, "abc".index(host), 51.0, 0)._replace(signalled=True))
    tell(three, 60.0, a=0, b=0, c=0)
    assert three.able == ["a", "b", "c"] and not three.at_an_end


def test_a_rank_is_done_only_once_those_beside_it_are() -> None:
    gang = ElasticGang({"a": (0, [0, 1]), "b": (1, [2])}, 2)
    gang.rank_ended(end("a", 0, 50.0, 0))
    gang.rank_ended(end("a", 1, 51.0, None, 15)._replace(local_rank=1, signalled=True))
    gang.rank_ended(end("a", 1, 60.0, 0)._replace(local_rank=1))
    assert gang.able == ["a", "b"], "the other one was started again, too"
    gang.rank_ended(end("a", 0, 61.0, 0))
    assert gang.able == ["b"]


def test_who_comes_back_once_the_others_are_done_is_not_waited_for(three: ElasticGang) -> None:
    assert three.node_lost("c", 40.0) is None
    three.rank_ended(end("a", 0, 50.0, 0))
    three.rank_ended(end("b", 1, 50.0, 0))
    three.back("c")
    tell(three, 60.0, a=0, b=0)
    assert not three.at_an_end
    tell(three, 60.0, c=0)
    assert three.at_an_end and three.dead_end() is None


def test_a_node_without_which_too_few_can_meet_is_the_cause(three: ElasticGang) -> None:
    three.rank_ended(end("b", 1, 50.0, 0))
    assert three.node_lost("c", 60.0) is None and three.able == ["a"]
    reason = three.too_few("c is out", "c")
    assert (reason["by"], reason["code"]) == ("lost", 122)
    three.stop(reason, 75.0)
    failure = three.first()
    assert failure and (failure.host, failure.what) == ("c", "node")


def test_what_it_is_not_sure_of_ends_nothing(three: ElasticGang) -> None:
    three.rank_ended(end("b", 1, 50.0, 0))
    three.rank_ended(end("c", 2, 50.0, 0))
    three.rank_ended(end("a", 0, 60.0, 3))
    tell(three, 70.0, a=0, b=0, c=0)
    three.unknown.add("c")
    assert not three.at_an_end


def test_a_node_that_it_went_on_without_is_not_what_ended_it(gang: ElasticGang) -> None:
    assert gang.node_lost("d", 10.0) is None
    gang.rank_ended(end("b", 1, 100.0, 7))
    reason = gang.node_status("b", {"state": "exited", "engine_status": 1, "time": 100.5})
    assert reason is not None
    gang.stop(reason, 101.0)
    failure = gang.first()
    assert failure and (failure.host, failure.rank, failure.exit_code) == ("b", 1, 7)


def test_each_agent_counts_its_own_restarts(gang: ElasticGang) -> None:
    """b has had three, and was done in the end; a fails at its first."""
    gang.rank_ended(end("b", 1, 90.0, 0, attempt=3))
    gang.rank_ended(end("a", 0, 100.0, 7, attempt=0))
    gang.stop(run_end("failure", "rank 0 on a failed", 7, "a"), 101.0)
    failure = gang.first()
    assert failure and (failure.host, failure.exit_code) == ("a", 7)


def test_a_failure_that_an_engine_got_over_is_not_named_later(gang: ElasticGang) -> None:
    """Its node reported since that all of its ranks live again; then it is lost while all are stopped."""
    gang.rank_ended(end("b", 1, 3.0, 7))
    gang.receive("b", {"event": "clock", "up": 1, "sent": 8.0}, 8.0)
    gang.rank_ended(end("c", 2, 20.0, 9))
    reason = gang.node_status("c", {"state": "exited", "engine_status": 1, "time": 20.2})
    assert reason and gang.stop(reason, 20.3)
    gang.node_lost("b", 21.0)
    failure = gang.first()
    assert failure and (failure.host, failure.exit_code) == ("c", 9)

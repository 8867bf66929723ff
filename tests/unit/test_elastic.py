"""`--nnodes MIN:MAX`: what a node's loss means while enough are left."""

from __future__ import annotations

import pytest

from fleet.ops.launch.elastic_gang import ElasticGang
from fleet.ops.launch.gang import RankEnd, stopped_by
from fleet.protocol.messages.run import RunState

KILLED: RunState = {"state": "lost", "reason": "the supervisor was killed", "cause": "supervisor", "time": 10.0}
FROZEN: RunState = {"state": "stopping", "reason": "the node was frozen for 20 s", "cause": "frozen", "time": 10.0}
AGENT_KILLED: RunState = {"state": "exited", "signal": 9, "time": 10.0}
WELL: RunState = {"state": "exited", "engine_status": 0, "time": 20.0}


@pytest.fixture
def gang() -> ElasticGang:
    return ElasticGang({"a": 0, "b": 1, "c": 2, "d": 3}, 2)


def end(host: str, rank: int, time: float, status: int | None, signal: int | None = None, attempt: int = 0) -> RankEnd:
    return RankEnd(host, "abcd".index(host), rank, 0, status, signal, time, attempt)


@pytest.mark.parametrize("status", [KILLED, FROZEN, AGENT_KILLED])
def test_it_goes_on_while_enough_are_left(gang: ElasticGang, status: RunState) -> None:
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

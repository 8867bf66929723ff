"""Decides how a run ended: the verdict, and its first failure in a sentence. The run's leader decides it once.

The verdict names the root cause, not a consequence. If a node ended its part by itself, its ranks' ends are
consequences. A rank that only reports another rank's failure is skipped, if `Outputs` can recognise that.
"""

from typing import NamedTuple

from fleet.node.base.types import Mapping, run
from fleet.node.gang.ends import Failure, NodeState, RankEnd, ranks_text, run_end
from fleet.node.gang.gang import Gang
from fleet.protocol.codes import EXIT_CONNECT, EXIT_HOST_FAILED, EXIT_OK, name_of
from fleet.protocol.state import FINAL

# if this machine's link fails, all nodes fall silent within this time: each sends a message every 2 s, and a busy
# machine notices late that one is missing
LINK_SECONDS = 10.0
MOST = 3  # items that a sentence lists


class About(NamedTuple):
    """Holds the facts of a run for its verdict. without: hosts that have no such run. ended: the recorded verdict if
    the run was over before this process attached to it, otherwise None."""

    run_id: str
    engine: str
    attempt: int
    without: "frozenset[str]" = frozenset()
    ended: "run.Verdict | None" = None


class Outputs:
    """Interprets the output of ranks. This base class recognises nothing in it. texts: (host, rank) -> {"tail": the
    last lines of that rank, ...}."""

    def __init__(self, texts: "Mapping[tuple[str, int], Mapping[str, str]] | None" = None) -> None:
        self.texts = texts or {}

    def answers(self, end: RankEnd) -> bool:
        """Returns whether a rank's failure is a consequence of another rank's failure, or of a stop."""
        return False

    def blamed(self, failure: Failure, gang: Gang) -> Failure:
        """Returns the failure of the rank that is to blame for this failure, or this failure."""
        return failure

    def last(self, failure: Failure) -> str:
        """Returns the last lines of the rank that failed."""
        return self.texts.get((failure.host, failure.rank or 0), {}).get("tail", failure.tail)


def decide(about: About, gang: Gang, outputs: Outputs) -> "run.Verdict | None":
    """Returns how the run ended, from the messages of its nodes. Returns None if some nodes have not responded, and no
    node has a verdict."""
    lost = {host for host, node in gang.nodes.items() if node.lost is not None}
    why = gang.end
    end = why if why is not None and (gang.by_hand or about.ended is not None) else _found(about, gang, outputs)
    if end is None:
        return None
    unknown = sorted(gang.unknown | lost - gang.away)
    return dict(end, who=(why or end)["who"], attempt=about.attempt, unknown=unknown)  # type: ignore[return-value]


def _found(about: About, gang: Gang, outputs: Outputs) -> "run.Verdict | None":
    found = [it for it in (own_link(gang), gang.first(outputs.answers)) if it is not None]
    failure = min(found, key=lambda it: it.time, default=None) or _vanished(gang)
    if gang.unknown and (failure is None or gang.unknown - about.without):
        return None
    if failure is None and gang.end is not None:
        return gang.end
    if failure is None:
        odd = [host for host, node in gang.nodes.items() if host not in gang.away and not is_well(gang, node)]
        text = leftovers_text(gang) or "not all ended well on " + ",".join(odd)
        return run_end("failure", text, EXIT_HOST_FAILED, odd[0]) if odd else run_end("done", "done", EXIT_OK)
    failure = outputs.blamed(failure, gang)
    if failure.what == "rank" and gang.ways is not None:
        failure = failure._replace(why=gang.ways)
    needed = gang.needed if gang.end is not None and gang.end["host"] == failure.host else ""
    return failure._replace(tail=outputs.last(failure)).reason(message(failure, about, len(gang.nodes)) + needed)


def _vanished(gang: Gang) -> "Failure | None":
    for host, node in gang.nodes.items():
        if host not in gang.unknown and not gang.least and node.unaccounted:
            return Failure(host, node.node_rank, EXIT_HOST_FAILED, 0.0, node.unaccounted[0], what="vanished")
    return None


def is_well(gang: Gang, node: NodeState) -> bool:
    """Returns whether a node's part ended, with exit code 0 of the engine and of all ranks."""
    failed = not gang.least and any(end.failed for end in node.ends.values())
    left = node.status.get("left") or node.status.get("behind")
    whole = node.state == "exited" and not node.engine_code and not left
    return whole and not failed and node.why is None and node.lost is None and node.host not in gang.unknown


def status_of(gang: Gang, node: NodeState) -> "int | None":
    """Returns the exit code of a node's part: that of its first failed rank, or of its engine if no rank failed.
    Returns None if the part is not known to have ended."""
    ends = sorted(node.ends.values(), key=lambda end: end.time)
    failed = [end.exit_code for end in ends if end.failed and not gang.least]
    return (failed or [node.engine_code])[0] if node.state in FINAL else None


def rank_ends(node: NodeState) -> "dict[int, dict[str, int | None]]":
    """Returns how each rank of a node ended in its last attempt, in the form of summary.json."""
    ends = sorted(node.ends.values(), key=lambda end: (end.rank, end.attempt))
    return {it.rank: {"status": it.status, "signal": it.signal, "attempt": it.attempt} for it in ends}


def leftovers_text(gang: Gang) -> str:
    """Returns a text about processes that successful scripts left and that fleet had to end; "" if there are none."""
    found = [it for node in gang.nodes.values() for it in node.status.get("behind") or ()]
    count, ranks = sum(it["count"] for it in found), ranks_text(it["rank"] for it in found)
    which = ", ".join(list(dict.fromkeys(line for it in found for line in it["commands"]))[:MOST])
    text = "ended %d process%s that %s left behind: %s; `wait` keeps the run up"
    return text % (count, "es" * (count != 1), ranks, which) if found else ""


def killed(gang: Gang) -> "list[int]":
    """Returns the ranks that had to be killed themselves, or whose leftover processes had to be killed."""
    return sorted({rank for node in gang.nodes.values() for rank in node.status.get("killed") or ()})


def own_link(gang: Gang) -> "Failure | None":
    """Returns the failure of the leader's own link, or None. The link has failed if all of several nodes fell silent at
    once, and no other host responds."""
    cut = [node for node in gang.nodes.values() if node.why is not None and node.why["kind"] == "lost"]
    lost = [node.lost for node in cut if node.lost is not None]
    if gang.link_is_whole or len(lost) < 2 or len(lost) < len(gang.nodes) or max(lost) - min(lost) > LINK_SECONDS:
        return None
    first = next(iter(gang.nodes.values()))
    return Failure(first.host, first.node_rank, EXIT_CONNECT, min(lost), what="link")


def message(failure: Failure, about: About, nodes: int) -> str:
    """Returns the sentence about a failure. nodes: the number of nodes of the run."""
    where = "%s (node rank %d)" % (failure.host, failure.node_rank)
    how = "exit code %d" % failure.exit_code
    if failure.signal is not None:
        how = "signal %d (%s)" % (failure.signal, name_of(failure.signal))
    why = failure.why["message"] if failure.why is not None else ""
    if failure.kind == "ended":
        return "%s ended its part: %s" % (where, why)
    sentences = {
        "rank": "rank %s on %s failed: %s" % (failure.rank, where, how),
        "vanished": "rank %s on %s left no record of how it ended" % (failure.rank, where),
        "engine": "%s on %s failed: %s" % (about.engine, where, how),
        "node": where + " was lost" + (why and ": " + why),
        "link": "all %d nodes fell silent at once: this machine's own link seems to be down" % nodes,
        "lease": "%s ended its ranks: %s" % (where, why or "no head sent a message"),
        "frozen": where + " ended its ranks: it had been frozen for longer than this machine waits",
        "signal": where + " ended its ranks: a signal there stopped fleet's supervisor",
        "stalled": why or "no rank wrote anything any more",
        "supervisor": where + " ended its ranks: fleet's supervisor of this run was killed there",
        "reboot": where + " was restarted, which ended its ranks",
        "removed": "%s ended its ranks: the run's folder there, ~/.fleet/runs/%s, was removed" % (where, about.run_id),
    }
    return sentences[failure.what]


# -- what follows an attempt ------------------------------------------------------------------------------
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
LONG_SECONDS = 60.0  # a failure after a longer attempt is not quick


class Attempts(NamedTuple):
    """Counts how often a run was started again. After a failure all nodes start again, up to --max-restarts times. If
    nodes were lost, spares take the places of these nodes, as long as there are enough spares.

    most: --max-restarts. restarts: failures so far. quick: how many of the last failures in a row came soon after a
    start. replaces: spares replace lost nodes in this attempt."""

    most: int = 0
    restarts: int = 0
    quick: int = 0
    replaces: bool = False

    def after(
        self, verdict: "run.Verdict | None", lost: int, spares: int, lasted: float, least: int = 0
    ) -> "Attempts | None":
        """Returns the state for the next attempt, or None if none follows. verdict, lasted: the verdict and the seconds
        of the attempt that ended. lost, spares: numbers of nodes. least: the fewest nodes of an elastic run, whose
        engine restarts ranks by itself; otherwise 0."""
        first = verdict and verdict["first"]
        if not first or first["what"] == "link" or least:
            return None
        quick = 0 if lasted >= LONG_SECONDS else self.quick + 1
        if 0 < lost <= spares:
            return Attempts(self.most, self.restarts, quick, True)
        return Attempts(self.most, self.restarts + 1, quick) if self.restarts < self.most else None

    @property
    def pause(self) -> float:
        """Returns the seconds before the attempt begins. They grow if a script fails soon after each start."""
        return min(MAX_PAUSE_SECONDS, PAUSE_SECONDS * float(2 ** max(0, self.quick - 1)))

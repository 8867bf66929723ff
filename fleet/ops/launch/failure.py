"""What ended a run, in a sentence, and what to do about it. Pure.

The cause, not the victim: a node that ended its part by itself is named before its ranks, which only obeyed.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.errors import EXIT_CONNECT
from fleet.ops.launch.gang import Failure, Gang, RankEnd
from fleet.ops.launch.record import RunRecord

LINK_SECONDS = 5.0  # within which all nodes fall silent when it is this machine's own link


def own_link(gang: Gang) -> Failure | None:
    """All of several nodes fell silent at once: the head's link, not theirs."""
    lost = [
        node.lost
        for node in gang.nodes.values()
        if node.lost is not None and node.why is not None and node.why.kind == "lost"
    ]
    if len(lost) < 2 or len(lost) < len(gang.nodes) or max(lost) - min(lost) > LINK_SECONDS:
        return None
    first = next(iter(gang.nodes.values()))
    return Failure(first.host, first.node_rank, EXIT_CONNECT, min(lost), what="link")


def left_early(failure: Failure, gang: Gang) -> tuple[RankEnd, float] | None:
    """The last rank that had ended well before a rank failed, and the seconds between: others may miss it."""
    ends = [
        (failure.time - node.clock.on_head(end.time), end)
        for node in gang.nodes.values()
        for end in node.ranks.values()
        if not end.failed
    ]
    before = [(seconds, end) for seconds, end in ends if seconds > 0]
    seconds, end = min(before, key=lambda found: found[0], default=(0.0, None))
    return (end, seconds) if end is not None else None


def message(failure: Failure, run: RunRecord) -> str:
    """One sentence."""
    where = f"{failure.host} (node rank {failure.node_rank})"
    how = f"exit code {failure.exit_code}" if failure.signal is None else f"signal {failure.signal}"
    sentences: Mapping[str, str] = {
        "rank": f"rank {failure.rank} on {where} failed: {how}",
        "vanished": f"rank {failure.rank} on {where} left no word of how it ended",
        "engine": f"{run.engine} on {where} failed: {how}",
        "node": f"{where} was lost" + (f": {failure.why.message}" if failure.why else ""),
        "link": f"all {len(run.hosts)} nodes fell silent at once: this machine's own link seems to be down",
        "lease": f"{where} ended its ranks: it had heard nothing of this machine for {run.lease or 0:g} s",
        "frozen": f"{where} ended its ranks: it had been frozen for longer than this machine waits",
        "signal": f"{where} ended its ranks: somebody there told fleet's supervisor to stop, by a signal",
        "stalled": failure.why.message if failure.why else "no rank wrote anything any more",
        "supervisor": f"{where} ended its ranks: fleet's supervisor of this run was killed there",
    }
    return sentences[failure.what]


def hint(failure: Failure, run: RunRecord) -> str | None:
    """What the way it ended says where no log line does."""
    host = failure.host
    hints: Mapping[str, str] = {
        "node": f"the host hangs, or the link to it is cut; 'fleet exec -w {host} -- uptime' tells when it is back",
        "link": f"nodes go on without this machine for {run.lease or 0:g} s (--lease)",
        "lease": "this command or this machine was stopped for so long, or its link down; --lease S gives more time",
        "frozen": f"the host was suspended, or starved; 'fleet exec -w {host} -- dmesg' may say why",
        "signal": f"a shutdown, or a 'kill' by hand? 'fleet exec -w {host} -- last -x' may say",
        "supervisor": f"out of memory, or 'pkill python' there? 'fleet exec -w {host} -- dmesg' may say",
    }
    if failure.why is not None and failure.why.kind in ("host-key", "stalled"):
        return failure.why.hint
    if failure.what in hints:
        return hints[failure.what]
    if failure.signal == 9:
        return f"killed from outside: out of memory? 'fleet exec -w {host} -- dmesg' may say"
    if failure.signal in (7, 11):
        return "a crash in native code: PYTHONFAULTHANDLER=1 (--env) shows where"
    if failure.exit_code in (126, 127):
        return "the program could not be started there: is it on that node, and executable?"
    return None


def alone(nodes: int, lease: float | None) -> str:
    """While nothing is heard of any node."""
    who = f"all {nodes} nodes are silent at once" if nodes > 1 else "the node is silent"
    long = "for ever: this run has no lease" if lease is None else f"for {lease:g} s (--lease)"
    return f"{who}; is it this machine's own link? They are waited for: they go on without this machine {long}"


def fate(lease: float | None, janitor: int | None) -> str:
    """What becomes of ranks on a host that was given up. janitor: its process id."""
    ends = "its ranks run until somebody stops them: this run has no lease"
    if lease is not None:
        ends = f"its ranks end by themselves {lease:g} s after it lost the head"
    helper = f"; a helper (pid {janitor}) stops them and brings the rest of the logs when it answers"
    return ends + (helper if janitor else "")

"""What ended a run: whose fault it was, in a sentence, and what to do about it. Pure, but for the tails of logs.

The cause, not the victim: a node that ended its part by itself is named before its ranks, which only obeyed; a rank
that only reports what happened to another one is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fleet.errors import EXIT_CONNECT
from fleet.ops.run.end.ends import SIGTERM, Failure, RankEnd
from fleet.ops.run.end.gang import Gang
from fleet.ops.run.kept.record import RunRecord
from fleet.protocol.messages.run import KernelLine, RunState
from fleet.rules.hints import hint_for
from fleet.rules.kernel import SIGKILL, KernelRule, rule_of
from fleet.rules.stacks import ranks_text
from fleet.rules.tracebacks import exception_of, last_of, split
from fleet.rules.units import few

Tail = Callable[..., str]
# within which all nodes fall silent when it is this machine's own link: each is heard of every 2 s, and that it is not
# is seen as late as this machine is busy
LINK_SECONDS = 10.0
ERROR_LINES = 20  # of an error's message and what stands behind it: a rank that goes on after one writes more
KERNEL_LINES = 20  # more than any honest node sends
SUDDEN_SECONDS = 30.0  # between what the kernel said and what that explains; the two clocks drift apart with the years
# what a rank raises because it got SIGTERM
_OF_A_STOP = re.compile(r"(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|\w*(?:SIGTERM|Signal|Preempt)\w*)\b")


# -- whose fault it was -----------------------------------------------------------------------------------
def own_link(gang: Gang) -> Failure | None:
    """All of several nodes fell silent at once, and no spare answers: the head's link, not theirs."""
    lost = [
        node.lost
        for node in gang.nodes.values()
        if node.lost is not None and node.why is not None and node.why.kind == "lost"
    ]
    if gang.link_is_whole or len(lost) < 2 or len(lost) < len(gang.nodes) or max(lost) - min(lost) > LINK_SECONDS:
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


def is_collateral(text: str) -> bool:
    """Whether a rank's last output only reports another one's death."""
    hint = hint_for(text)
    return hint is not None and hint.collateral


def raised(text: str) -> bool:
    """Whether a rank's last words are an error of its own."""
    trace = last_of(text)
    if trace is None or not exception_of(trace) or _OF_A_STOP.match(exception_of(trace)) or is_collateral(text):
        return False
    lines = text.splitlines()
    end = max(end for is_trace, _, end in split(lines) if is_trace)
    return len(lines) - end + len(exception_of(trace).splitlines()) <= ERROR_LINES


def answers(end: RankEnd, tail: Tail) -> bool:
    """Whether a rank failed because of another one, or of a stop: it only reports the other's death, or got SIGTERM
    before it raised anything of its own."""
    before = tail(end.host, end.rank, before=True)
    return is_collateral(before) or (end.until is not None and not raised(before))


def blamed(failure: Failure, gang: Gang, tail: Tail) -> Failure:
    """The failure of the rank that raised an error of its own, before a stop reached it, but ended later than those
    whom it left: a rank may hang in its clean-up for as long as it likes."""
    mine = [end for end in gang.last_attempts() if (end.host, end.rank) == (failure.host, failure.rank)]
    if failure.what != "rank" or not any(answers(end, tail) for end in mine):
        return failure
    ends = sorted(gang.last_attempts(), key=lambda end: gang.nodes[end.host].clock.on_head(end.time))
    end = next((end for end in ends if end.failed and raised(tail(end.host, end.rank, before=True))), None)
    if end is None:
        return failure
    told = end.signal == SIGTERM
    return replace(
        failure,
        host=end.host,
        node_rank=end.node_rank,
        rank=end.rank,
        local_rank=end.local_rank,
        signal=None if told else end.signal,
        exit_code=failure.exit_code if told else end.exit_code,
    )


@dataclass(frozen=True)
class Evidence:
    """The kernel's line that explains a failure, on whichever host, and what it means."""

    host: str
    line: str
    rule: KernelRule

    @property
    def remedy(self) -> str:
        return self.rule.remedy.format(host=self.host)


def evidence(failure: Failure, gang: Gang, text: str, victim: bool) -> Evidence | None:
    """text: the failed rank's last words. victim: it only reports what happened elsewhere, so that any host may know
    why."""
    others = [host for host in gang.nodes if host != failure.host] if victim else []
    for host in [failure.host, *others]:
        for line in reversed((gang.nodes[host].status.get("kernel") or [])[-KERNEL_LINES:]):
            rule = rule_of(line["text"])
            if rule is None:
                continue
            if _explains(rule, line, failure, gang, text) if host == failure.host else rule.broken:
                return Evidence(host, line["text"], rule)
    return None


def _explains(rule: KernelRule, line: KernelLine, failure: Failure, gang: Gang, text: str) -> bool:
    if line["rank"] is not None and line["rank"] == failure.rank:
        return True
    when = gang.nodes[failure.host].clock.on_head(line["time"])
    if rule.sudden and abs(failure.time - when) > SUDDEN_SECONDS:
        return False
    signal = SIGKILL if failure.what == "supervisor" else failure.signal or max(0, failure.exit_code - 128)
    return signal in rule.signals or re.search(rule.words, text) is not None


# -- in words ---------------------------------------------------------------------------------------------
def message(failure: Failure, run: RunRecord) -> str:
    """One sentence."""
    where = f"{failure.host} (node rank {failure.node_rank})"
    how = f"exit code {failure.exit_code}" if failure.signal is None else f"signal {failure.signal}"
    if failure.why is not None and failure.why.kind == "ended":
        return f"{where} ended its part: {failure.why.message}"
    sentences: Mapping[str, str] = {
        "rank": f"rank {failure.rank} on {where} failed: {how}",
        "vanished": f"rank {failure.rank} on {where} left no word of how it ended",
        "engine": f"{run.engine} on {where} failed: {how}",
        "node": f"{where} was lost" + (f": {failure.why.message}" if failure.why else ""),
        "link": f"all {len(run.hosts)} nodes fell silent at once: this machine's own link seems to be down",
        "lease": f"{where} ended its ranks: {failure.why.message if failure.why else 'no head was heard of'}",
        "frozen": f"{where} ended its ranks: it had been frozen for longer than this machine waits",
        "signal": f"{where} ended its ranks: somebody there told fleet's supervisor to stop, by a signal",
        "stalled": failure.why.message if failure.why else "no rank wrote anything any more",
        "supervisor": f"{where} ended its ranks: fleet's supervisor of this run was killed there",
        "reboot": f"{where} was restarted, which ended its ranks",
        "removed": f"{where} ended its ranks: the run's folder there, ~/.fleet/runs/{run.run_id}, was removed",
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
        "removed": "a live run needs it; its logs until then are here, and folders of old runs go by themselves",
        "reboot": f"a crash, or a reboot by hand? 'fleet exec -w {host} -- last -x' may say",
        "supervisor": f"out of memory, or 'pkill python' there? 'fleet exec -w {host} -- dmesg' may say",
    }
    if failure.why is not None and failure.why.kind in ("host-key", "stalled", "ended"):
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


def left_behind(statuses: Iterable[RunState]) -> str | None:
    """Returns which processes scripts that ended well have left, so that fleet had to end them."""
    if not (found := [it for status in statuses for it in status.get("behind") or ()]):
        return None
    count, which = sum(it["count"] for it in found), few(dict.fromkeys(line for it in found for line in it["commands"]))
    who = ranks_text([it["rank"] for it in found])
    return f"ended {count} process{'es' * (count != 1)} that {who} left behind: {which}; `wait` keeps the run up"


def alone(nodes: int, lease: float | None) -> str:
    """While nothing is heard of any node."""
    who = f"all {nodes} nodes are silent at once" if nodes > 1 else "the node is silent"
    long = "for ever: this run has no lease" if lease is None else f"for {lease:g} s (--lease)"
    return f"{who}; is it this machine's own link? They are waited for: they go on without this machine {long}"


def fate(lease: float | None, helper: int | None) -> str:
    """Returns, in words, how ranks end on a host that was given up. helper: the pid of what goes on trying."""
    ends = "its ranks run until somebody stops them: this run has no lease"
    if lease is not None:
        ends = f"its ranks end by themselves {lease:g} s after it lost the head"
    more = f"; a helper (pid {helper}) stops them and brings the rest of the logs when it answers"
    return ends + (more if helper else "")

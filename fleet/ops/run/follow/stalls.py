"""Reports, once each, ranks that are done long before others, ranks that hang, and silent runs, with the stacks of the
ranks. With --stall-timeout, ends a silent run. If a rank timed out, all ranks are stopped only after the stacks of the
other ranks were taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from fleet.answers.run_events import Advised, StacksTaken, Stalled, WentOn
from fleet.errors import DeadlineError
from fleet.inventory.fields import printable
from fleet.inventory.nodeset import fold
from fleet.node.base.clock import CLOCK, Clock
from fleet.node.gang.ends import Failure, RankEnd, ranks_text
from fleet.node.gang.gang import Gang
from fleet.node.gang.silence import Watch
from fleet.node.gang.timed_out import HOLD_SECONDS, timed_out
from fleet.ops.run.end.failure import why_of
from fleet.ops.run.follow.stacks import TAKE_SECONDS, Taking
from fleet.ops.run.kept.folder import STACKS_FILE, RunFolder
from fleet.ops.run.kept.record import RunRecord
from fleet.protocol.messages.run import Verdict
from fleet.rules.advice import UNEVEN, early
from fleet.rules.ended import Cause
from fleet.rules.stacks import Place, in_short, lines
from fleet.rules.units import few
from fleet.transport.base import Transport

LOOK_SECONDS = 0.5
LONGEST_LINE = 4000  # characters of a line in STACKS_FILE
MEETING_SECONDS = 30.0  # within this time a user's own launchers connect, unless each node is its own master


class Stalls:
    """Watches the silence of a run that this process follows. notify: Run.notify() of launch/loop.py."""

    def __init__(
        self,
        record: RunRecord,
        gang: Gang,
        folder: RunFolder,
        transport: Transport,
        notify: Callable[..., None],
        clock: Clock = CLOCK,
    ) -> None:
        self._clock = clock
        self._record, self._gang, self._folder, self._transport = record, gang, folder, transport
        self.notify = notify
        self._watch = Watch(record.about["stall_timeout"], clock.monotonic())
        self._ends: list[tuple[float, RankEnd]] = []
        self._looked, self._quiet_since = 0.0, inf  # time of the last look; the last progress when a stall was reported
        several = record.about["engine"] == "command" and len(record.nodes) > 1
        self._meeting_at = clock.monotonic() + MEETING_SECONDS if several else inf
        self._taking: Taking | None = None
        self._held: tuple[Verdict, float] | None = None

    def rank_ended(self, end: RankEnd) -> None:
        """Records the end of a rank that ended well, because other ranks may hang after it."""
        if not end.failed and not self._gang.least:
            self._ends.append((self._clock.monotonic(), end))

    def held(self, end: Verdict | None, text: str = "", cause: Cause | None = None) -> Verdict | None:
        """Returns `end`, the verdict with which all ranks are to stop. Returns None while that is held back: a rank
        timed out, and the stacks of the others are taken first. An error that explains why other ranks waited ends the
        hold. text: the last output of the rank that failed, "" if not known. cause: what ended that rank, None if not
        known."""
        late = timed_out(text)
        if end and self._held is None and late:
            self._held = end, self._clock.monotonic() + HOLD_SECONDS
            self.close()
            self._take("timed out", self._running())
        held = self._held is not None and (late or cause is None or not cause.explains(waited=True))
        return None if end and end["by"] == "failure" and held else end

    def look(self, spoke: float, *, blind: bool) -> Verdict | None:
        """Returns the verdict by which all ranks are to stop now, or None. It is called at every turn of the loop.
        spoke, blind: see Watch.look()."""
        now = self._clock.monotonic()
        if now - self._looked < LOOK_SECONDS or self._gang.stopped_at is not None:
            return None
        self._looked = now
        running = self._running()
        ends = [when for when, _ in self._ends]
        kind = self._watch.look(now, spoke, ends, sum(map(len, running.values())), blind)
        progress = self._watch.progress(spoke, ends)
        if kind is not None and self._held is None:
            self._quiet_since = progress
            self._report(kind, running, now - progress)
        elif now > self._meeting_at and self._taking is None:
            self._meeting_at = inf
            self._take("apart", running)
        if self._taking is not None and self._taking.over:
            taking, self._taking = self._taking, None
            self._advise_apart(taking.own_masters)
            short = self._taken(taking) if taking.why != "apart" else ""
            if taking.why == "stalled" and running:
                return self._end_if(now - progress, taking.places or [], running, short)
        if self._held is None and progress > self._quiet_since:
            self._forget()  # the run has gone on since
        if self._held and (now >= self._held[1] or not running and self._taking is None):
            if self._taking is not None and self._taking.hang:  # only the check of the network still runs
                self._taken(self._taking)
            return self._held[0]
        return None

    @property
    def holds(self) -> bool:
        """Returns whether a failure is held back until it is known whether hosts still reach each other."""
        return self._held is not None and self._gang.stopped_at is None

    def close(self) -> None:
        if self._taking is not None:
            self._taking.give_up()

    def _forget(self) -> None:
        """Discards what the last stacks showed."""
        self._gang.collective, self._gang.at = None, {}

    def _running(self) -> dict[str, list[int]]:
        """Returns host -> its ranks that have not ended. A rank that its engine starts again has not ended."""
        found = {node.host.name: list(node.ranks) for node in self._record.nodes}
        for host, ranks in found.items():
            state = self._gang.nodes[host]
            found[host] = state.unaccounted if not self._gang.least else ranks * (not state.ended)
        return {host: ranks for host, ranks in found.items() if ranks}

    def _report(self, kind: str, running: Mapping[str, Sequence[int]], quiet: float) -> None:
        """Reports what Watch.look() found. Takes stacks, except for "early". quiet: seconds since the last progress."""
        if kind == "early":
            end, others = self._ends[0][1], sum(map(len, running.values()))
            self._advise(kind, early(end.rank, end.host, others), f"if those wait for it: {UNEVEN}", end.host)
            return
        if kind == "stalled":
            what = f"no rank has written anything for {quiet:.0f} s: --stall-timeout {self._watch.timeout:g}"
            ranks = [rank for each in running.values() for rank in each]
            self.notify("error", what, Stalled(seconds=round(quiet, 1), ranks=ranks))
        elif kind == "straggler":
            first = next(iter(running))
            what = f"{self._done(running)} done; {_whose(running)} silent for {quiet:.0f} s"
            self._advise(kind, what, f"'fleet stop {self._record.run_id}' ends it, --stall-timeout would", first)
        else:
            what = f"no rank has written anything for {quiet:.0f} s"
            self._advise(kind, what, "--stall-timeout S ends or restarts a run that hangs", None)
        if self._taking is None or kind == "stalled":
            self.close()
            self._take(kind, running)

    def _take(self, kind: str, running: Mapping[str, Sequence[int]]) -> None:
        # ranks that ended by a time-out left dumps: hosts on which no rank runs have some, too
        everywhere = kind == "timed out"
        hosts = {host.name: host for host in self._record.hosts if everywhere or host.name in running}
        self._forget()  # discards what earlier stacks showed
        self._taking = Taking(kind, self._record, hosts, self._transport, self._clock)
        self._taking.start()

    def _advise_apart(self, masters: Mapping[str, str]) -> None:
        """Emits advice if several nodes each wait for the others at their own address."""
        if len(masters) > 1:
            what = f"{fold(masters)} each wait for the others at themselves ({few(masters.values())}): none will come"
            remedy = "give all one master, as fleet sets it: --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
            self._advise("apart", what, remedy, next(iter(masters)))

    def _advise(self, kind: str, message: str, remedy: str, host: str | None) -> None:
        self.notify("warning", message, Advised(id=kind, remedy=remedy), host, remedy)

    def _done(self, running: Mapping[str, Sequence[int]]) -> str:
        """Returns "3 of 4 nodes", or a number of ranks if only some of a node's ranks are done."""
        nodes = self._record.nodes
        whole = all(len(running.get(node.host.name, node.ranks)) == len(node.ranks) for node in nodes)
        if whole and len(nodes) > 1:
            return f"{len(nodes) - len(running)} of {len(nodes)} nodes"
        total = self._record.world_size
        return f"{total - sum(map(len, running.values()))} of {total} ranks"

    def _taken(self, taking: Taking) -> str:
        """Reports where the ranks are. Writes all stacks to the run's folder. Emits a short text, and returns it."""
        short = ""
        for finding in taking.closed[:1]:
            self._gang.ways = {"kind": "network", "message": finding.message, "hint": finding.remedy}
            self._advise(finding.id, finding.message, finding.remedy, None)
        if taking.places or taking.hang:
            seen = [it for it in taking.places or () if it.of["by"] != "kernel"]
            self._gang.at = {rank: it.at for it in seen for rank in it.ranks}
            short, stuck = in_short(taking.places or []), None
            if hang := taking.hang:
                self._gang.collective = hang.message, hang.remedy, list(hang.missing)
                short, stuck = "; ".join(filter(None, [hang.message, short])), hang.as_json()
            path = self._folder.add(STACKS_FILE, "\n".join(self._text(taking)) + "\n")
            shown = [it.as_json() for it in taking.places or ()]
            data = [{name: value for name, value in it.items() if name != "frames"} for it in shown]
            self.notify(
                "warning", short, StacksTaken(file=str(path), places=data, hang=stuck), None, f"the stacks: {path}"
            )
        elif taking.why == "stalled":
            taking.give_up()
            late = (
                f"not in {TAKE_SECONDS:.0f} s"
                if taking.places is None
                else "no rank has begun there, or all have ended"
            )
            why = "; ".join(taking.remarks) or late
            self.notify("warning", f"the ranks' stacks could not be taken: {why}", StacksTaken())
        return short

    def _end_if(
        self, quiet: float, found: Sequence[Place], running: Mapping[str, Sequence[int]], short: str
    ) -> Verdict | None:
        """Returns the verdict that ends a stalled run; None if it has gone on while its stacks were taken."""
        if not self._watch.still_stalled(quiet):
            self._forget()
            self.notify("info", "the run has gone on meanwhile", WentOn())
            return None
        self._gang.stall = failure = self._failure(found, running, short)
        return failure.reason(failure.why["message"] if failure.why else "no rank wrote anything any more")

    def _text(self, taking: Taking) -> list[str]:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._clock.time()))
        found = taking.places or []
        what = taking.hang.message if taking.hang else in_short(found)
        report = [f"-- {stamp}, {taking.why}: {what}", *lines(found), *taking.ras, *taking.remarks, ""]
        return [printable(line, LONGEST_LINE) for line in report]

    def _failure(self, found: Sequence[Place], running: Mapping[str, Sequence[int]], short: str) -> Failure:
        """Returns the failure of a stalled run. The failed rank is one that a collective misses. If none is known, it
        is one whose stack differs from the others'; if all are equal, the first that runs."""
        stuck = self._gang.collective
        missing = [(it.host.name, rank) for it in self._record.nodes for rank in it.ranks if stuck and rank in stuck[2]]
        odd = [(it.hosts[0], it.ranks[0]) for it in found if it.odd]
        host, rank = next(iter(missing + odd), (next(iter(running)), -1))
        node = self._record.node(host)
        rank = rank if rank in node.ranks else running.get(host, node.ranks)[0]  # a script may number its ranks itself
        seconds = self._watch.timeout or 0.0
        ways = self._gang.ways
        short = "; ".join(filter(None, [ways and ways["message"], short]))
        why = DeadlineError(
            f"no rank wrote anything for {seconds:g} s (--stall-timeout)" + (f": {short}" if short else ""),
            kind="stalled",
            hint=ways["hint"] if ways else stuck[1] if stuck else "where it only takes long: a longer --stall-timeout",
        )
        when, local_rank = self._clock.time(), rank - node.first_rank
        return Failure(
            host=node.host.name,
            node_rank=node.node_rank,
            exit_code=why.exit_code,
            time=when,
            rank=rank,
            local_rank=local_rank,
            what="stalled",
            why=why_of(why),
        )


def _whose(running: Mapping[str, Sequence[int]]) -> str:
    """Returns a text such as "rank 0 on gpu1". running: host -> its ranks."""
    return f"{ranks_text([rank for ranks in running.values() for rank in ranks])} on {fold(running)}"

"""Ranks that are done long before others, ranks that hang, silent runs: each is reported once, and with it where
the ranks are. With --stall-timeout a silent run is over. Where a rank timed out, all are stopped only when
it is known where the others are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf

from fleet.answers.run_events import Advised, StacksTaken, Stalled, WentOn
from fleet.answers.runs import StacksThere
from fleet.errors import DeadlineError, FleetError
from fleet.events import silent
from fleet.inventory.fields import printable
from fleet.inventory.nodeset import fold
from fleet.model import Host
from fleet.node.base.clock import CLOCK, Clock
from fleet.node.facts.way import NAMES as INTERFACE_VARIABLES
from fleet.node.gang.ends import Failure, RankEnd, ranks_text
from fleet.node.gang.gang import Gang
from fleet.node.gang.silence import Watch
from fleet.ops.pairs import closed_now
from fleet.ops.run.end.failure import why_of
from fleet.ops.run.follow.stacks import ask_stacks, by_host
from fleet.ops.run.kept.documents import RUN, read_object
from fleet.ops.run.kept.folder import STACKS_FILE, RunFolder
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.plan.origin import VARIABLES
from fleet.protocol.messages.run import Verdict
from fleet.rules.advice import UNEVEN, early
from fleet.rules.rule import Finding
from fleet.rules.stacks import Place, in_short, lines, places, remarks
from fleet.rules.units import few
from fleet.rules.waited import timed_out
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Transport

LOOK_SECONDS = 0.5
TAKE_SECONDS = 45.0  # for the stacks of all ranks: longer than a host that does not send its own is waited for
LONGEST_LINE = 4000  # of what nodes report, in that file
HOLD_SECONDS = 10.0  # between the first rank's time-out and the stop: others time out, too, who is missing is looked at

MEETING_SECONDS = 30.0  # in which launchers of a user's own meet, unless each node was given itself as the master


def names_interface(record: RunRecord) -> bool:
    """Returns whether the user's variables name the interface of the ranks: another one may well be closed."""
    document = read_object(record.logs / RUN)
    launch, inventory = (document.get(each) for each in ("launch", "inventory"))
    hosts = inventory.get("hosts") if isinstance(inventory, dict) else None
    holders = [launch, inventory, *(hosts if isinstance(hosts, list) else ())]
    given = [each.get(name) or () for each in holders if isinstance(each, dict) for name in VARIABLES]
    return any(isinstance(each, dict) and not each.keys().isdisjoint(INTERFACE_VARIABLES) for each in given)


class Taking(threading.Thread):
    """Takes stacks, without anybody waiting for it. why: for what."""

    def __init__(
        self, why: str, record: RunRecord, hosts: Mapping[str, Host], transport: Transport, clock: Clock = CLOCK
    ) -> None:
        super().__init__(name="stacks", daemon=True)
        self.why, self.until, self._clock = why, clock.monotonic() + TAKE_SECONDS, clock
        self.places: list[Place] | None = None
        self.own_masters: dict[str, str] = {}
        self.remarks: list[str] = []
        self.error: FleetError | None = None
        self.closed: list[Finding] = []
        self._cancel, self._record, self._hosts, self._transport = Cancel(), record, hosts, transport

    def run(self) -> None:
        self._take()
        several = len(self._record.hosts) > 1
        if self.why in ("timed out", "stalled") and several and not names_interface(self._record):
            met_at = self._record.about["master"].rpartition(":")[0].strip("[]")
            self.closed = closed_now(self._record.hosts, met_at, self._transport, self._cancel)

    def _take(self) -> None:
        runtime = Runtime(self._transport, emit=silent, cancel=self._cancel)
        try:
            ranks = () if self.why == "apart" else None
            results = ask_stacks(self._record.run_id, self._hosts, ranks, self.why == "stalled", runtime)
        except FleetError as error:
            self.error = error
            return
        found = by_host(results)
        self.remarks = [*remarks(found), *(f"{it.host}: {it.error.message}" for it in results if it.error)]
        self.places = places(found)
        answers = {result.host: result.read(StacksThere).own_master for result in results}
        self.own_masters = {host: address for host, address in answers.items() if address}

    @property
    def over(self) -> bool:
        return not self.is_alive() or self._clock.monotonic() > self.until

    def give_up(self) -> None:
        self._cancel.set()


class Stalls:
    """Looks on at a run that is followed. say: as Run.say()."""

    def __init__(
        self,
        record: RunRecord,
        gang: Gang,
        folder: RunFolder,
        transport: Transport,
        say: Callable[..., None],
        clock: Clock = CLOCK,
    ) -> None:
        self._clock = clock
        self._record, self._gang, self._folder, self._transport = record, gang, folder, transport
        self.say = say
        self._watch = Watch(record.about["stall_timeout"], clock.monotonic())
        self._ends: list[tuple[float, RankEnd]] = []
        self._looked = 0.0
        several = record.about["engine"] == "command" and len(record.nodes) > 1
        self._meeting_at = clock.monotonic() + MEETING_SECONDS if several else inf
        self._taking: Taking | None = None
        self._held: tuple[Verdict, float] | None = None

    def rank_ended(self, end: RankEnd) -> None:
        if not end.failed and not self._gang.least:
            self._ends.append((self._clock.monotonic(), end))

    def held(self, end: Verdict | None, text: str = "") -> Verdict | None:
        """Returns a failure for which all are to stop; None while it is held back. text: the end of what its rank
        wrote."""
        if end and self._held is None and timed_out(text):
            self._held = end, self._clock.monotonic() + HOLD_SECONDS
            self.close()
            self._take("timed out", self._running())
        return None if end and end["by"] == "failure" and self._held else end

    def look(self, spoke: float, *, blind: bool) -> Verdict | None:
        """Returns for what all are to stop now, at every turn of the loop. spoke, blind: see Watch."""
        now = self._clock.monotonic()
        if now - self._looked < LOOK_SECONDS or self._gang.stopped_at is not None:
            return None
        self._looked = now
        running = self._running()
        ends = [when for when, _ in self._ends]
        kind = self._watch.look(now, spoke, ends, sum(map(len, running.values())), blind)
        if kind is not None and self._held is None:
            self._tell(kind, running, now - self._watch.progress(spoke, ends))
        elif now > self._meeting_at and self._taking is None:
            self._meeting_at = inf
            self._take("apart", running)
        if self._taking is not None and self._taking.over:
            taking, self._taking = self._taking, None
            self._tell_apart(taking.own_masters)
            short = self._taken(taking) if taking.why != "apart" else ""
            if taking.why == "stalled" and running:
                return self._end_if(now - self._watch.progress(spoke, ends), taking.places or [], running, short)
        if self._held and (now >= self._held[1] or not running and self._taking is None):
            return self._held[0]
        return None

    @property
    def holds(self) -> bool:
        """Returns whether a failure is held back until it is known whether hosts still reach each other."""
        return self._held is not None and self._gang.stopped_at is None

    def close(self) -> None:
        if self._taking is not None:
            self._taking.give_up()

    def _running(self) -> dict[str, list[int]]:
        """By host: the ranks that have not ended, for good where their engine starts them again."""
        found = {node.host.name: list(node.ranks) for node in self._record.nodes}
        for host, ranks in found.items():
            state = self._gang.nodes[host]
            found[host] = state.unaccounted if not self._gang.least else ranks * (not state.ended)
        return {host: ranks for host, ranks in found.items() if ranks}

    def _tell(self, kind: str, running: Mapping[str, Sequence[int]], quiet: float) -> None:
        if kind == "early":
            end, others = self._ends[0][1], sum(map(len, running.values()))
            remedy = f"if those wait for it: {UNEVEN}"
            self._advise(kind, early(end.rank, end.host, others), remedy, end.host)
            return
        if kind == "stalled":
            what = f"no rank has written anything for {quiet:.0f} s: --stall-timeout {self._watch.timeout:g}"
            ranks = [rank for each in running.values() for rank in each]
            self.say("error", what, Stalled(seconds=round(quiet, 1), ranks=ranks))
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
        hosts = {host.name: host for host in self._record.hosts if host.name in running}
        self._taking = Taking(kind, self._record, hosts, self._transport, self._clock)
        self._taking.start()

    def _tell_apart(self, masters: Mapping[str, str]) -> None:
        """Advises where nodes wait for each other at different places, each at itself."""
        if len(masters) > 1:
            what = f"{fold(masters)} each wait for the others at themselves ({few(masters.values())}): none will come"
            remedy = "give all one master, as fleet sets it: --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
            self._advise("apart", what, remedy, next(iter(masters)))

    def _advise(self, kind: str, message: str, remedy: str, host: str | None) -> None:
        self.say("warning", message, Advised(id=kind, remedy=remedy), host, remedy)

    def _done(self, running: Mapping[str, Sequence[int]]) -> str:
        """ "3 of 4 nodes"; in ranks, where a node is not done as a whole."""
        nodes = self._record.nodes
        whole = all(len(running.get(node.host.name, node.ranks)) == len(node.ranks) for node in nodes)
        if whole and len(nodes) > 1:
            return f"{len(nodes) - len(running)} of {len(nodes)} nodes"
        total = self._record.world_size
        return f"{total - sum(map(len, running.values()))} of {total} ranks"

    def _taken(self, taking: Taking) -> str:
        """Reports where the ranks are: to all in short, which is returned, to the run's folder as a whole."""
        short = ""
        for finding in taking.closed[:1]:
            self._gang.ways = {"kind": "network", "message": finding.message, "hint": finding.remedy}
            self._advise(finding.id, finding.message, finding.remedy, None)
        if taking.places:
            short = in_short(taking.places)
            path = self._folder.add(STACKS_FILE, "\n".join(self._text(taking)) + "\n")
            data = [{name: value for name, value in it.as_json().items() if name != "frames"} for it in taking.places]
            self.say("warning", short, StacksTaken(file=str(path), places=data), None, f"the stacks: {path}")
        elif taking.why == "stalled":
            taking.give_up()
            late = (
                f"not in {TAKE_SECONDS:.0f} s"
                if taking.places is None
                else "no rank has begun there, or all have ended"
            )
            why = taking.error.message if taking.error else "; ".join(taking.remarks) or late
            self.say("warning", f"the ranks' stacks could not be taken: {why}", StacksTaken())
        return short

    def _end_if(
        self, quiet: float, found: Sequence[Place], running: Mapping[str, Sequence[int]], short: str
    ) -> Verdict | None:
        """The run is over, unless it has gone on while its stacks were taken."""
        if not self._watch.still_stalled(quiet):
            self.say("info", "the run has gone on meanwhile", WentOn())
            return None
        self._gang.stall = failure = self._failure(found, running, short)
        return failure.reason(failure.why["message"] if failure.why else "no rank wrote anything any more")

    def _text(self, taking: Taking) -> list[str]:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self._clock.time()))
        found = taking.places or []
        report = [f"-- {stamp}, {taking.why}: {in_short(found)}", *lines(found), *taking.remarks, ""]
        return [printable(line, LONGEST_LINE) for line in report]

    def _failure(self, found: Sequence[Place], running: Mapping[str, Sequence[int]], short: str) -> Failure:
        """The odd one out is the first that failed."""
        host, rank = next(((it.hosts[0], it.ranks[0]) for it in found if it.odd), (next(iter(running)), -1))
        node = self._record.node(host)
        rank = rank if rank in node.ranks else running.get(host, node.ranks)[0]  # a script's own have their own numbers
        seconds = self._watch.timeout or 0.0
        ways = self._gang.ways
        short = "; ".join(filter(None, [ways and ways["message"], short]))
        why = DeadlineError(
            f"no rank wrote anything for {seconds:g} s (--stall-timeout)" + (f": {short}" if short else ""),
            kind="stalled",
            hint=ways["hint"] if ways else "where it only takes long: a longer --stall-timeout",
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
    """ "rank 0 on gpu1"."""
    return f"{ranks_text([rank for ranks in running.values() for rank in ranks])} on {fold(running)}"

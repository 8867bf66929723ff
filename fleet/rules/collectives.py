"""Finds the collective that a run hangs in, by what each rank's flight recorder has of its process groups. Pure.

A rank is blamed only if every member of the group has a dump, and the rank's own dump shows that it did not come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.node.gang.ends import ranks_text
from fleet.protocol.messages.stacks import Call, Group, Recorded
from fleet.rules.stacks import place_in
from fleet.rules.waited import meanwhile
from fleet.rules.worked_out import DIFFER

# A call that is pending for so long hangs. The time counts from the call in Python, or, if it is later, from the end of
# the rank's previous call: calls may wait long in the GPU's queue, but no single call takes so long.
STUCK_SECONDS = 60.0
UNSEEN = "what do the stacks of the other ranks show?"
DIFFER_BETWEEN = "have all ranks call the collectives of different groups in one order"
ANY_SIZES = (
    "all_to_all",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
)  # operations whose tensors differ between ranks that agree


@dataclass(frozen=True)
class Hang:
    """Describes a collective that ranks wait in. collective: "all_reduce 5". group: its process group. ranks: the
    group's members; empty if they are not known. waiting: the ranks that called it. missing: the ranks that did not
    call it, or that called something else than most ranks. unknown: the ranks without a dump that shows whether they
    called it. message: a sentence with all of this. remedy: the next step."""

    collective: str
    group: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    message: str
    remedy: str

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "remedy"}


@dataclass(frozen=True)
class _Wait:
    """Holds a group's first call that is not over. name: the group's. seq: the number of the call. groups: rank -> its
    record of the group. calls: rank -> its call of that number. waiting, missing, unknown: as in Hang. held: ranks that
    did not call it, and wait in a call of another group. apart: ranks of `unknown` that may wait in a call between two
    ranks. known: each member's dump shows whether it made the call."""

    name: str
    seq: int
    groups: Mapping[int, Group]
    calls: Mapping[int, Call]
    members: tuple[int, ...]
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    held: tuple[int, ...]
    unknown: tuple[int, ...]
    apart: tuple[int, ...]
    known: bool

    @property
    def first(self) -> Call:
        return self.calls[self.waiting[0]]

    @property
    def age(self) -> float:
        return max(self.calls[rank]["age"] for rank in self.waiting)

    @property
    def who(self) -> str:
        """Returns "ranks 0-2 wait in all_reduce 5 of default_pg (ranks 0-3), pending for 90 s"."""
        verb = f"wait{'s' * (len(self.waiting) == 1)}"
        return f"{ranks_text(self.waiting)} {verb} in {self.what}, pending for {self.age:.0f} s"

    @property
    def what(self) -> str:
        """Returns "all_reduce 5 of default_pg (ranks 0-3)"."""
        desc = self.groups[self.waiting[0]]["desc"]
        who = f" ({ranks_text(self.members)})" if self.members else ""
        return f"{self.first['op']} {self.seq} of {desc if desc not in ('', 'undefined') else self.name}{who}"

    def kinds(self) -> dict[str, list[int]]:
        """Returns call -> its ranks. It has one item if the ranks agree."""
        found = dict[str, list[int]]()
        sizes = not self.first["op"].startswith(ANY_SIZES)
        for rank, call in sorted(self.calls.items()):
            found.setdefault(f"{call['op']} of {call['sizes']}" if sizes else call["op"], []).append(rank)
        return found

    def hang(self, message: str, missing: Sequence[int] = (), remedy: str = UNSEEN) -> Hang:
        collective = f"{self.first['op']} {self.seq}"
        them = (tuple(missing), self.unknown, message, remedy)
        return Hang(collective, self.name, self.members, self.waiting, *them)


def hang(recorded: Mapping[int, Recorded], at: Mapping[int, str]) -> Hang | None:
    """Returns the collective that ranks wait in, None if none is known. at: rank -> where it is, by its stack."""
    every = sorted(_waits(recorded), key=lambda it: -it.age)
    waits = [it for it in every if it.age >= STUCK_SECONDS]
    for wait in waits:
        if len(kinds := wait.kinds()) > 1:
            return _differing(wait, kinds)
    for wait in waits:
        if (missing := wait.missing) and wait.known:
            stand = "; ".join(
                f"{ranks_text([rank]) if missing[1:] else 'it'} {_stands(rank, wait, at)}" for rank in missing[:4]
            )
            came = f"{ranks_text(missing)} {'has' if len(missing) == 1 else 'have'} not come"
            return wait.hang(f"{wait.who}; {came}: {stand}", missing, meanwhile(missing))
    for wait in waits:
        if not wait.known:
            return wait.hang(f"{wait.who}; {_unknown(wait)}")
        if wait.held:
            others = "; ".join(f"{ranks_text(it.waiting)} in {it.what}" for it in every if it is not wait)
            # if each group lacks ranks that are in another group, the groups wait for each other in a circle
            circle = all(it.known and it.held for it in every)
            message = f"{wait.who}, and those that it lacks wait in another group: {others}"
            return wait.hang(message, (), DIFFER_BETWEEN if circle else UNSEEN)
    for wait in waits:
        if through := [rank for rank in wait.calls if rank not in wait.waiting]:
            return wait.hang(f"{wait.who}; {ranks_text(through)} {'is' if len(through) == 1 else 'are'} through it")
        return wait.hang(f"all ranks called {wait.what}, pending for {wait.age:.0f} s", (), f"look for {DIFFER}")
    return None


def _waits(recorded: Mapping[int, Recorded]) -> Iterator[_Wait]:
    """Yields the first call of each group that is not over."""
    readable = {rank: it for rank, it in recorded.items() if it["why"] is None}
    named = dict[tuple[str, tuple[int, ...]], dict[int, Group]]()
    for rank, it in sorted(readable.items()):
        for group in it["groups"]:
            named.setdefault((group["name"], tuple(group["ranks"] or ())), {})[rank] = group
    pending = {key: {rank for rank, it in groups.items() if it["pending"]} for key, groups in named.items()}
    for (name, members), groups in named.items():
        seq = min((it["pending"]["seq"] for it in groups.values() if it["pending"]), default=0)
        # a higher number does not show that a rank made this call: its group may be an older one of that name
        calls = {
            rank: call
            for rank, it in groups.items()
            for call in (it["completed"], it["pending"])
            if call and call["seq"] == seq
        }
        if not seq:
            continue
        waiting = tuple(rank for rank, call in sorted(calls.items()) if call is groups[rank]["pending"])
        since = max(calls[rank]["age"] + readable[rank]["old"] for rank in waiting)
        elsewhere = {rank for key, ranks in pending.items() if key != (name, members) for rank in ranks}
        late = [rank for rank in members if rank not in calls and _is_late(readable.get(rank), name, groups, since)]
        late = [rank for rank in late if rank not in groups or groups[rank]["last"] < seq]
        held = tuple(rank for rank in late if rank in elsewhere)
        apart = tuple(rank for rank in late if rank not in elsewhere and readable[rank]["apart"])
        missing = tuple(rank for rank in late if rank not in held + apart)
        unknown = tuple(rank for rank in members if rank not in calls and rank not in held + missing)
        them = (waiting, missing, held, unknown, apart)
        yield _Wait(name, seq, groups, calls, members, *them, known=bool(members) and not unknown)


def _unknown(wait: _Wait) -> str:
    """Returns the text about the ranks whose dumps do not show whether they made the call."""
    rest = [rank for rank in wait.unknown if rank not in wait.apart]
    parts = [f"no dump shows whether {ranks_text(rest)} came"] if rest else []
    if wait.apart:
        verb = "is" if len(wait.apart) == 1 else "are"
        parts.append(f"{ranks_text(wait.apart)} {verb} in a call between two ranks, or one of gloo's")
    return "; ".join(parts) or "no dump shows which other ranks are to come"


def _is_late(it: Recorded | None, name: str, groups: Mapping[int, Group], since: float) -> bool:
    """Returns whether a rank's dump shows that it did not make the call. since: seconds since the first rank made it. A
    dump from before STUCK_SECONDS after that time does not show it. Neither does a full recorder, which may have
    dropped calls of the group."""
    if it is None or since - it["old"] < STUCK_SECONDS:
        return False
    return it["rank"] in groups or it["whole"] and all(group["name"] != name for group in it["groups"])


def _differing(wait: _Wait, kinds: Mapping[str, Sequence[int]]) -> Hang:
    """Returns the hang of ranks whose calls with the same number differ. If most ranks agree, it names the others."""
    ordered = sorted(kinds.items(), key=lambda it: -len(it[1]))
    parts = [f"{ranks_text(ranks)} {'calls' if len(ranks) == 1 else 'call'} {what}" for what, ranks in ordered]
    (_, most), *others = ordered
    odd = sorted(rank for _, ranks in others for rank in ranks)
    clear = wait.known and len(most) > len(odd)
    stand = "; ".join(f"{ranks_text([it])} {_stands(it, wait, {})}" for it in odd[:4]) if clear else ""
    message = f"ranks do not agree on call {wait.seq} of {wait.what.partition(' of ')[2]}: {'; '.join(parts[:4])}"
    return wait.hang(message + (f"; {stand}" if stand else ""), odd if clear else (), f"look for {DIFFER}")


def _stands(rank: int, wait: _Wait, at: Mapping[int, str]) -> str:
    """Returns where a rank is, by its stack; without a stack, by its last call."""
    if rank in at:
        return f"is in {at[rank]}"
    group = wait.groups.get(rank)
    call = wait.calls.get(rank) or (group and (group["pending"] or group["completed"]))
    if call is None:
        return "has called nothing of that group"
    return f"called {call['op']} {call['seq']} in {place_in(call['frames'])}"

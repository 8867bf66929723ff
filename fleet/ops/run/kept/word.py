"""The run that an argument means, of those that are known. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet.errors import Ambiguous, UsageError
from fleet.node.gang.ends import ranks_text
from fleet.protocol.state import LATEST, run_name
from fleet.rules.units import few


def choose(word: str, here: Sequence[str], others: Iterable[str] = ()) -> str:
    """The run that an argument means: an id, "latest" (of those here), a name (its newest run), a unique prefix. here:
    those that have a folder here, as names() has them; others: those that nodes report, newest first. UsageError."""
    run_ids = [*dict.fromkeys((*here, *others))]
    if not word:  # what an unset variable leaves; every run begins so, and where there is but one it would be meant
        raise UsageError("RUN is empty", hint="'fleet ps --all' lists them; 'latest' is the newest")
    if word in run_ids:
        return word
    if word == LATEST:
        if not here:
            hint = "'fleet ps --all' lists those on the hosts, to be named by their ids"
            raise UsageError("no run latest: none was launched from this folder", hint=hint)
        return here[0]
    named = [run_id for run_id in run_ids if run_name(run_id) == word]
    if named:
        return named[0]
    begun = [run_id for run_id in run_ids if run_id.startswith(word)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise Ambiguous(f"{word}: {len(begun)} runs begin so: {few(begun)}", hint="give more of its id, or 'latest'")
    if not run_ids:
        raise UsageError(f"no run {word}: no run is known", hint="'fleet launch SCRIPT' starts one")
    raise UsageError(f"no run {word}: known are {few(run_ids)}", hint="'fleet ps --all' lists them")


def meant(word: str, here: Sequence[str]) -> str | None:
    """Returns what choose() does; None where it means none."""
    try:
        return choose(word, here)
    except UsageError:
        return None


def no_such_rank(run_id: str, asked: Iterable[int], known: Iterable[int]) -> UsageError:
    text = f"run {run_id} has no {ranks_text(sorted(asked))}"
    return UsageError(text, hint=f"it has {ranks_text(sorted(known))}")


def is_part_of_name(word: str, run_id: str) -> bool:
    """Is true where it is but the first characters of the run's name, which something else may be called, too."""
    name = run_name(run_id) or run_id
    return name.startswith(word) and word != name

"""Defines a rule, its input, and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from fleet.codec import where_known
from fleet.model import Kind as ScriptKind

Severity = Literal["error", "warning", "info"]
Kind = Literal[
    "equal",
    "minimum",
    "maximum",
    "clear",
    "somewhere",
    "distinct",
    "digest",
    "partly",
    "contents",
    "closed",
    "stalled",
    "slow",
    "slower",
    "unlike",
]
View = Mapping[str, Any]  # the facts of a host, by name: see rules/view.py
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
MiB, GiB = 1 << 20, 1 << 30


MISSING: Any = object()  # stands for a fact that is not known; None stands for one that is known to be absent


def lookup(view: View, path: str) -> Any:
    """Returns the value at a dotted path; None below an absent value, MISSING if nothing is known."""
    value: Any = view
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


class Sentence(NamedTuple):
    """Describes a problem of one host. remedy, severity: they replace the rule's, if set. gpus: the indexes of the GPUs
    that the message names."""

    message: str
    remedy: str | None = None
    severity: Severity | None = None
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Describes a problem. id: the id of its rule. hosts: the hosts that have the problem, in inventory order. gpus:
    host -> the indexes of its GPUs, if it is about GPUs."""

    id: str
    severity: Severity
    hosts: tuple[str, ...]
    message: str
    remedy: str
    gpus: Mapping[str, Sequence[int]] | None = where_known()


@dataclass(frozen=True)
class Rule:
    """Describes one thing that must hold.

    fact: a dotted path into a host's view (rules/view.py), or a function of the view.
    kind: "equal": the fact is the same on all hosts. "minimum", "maximum": it is at least, or at most, the limit;
    `levels` are (limit, severity), the worst first, and `unit` is "bytes", "s" or "". "clear": the fact is a text on
    what is wrong, and must be empty; a Sentence is used as it is. "somewhere": at least one host has it. "distinct": no
    two hosts share it. "digest": all hosts that have a digest have the same one; if the fact is (NAME, digest), hosts
    with the same NAME are compared. "partly": it is true on all hosts, or on none.
    "contents": {name: value} is the same everywhere. "closed", "stalled": see rules/pairs.py; "slow": rules/links.py;
    "slower", "unlike": rules/bench.py.
    what: the name of the fact in the message. says: the sentence of a "clear" rule, in which {value} is the fact.
    when: a fact that must be true for the rule to apply to a host.
    needs: what the rule judges: "python", one of its modules, or "launch". Its findings are errors if the run needs
    that, and otherwise warnings; a launch that does not need it skips the rule.
    covered_by: rules that explain this one, if their findings are about the same hosts and at least as severe.
    echo_of: rules that explain this one if they find something on any host. run: a launch shows its warnings in full.
    essential: it protects runs, code or data, so no host may ignore it.
    A host that lacks the fact because its step timed out is not judged.
    """

    id: str
    fact: str | Callable[[View], Any]
    kind: Kind
    what: str
    remedy: str
    severity: Severity = "error"
    levels: tuple[tuple[float, Severity], ...] = ()
    unit: Literal["bytes", "s", ""] = ""
    when: str | None = None
    needs: str | None = None
    covered_by: tuple[str, ...] = ()
    echo_of: tuple[str, ...] = ()
    run: bool = False
    essential: bool = False
    says: str | None = None

    def of(self, view: View) -> Any:
        """Returns the value that the rule judges."""
        return lookup(view, self.fact) if isinstance(self.fact, str) else self.fact(view)

    def found(
        self,
        hosts: Iterable[str],
        message: str,
        *,
        severity: Severity | None = None,
        remedy: str | None = None,
        gpus: Sequence[int] = (),
    ) -> Finding:
        """Returns a finding of this rule. gpus: the indexes of GPUs, the same on each of these hosts."""
        names = tuple(hosts)
        of_hosts = dict.fromkeys(names, gpus) if gpus else None
        return Finding(self.id, severity or self.severity, names, message, remedy or self.remedy, of_hosts)


vital = partial(Rule, essential=True, run=True)


@dataclass(frozen=True)
class Part:
    """Describes a host's part in a run. ranks: the number of ranks on the command line; None for the inventory's slots.
    kind: what the script is; a "program" is started as it is. met: all nodes answered, so the route to the master can
    be judged. program: the program's name, if the node looks it up on its PATH. on_gpus: the run has several ranks,
    each of which would train alone if it found no GPU. share: other runs may use the host. here: sha256 of the script
    on the head; None if the head has no script, or if any script may run. ours: whether a source is one of the
    head's."""

    node_rank: int
    ranks: int | None
    kind: ScriptKind
    met: bool
    program: str | None = None
    on_gpus: bool = False
    share: bool = False
    here: str | None = None
    ours: Callable[[Mapping[str, Any]], bool] = lambda source: False


@dataclass(frozen=True)
class Want:
    """Describes what a launch or check needs of a host.

    ranks: the inventory's `slots`, None if it has none. devices: the selected GPU indexes, None for all. modules: the
    modules that the interpreter must be able to import. deadline: seconds after which a step on the host timed out.
    part: the host's part in the run, None for a check. ignore: the ids of rules that do not judge the host.
    """

    host: str = "HOST"
    ranks: int | None = None
    devices: tuple[int, ...] | None = None
    modules: tuple[str, ...] = ()
    deadline: float = 20.0
    part: Part | None = None
    ignore: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """Returns what the host must have, in the terms of Rule.needs."""
        return (*(("python", *self.modules) if self.modules else ()), *(("launch",) if self.part else ()))

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
View = Mapping[str, Any]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
MiB, GiB = 1 << 20, 1 << 30


MISSING: Any = object()  # a fact that is not known; one that is absent is None


def lookup(view: View, path: str) -> Any:
    """The value at a dotted path; None below something absent, MISSING where nothing is known."""
    value: Any = view
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping) or name not in value:
            return MISSING
        value = value[name]
    return value


class Sentence(NamedTuple):
    """A sentence about a host, and a remedy and a severity of its own where it has them. gpus: those that it names."""

    message: str
    remedy: str | None = None
    severity: Severity | None = None
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be. id: the rule's. hosts: those that it is about, in inventory order. gpus:
    host -> the indexes of its GPUs, where it is about some."""

    id: str
    severity: Severity
    hosts: tuple[str, ...]
    message: str
    remedy: str
    gpus: Mapping[str, Sequence[int]] | None = where_known()


@dataclass(frozen=True)
class Rule:
    """One thing that must hold.

    fact: a dotted path into a host's view (rules/view.py), or a function of the view.
    kind: "equal": the same on all hosts. "minimum", "maximum": at least, at most the limit; `levels` are
    (limit, severity), the worst first, and `unit` is "bytes", "s" or "". "clear": the fact, a text on what is
    wrong, must be empty; a Sentence is one of its own. "somewhere": at least one host has it.
    "distinct": no two hosts share it. "digest": those that have one have the same;
    of (NAME, digest), those of one name. "partly": true on all hosts, or on
    none. "contents": {name: value} is the same everywhere. "closed", "stalled", "slow": see rules/pairs.py;
    "slower", "unlike": rules/bench.py.
    what: the name of the fact in the message. says: the sentence of a "clear" one, in which {value} is the fact.
    when: a fact that must be true for the rule to apply to a host.
    needs: "python", a module of it, or "launch": an error if what is to run needs it, and in a launch, else a warning.
    covered_by: the rules of which it is only another sign, where they are about the same host and at least as severe;
    echo_of: the same of those that may be about another host. run: a launch shows its warnings in full. essential: it
    protects runs, code or data, so that no host may ignore it.
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
        """The value that it judges."""
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
        """gpus: of each of these hosts."""
        names = tuple(hosts)
        of_hosts = dict.fromkeys(names, gpus) if gpus else None
        return Finding(self.id, severity or self.severity, names, message, remedy or self.remedy, of_hosts)


vital = partial(Rule, essential=True, run=True)


@dataclass(frozen=True)
class Part:
    """A host's part in a run. ranks: as many as the command line asks for, None for the inventory's slots. kind: what
    the script is: a "program" is started as it is. met: all nodes answered, so that it means something whether they
    could meet. program: its name, where it is looked for on the PATH. on_gpus: several ranks, which would each train
    alone if they found no GPU. share: other runs may live there. here: sha256 of the script as the head has it, None
    where it has none, or anything may run; ours: whether a source is one of the head's around it."""

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
    """Describes what is wanted of the host of that name.

    ranks: the inventory's `slots`, None where it has none. devices: the GPU indexes that were selected, None for
    all. modules: what the interpreter must be able to import. deadline: seconds a step had there. part: in the run
    that a launch is about. ignore: the ids of rules that do not judge it.
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
        """Returns what must be there, as Rule.needs lists it."""
        return (*(("python", *self.modules) if self.modules else ()), *(("launch",) if self.part else ()))

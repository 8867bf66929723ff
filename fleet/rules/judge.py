"""Holds all rules, and applies them to the views of all hosts. Findings are sorted, the worst first. Pure.

To add a rule: an entry in the file where it fits, and a case in tests/golden/rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fleet.errors import InventoryError, Reason
from fleet.inventory.fields import suggest
from fleet.inventory.nodeset import fold
from fleet.model import Host, grouped
from fleet.rules import (
    bench,
    containers,
    devices,
    fitness,
    gpu_health,
    gpu_state,
    history,
    interpreter,
    launch,
    links,
    neighbours,
    pairs,
    steps,
    system,
)
from fleet.rules.causes import Cause, Whose, by_cause
from fleet.rules.rule import SEVERITIES, Finding, Kind, Rule, Sentence, Severity, View, lookup
from fleet.rules.units import amount, few, shown

# findings of the same severity are shown in this order
RULES: tuple[Rule, ...] = (
    *launch.RULES,
    *pairs.RULES,
    *links.RULES,
    *neighbours.RULES,
    *interpreter.RULES,
    *containers.RULES,
    *devices.RULES,
    *gpu_state.RULES,
    *gpu_health.RULES,
    *bench.RULES,
    *history.RULES,
    *fitness.RULES,
    *system.RULES,
    *steps.RULES,
)
LISTED = 6  # keys, such as variables, that a finding on differing contents lists
Values = Mapping[str, Any]


def judge(views: Mapping[str, View]) -> list[Finding]:
    """Returns all findings about these hosts (name -> view), sorted by severity, then in the order of RULES."""
    return causes_of(applied(views), silenced(views))


def applied(views: Mapping[str, View]) -> list[Finding]:
    """Returns all findings except silenced ones. Findings that other findings explain are included."""
    found = list[Finding]()
    for rule in RULES:
        judged = {name: view for name, view in views.items() if rule.id not in view["want"].ignore}
        found += _apply(rule, judged)
    return found


def causes_of(found: Sequence[Finding], quiet: Sequence[Finding]) -> list[Finding]:
    """Returns the findings that no other finding explains, sorted by severity. quiet: silenced findings, which explain
    others, too."""
    # a different minor version is also a different patch release: one finding is enough
    alone = [finding for finding in found if not _is_a_sign(finding, found, quiet)]
    return sorted(alone, key=lambda finding: SEVERITIES.index(finding.severity))


def _is_a_sign(finding: Finding, found: Iterable[Finding], quiet: Iterable[Finding]) -> bool:
    """Returns whether other findings explain this one, at each of its hosts, and are at least as severe. quiet:
    silenced findings."""
    rule = next(rule for rule in RULES if rule.id == finding.id)
    if any(cause.id in rule.echo_of for cause in found):
        return True
    explained = {
        name
        for cause in (*found, *quiet)
        if cause.id in rule.covered_by and SEVERITIES.index(cause.severity) <= SEVERITIES.index(finding.severity)
        for name in cause.hosts
    }
    return bool(rule.covered_by) and explained.issuperset(finding.hosts)


def silenced(views: Mapping[str, View]) -> list[Finding]:
    """Returns the findings that hosts ignore. The hosts of a finding are only those that ignore its rule."""
    found = list[Finding]()
    for rule in RULES:
        quiet = {name for name, view in views.items() if rule.id in view["want"].ignore}
        if quiet:
            every = [(each, tuple(name for name in each.hosts if name in quiet)) for each in _apply(rule, views)]
            found += [replace(finding, hosts=hosts) for finding, hosts in every if hosts]
    return found


def ignored(host: Host) -> tuple[str, ...]:
    return tuple(host.ignore.split(",")) if host.ignore else ()


def known_rules(hosts: Iterable[Host]) -> None:
    """Raises InventoryError if a host's `ignore` names an essential rule, or no rule."""
    rules = {rule.id: rule for rule in RULES}
    for host in hosts:
        for name in ignored(host):
            if name in rules and rules[name].essential:
                raise InventoryError(
                    f"ignore: {name} protects runs, code or data, and cannot be ignored",
                    hint="take it out of 'ignore'; 'fleet launch --no-preflight' starts one run in spite of it",
                    host=host.name,
                )
            if name not in rules:
                raise InventoryError(
                    f"ignore: there is no rule {name}",
                    hint=suggest(name, rules) or "'fleet check' shows a rule's name in brackets after its finding",
                    host=host.name,
                )


def in_full(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings that a launch prints in full: errors, which keep it from starting, and findings of rules
    whose `run` is set."""
    own = {rule.id for rule in RULES if rule.run}
    return [finding for finding in findings if finding.severity == "error" or finding.id in own]


def by_cause_and_severity(findings: Iterable[Finding]) -> list[tuple[Severity, Cause[Finding]]]:
    """Returns (severity, cause) for each group of findings that have the same cause, in the given order."""
    causes = by_cause((finding, finding.message, finding.remedy) for finding in findings)
    return [(cause.whose[0].severity, cause) for cause in causes]


def groups(values: Mapping[Whose, Any]) -> list[tuple[Any, list[Whose]]]:
    """Returns [(value, the hosts that have it)], most hosts first, ties in order of appearance. values: host ->
    value."""
    by_value = grouped((value, name) for name, value in values.items())
    return sorted(by_value.items(), key=lambda item: -len(item[1]))


def has_majority(grouped: Sequence[tuple[Any, list[str]]]) -> bool:
    """Returns whether one value has more hosts than any other; if not, it is not known which hosts deviate."""
    return len(grouped) == 1 or len(grouped[0][1]) > len(grouped[1][1])


def _apply(rule: Rule, views: Mapping[str, View]) -> Iterable[Finding]:
    needed = {name for view in views.values() for name in view["want"].needs}
    if "launch" in needed and rule.needs and rule.needs not in needed:
        return ()  # the run does not need what the rule judges
    if rule.needs:  # its findings are errors if the run needs that
        rule = replace(rule, severity="error" if rule.needs in needed else "warning")
    values = {}
    for name, view in views.items():
        applies = lookup(view, rule.when) if rule.when else True
        value = rule.of(view)
        if value is None and rule.kind == "equal" and rule.needs in needed:
            continue  # another rule reports that this host lacks it
        # any other value, MISSING for example, cannot be judged
        fits = Mapping if rule.kind == "contents" else str | int | float | tuple | None
        if isinstance(applies, bool | int) and applies and isinstance(value, fits):
            values[name] = value
    return _KINDS[rule.kind](rule, values)


def _equal(rule: Rule, values: Values) -> Iterable[Finding]:
    grouped = groups(values)
    if len(grouped) < 2:
        return
    if not has_majority(grouped):
        parts = [f"{fold(names)} {shown(value)}" for value, names in grouped]
        yield rule.found(values, f"no agreement on {rule.what}: {'; '.join(parts)}")
        return
    (usual, most), rest = grouped[0], grouped[1:]
    parts = []
    for value, names in rest:
        what = f"no {rule.what}" if value is None else f"{rule.what} {shown(value)}"
        parts.append(f"{fold(names)} {'has' if len(names) == 1 else 'have'} {what}")
    others = "the other one" if len(most) == 1 else f"the {len(most)} others"
    deviating = {name for _, names in rest for name in names}
    yield rule.found(
        (name for name in values if name in deviating),
        f"{', '.join(parts)}{';' if len(rest) > 1 else ','} {others} {shown(usual)}",
    )


def _limit(rule: Rule, values: Values) -> Iterable[Finding]:
    sign = 1 if rule.kind == "minimum" else -1
    left = {
        name: float("inf") if value == "unlimited" else value
        for name, value in values.items()
        if value == "unlimited" or isinstance(value, int | float)
    }
    for limit, severity in rule.levels:
        beyond = {name: value for name, value in left.items() if sign * value < sign * limit}
        if not beyond:
            continue
        left = {name: value for name, value in left.items() if name not in beyond}
        low, high = amount(min(beyond.values()), rule.unit), amount(max(beyond.values()), rule.unit)
        had = low if low == high else f"{low} to {high}"
        bound = "" if limit == float("inf") else "at least " if sign == 1 else "at most "
        message = f"{fold(beyond)}: {had} {rule.what}, {bound}{amount(limit, rule.unit)} wanted"
        yield rule.found(beyond, message, severity=severity)


def _of(names: Iterable[str]) -> Reason:
    return Reason("{hosts}: ", hosts=fold(names))


def _clear(rule: Rule, values: Values) -> Iterable[Finding]:
    for value, names in groups({name: value for name, value in values.items() if value}):
        text = Reason(rule.says, value=value) if rule.says else Reason(f"{rule.what}: ") + Reason.of_node(str(value))
        sentence = value if isinstance(value, Sentence) else Sentence(text)
        yield rule.found(
            names, _of(names) + sentence.message, remedy=sentence.remedy, severity=sentence.severity, gpus=sentence.gpus
        )


def _somewhere(rule: Rule, values: Values) -> Iterable[Finding]:
    if values and all(value is None for value in values.values()):
        yield rule.found(values, f"no host has {rule.what}")


def _distinct(rule: Rule, values: Values) -> Iterable[Finding]:
    for value, names in groups(values):
        if len(names) > 1:
            yield rule.found(names, f"{fold(names)} share the {rule.what} {shown(value)}")


def _digest(rule: Rule, values: Values) -> Iterable[Finding]:
    of_what = {name: value if isinstance(value, tuple) else ("", value) for name, value in values.items() if value}
    for what, hosts in grouped((what, name) for name, (what, _) in of_what.items()).items():
        (usual, _), *rest = found = groups({name: of_what[name][1] for name in hosts})
        about = " ".join(filter(None, (rule.what, what)))
        if not has_majority(found):
            parts = [f"{fold(names)} sha256 {value[:12]}" for value, names in found]
            yield rule.found(hosts, f"no agreement on {about}: {'; '.join(parts)}")
            continue
        for value, names in rest:
            differs = f"{about} differs: sha256 {value[:12]}, elsewhere sha256 {usual[:12]}"
            yield rule.found(names, _of(names) + differs)


def _partly(rule: Rule, values: Values) -> Iterable[Finding]:
    others = [name for name, value in values.items() if not value]
    if 0 < len(others) < len(values):
        yield rule.found(others, _of(others) + rule.what)


def _contents(rule: Rule, values: Values) -> Iterable[Finding]:
    differing: dict[str, set[str]] = {}
    for key in sorted({key for value in values.values() for key in value}):
        grouped = groups({name: value.get(key) for name, value in values.items()})
        if len(grouped) > 1:
            differing[key] = {n for _, names in grouped[1 if has_majority(grouped) else 0 :] for n in names}
    if differing:
        hosts = [name for name in values if any(name in names for names in differing.values())]
        yield rule.found(hosts, f"{fold(hosts)}: {rule.what} differ: {few(differing, LISTED)}")


_KINDS: Mapping[Kind, Callable[[Rule, Values], Iterable[Finding]]] = {
    "equal": _equal,
    "minimum": _limit,
    "maximum": _limit,
    "clear": _clear,
    "somewhere": _somewhere,
    "distinct": _distinct,
    "digest": _digest,
    "partly": _partly,
    "contents": _contents,
    "closed": pairs.closed,
    "stalled": pairs.stalled,
    "slow": links.slow,
    "slower": bench.slower,
    "unlike": bench.unlike,
}

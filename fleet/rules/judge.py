"""Rules applied to the views of all hosts: findings, the worst first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleet.errors import Reason
from fleet.rules.causes import Fold
from fleet.rules.parity import RULES, SEVERITIES, Rule, Severity
from fleet.rules.units import amount, shown
from fleet.rules.view import NOTABLE, View, lookup

OTHER_PACKAGES = 6
COVERED_BY = {"python-patch": "python-version", "torch-absent": "module-missing"}


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be. hosts: whom it is about, in inventory order."""

    id: str
    severity: Severity
    hosts: tuple[str, ...]
    message: str
    remedy: str

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "severity": self.severity,
            "hosts": list(self.hosts),
            "message": self.message,
            "remedy": self.remedy,
        }


def judge(
    views: Mapping[str, View], fold: Fold, rules: Sequence[Rule] = RULES, modules: Sequence[str] | None = None
) -> list[Finding]:
    """All findings about these hosts (name -> view), in order of severity, then of the rules. modules: what is to run
    imports these; None where nobody said what is to run."""
    rules = [_for(rule, modules) for rule in rules]
    found = [finding for rule in rules for finding in _KINDS[rule.kind](rule, _values(rule, views, modules), fold)]
    found += _packages(views, fold)
    # one cause, one finding: a different minor version is a different patch release too
    reported = {finding.id for finding in found}
    found = [f for f in found if COVERED_BY.get(f.id) not in reported]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def groups(values: Mapping[str, Any]) -> list[tuple[Any, list[str]]]:
    """[(value, its hosts)], most hosts first, ties in order of appearance."""
    by_value: dict[Any, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    return sorted(by_value.items(), key=lambda item: -len(item[1]))


def has_majority(grouped: Sequence[tuple[Any, list[str]]]) -> bool:
    """True where one value has more hosts than any other; else nobody can say who deviates."""
    return len(grouped) == 1 or len(grouped[0][1]) > len(grouped[1][1])


def _for(rule: Rule, modules: Sequence[str] | None) -> Rule:
    """The rule as severe as it is for what is to run."""
    if modules is None or rule.needs is None:
        return rule
    needed = modules and rule.needs in ("python", *modules)
    return replace(rule, severity="error" if needed else "warning")


def _values(rule: Rule, views: Mapping[str, View], modules: Sequence[str] | None) -> dict[str, Any]:
    values = {}
    for name, view in views.items():
        applies = lookup(view, rule.when) if rule.when else True
        value = lookup(view, rule.fact)
        if value is None and rule.kind == "equal" and rule.needs in (modules or ()):
            continue  # that it is missing is said of that host alone
        # anything else, MISSING among it, cannot be judged
        if isinstance(applies, bool | int) and applies and isinstance(value, str | int | float | None):
            values[name] = value
    return values


def _equal(rule: Rule, values: Mapping[str, Any], fold: Fold) -> Iterable[Finding]:
    grouped = groups(values)
    if len(grouped) < 2:
        return
    if not has_majority(grouped):
        parts = [f"{fold(names)} {shown(value)}" for value, names in grouped]
        message = f"no agreement on {rule.what}: " + "; ".join(parts)
        yield Finding(rule.id, rule.severity, tuple(values), message, rule.remedy)
        return
    (usual, most), rest = grouped[0], grouped[1:]
    parts = []
    for value, names in rest:
        verb = "has" if len(names) == 1 else "have"
        parts.append(
            f"{fold(names)} {verb} no {rule.what}"
            if value is None
            else f"{fold(names)} {verb} {rule.what} {shown(value)}"
        )
    others = "the other one" if len(most) == 1 else f"the {len(most)} others"
    message = f"{', '.join(parts)}{';' if len(rest) > 1 else ','} {others} {shown(usual)}"
    deviating = {name for _, names in rest for name in names}
    yield Finding(rule.id, rule.severity, tuple(n for n in values if n in deviating), message, rule.remedy)


def _limit(rule: Rule, values: Mapping[str, Any], fold: Fold) -> Iterable[Finding]:
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
        yield Finding(
            rule.id,
            severity,
            tuple(beyond),
            f"{fold(beyond)}: {had} {rule.what}, {bound}{amount(limit, rule.unit)} wanted",
            rule.remedy,
        )


def _clear(rule: Rule, values: Mapping[str, Any], fold: Fold) -> Iterable[Finding]:
    for value, names in groups({name: value for name, value in values.items() if value}):
        yield Finding(rule.id, rule.severity, tuple(names), _of(rule, fold(names), str(value)), rule.remedy)


def _of(rule: Rule, hosts: str, value: str) -> Reason:
    return Reason("{hosts}: ", hosts=hosts) + f"{rule.what}: " + Reason.of_node(value)


def _somewhere(rule: Rule, values: Mapping[str, Any], fold: Fold) -> Iterable[Finding]:
    if values and all(value is None for value in values.values()):
        yield Finding(rule.id, rule.severity, tuple(values), f"no host has {rule.what}", rule.remedy)


def _distinct(rule: Rule, values: Mapping[str, Any], fold: Fold) -> Iterable[Finding]:
    for value, names in groups(values):
        if len(names) > 1:
            yield Finding(
                rule.id, rule.severity, tuple(names), f"{fold(names)} share the {rule.what} {shown(value)}", rule.remedy
            )


_KINDS: Mapping[str, Callable[[Rule, Mapping[str, Any], Fold], Iterable[Finding]]] = {
    "equal": _equal,
    "minimum": _limit,
    "maximum": _limit,
    "clear": _clear,
    "somewhere": _somewhere,
    "distinct": _distinct,
}


def _packages(views: Mapping[str, View], fold: Fold) -> Iterable[Finding]:
    """Packages that no rule of their own looks at, together in one remark."""
    installed = {name: view["packages"] for name, view in views.items() if view.get("packages")}
    differing: dict[str, set[str]] = {}
    for package in sorted({p for packages in installed.values() for p in packages} - {"torch", "deepspeed", *NOTABLE}):
        grouped = groups({name: packages.get(package) for name, packages in installed.items()})
        if len(grouped) > 1:
            differing[package] = {n for _, names in grouped[1 if has_majority(grouped) else 0 :] for n in names}
    if differing:
        hosts = tuple(name for name in installed if any(name in names for names in differing.values()))
        some = ", ".join(list(differing)[:OTHER_PACKAGES])
        more = f" and {len(differing) - OTHER_PACKAGES} more" if len(differing) > OTHER_PACKAGES else ""
        yield Finding(
            "packages",
            "info",
            hosts,
            f"{fold(hosts)}: other packages differ: {some}{more}",
            "install from one lock file on every host; --json lists all versions",
        )

"""`fleet sync --wheels DIR|REQUIREMENTS`: what it prints."""

from __future__ import annotations

from fleet.cli.output import write_grouped
from fleet.model import Report, Result

# state -> how the table says it of a host that is not done
WORDS = {"there": "has", "other": "has another", "absent": "lacks", "broken": "has a part of", "unknown": "not known:"}


def show_wheels(report: Report) -> None:
    """Who has what: one line per group of hosts that have the same now."""
    versions = {w["name"]: w["version"] for w in report.data["wheels"]}

    def line(result: Result) -> str:
        states = result.data["wheels"]
        named = {state: [f"{n} {versions[n]}" for n, s in states.items() if s == state] for state in states.values()}
        if not result.ok:
            return ", ".join(f"{WORDS[state]} {_short(named[state])}" for state in WORDS if state in named)
        new, old = named.get("installed", []), len(named.get("there", []))
        parts = [f"installed {_short(new)}"] if new else []
        there = "it is there" if old == 1 else f"all {old} are there"
        parts += [f"{old} already there" if new else f"nothing to do, {there}"] if old else []
        return f"{', '.join(parts)}, in {result.data.get('python')}"

    write_grouped([r for r in report.results if r.data.get("wheels")], line)


def _short(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"

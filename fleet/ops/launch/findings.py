"""What preflight's facts mean for a run: a pure function from facts to findings, each with its remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fleet.engines import engine
from fleet.errors import Reason
from fleet.inventory.nodeset import fold
from fleet.ops.launch.plan import NodePlan, Plan
from fleet.rules import judge as rules
from fleet.rules.causes import Cause, by_cause
from fleet.rules.view import view

Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")
Raw = Mapping[str, Any]
DEADLINE_SECONDS = 20.0  # of its steps on a node
OWN_STEPS = frozenset({"files", "code", "network", "port"})  # what the others mean is the rules' to say
_SYNC = "'fleet launch --sync' brings the current folder there; --workdir names another"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong on one host, or on the hosts that deviate."""

    severity: Severity
    hosts: tuple[str, ...]
    message: str
    hint: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "event": "finding",
            "severity": self.severity,
            "hosts": list(self.hosts),
            "message": self.message,
            "hint": self.hint,
        }


def folded(findings: list[Finding]) -> list[Finding]:
    """The same finding on several hosts becomes one; errors come first."""
    hosts: dict[tuple[Severity, str, str | None], list[str]] = {}
    for f in sorted(findings, key=lambda f: f.severity == "warning"):
        hosts.setdefault((f.severity, f.message, f.hint), []).extend(f.hosts)
    return [Finding(severity, tuple(names), message, hint) for (severity, message, hint), names in hosts.items()]


def told(findings: list[Finding]) -> list[tuple[Severity, Cause[Finding]]]:
    """As people are told: what has one cause once, errors first."""
    return [
        (severity, cause)
        for severity in SEVERITIES
        for cause in by_cause([(f, f.message, f.hint) for f in folded(findings) if f.severity == severity], fold)
    ]


def judge(plan: Plan, raw: Mapping[str, Raw], complete: bool = True) -> list[Finding]:
    """All findings. complete: all nodes answered; if not, that they could not meet says nothing."""
    found: list[Finding] = []
    for node in plan.nodes:
        name = node.node.host.name
        if name in raw:
            for severity, message, hint in [*_node(plan, node, raw[name]), *_crowded(plan, node, raw[name])]:
                found.append(Finding(severity, (name,), message, hint))
    if complete:
        found += _meeting(plan, raw)
    return found + _shared(plan, raw) + _differences(raw)


def _node(plan: Plan, node: NodePlan, raw: Raw) -> Iterator[tuple[Severity, str, str | None]]:
    script, workdir = raw.get("script") or {}, raw.get("workdir") or {}
    stuck = [*raw.get("timed_out", ()), *raw.get("failed", {})]
    for step in OWN_STEPS.intersection(stuck):
        why = raw.get("failed", {}).get(step, "no answer in time")
        yield (
            ("warning" if step == "code" else "error"),
            Reason.of_node(f"preflight of its {step}: {why}"),
            "a wedged mount or driver there? 'fleet check' looks closer",
        )
    for sure in (True, False):
        version = (raw.get("python") or {}).get("version")
        locks = [
            str(build["path"])
            for build in raw.get("builds") or ()
            if bool(build["sure"]) is sure and _is_for(version, str(build["path"]))
        ]
        if locks:
            yield ("error" if sure else "warning"), *of_locks(node.node.host.name, locks, sure)
    code = raw.get("code") or {}
    if code.get("busy"):
        yield (
            "error",
            f"a sync to {code.get('folder')} is under way, from {code['busy']}",
            "launch again when it has ended",
        )
        return
    if code.get("half"):
        yield (
            "error",
            f"a sync to {code.get('folder')} was interrupted while it put files in place: old and new ones are mixed",
            "run 'fleet sync' again",
        )
        return
    data = raw.get("data") or {}
    if data.get("busy"):
        yield (
            "error",
            Reason("data is being delivered to {to}, from {who}", to=data.get("folder"), who=data["busy"]),
            "launch again when it has come",
        )
    elif data:
        yield (
            "error",
            Reason("a delivery of data to {to} was cut short: files of it are missing or old", to=data.get("folder")),
            "run 'fleet sync --data' again",
        )
    if "files" in stuck:
        return
    if not workdir.get("exists"):
        yield "error", Reason("the folder {path} does not exist", path=workdir.get("path")), _SYNC
    elif not script.get("exists"):
        yield "error", Reason("the script {path} does not exist", path=script.get("path")), _SYNC
    elif plan.job.engine == "command" and not script.get("executable"):
        yield "error", Reason("{path} is not executable", path=script.get("path")), "chmod +x"


def _shared(plan: Plan, raw: Mapping[str, Raw]) -> list[Finding]:
    """What `fleet check` calls an error, by the same rules."""
    modules = engine(plan.job.engine).modules
    views = {}
    for node in plan.nodes:
        host = node.node.host
        if host.name in raw:
            views[host.name] = view(
                raw[host.name],
                ranks=host.slots if _by_slots(plan) else None,
                devices=host.devices,
                modules=modules,
                deadline=DEADLINE_SECONDS,
            )
    return [
        Finding("error", f.hosts, f.message, f.remedy)
        for f in rules.judge(views, fold, modules=modules)
        if f.severity == "error"
    ]


def _by_slots(plan: Plan) -> bool:
    return plan.job.nproc_per_node is None and plan.options.nproc == "slots"


def _crowded(plan: Plan, node: NodePlan, raw: Raw) -> Iterator[tuple[Severity, str, str | None]]:
    """More ranks than GPUs, because the command line said so."""
    indexes = {gpu["index"] for gpu in raw.get("gpus") or ()}
    wanted = indexes if node.node.host.devices is None else indexes.intersection(node.node.host.devices)
    if wanted and not _by_slots(plan) and node.node.local_world_size > len(wanted):
        yield (
            "warning",
            f"{node.node.local_world_size} ranks share {len(wanted)} GPUs",
            "set 'slots', or --nproc-per-node gpu",
        )


def _meeting(plan: Plan, raw: Mapping[str, Raw]) -> list[Finding]:
    """The way to the master. What is wrong at the master itself explains what the others see: said alone."""
    found = []
    for node in plan.nodes:
        name = node.node.host.name
        network, port = raw[name].get("network") or {}, raw[name].get("port") or {}
        for part in (network, port):
            if part.get("error"):
                why = Reason.of_node(str(part["error"]) + _holder(part))
                found.append(Finding("error", (name,), why, _text(part.get("hint"))))
                break
        if found and node.node.node_rank == 0:
            break
    return found


def _text(said: Any) -> str | None:
    return str(said) if said else None


def _holder(port: Raw) -> str:
    holder = port.get("holder")
    if not holder:
        return ""
    if holder.get("pid") is None:
        return ", held by another user's process"
    run = f", run {holder['run_id']}" if holder.get("run_id") else ""
    return f", held by pid {holder['pid']} ({(holder.get('command') or '?')[:100]}{run})"


def _differences(raw: Mapping[str, Raw]) -> list[Finding]:
    """What must be the same everywhere and is not; named are the hosts that deviate from most."""
    checks: list[tuple[str, Severity, Callable[[Raw], Any], str]] = [
        ("the script's content", "error", lambda r: (r.get("script") or {}).get("sha256"), _SYNC),
        (
            "the code that was synced",
            "error",
            lambda r: (r.get("code") or {}).get("digest"),
            "an earlier sync reached some of them only: run 'fleet sync' again, to all",
        ),
    ]
    found = []
    for what, severity, value_of, hint in checks:
        groups: dict[Any, list[str]] = {}
        for name, facts in raw.items():
            value = value_of(facts)
            if value is not None:
                groups.setdefault(value, []).append(name)
        if len(groups) > 1:
            most = max(groups, key=lambda v: len(groups[v]))
            for value, names in groups.items():
                if value != most:
                    found.append(
                        Finding(
                            severity, tuple(names), f"{what} differs: {_short(value)}, elsewhere {_short(most)}", hint
                        )
                    )
    synced = [name for name, facts in raw.items() if facts.get("code")]
    others = [name for name, facts in raw.items() if "code" in facts and name not in synced]
    if synced and others:
        found.append(
            Finding(
                "warning",
                tuple(others),
                "the code there did not come by 'fleet sync', elsewhere it did",
                "run 'fleet sync', so that it is the same everywhere",
            )
        )
    return found


def _is_for(version: str | None, lock: str) -> bool:
    """Whether this Python may build there: torch's own folders are called py311_cpu."""
    found = re.search(r"/py(\d+)t?_[^/]*/[^/]+/lock$", lock)
    return found is None or version is None or found[1] == "".join(version.split(".")[:2])


def of_locks(host: str, locks: Sequence[str], sure: bool = True) -> tuple[str, str]:
    """What is wrong with locks of builds that nobody holds, and the line to copy."""
    which = ", ".join(locks)
    who = f"a build that was killed left {which}" if sure else f"nobody on this node has {which} open"
    return f"{who}: a rank that wants what is built there waits for ever, without a word", Reason(
        f"fleet exec -w {{hosts}} -- rm -f {shlex.join(locks)}", hosts=host
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 40 else f"sha256 {text[:12]}"

"""Compares GPUs and hosts with the records of earlier checks: findings that came back, counts that grew, GPUs that
moved. Pure."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from fleet.codec import plain
from fleet.errors import Reason
from fleet.rules.gpu_health import named
from fleet.rules.rule import SEVERITIES, Finding, Rule, Sentence, Severity, View
from fleet.rules.seen import RULES_OF_HEALTH, is_known, is_whole
from fleet.rules.xid import explained, place

BASELINE_SECONDS = 30 * 86_400.0  # age at which the baseline of the error counts is taken again
ID = re.compile(r"GPU-[0-9A-Za-z-]{1,64}")  # UUIDs of nvidia-smi
OF_HOST = "/"  # begins the id of a host
MOST_NAMES = 8  # for so many inventories a GPU's host is kept
# error counters of a GPU and of its NVLinks -> what each counts; see HARMLESS
COUNTS = {
    "ecc_errors_ever": "uncorrected memory errors",
    "rows_uncorrected": "rows remapped for uncorrected errors",
    "rows_corrected": "rows remapped for corrected errors",
    "pages_uncorrected": "pages retired for uncorrected errors",
    "pages_corrected": "pages retired for corrected errors",
    "xids": "Xid errors",
    "link_recovery": "NVLink recoveries",
    "link_crc": "NVLink CRC errors",
    "link_replay": "NVLink replays",
    "ecc_corrected_ever": "corrected memory errors",
}
Time = Annotated[float, lambda at: 0 <= at < 1e11]  # seconds since the epoch, small enough for a date
HARMLESS = ("link_replay", "ecc_corrected_ever")


@dataclass(frozen=True)
class Past:
    """Records a finding of a rule. first, last: times of the first and the last check that found it. open: no later
    check found it gone. times: how often it appeared, not counting checks that found it still open."""

    severity: Severity
    first: Time
    last: Time
    open: bool = True
    times: int = 1


@dataclass(frozen=True)
class Kept:
    """Records what is known of a GPU, or of a host itself, whose `id` is empty. hosts: scope -> the host's name in it;
    each inventory is a scope. at: time of the last check. counts: error counts at the time `since`. found: rule -> its
    finding."""

    id: str
    serial: str | None
    hosts: Mapping[str, str]
    at: Time
    since: Time
    counts: Mapping[str, int] = field(default_factory=dict)
    found: Mapping[str, Past] = field(default_factory=dict)


def counted_in(view: View, gpu: View) -> dict[str, int]:
    """Returns the known error counts of a GPU."""
    links = (each for each in view.get("nvlinks") or () if each["gpu"] == gpu["index"])
    own = {**gpu, **{f"link_{name}": count for link in links for name, count in link.items()}}
    if "xids" in view and gpu.get("bus"):
        harm = [each for each in view["xids"] if not explained(each["xid"]).is_minor]  # minor: by a program
        own["xids"] = sum(each["count"] for each in harm if place(each["bus"]) == place(gpu["bus"]))
    return {name: own[name] for name in COUNTS if own.get(name) is not None}


def updated(
    kept: Sequence[Kept], views: Mapping[str, View], findings: Iterable[Finding], scope: str, now: float
) -> list[Kept]:
    """Returns the records after a check of these hosts. A record of a part that was not checked stays as it was.
    findings: all findings, including those that are silenced or that others explain. scope: the inventory that names
    the hosts. now: the time of the check."""
    before, parts = by_id(kept, scope), parts_of(views)
    others = [each for each in kept if not each.id and scope not in each.hosts]
    shown = dict[tuple[str, int | None], dict[str, Severity]]()
    for finding in findings:
        for host in finding.hosts if finding.id in RULES_OF_HEALTH else ():
            for index in (finding.gpus or {}).get(host) or (None,):
                at = (host, index if (host, index) in parts else None)
                shown.setdefault(at, {})[finding.id] = finding.severity
    seen = dict[str, Kept]()
    for (host, index), (id, gpu) in parts.items():
        now_found, old = shown.get((host, index), {}), before.get(id)
        counts = counted_in(views[host], gpu) if gpu else {}
        if not gpu and not now_found and not old:
            continue
        if (
            old is None
            or now - old.since > BASELINE_SECONDS
            or any(counts.get(n, c) < c for n, c in old.counts.items())
        ):
            since, base = now, counts
        else:
            since, base = old.since, {**counts, **old.counts}
        found = dict(old.found) if old else {}
        for rule, past in found.items():
            if rule not in now_found and past.open and is_known(rule, views, host, gpu):
                found[rule] = replace(past, open=False)
        for rule, severity in now_found.items():
            found[rule] = again(found.get(rule), severity, now)
        names = {name: at for name, at in (old.hosts if old else {}).items() if name != scope}
        hosts = dict([*names.items(), (scope, host)][-MOST_NAMES:])
        serial = gpu.get("serial") if gpu else None
        seen[id] = Kept(id if gpu else "", serial, hosts, now, since, base, found)
    nameless = {
        host for host, view in views.items() for gpu in view.get("gpus") or () if (host, gpu["index"]) not in parts
    }
    for id, each in before.items():
        host = each.hosts.get(scope, "")
        # a GPU without an id may be this one
        if each.id and id not in seen and host in views and host not in nameless and is_whole(views[host]):
            before[id] = replace(each, hosts={name: at for name, at in each.hosts.items() if name != scope})
    return [*others, *{**before, **seen}.values()]


def parts_of(views: Mapping[str, View]) -> dict[tuple[str, int | None], tuple[str, View | None]]:
    """Returns (host, GPU index) -> (id, the GPU), and (host, None) -> (id, None) for the host itself. A GPU id that two
    hosts report is left out."""
    every = {(host, gpu["index"]): gpu for host, view in views.items() for gpu in view.get("gpus") or ()}
    ids = {at: str(gpu.get("uuid") or "") for at, gpu in every.items()}
    often = Counter(ids.values())
    gpus = {at: (id, every[at]) for at, id in ids.items() if ID.fullmatch(id) and often[id] == 1}
    return {**{(host, None): (OF_HOST + host, None) for host in views}, **gpus}


def by_id(kept: Iterable[Kept], scope: str) -> dict[str, Kept]:
    """Returns id -> record of the GPUs, and of the hosts in that scope. The ids are those of parts_of()."""
    known = {each.id or OF_HOST + each.hosts.get(scope, ""): each for each in kept}
    return {id: each for id, each in known.items() if id != OF_HOST}


def again(past: Past | None, severity: Severity, now: float) -> Past:
    """Returns the record of a rule that finds something now. Its severity is the worst one since the finding was last
    gone."""
    if past is None:
        return Past(severity, now, now)
    worst = min(severity, past.severity, key=SEVERITIES.index) if past.open else severity
    return Past(worst, past.first, now, True, past.times + (not past.open))


def unfit(kept: Iterable[Kept], scope: str) -> dict[str, set[str]]:
    """Returns host -> the rules that found an error which no later check found gone. A caller that leaves these hosts
    out must keep a host that ignores all of its rules here."""
    found: dict[str, set[str]] = {}
    for each in kept:
        if (host := each.hosts.get(scope)) and (rules := errors_of(each)):
            found.setdefault(host, set()).update(rules)
    return dict(sorted(found.items()))


def errors_of(kept: Kept) -> set[str]:
    """Returns the rules whose errors are open. It leaves out rules that this version of fleet does not have."""
    return {
        rule for rule, past in kept.found.items() if past.open and past.severity == "error" and rule in RULES_OF_HEALTH
    }


# -- findings that a check adds ------------------------------------------------------------------------------------
def recalled(kept: Iterable[Kept], views: Mapping[str, View], scope: str) -> dict[str, list[dict[str, Any]]]:
    """Returns host -> the records of it and its GPUs, as the fact "before" has them."""
    known = by_id(kept, scope)
    found: dict[str, list[dict[str, Any]]] = {}
    for (host, index), (id, _) in parts_of(views).items():
        if each := known.get(id):
            about = {"serial": each.serial, "at": each.at, "since": each.since, "counts": each.counts}
            was = {"gpu": index, "host": each.hosts.get(scope), "found": plain(each.found)}
            found.setdefault(host, []).append({**was, **about})
    return found


def when(at: float) -> str:
    return time.strftime("%-d %b %H:%M", time.localtime(at))


def with_past(findings: Iterable[Finding], views: Mapping[str, View]) -> Iterator[Finding]:
    """Yields the findings, each with the times at which it was found before."""
    before = {(host, each["gpu"]): each for host, view in views.items() for each in view.get("before") or ()}
    for finding in findings:
        texts = dict[str, None]()
        for host in finding.hosts:
            for gpu in (finding.gpus or {}).get(host) or (None,):
                was = before.get((host, gpu)) or {}
                if past := was.get("found", {}).get(finding.id):
                    texts[_past(past, was, host if len(finding.hosts) > 1 else "")] = None
        yield replace(finding, message=finding.message + Reason.of_node(f"; {'; '.join(texts)}")) if texts else finding


def _past(past: Mapping[str, Any], was: Mapping[str, Any], host: str) -> str:
    """Returns "GPU 2 the same as on 3 Nov 10:02 (serial 1002)" or "GPU 2 so since 3 Nov 10:02"."""
    name = " ".join([host] * bool(host) + [f"GPU {was['gpu']}"] * (was["gpu"] is not None))
    if past["open"]:
        often = f", {past['times']} times so far" * (past["times"] > 1)
        return f"{name} so since {when(past['first'])}{often}".strip()
    serial = f" (serial {was['serial']})" * bool(was["serial"])
    return f"{name} the same as on {when(past['last'])}, and well in between{serial}".strip()


def grown(harmless: bool, view: View) -> Sentence | None:
    """Returns the finding on GPUs that have more errors than at the baseline. harmless: whether the counters in
    HARMLESS are compared, or all others."""
    found = {}
    for was, gpu in _known(view):
        now = counted_in(view, gpu)
        more = {n: now[n] - count for n, count in was["counts"].items() if n in now and (n in HARMLESS) is harmless}
        texts = [f"{count} more {COUNTS[name]}" for name, count in more.items() if count > 0]
        if texts:
            found[gpu["index"]] = f"has {' and '.join(texts)} since {when(was['since'])}"
    return named(view, found)


def moved(view: View) -> Sentence | None:
    found = {}
    for was, gpu in _known(view):
        if was["host"] not in (None, view["want"].host):
            had = [rule for rule, past in was["found"].items() if past["open"]]
            serial = f" (serial {was['serial']})" * bool(was["serial"])
            what = f", where it had {', '.join(had)}" * bool(had)
            found[gpu["index"]] = f"was in {was['host']} until {when(was['at'])}{what}{serial}"
    return named(view, found)


def _known(view: View) -> Iterator[tuple[View, View]]:
    gpus = {gpu["index"]: gpu for gpu in view.get("gpus") or ()}
    yield from ((was, gpus[was["gpu"]]) for was in view.get("before") or () if was["gpu"] in gpus)


GROW = "it gets worse: 'dcgmi diag -r 3' there tests it; have it replaced where they grow on"
RULES = (
    Rule("gpu-errors-grow", partial(grown, False), "clear", "error counts", GROW, "warning"),
    Rule("gpu-errors-corrected", partial(grown, True), "clear", "error counts", GROW, "info"),
    Rule(
        "gpu-moved", moved, "clear", "GPUs", "its earlier findings go with it; nothing to do where it was meant", "info"
    ),
)

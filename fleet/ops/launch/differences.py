"""What a run that repeats another one does not find as it was: the code here, and versions on the nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from fleet.inventory.nodeset import fold

SHORT = 12


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    """(a sentence, what to do) for each, of two run.json."""
    if before:
        yield from _of_code(before, now.get("code") or {})
        yield from ((said, None) for said in _of_versions(before, now))


def _of_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    then = before.get("code") or {"why": "nobody asked"}
    was, is_, where = then.get("commit"), now.get("commit"), f"the code in {now.get('folder')}"
    if was is None and then.get("why"):
        return  # git told nothing then
    apply = " && git apply " + quote(f"{before.get('logs')}/{then['diff']}") if then.get("diff") else ""
    stash = "git stash && " if now.get("dirty") else ""  # a checkout takes changes along, and a diff does not fit them
    hint = f"to have it as it was: {stash}git checkout {_short(was)}{apply}" if was else None
    if was != is_:
        yield f"{where} is at commit {_short(is_)}, and was at {_short(was)}", hint
    elif was and (then.get("sha256"), then.get("dirty")) != (now.get("sha256"), now.get("dirty")):
        yield f"{where} is at the same commit, with other changes", hint


def _short(commit: str | None) -> str:
    return commit[:SHORT] if commit else "none"


def _of_versions(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    then, here = before.get("facts") or {}, now.get("facts") or {}
    told: dict[str, list[str]] = {}
    for host in here:
        was, is_ = versions(then.get(host) or {}), versions(here[host] or {})
        for name in sorted(was | is_) if was else ():
            if was.get(name) != is_.get(name):
                said = f"{name} is {is_.get(name) or 'not there'}, and was {was.get(name) or 'not there'}"
                told.setdefault(said, []).append(host)
    yield from (f"{fold(hosts)}: {said}" for said, hosts in told.items())
    old, new = ((each.get("fleet") or {}).get("version") for each in (before, now))
    if old != new:
        yield f"fleet is {new}, and was {old}"


def versions(facts: Mapping[str, Any]) -> dict[str, str]:
    """Of what a run's ranks use, by name."""
    found = {"python": (facts.get("python") or {}).get("version"), **(facts.get("packages") or {})}
    found |= {name: (facts.get(name) or {}).get("version") for name in ("torch", "deepspeed")}
    found["script, by its sha256,"] = ((facts.get("script") or {}).get("sha256") or "")[:SHORT]
    found |= {name: facts.get(name) for name in ("driver", "cuda_toolkit", "nccl_library")}
    return {name: str(version) for name, version in found.items() if version}

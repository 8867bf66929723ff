"""Holds the rule about live runs on a host: a launch shares the GPUs of these runs only with --share."""

from __future__ import annotations

import time
from collections.abc import Iterator

from fleet.inventory.nodeset import fold
from fleet.protocol.state import meet
from fleet.rules.rule import Sentence, View, vital
from fleet.rules.units import counted

LIVE = "live-run"


def neighbours(view: View) -> Iterator[View]:
    """Yields the live runs that use GPUs which a launch is to use, or that may use any GPU."""
    want = view["want"]
    for run in view.get("runs") or () if want.part is not None else ():
        if meet(want.devices, run["devices"]):
            yield run


def live(view: View) -> Sentence | None:
    part, found = view["want"].part, list(neighbours(view))
    if part is None or part.share or not found:
        return None
    stop = " and ".join(f"'fleet stop {run['run']}'" for run in found)
    text = "; ".join(_text(run, view) for run in found)
    return Sentence(text, f"{stop} ends it; 'fleet launch --share' starts alongside it, 'fleet launch --wait' after it")


def _text(run: View, view: View) -> str:
    """Returns "run RUN of root@head is live since 21 Nov 22:46: 8 ranks on 4 nodes, GPUs 0-3, port 15432"."""
    about = run["about"] or {}
    since = time.strftime(" since %-d %b %H:%M", time.localtime(about["started"])) if about.get("started") else ""
    owner = f" of {about['owner']}" if about.get("owner") else ""
    parts = [f"{counted(about['world_size'], 'rank')} on {counted(about['nnodes'], 'node')}"] if about else []
    parts += [f"GPUs {gpus}"] if (gpus := _gpus(run, view)) else []
    parts += [f"port {about['master'].rpartition(':')[2]}"] if about else []
    return f"run {run['run']}{owner} is live{since}{': ' * bool(parts)}{', '.join(parts)}"


def _gpus(run: View, view: View) -> str:
    """Returns the GPUs that were selected for the run; without a selection, those on which it has processes: "0-3"."""
    uuids = {process["gpu"] for process in view.get("gpu_processes") or () if process.get("run_id") == run["run"]}
    used = [gpu["index"] for gpu in view.get("gpus") or () if gpu.get("uuid") in uuids - {None}]
    return fold(map(str, sorted(used if run["devices"] is None else run["devices"]))).strip("[]")


RULES = (vital(LIVE, live, "clear", "live runs", "--share"),)

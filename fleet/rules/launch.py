"""Holds the rules that apply only to a launch: its script, code and data, its ranks, and the route to the master."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fleet.errors import Reason
from fleet.protocol.state import MODULES
from fleet.rules import left_behind
from fleet.rules.rule import MISSING, Rule, Sentence, View, lookup, vital
from fleet.rules.steps import OF_A_RUN, stuck
from fleet.rules.units import counted

MODULE = "a module is looked for in the workdir, then in the interpreter's packages; --sync brings this folder"
FILE = "a module's name has no .py; a file is started without -m"
PYTHON = "write 'python train.py' after --engine command; other engines start Python themselves"
PYTHON3 = "name python3, or an interpreter by its path"
ANOTHER = "'--workdir DIR' names a folder of this project's own, with --sync; --as-there runs what is there"
SYNC = "'fleet launch --sync' brings the current folder there; --workdir names another"


# -- script, code, data ----------------------------------------------------------------------------------------
# fact -> (message that a delivery is under way, remedy for that, message that one was cut short)
DELIVERIES = {
    "code": (
        "a sync to {to} is under way, from {who}",
        "launch again when it has ended",
        "a sync to {to} was interrupted while it put files in place: old and new ones are mixed",
    ),
    "data": (
        "data is being delivered to {to}, from {who}",
        "launch again when it has come",
        "a delivery of data to {to} was cut short: files of it are missing or old",
    ),
}


def delivery(name: str, found: View, half: bool) -> Sentence | None:
    """Returns what is wrong with a delivery. half: a delivery was cut short."""
    under_way, again, cut = DELIVERIES[name]
    if found.get("busy"):
        return Sentence(Reason(under_way, to=found.get("folder"), who=found["busy"]), again)
    return Sentence(Reason(cut, to=found.get("folder"))) if half else None


def code(view: View) -> Sentence | None:
    found = view.get("code") or {}
    return delivery("code", found, found.get("half", False))


def data(view: View) -> Sentence | None:
    """Returns what is wrong with the delivery of data. The fact exists only if a delivery has not ended."""
    found = view.get("data")
    return None if not found or code(view) else delivery("data", found, True)


def workdir(view: View) -> str | None:
    found = lookup(view, "disks.workdir")
    missing = isinstance(found, Mapping) and not found["exists"] and not code(view)
    return found["path"] if missing else None


def script(view: View) -> Sentence | None:
    part, script = view["want"].part, view.get("script") or {}
    if part is None or code(view) or workdir(view) or stuck("files", view):
        return None
    if not script.get("exists") and part.kind == "module":
        path = str(script.get("path"))
        return Sentence(
            Reason("python -m finds no such module: {path}", path=path), FILE if path.endswith(".py") else MODULE
        )
    if not script.get("exists"):
        if folder := view.get("script_folder"):
            return Sentence(Reason("the script {path} is a folder", path=folder), "name a file in it")
        if part.program is not None:
            missing = Reason("no program {name} on the PATH, nor in the workdir", name=part.program)
            return Sentence(missing, PYTHON3 if part.program == "python" else None)
        return Sentence(Reason("the script {path} does not exist", path=script.get("path")))
    if part.kind == "program" and not script.get("executable"):
        python = str(script.get("path")).endswith(".py")
        wrong = "{path} has no '#!' line that says what starts it" if python else "{path} is not executable"
        return Sentence(Reason(wrong, path=script.get("path")), PYTHON if python else "chmod +x")
    return None


def other_script(view: View) -> Sentence | None:
    """Reports a script that came from another source, and differs from the head's file of this name."""
    part, source, script = view["want"].part, lookup(view, "code.script"), view.get("script") or {}
    if part is None or part.here is None or not isinstance(source, Mapping) or not source["id"]:
        return None
    same = script.get("sha256") in (None, part.here) or part.ours(source)
    text = "{path} came from another source, {source}, and differs from the one here"
    source_text = f"{source['host']}:{source['path']}"
    return None if same else Sentence(Reason(text, path=script.get("path"), source=source_text))


def configs(view: View) -> str | None:
    missing = view.get("configs_missing")
    unknown = view["want"].part is None or code(view) or workdir(view) or stuck("files", view)
    return missing[0] if missing and not unknown else None


def alone(view: View) -> bool:
    """Returns whether each rank would train alone. Accelerate does not distribute the training if it finds no GPU."""
    part = view["want"].part
    return part is not None and part.on_gpus and view.get("gpus") == []


def changed(modules: bool, view: View) -> Any:
    found = lookup(view, "code.changed")
    if not isinstance(found, Mapping):
        return MISSING
    return {path: what for path, what in found.items() if path.endswith(MODULES) is modules}


def synced(view: View) -> Any:
    return bool(view["code"]) if "code" in view else MISSING


# -- ranks, and the route to the master ------------------------------------------------------------------------
def crowded(view: View) -> Sentence | None:
    """Reports that the command line asks for more ranks than there are usable GPUs."""
    want = view["want"]
    usable = sum(want.devices is None or gpu["index"] in want.devices for gpu in view.get("gpus") or ())
    shared = want.part is not None and 0 < usable < (want.part.ranks or 0)
    return Sentence(f"{want.part.ranks} ranks share {counted(usable, 'GPU')}") if shared else None


def hidden(view: View) -> Sentence | None:
    """Reports that a variable of the host leaves fewer GPUs than ranks. Each rank takes one GPU."""
    want, left = view["want"], view.get("visible")
    ranks = (want.part and want.part.ranks) or want.ranks or 0
    if left is None or want.devices is not None or not left < ranks <= len(view.get("gpus") or ()):
        return None
    return Sentence(
        f"CUDA_VISIBLE_DEVICES leaves {counted(left, 'GPU')} of {len(view['gpus'])} to {counted(ranks, 'rank')}"
    )


def way(master: bool, view: View) -> Sentence | None:
    """Reports what is wrong with the route to the master. master: True judges only the master's node, False only the
    other nodes. An error at the master's node explains the errors at the others."""
    part, found = view["want"].part, view.get("port") or {}
    if part is None or not part.met or (part.node_rank == 0) is not master or not found.get("error"):
        return None
    return Sentence(Reason.of_node(str(found["error"]) + _holder(found.get("holder"))), _way_on(found))


def _holder(holder: View | None) -> str:
    if not holder or holder.get("pid") is None:
        return ", held by another user's process" if holder else ""
    run = f", run {holder['run_id']}" if holder.get("run_id") else ""
    return f", held by pid {holder['pid']} ({(holder.get('command') or '?')[:100]}{run})"


def _way_on(found: View) -> str | None:
    hint, run = found.get("hint"), (found.get("holder") or {}).get("run_id")
    if hint and run:
        return Reason("{run} is not over: 'fleet stop {run}' ends it; ", run=run) + Reason.of_node(str(hint))
    return str(hint) if hint else None


MASTER = "master"
LOOK = "a wedged mount or driver there? 'fleet check' looks closer"
LOOK_AT_MASTER = "check 'data_address' of the first host, or give --master-addr"

RULES = (
    *(
        vital(f"step-{step}", partial(stuck, step), "clear", step, LOOK, "warning" if step == "code" else "error")
        for step in OF_A_RUN
    ),
    *left_behind.RULES,
    vital("code-mixed", code, "clear", "the code", "run 'fleet sync' again"),
    vital("data-mixed", data, "clear", "the data", "run 'fleet sync --data PATH' again"),
    vital(
        "runs-folder",
        "no_runs",
        "clear",
        "the runs' folder",
        "move it away, or correct its owner",
        says="a run keeps its logs below {value}, which is no folder that can be written",
    ),
    Rule(
        "workdir-missing",
        workdir,
        "clear",
        "the workdir",
        SYNC,
        needs="launch",
        essential=True,
        says="the folder {value} does not exist",
    ),
    vital("script-missing", script, "clear", "the script", SYNC),
    vital("script-of-another", other_script, "clear", "the script", ANOTHER),
    vital(
        "config-missing",
        configs,
        "clear",
        "a configuration",
        SYNC,
        says="DeepSpeed's configuration {value} does not exist",
    ),
    Rule(
        "ranks-share-gpus",
        crowded,
        "clear",
        "ranks",
        "set 'slots', or --nproc-per-node gpu",
        "warning",
        run=True,
    ),
    Rule(
        "gpus-hidden",
        hidden,
        "clear",
        "GPUs",
        "/etc/environment, startup files or 'activate' set it: take it out, or --env CUDA_VISIBLE_DEVICES=0,1,...",
        run=True,
    ),
    Rule(
        "ranks-alone",
        alone,
        "clear",
        "ranks",
        "--cpu, or 'use_cpu: true' in its configuration; under FSDP --env ACCELERATE_USE_CPU=true",
        "warning",
        run=True,
        says="no NVIDIA GPU: accelerate lets each rank train alone, unless it is set to train on CPUs",
    ),
    Rule(
        "config-unread",
        "unread",
        "clear",
        "a launcher's configuration",
        "--config-file names one, on this machine: it is the same for all hosts then",
        "warning",
        run=True,
        says="the launcher's own configuration is not read: {value}",
    ),
    vital(MASTER, partial(way, True), "clear", "the master", LOOK_AT_MASTER),
    vital(
        "way-to-master",
        partial(way, False),
        "clear",
        "the way to the master",
        LOOK_AT_MASTER,
        echo_of=(MASTER, "ways"),
    ),
    vital("script-differs", "script.sha256", "digest", "the script's content", SYNC),
    vital(
        "code-differs",
        "code.digest",
        "digest",
        "the code that was synced",
        "run 'fleet sync' again, to all; what it left as the node has it: 'fleet sync --force=PATTERN'",
    ),
    vital(
        "code-changed",
        partial(changed, True),
        "contents",
        "modules of the code that was synced",
        "they were changed there since: 'fleet sync' again, to all; 'fleet sync --force=PATTERN' over such changes",
    ),
    Rule(
        "files-changed",
        partial(changed, False),
        "contents",
        "other files that were synced",
        "runs write such files, too; if they are read: 'fleet sync --force=PATTERN' makes them equal",
        "warning",
        run=True,
    ),
    Rule(
        "code-not-synced",
        synced,
        "partly",
        "the code there did not come by 'fleet sync', elsewhere it did",
        "run 'fleet sync', so that it is the same everywhere",
        "warning",
        run=True,
    ),
)

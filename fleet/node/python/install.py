"""Installs delivered wheels into the training interpreter, and imports them. Reports the error if that fails.

spec: {"python", "workdir", "activate", "env", "folder": str, "mark": str, "wait": s for the lock, "deadline": s for the
interpreter's facts, "import_deadline": s for each wheel,
"wheels": [{"name", "version", "identity", "file", "sha256", "modules": [str]}]}.
J {"event": "doing", "what"} as it goes, at the end one of
    {"event": "done", "executable", "wheels": {name: "installed" | "there"}}
    {"event": "failed", "message", "hint", "wheels": {name: state}}
If two installs into one interpreter run at once, the second waits. At end of file on stdin, pip gets SIGINT, rolls back
and exits.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fleet.node.base.child_processes import (
    begin_marked,
    end_marked,
    finish_marked,
    locked,
    read_to_end,
    started,
    stopped,
)
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import file_digest
from fleet.node.base.state_folder import own_home
from fleet.node.base.types import Any, Callable
from fleet.node.base.types import wheels as messages
from fleet.node.base.wire import send_json
from fleet.node.facts.ask import OUTPUT_LIMIT, last_line
from fleet.node.facts.tools import Tools
from fleet.node.python.installed import (
    ask_python,
    begun_file,
    pip_environment,
    training_python,
    verified_file,
    wheel_answer,
)
from fleet.protocol.state import INSTALL_LOCK, WHEELS, below_home

PIP = (
    "-m",
    "pip",
    "--disable-pip-version-check",
    "--no-input",
    "install",
    "--no-index",
    "--no-deps",
    "--force-reinstall",
    "--no-warn-script-location",
    "--progress-bar",
    "off",
    "--quiet",
)
IMPORT = r"""
import importlib, json, sys
if sys.path and not sys.path[0]:
    del sys.path[0]
for name in json.loads(sys.stdin.read()):
    sys.stderr.write("importing %s\n" % name)
    sys.stderr.flush()
    importlib.import_module(name)
"""
IMPORTS = 4  # at the same time
importing = threading.Event()


def claim(answer: "dict[str, Any]", wait: float) -> None:
    """Takes the lock of an interpreter until this process ends. The lock file is in the interpreter's package folder,
    so that all users and nodes that share it see the lock. If that cannot be written, the file is in this user's home.
    Raises Refused."""
    key = hashlib.sha256(answer["target"].encode()).hexdigest()[:16]
    home = own_home(WHEELS)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(os.path.join(answer["target"], INSTALL_LOCK), flags, 0o666)
    except OSError:
        try:
            fd = os.open(os.path.join(home, "lock-" + key), flags, 0o666)
        except OSError:
            raise Refused("cannot write to %s" % home, "mend its mode, or free some space") from None
    message = {"event": "doing", "what": "waiting for another install into the same interpreter"}
    if not locked(fd, fcntl.LOCK_EX, wait, lambda: send_json(message)):
        raise Refused(
            "another install into %s is under way for more than %d s" % (answer["target"], wait),
            "wait for it to end, then run this again",
        )


def check_files(spec: "messages.InstallSpec", todo: "list[messages.Carried]") -> None:
    for wheel in todo:
        try:
            digest = file_digest(os.path.join(spec["folder"], wheel["file"]))
        except FileNotFoundError:
            raise Refused("%s was taken away again, by another sync of it" % wheel["file"], "run this again") from None
        if digest != wheel["sha256"]:
            raise Refused("%s is not what was sent" % wheel["file"], "run this again: it is sent again")


def pip_install(path: str, tools: "Tools", spec: "messages.InstallSpec", todo: "list[messages.Carried]") -> None:
    env = pip_environment(tools, spec["mark"], PYTHONIOENCODING="utf-8")
    argv = [path] + list(PIP) + ["--find-links", spec["folder"]]
    argv += ["%s==%s" % (wheel["name"], wheel["version"]) for wheel in todo]
    chunks: list[bytes] = []
    child = started(argv, env, "/")
    if not read_to_end(child, chunks.append):
        child.send_signal(signal.SIGINT)  # pip then puts back the files that it had moved away
        with suppress(subprocess.TimeoutExpired):
            child.wait(10)
        end_marked(spec, 1.0)
        raise Refused("interrupted", None)
    out = b"".join(chunks)[-OUTPUT_LIMIT:].decode("utf-8", "replace")
    if child.returncode:
        errors = [line[7:] for line in out.splitlines() if line.startswith("ERROR: ")]
        last = errors[0] if errors else last_line(out) or "exit status %d" % child.returncode
        raise Refused(
            "pip: %s" % last[:300],
            "free some space there"
            if "No space left" in out
            else "run it by hand there: "
            "%s -m pip install --no-index --no-deps -f %s %s" % (path, spec["folder"], argv[-1]),
        )


def import_all(
    path: str, tools: "Tools", spec: "messages.InstallSpec", answer: "dict[str, Any]", wheels: "list[messages.Carried]"
) -> None:
    """Imports the modules of each wheel in a separate process, IMPORTS wheels at a time."""
    env = dict(tools.env, FLEET_EXEC_ID=spec["mark"])
    argv = [path, "-c", IMPORT]

    def one(wheel: "messages.Carried") -> "Refused | None":
        modules = json.dumps(wheel["modules"]).encode()
        seconds = 0.0 if stopped.is_set() else spec["import_deadline"]
        status, _out, err = ask_python(argv, modules, env, seconds, "/")
        if status != 0:
            return failure(status, err, spec["import_deadline"])
        os.rename(begun_file(answer, wheel), verified_file(answer, wheel))
        return None

    importing.set()
    try:
        with ThreadPoolExecutor(min(IMPORTS, os.cpu_count() or 1)) as pool:
            failures = [each for each in pool.map(one, wheels) if each]
    finally:
        importing.clear()
    if stopped.is_set():
        raise Refused("interrupted", None)
    if failures:
        raise failures[0]


def failure(status: "int | None", err: str, deadline: float) -> Refused:
    current = re.findall(r"^importing (\S+)$", err, re.M)[-1:] or ["?"]
    if status is None:
        return Refused(
            "installed, but 'import %s' took more than %d s" % (current[0], deadline),
            "look at the file system there, or give it longer with --import-timeout",
        )
    last = last_line(err)
    if last == "importing " + current[0]:
        last = "signal %d" % -status if status < 0 else "exit status %d" % status
    return Refused(
        "installed, but 'import %s' fails: %s" % (current[0], last),
        "it needs a package that is not there, and does not say so: sync that one's wheel, too"
        if last.startswith("ModuleNotFoundError")
        else "the wheel does not fit this host: a library or a driver that it needs is missing or too old",
    )


def install(
    path: str,
    tools: "Tools",
    spec: "messages.InstallSpec",
    states: "dict[str, Any]",
    look: "Callable[[], tuple[dict[str, Any], dict[str, Any]]]",
) -> "list[messages.Carried]":
    """Installs the wheels that are not there yet, and returns them. If pip leaves a wheel half installed, the next
    install treats it as missing. look: returns the present (answer, states)."""
    todo = [wheel for wheel in spec["wheels"] if states[wheel["name"]]["state"] != "there"]
    send_json({"event": "doing", "what": "installing"})
    check_files(spec, todo)
    try:
        pip_install(path, tools, spec, todo)
    finally:
        answer, states = look()
        sweep(answer, todo, states)
    for wheel in todo:
        state = states[wheel["name"]]
        if state["state"] != "there":
            raise Refused(
                "pip says that it installed %s %s, %s"
                % (
                    wheel["name"],
                    wheel["version"],
                    {
                        "absent": "but the interpreter does not see it",
                        "other": "but %s from elsewhere on sys.path hides it" % state.get("version"),
                    }.get(state["state"], state.get("why")),
                ),
                "see sys.path there: PYTHONPATH or a user site may come first",
            )
    return todo


def sweep(answer: "dict[str, Any]", wheels: "list[messages.Carried]", states: "dict[str, Any]") -> None:
    """Removes leftovers of an interrupted pip that make the next pip fail: a dist-info without RECORD, and "~" names.
    (pip restores files that it was replacing. Files that it had added stay; the next install overwrites them.)"""
    for wheel in wheels:
        info = states[wheel["name"]].get("info")
        if info and os.path.dirname(info) == answer["target"]:
            shutil.rmtree(info, ignore_errors=True)
    ours = {module[1:] for wheel in wheels for module in wheel["modules"]}
    for name in os.listdir(answer["target"]) if os.path.isdir(answer["target"]) else ():
        if name.startswith("~") and (name[1:] in ours or re.match(r"[\w.]+-[^-]+\.dist-info$", name[1:])):
            shutil.rmtree(os.path.join(answer["target"], name), ignore_errors=True)


def work(spec: "messages.InstallSpec", seen: "dict[str, Any]") -> "dict[str, Any]":
    tools = Tools(spec)
    path = training_python(tools)
    wheels = spec["wheels"]
    spec["folder"] = os.path.expanduser(spec["folder"])

    def look() -> "tuple[dict[str, Any], dict[str, Any]]":
        answer = wheel_answer(path, tools, wheels, False, spec["deadline"])
        states = {wheel["name"]: state for wheel, state in zip(wheels, answer["states"])}
        seen.update((name, state["state"]) for name, state in states.items())
        return answer, states

    answer = look()[0]
    claim(answer, spec["wait"])
    answer, states = look()
    sweep(answer, wheels, states)
    os.makedirs(below_home(WHEELS, "verified"), 0o700, exist_ok=True)
    for wheel in wheels:
        open(begun_file(answer, wheel), "w").close()
    todo = []
    if set(seen.values()) != {"there"}:
        todo = install(path, tools, spec, states, look)
    send_json({"event": "doing", "what": "importing"})
    import_all(path, tools, spec, answer, wheels)
    done = {wheel["name"]: "installed" if wheel in todo else "there" for wheel in wheels}
    return {"event": "done", "executable": answer["executable"], "wheels": done}


def end_imports(spec: "messages.InstallSpec") -> None:
    """Kills running imports. Unlike pip, an import has nothing to roll back."""
    while importing.is_set():
        end_marked(spec, 0.0)
        time.sleep(0.2)


def main() -> None:
    spec = begin_marked(end_imports)
    seen: dict[str, str] = {}
    try:
        answer = work(spec, seen)
    except (Refused, OSError) as error:
        answer = dict(failed(error), wheels=seen)
    finish_marked(spec, answer)

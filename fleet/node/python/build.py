"""Builds one wheel from a source tree that was sent here, sends the log while it builds, and then the wheel.

spec: {"python", "workdir", "activate", "env", "source": folder, "id": str, "mark": str, "grace": s, "wait": s for a
sync of the source to end}. Stream 0 of the O frames is the log, stream 1 the wheel's bytes. J frames:
    {"event": "started", "argv"}   {"event": "built", "file", "size", "sha256"}, then its bytes
    {"event": "failed", "status", "message", "hint"}
The tree is copied first, so that files of one build never get into the next one's wheel. End of file on stdin ends the
build with all its processes, and removes its files.
"""

import fcntl
import os
import shutil

from fleet.node.base.child_processes import begin_marked, finish_marked, locked, read_to_end, started
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import file_digest
from fleet.node.base.locks import held_by, release, try_lock, wait_for
from fleet.node.base.state_folder import own_home
from fleet.node.base.types import Any
from fleet.node.base.types import build as messages
from fleet.node.base.wire import frame, send_json
from fleet.node.facts.tools import Tools
from fleet.node.python.installed import pip_environment, training_python
from fleet.protocol.frames import OUTPUT
from fleet.protocol.state import BUILDS, CODE_STATE, LOCK

CLAIM_SECONDS = 60.0  # so long another build may hold the lock while it checks whether the folder is in use


def room(spec: "messages.BuildSpec") -> str:
    """Makes a folder for this build, and returns its path. Removes folders of builds whose program is gone."""
    base = own_home(BUILDS)
    for name in os.listdir(base):
        lock = os.path.join(base, name, ".lock")
        try:
            fd = os.open(lock, os.O_RDWR)
        except OSError:
            continue
        if try_lock(fd, fcntl.LOCK_EX):
            shutil.rmtree(os.path.join(base, name), ignore_errors=True)
        release(fd)
    work = os.path.join(base, os.path.basename(spec["id"]))
    os.mkdir(work, 0o700)
    while not claimed(work):
        os.makedirs(work, 0o700, exist_ok=True)
    return work


def claimed(work: str) -> bool:
    """Locks the work folder until the end of this process. Returns False if another build has just removed it, as it
    was not locked yet."""
    lock = os.path.join(work, ".lock")
    try:
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        wait_for(held, fcntl.LOCK_EX, CLAIM_SECONDS)
        return os.path.samestat(os.fstat(held), os.stat(lock))
    except FileNotFoundError:
        return False


def copy_tree(there: str, source: str, wait: float) -> None:
    """Copies the tree while no sync writes to it, with a shared lock of node/delivery/code_sync.py. Several builds may
    copy it at once. Raises Refused if a sync lasts too long."""
    around, name = os.path.split(there)
    locks = [
        os.path.join(meta, LOCK)
        for meta in (os.path.join(around, "." + name + CODE_STATE), os.path.join(there, CODE_STATE))
    ]
    held = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in locks if os.path.exists(path)]
    for fd in held:
        if not locked(fd, fcntl.LOCK_SH, wait):
            raise Refused(
                "a sync to %s from %s is under way for more than %d s" % (there, held_by(fd), wait),
                "wait for it to end, then run this again",
            )
    shutil.copytree(there, source, symlinks=True, ignore=shutil.ignore_patterns(CODE_STATE))
    for fd in held:
        os.close(fd)


def build(spec: "messages.BuildSpec", work: str) -> "dict[str, Any] | None":
    tools = Tools(spec)
    path = training_python(tools)
    source = os.path.join(work, "src")
    copy_tree(os.path.expanduser(spec["source"]), source, spec["wait"])
    scratch = os.path.join(work, "tmp")  # temporary files of pip and the compiler
    os.mkdir(scratch, 0o700)
    env = pip_environment(tools, spec["mark"], PYTHONUNBUFFERED="1", TMPDIR=scratch)
    argv = [
        path,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "wheel",
        "-v",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        os.path.join(work, "out"),
        source,
    ]
    send_json({"event": "started", "argv": argv})
    child = started(argv, env, work)
    if not read_to_end(child, lambda data: frame(OUTPUT, data, 0)):
        raise Refused("interrupted", None)
    status = child.returncode
    out = os.path.join(work, "out")
    wheels = [name for name in (os.listdir(out) if os.path.isdir(out) else []) if name.endswith(".whl")]
    if status or len(wheels) != 1:
        status = status if status >= 0 else 128 - status
        return {
            "event": "failed",
            "status": status or 1,
            "hint": None,
            "message": "the build ended with exit status %d" % status if status else "the build left no wheel",
        }
    bring(os.path.join(out, wheels[0]))
    return None


def bring(path: str) -> None:
    send_json(
        {"event": "built", "file": os.path.basename(path), "size": os.path.getsize(path), "sha256": file_digest(path)}
    )
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 17), b""):
            frame(OUTPUT, block, 1)


def main() -> None:
    spec = begin_marked()
    work = None
    try:
        work = room(spec)
        answer = build(spec, work)
    except (Refused, OSError) as error:
        answer = dict(failed(error), status=1)
    finish_marked(spec, answer, answer["status"] if answer else 0)
    if work:
        shutil.rmtree(work, ignore_errors=True)

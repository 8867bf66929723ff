"""The start of a run on its node: its folder, and the engine as a child process."""

import ctypes
import glob
import os
import re
import select
import shutil
import signal
import sys
import time

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.wire import encode
from fleet.node.delivery.sync_state import BEGIN_SECONDS, begin_from
from fleet.node.python.environment import enter
from fleet.node.run.marks import RUN_MARK, put_limit
from fleet.node.run.run_folder import (
    NODE,
    attempt_of,
    boot_id,
    final_status,
    is_forbidden,
    owners,
    read_json,
    read_status,
    reserve,
    run_folder,
    run_names,
    runs_root,
    write_final,
    write_json,
)
from fleet.protocol.environment import running
from fleet.protocol.state import ATTEMPT, FINAL, LEASE, NODE_LOG, PID, SPEC, STATUS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleet.protocol.messages import run

START_DEADLINE = 10.0
SYNC_WAIT = 5.0
KEPT_RUNS, KEPT_BYTES, KEPT_SECONDS, FETCH_SECONDS = 20, 1 << 30, 30 * 86400.0, 600.0
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36


def prctl(option: int, argument: "bytes | int") -> None:
    """Best effort: a kernel or a python without it costs a safety net, not the run."""
    try:
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
    except (OSError, AttributeError):
        pass


# -- the run's folder -------------------------------------------------------------------------------------
def temporary_folder(spec: "run.Starting") -> str:
    return os.path.join(runs_root(), ".%s.%s.%d" % (spec["run"].replace("/", "_"), NODE, os.getpid()))


def fill_folder(folder: str, spec: "run.Starting") -> None:
    """Make it, with everything in it but the pid file."""
    run_names(spec["run"])
    os.makedirs(runs_root(), 0o700, exist_ok=True)
    os.mkdir(folder, 0o700)
    kept = {name: value for name, value in spec.items() if name not in ("files", "umask")}
    kept.update(node=NODE, env=sorted(spec.get("env") or {}), env_expand=sorted(spec.get("env_expand") or {}))
    for name, text in (spec.get("files") or {}).items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    write_json(os.path.join(folder, SPEC), kept)
    write_json(os.path.join(folder, STATUS), {"state": "running", "time": time.time()})
    reserve(os.path.join(folder, STATUS))
    for name in (LEASE, NODE_LOG):
        open(os.path.join(folder, name), "wb").close()


def set_aside(folder: str, temporary: str, attempt: int) -> None:
    """What an earlier attempt left goes into the folder of the one that is to take its place; folders, those of still
    earlier ones and what ranks put there to go on from, keep their place."""
    before = attempt_of(read_json(os.path.join(folder, SPEC)))
    if before >= attempt or read_status(folder).get("state") not in FINAL:
        return
    for name in os.listdir(folder):
        if os.path.isdir(os.path.join(folder, name)) and not os.path.exists(os.path.join(temporary, name)):
            os.rename(os.path.join(folder, name), os.path.join(temporary, name))
    os.rename(folder, os.path.join(temporary, "%s%d" % (ATTEMPT, before)))


def publish_folder(temporary: str, run: str) -> str:
    """Give the folder its name in one step, so that nobody ever sees half of one; returns the new path."""
    attempt, own = attempt_of(read_json(os.path.join(temporary, SPEC))), run_folder(run)
    if own is not None:
        set_aside(own, temporary, attempt)
    for name in run_names(run):
        folder = os.path.join(runs_root(), name)
        try:
            os.rename(temporary, folder)
        except OSError:
            if read_json(os.path.join(folder, SPEC)).get("node") == NODE:
                break
            continue
        if is_forbidden(run, attempt):
            write_final(folder, final_status("stopped", "stopped before it began", []))
            raise Refused("run %s was stopped before it began" % run)
        return folder
    raise Refused("run %s exists already on this node" % run, "every launch needs a run id of its own")


def has_ended(folder: str) -> bool:
    """Whether this is the folder of a run of this node of which nothing can be alive any more."""
    if read_json(os.path.join(folder, SPEC)).get("node") != NODE or owners(folder):
        return False
    status = read_status(folder)
    return (
        status.get("state") in FINAL
        and not status.get("left")
        or read_json(os.path.join(folder, PID)).get("boot", boot_id()) != boot_id()
    )


def own_names() -> "list[str]":
    """Of the folders of runs those that may be this node's: a home folder may be that of many nodes."""
    return [name for name in os.listdir(runs_root()) if name[0] != "." and name.partition("@")[2] in ("", NODE)]


def disk_size(folder: str) -> int:
    """Of the files in it."""
    return sum(os.lstat(os.path.join(folder, name)).st_blocks * 512 for name in os.listdir(folder))


def prune_runs(keep: int = KEPT_RUNS, size: int = KEPT_BYTES) -> None:
    """Take away runs of this node that have ended, the oldest first: beyond so many, so much, or so long ago.
    What ranks put below folders of their own there counts for nothing: it may be what they go on from."""
    folders = [os.path.join(runs_root(), name) for name in own_names()]
    ended = [(os.stat(os.path.join(folder, STATUS)).st_mtime, folder) for folder in folders if has_ended(folder)]
    for number, (when, folder) in enumerate(sorted(ended, reverse=True)):
        size -= sum(map(disk_size, [folder, *glob.glob(os.path.join(folder, ATTEMPT + "*"))]))
        age = time.time() - when
        # what ended just now may still be fetched
        if number >= keep or age > (FETCH_SECONDS if size < 0 else KEPT_SECONDS):
            shutil.rmtree(folder, ignore_errors=True)


class Beginning:
    """Holds the code that a sync delivered until all ranks have run for spec["code"]["settle"] s: time to import it."""

    def __init__(self, spec: "run.Starting", folder: str) -> None:
        self.spec, self.folder, self.lock = spec, folder, None
        self.latest = time.monotonic() + BEGIN_SECONDS
        self.until: float | None = None
        code = spec.get("code")
        if code:
            self.settle = code["settle"]
            self.lock = begin_from(code, spec["run"], SYNC_WAIT)

    def over(self, now: float) -> bool:
        if self.lock is not None and self.until is None:
            try:
                names = os.listdir(self.folder)
            except OSError:
                names = []  # somebody removed it: the run is none the worse for that
            if sum(name.startswith("rank") and name.endswith(".out") for name in names) >= len(self.spec["ranks"]):
                self.until = now + self.settle
        return now >= (self.latest if self.until is None else self.until)

    def release(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


# -- the engine -------------------------------------------------------------------------------------------
def engine_argv(spec: "run.Starting", folder: str) -> "list[bytes]":
    argv = []
    for item in spec["argv"]:
        if isinstance(item, dict):
            argv += [sys.executable, "-I", "-S"] if "python" in item else [os.path.join(folder, item["run_dir"])]
        else:
            argv.append(item)
    activate = spec.get("activate")
    if activate:
        # the line is the user's own shell code; argv goes behind it untouched, as positional parameters
        argv = running(activate) + [spec.get("python") or "", spec["cwd"] or "~"] + argv
    return [encode(item) for item in argv]


def engine_env(spec: "run.Starting", folder: str) -> "dict[bytes, bytes]":
    env = dict(os.environb)
    for name, value in (spec.get("env") or {}).items():
        env[encode(name)] = encode(value)
    for name, value in (spec.get("env_expand") or {}).items():
        env[encode(name)] = re.sub(
            rb"\$(?:(\w+)|\{(\w+)\})",
            lambda found: env.get(found.group(1) or found.group(2), b""),
            encode(os.path.expanduser(value)),
        )
    env[RUN_MARK.encode()] = encode(spec["run"])
    env[b"FLEET_RUN_DIR"] = encode(folder)
    about: run.About | dict[str, int] = spec.get("about") or {}
    env[b"FLEET_ATTEMPT"] = b"%d" % (about.get("attempt") or 0)
    env[b"FLEET_MAX_RESTARTS"] = b"%d" % (about.get("max_restarts") or 0)
    return env


def start_engine(spec: "run.Starting", folder: str) -> int:
    """Fork and exec it; returns its pid. Raises Refused with the reason, also when the working folder hangs."""
    argv, env = engine_argv(spec, folder), engine_env(spec, folder)
    cwd = os.path.expanduser(spec["cwd"] or "~")
    log = os.open(os.path.join(folder, NODE_LOG), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    parent = os.getpid()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        stage = "cwd"
        try:
            os.setsid()
            for signum in (
                signal.SIGTERM,
                signal.SIGINT,
                signal.SIGHUP,
                signal.SIGCHLD,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(signum, signal.SIG_DFL)
            prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)
            os.dup2(log, 1)
            os.dup2(log, 2)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.umask(spec["umask"])
            os.chdir(cwd)
            stage = "exec"
            put_limit(spec["run"])
            if not spec.get("activate"):
                enter(env, spec.get("python"), cwd)
            os.execvpe(argv[0], argv, env)
        except BaseException as error:
            reason = getattr(error, "strerror", None) or str(error)
            os.write(writer, json.dumps([stage, reason]).encode())
        finally:
            os._exit(127)
    os.close(writer)
    os.close(log)
    said = os.read(reader, 4096) if select.select([reader], [], [], START_DEADLINE)[0] else b'["cwd", "no answer"]'
    os.close(reader)
    if not said:
        return pid
    os.kill(pid, signal.SIGKILL)
    stage, reason = json.loads(said.decode())
    if stage == "cwd":
        raise Refused(
            "cannot enter the folder %s: %s" % (cwd, reason),
            "create it there, sync the code first (--sync), or set --workdir",
        )
    raise Refused(
        "cannot start %s: %s" % (argv[0].decode("utf-8", "replace"), reason),
        "install it there, or set 'python' or 'activate' for this host",
    )

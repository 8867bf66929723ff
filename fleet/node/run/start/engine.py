"""Makes a run's folder on its node, and starts the engine as a child process."""

import ctypes
import os
import select
import signal
import sys
import time
from binascii import crc32
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.locks import release
from fleet.node.base.processes import names_in
from fleet.node.base.run_folder import (
    NODE,
    attempt_of,
    final_status,
    is_forbidden,
    read_json,
    read_status,
    reserve,
    run_folder,
    run_names,
    runs_root,
    write_final,
    write_json,
)
from fleet.node.base.state_folder import own_home
from fleet.node.base.types import Any, run, run_specs
from fleet.node.base.wire import encode
from fleet.node.facts.containers import inside
from fleet.node.facts.environment import enter, job_env, working_folder
from fleet.node.run.marks import put_limit
from fleet.node.run.start.containers import engine_client, is_apart, sealed_env
from fleet.protocol.environment import SET, running
from fleet.protocol.state import (
    ATTEMPT,
    COMMAND,
    FINAL,
    LEASE,
    NODE_LOG,
    PROTOCOL,
    RUN_MARK,
    RUNS,
    SPEC,
    STATUS,
    STOP,
    is_log,
)

START_DEADLINE = 10.0  # so long the engine's exec may take
SYNC_WAIT = 5.0  # so long a run waits for a sync that is replacing the code
CHANGED_BY_PYTHON = ("LC_CTYPE",)  # Python sets it at its start, to leave the C locale
AT_FDCWD, RENAME_EXCHANGE = -100, 2
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36


def prctl(option: int, argument: "bytes | int") -> None:
    """Calls prctl(2) and ignores errors: each use of it is a safety net only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


# -- the run's folder -------------------------------------------------------------------------------------
def temporary_folder(spec: "run_specs.Starting") -> str:
    return os.path.join(runs_root(), ".%s.%s.%d" % (spec["run"].replace("/", "_"), NODE, os.getpid()))


def fill_folder(folder: str, spec: "run_specs.Starting") -> None:
    """Makes the run's folder with all its files except the pid file."""
    run_names(spec["run"])
    own_home(RUNS)
    os.mkdir(folder, 0o700)
    kept = {name: value for name, value in spec.items() if name not in ("files", "umask")}
    kept.update(node=NODE, protocol=PROTOCOL)
    kept.update(env=sorted(spec.get("env") or {}), env_expand=sorted(spec.get("env_expand") or {}))
    for name, text in (spec.get("files") or {}).items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    write_json(os.path.join(folder, SPEC), kept)
    write_json(os.path.join(folder, STATUS), {"state": "running", "time": time.time()})
    for name in (STATUS, STOP):
        reserve(os.path.join(folder, name))
    for name in (LEASE, NODE_LOG):
        open(os.path.join(folder, name), "wb").close()


def exchange(one: str, other: str) -> bool:
    """Exchanges two names in one step. Returns whether that succeeded: not every libc and file system can do it."""
    try:
        return not ctypes.CDLL(None).renameat2(AT_FDCWD, encode(one), AT_FDCWD, encode(other), RENAME_EXCHANGE)
    except (OSError, AttributeError):
        return False


def replace_earlier_attempt(temporary: str, folder: str, attempt: int) -> bool:
    """Moves `folder`, of an earlier attempt K, to `attempt<K>/` in `temporary`, the folder of the next attempt. Moves
    the subfolders of `folder` to `temporary` itself: those of even earlier attempts, and of ranks (checkpoints).

    Returns True if `temporary` also got the name `folder`, in one step, so that any process that looks for the run
    finds a folder. Returns False if the name `folder` is free now. Moves nothing, and returns False, if `folder` is
    not of an earlier attempt that has ended."""
    before = attempt_of(read_json(os.path.join(folder, SPEC)))
    if before >= attempt or read_status(folder).get("state") not in FINAL:
        return False
    aside = "%s%d" % (ATTEMPT, before)
    os.mkdir(os.path.join(temporary, aside))  # first: it fails if the disk is full, and nothing has been moved yet
    for name in os.listdir(folder):
        if os.path.isdir(os.path.join(folder, name)) and not os.path.exists(os.path.join(temporary, name)):
            os.rename(os.path.join(folder, name), os.path.join(temporary, name))
    # a folder RUN@NODE is not exchanged: that of a spare gets the plain name RUN if that is free, and any other is in a
    # home folder that several machines share, whose file system cannot exchange names
    if "@" not in os.path.basename(folder) and exchange(temporary, folder):
        os.rename(temporary, os.path.join(folder, aside))
        return True
    os.rename(folder, os.path.join(temporary, aside))
    return False


def take_name(temporary: str, run: str) -> str:
    """Renames `temporary` to a free folder name of the run, in one step, so that no process sees a part of the folder.
    Returns the new path. Raises Refused if the run is already on this node, or if no name is free."""
    for name in run_names(run):
        folder = os.path.join(runs_root(), name)
        try:
            os.rename(temporary, folder)
        except OSError:
            if read_json(os.path.join(folder, SPEC)).get("node") == NODE:
                break
            continue
        return folder
    raise Refused("run %s exists already on this node" % run, "every launch needs a run id of its own")


def publish_folder(temporary: str, run: str) -> str:
    """Makes a run known: renames its folder. Returns the new path. Raises Forbidden if the run was stopped before."""
    attempt, folder = attempt_of(read_json(os.path.join(temporary, SPEC))), run_folder(run)
    if folder is None or not replace_earlier_attempt(temporary, folder, attempt):
        folder = take_name(temporary, run)
    if is_forbidden(run, attempt):
        write_final(folder, final_status("stopped", "stopped before it began", [], "asked"))
        raise Forbidden("run %s was stopped before it began" % run)
    return folder


class Forbidden(Refused):
    """Refuses a run that was stopped before it began."""


class CodeLock:
    """Locks the code that a sync delivered, so that no other sync replaces it while ranks import it.

    The lock ends spec["code"]["settle"] seconds after every rank has a log, or BEGIN_SECONDS after it began if some
    rank has none by then. settle: seconds that ranks need for their imports. latest, until: monotonic times."""

    def __init__(self, spec: "run_specs.Starting", folder: str) -> None:
        self.spec, self.folder, self.lock = spec, folder, None
        self.latest = time.monotonic()
        self.until: float | None = None
        code = spec.get("code")
        if code:
            from fleet.node.delivery.sync_state import BEGIN_SECONDS, begin_from

            self.latest += BEGIN_SECONDS
            self.settle = code["settle"]
            self.lock = begin_from(code, spec["run"], SYNC_WAIT)

    def over(self, now: float) -> bool:
        if self.lock is not None and self.until is None:
            logs = [name for name in names_in(self.folder) if is_log(name) and name.endswith(".out")]
            if len(logs) >= len(self.spec["ranks"]):  # false if another process has removed the folder: the run goes on
                self.until = now + self.settle
        return now >= (self.latest if self.until is None else self.until)

    def release(self) -> None:
        if self.lock is not None:
            release(self.lock)
            self.lock = None


# -- the engine -------------------------------------------------------------------------------------------
def engine_argv(spec: "run_specs.Starting", folder: str) -> "list[bytes]":
    argv, container = [], spec.get("container")
    python = (spec.get("python") or "python3") if container else sys.executable
    for item in spec["argv"]:
        if isinstance(item, dict):
            argv += [python, "-I", "-S"] if "python" in item else [os.path.join(folder, item["run_dir"])]
        else:
            argv.append(item)
    activate = spec.get("activate")
    if container:
        cwd = working_folder(spec["cwd"])
        argv = engine_client(spec, folder, cwd) + inside(argv, spec.get("python"), cwd)
    elif activate:
        # the line is the user's own shell code; argv follows it untouched, as positional parameters
        argv = running(activate) + [spec.get("python") or "", spec["cwd"] or "~"] + argv
    return [encode(item) for item in argv]


def engine_env(spec: "run_specs.Starting", folder: str) -> "dict[bytes, bytes]":
    env = job_env(spec["cwd"], {**spec, "env": {**(spec.get("env") or {}), "FLEET_RUN_DIR": folder}})
    env[RUN_MARK.encode()] = encode(spec["run"])
    about: run.About | dict[str, int] = spec.get("about") or {}
    env[b"FLEET_ATTEMPT"] = b"%d" % (about.get("attempt") or 0)
    env[b"FLEET_MAX_RESTARTS"] = b"%d" % (about.get("max_restarts") or 0)
    env[b"FLEET_PLAN"] = json.dumps(expected_by_rank(spec, env)).encode()
    return env


def expected_by_rank(spec: "run_specs.Starting", env: "dict[bytes, bytes]") -> "dict[str, Any]":
    """Returns what unplanned() in rank.py verifies right before it starts a rank: folder, argv, variables, ranks.

    "env" has the crc32 of the value of each variable that the plan sets, or None if a launcher may change the value.
    With an `activate` line "env" is missing, because that line is shell code, which may change any variable."""
    plan: dict[str, Any] = {"cwd": working_folder(spec["cwd"])}
    about: Any = spec.get("about") or {}
    if is_apart(spec.get("container")):
        plan["apart"] = True
    if not spec.get("activate"):
        by_launcher = any(isinstance(arg, str) for arg in spec["argv"][:1])
        names = {*(spec.get("env") or ()), *(spec.get("env_expand") or ())}.difference(SET, CHANGED_BY_PYTHON)
        own = [name for name in names if not name.startswith("FLEET_")]
        plan["env"] = {name: None if by_launcher else crc32(env[encode(name)]) for name in own}
    if COMMAND in (spec.get("files") or {}):
        command = json.loads(spec["files"][COMMAND])
        plan.update(argv=crc32(b"\0".join(map(encode, command["argv"]))), local_rank_at=command["local_rank_at"])
    if about.get("hosts") and not about["least"]:  # not elastic; in an elastic run the launcher assigns ranks
        plan["ranks"] = about["hosts"][spec["host"]]
        if b"FLEET_FIRST_RANK" not in env:
            plan["world"] = about["world_size"]
    return plan


def start_engine(spec: "run_specs.Starting", folder: str) -> int:
    """Forks and execs the engine; returns its pid. Raises Refused if the engine does not start, or not within
    START_DEADLINE seconds, as the file system of the working folder may hang."""
    argv, env = engine_argv(spec, folder), engine_env(spec, folder)
    cwd = working_folder(spec["cwd"])
    log = os.open(os.path.join(folder, NODE_LOG), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    container = spec.get("container")
    if container:
        stdin, env = sealed_env(spec, env)
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
            if container:
                os.dup2(stdin.fileno(), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.umask(spec["umask"])
            os.chdir(cwd)
            stage = "exec"
            if not is_apart(container):
                put_limit(spec["run"])
            if not spec.get("activate") and not container:
                enter(env, spec.get("python"), cwd)
            os.execvpe(argv[0], argv, env)
        except BaseException as error:
            reason = getattr(error, "strerror", None) or str(error)
            os.write(writer, json.dumps([stage, reason]).encode())
        finally:
            os._exit(127)
    os.close(writer)
    os.close(log)
    answer = os.read(reader, 4096) if select.select([reader], [], [], START_DEADLINE)[0] else b'["cwd", "no answer"]'
    os.close(reader)
    if not answer:
        return pid
    os.kill(pid, signal.SIGKILL)
    stage, reason = json.loads(answer.decode())
    if stage == "cwd":
        raise Refused(
            "cannot enter the folder %s: %s" % (cwd, reason),
            "create it there, sync the code first (--sync), or set --workdir",
        )
    raise Refused(
        "cannot start %s: %s" % (argv[0].decode("utf-8", "replace"), reason),
        "install it there, or set 'python' or 'activate' for this host",
    )

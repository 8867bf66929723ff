"""Manages a run's folder on the head and the lock for writing there. The folder has logs in runs/RUN/HOST/, and
events.jsonl, run.json and summary.json."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet import own
from fleet.answers.event import RunEvent
from fleet.best_effort import best_effort
from fleet.errors import FleetError, UsageError
from fleet.events import Level, Notice
from fleet.node.base.errors import on_os_error
from fleet.node.base.locks import HELD, adopt, exclusive_lock, release, wait_for
from fleet.node.base.processes import lives, myself
from fleet.node.base.record import Record
from fleet.ops.run.kept.documents import OPTION as OPTION
from fleet.ops.run.kept.documents import RUN, STOPPER, RunState, is_sealed, read_object, sealed, stoppers
from fleet.ops.run.kept.logs import NodeLogs
from fleet.protocol.state import ATTEMPT, STATE, WRITER, is_log

SIGN_SECONDS = 2.0
MOMENT_SECONDS = 1.0  # a process that only reads, or is about to end, may hold a folder so long
HANDOVER_SECONDS = 20.0  # a process that followed a run releases its folder within this time
STACKS_FILE = "stacks.txt"
MADE = ".made"  # proves that this user's fleet made the folder
CURRENT = ".attempt"  # the attempt whose logs are in HOST/, if it is not the first


class RunFolder(Record):
    """Represents runs/RUN on the head: its lock, its documents, and the logs of each attempt."""

    path: Path

    def __init__(self, path: Path) -> None:
        super().__init__(path.absolute())
        self.lock: int | None = None  # the descriptor, while this process holds the lock
        self._state: dict[str, Any] = {}
        self._signed = 0.0

    @classmethod
    def create(cls, runs_dir: Path, run_id: str) -> RunFolder:
        """Makes the folder. Raises UsageError if that fails, before anything was started anywhere.

        A new runs_dir has an ignore file for itself, so that logs are not committed to git, nor sent by a sync.
        """
        path = runs_dir / run_id
        with on_os_error(
            UsageError,
            f"cannot make the log folder {path}",
            hint="run fleet in a folder you may write to, or give --runs-dir",
        ):
            own.own_folder(runs_dir, OPTION, make=True)
            path.mkdir(0o700)
            folder = cls(path)
            folder.hold()
            folder.add(MADE, own.seal(run_id) or "")
        return folder

    @classmethod
    def open(cls, runs_dir: Path, run_id: str) -> RunFolder:
        """Returns the folder of a run that was started earlier, on any machine. Makes it if it is missing. Holds it if
        no other process does. Raises UsageError as create() does."""
        path = runs_dir / run_id
        with on_os_error(
            UsageError,
            f"cannot write to the log folder {path}",
            hint="a user who may not write there can watch the run from another folder",
        ):
            if not own.own_folder(runs_dir, OPTION) or not os.path.lexists(path):
                return cls.create(runs_dir, run_id)
            folder = cls(path)
            folder.hold()
        return folder

    def sign(self) -> None:
        """Updates the time of state.json every few seconds, which shows that a process follows the run here. If the
        lock file was removed, makes and locks it again."""
        now = time.monotonic()
        if now >= self._signed + SIGN_SECONDS:
            self._signed = now
            with (
                best_effort("show that a process follows the run", (OSError, UsageError)),
                contextlib.suppress(FileNotFoundError),
            ):
                held = self.lock
                if held is not None and not os.fstat(held).st_nlink and self.hold():
                    os.close(held)
                    self.set_state(**self._state)
                os.utime(self.path / STATE)

    def lead(self, lease: float | None, *, leads: bool = True, detached: bool = False) -> None:
        """Records that this process follows the run from now on. For the parameters see RunState."""
        self.set_state(leader=myself(), since=time.time(), leads=leads, lease=lease, detached=detached)

    def set_state(self, **values: Any) -> None:
        """Records for other processes what this one does with the run, see RunState. Removes the file if no process
        does anything."""
        self._state |= values
        with best_effort("record what this process does with the run", (OSError, FleetError)), self._alone():
            before = {**read_object(self.path / STATE), **values}
            state = {
                name: it for name, it in before.items() if not name.startswith(STOPPER) or it and lives(it) is not False
            }
            if any(map(state.get, ("leader", "leads"))) or stoppers(state):
                self.write_json(STATE, state)
            else:
                (self.path / STATE).unlink(missing_ok=True)

    def set_stopping(self, hosts: Sequence[str]) -> None:
        """Records the hosts on which this thread stops the run from now on. Other threads may stop it on other
        hosts."""
        me = myself()
        self.set_state(
            **{f"{STOPPER}{me['machine']}-{threading.get_native_id()}": {**me, "hosts": hosts} if hosts else None}
        )

    @property
    def is_ours(self) -> bool:
        """Returns whether this user's fleet made the folder, at this path or another one."""
        with contextlib.suppress(OSError):
            return own.is_seal(own.read_own(self.path / MADE, 99).decode("ascii", "replace"), self.path.name)
        return False

    @property
    def was_launched_here(self) -> bool:
        """Returns whether this user's fleet launched the run, and wrote run.json here. The folder may have been
        moved since."""
        return is_sealed(read_object(self.path / RUN), self.path.name)

    @property
    def held(self) -> bool:
        """Returns whether this process holds the lock for writing here."""
        return self.lock is not None

    def hold(self, seconds: float = 0.0) -> bool:
        """Takes the lock for writing here, until release() or the end of this process. Returns False if another process
        still holds it after `seconds`. Raises UsageError if the folder is another user's, or a link."""
        if (why := own.foreign(self.path)) is not None:
            raise UsageError(f"{self.path} {why}", hint=f"remove it, or give another {OPTION}")
        fd = own.private(str(self.path / WRITER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        if not wait_for(fd, fcntl.LOCK_EX, seconds, lock=fcntl.flock):
            os.close(fd)
            return False
        os.utime(fd)  # marks the lock as not requested
        self.lock = fd
        return True

    def take_over(self, lock: int) -> None:
        """Takes over the open lock that this process has inherited from its parent."""
        os.set_inheritable(lock, False)
        self.lock = lock
        adopt(lock)

    def request_lock(self) -> None:
        """Requests the lock from the process that holds it. That process releases it if it only fetches logs here."""
        with best_effort("request the run from the process that holds it"):
            os.utime(self.path / WRITER, (0, 0), follow_symlinks=False)

    def is_requested(self) -> bool:
        """Returns whether a process has requested the lock since this one holds it."""
        return self.lock is not None and os.fstat(self.lock).st_mtime == 0

    def release(self) -> None:
        if self.lock is not None:
            if self._state:
                self.set_state(leader=None)
            self._state = {}
            self.let_go(handed_over=False)

    def let_go(self, handed_over: bool = True) -> None:
        """Closes the lock. A child process that has inherited it goes on to hold it."""
        if self.lock is not None:
            release(self.lock, handed_over)
            self.lock = None

    def begin(self, attempt: int) -> None:
        """Makes HOST/ the folder of this attempt's logs. Moves the logs of the previous attempt to attempt<k>/HOST/.
        Moves this attempt's own logs back from there, if it has any: when a restart could not begin, an earlier attempt
        is the last one again."""
        before = self.attempt
        if before == attempt:
            return
        aside = self.aside(before)
        with on_os_error(FleetError, f"cannot move the logs of attempt {before} to {aside}"):
            for source, to in ((self.path, aside), (self.aside(attempt), self.path)):
                for path in list(source.glob("*")):
                    if path.is_dir() and any(map(is_log, os.listdir(path))):
                        to.mkdir(0o700, exist_ok=True)
                        path.rename(to / path.name)
            with open(self.path / CURRENT, "w", opener=own.private) as f:
                f.write(str(attempt))

    def set_aside(self, host: str, attempt: int) -> None:
        """Moves the logs of one host to attempt<k>/HOST/, because the host starts another attempt."""
        aside = self.aside(attempt) / host
        with on_os_error(FleetError, f"cannot move its logs to {aside}", host=host):
            aside.parent.mkdir(0o700, exist_ok=True)
            (self.path / host).rename(aside)

    @property
    def attempt(self) -> int:
        """Returns the number of the attempt whose logs are in HOST/."""
        try:
            return int(own.read_own(self.path / CURRENT, 99))
        except (OSError, ValueError):
            return 0

    def is_aside(self, attempt: int) -> bool:
        """Returns whether the logs of this attempt were moved to attempt<k>/, because it is not the last."""
        return attempt != self.attempt

    def node(self, host: str, attempt: int | None = None) -> NodeLogs:
        """Returns the logs of a node in an attempt; None: in the last one."""
        return NodeLogs(self.of(attempt) / host)

    def of(self, attempt: int | None) -> Path:
        """Returns the folder with the hosts' folders of an attempt; None: of the last one."""
        return self.path if attempt is None or not self.is_aside(attempt) else self.aside(attempt)

    def aside(self, attempt: int) -> Path:
        """Returns the folder for the logs of an attempt that is not the last."""
        return self.path / f"{ATTEMPT}{attempt}"

    def event(self, event: RunEvent, **about: Any) -> None:
        """Appends one line to events.jsonl. If the disk is full, the line is written with the next event. about: its
        "level", "host", "message"."""
        self.append(event.as_json(time.time(), **about))

    def notice(
        self, level: Level, message: str, event: RunEvent, host: str | None = None, hint: str | None = None
    ) -> Notice:
        """Appends an event to events.jsonl, and returns a notice of it to emit."""
        return self.keep(Notice(level, message, host, hint, (event,)))

    def keep(self, notice: Notice) -> Notice:
        """Appends a line for each event of a notice, and returns the notice."""
        for record in notice.records:
            self.append(record)
        return notice

    def amend(self, name: str, **values: Any) -> None:
        """Replaces values of a JSON object, as write_json() does. Other threads and processes may replace other values
        meanwhile. A sealed document is sealed again."""
        with self._alone():
            before, run = read_object(self.path / name), self.path.name
            after = {**before, **values}
            self.write_json(name, sealed(after, run) if is_sealed(before, run) else after)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other threads and processes from amending a document here meanwhile."""
        with contextlib.ExitStack() as lock:
            with contextlib.suppress(OSError):  # the folder is gone: write_json() reports that
                events = lock.enter_context(open(self.path / "events.jsonl", "r+b", opener=own.private))
                lock.enter_context(exclusive_lock(events.fileno()))
            yield

    def write_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Replaces the file NAME. Raises FleetError if it cannot be written."""
        try:
            self.replace(name, document)
        except OSError as error:
            removed = f"its folder was removed; 'fleet attach {self.path.name}' fetches its logs again"
            hint = removed if error.errno == errno.ENOENT else "is the disk full?"
            raise FleetError(f"cannot write {self.path / name}: {error.strerror}", hint=hint) from None


def led_already(folder: RunFolder) -> UsageError:
    """Returns the error that another process follows the run. It names that process, and what to do."""
    leader, run, here = RunState(folder.path).leader, folder.path.name, myself()["machine"]
    who = leader if isinstance(leader, dict) else {}
    machine = str(who.get("machine", here))
    hint = f"fleet logs -f {run}"
    if machine != here and (held := folder.path / f"{WRITER}{HELD}").exists():
        hint = f"where {machine} is gone for good: rm {held}"
    of = "this machine" if machine == here else machine
    return UsageError(f"process {who.get('pid', '?')} of {of} follows {run} already", hint=hint)

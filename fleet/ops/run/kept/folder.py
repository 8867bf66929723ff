"""A run's folder on the head: runs/RUN/HOST/ with its logs, events.jsonl, run.json, summary.json; who writes there."""

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
from fleet.errors import FleetError, UsageError
from fleet.events import Level, Notice
from fleet.node.base.errors import on_os_error
from fleet.node.base.locks import HELD, adopt, alone, release, wait_for
from fleet.node.base.processes import lives, myself
from fleet.node.base.record import Record
from fleet.ops.run.kept.documents import OPTION as OPTION
from fleet.ops.run.kept.documents import RUN, STOPPER, RunState, is_sealed, read_object, sealed, stoppers
from fleet.ops.run.kept.logs import NodeLogs
from fleet.protocol.state import ATTEMPT, STATE, WRITER, is_log

SIGN_SECONDS = 2.0
MOMENT_SECONDS = 1.0  # for which a folder may be held by who only looks, or is at its end
HANDOVER_SECONDS = 20.0  # in which who followed a run leaves it to the next one
STACKS_FILE = "stacks.txt"
MADE = ".made"  # that this user's fleet made it
CURRENT = ".attempt"  # the number of the one whose logs are in HOST/, where it is not the first


class RunFolder(Record):
    """runs/RUN on the head: who writes there, whose attempt's logs are where."""

    path: Path

    def __init__(self, path: Path) -> None:
        super().__init__(path.absolute())
        self.lock: int | None = None  # while we hold it
        self._state: dict[str, Any] = {}
        self._signed = 0.0

    @classmethod
    def create(cls, runs_dir: Path, run_id: str) -> RunFolder:
        """Makes it; UsageError when it cannot be made, before anything was started anywhere.

        A runs_dir made here ignores itself: logs are neither committed to git nor carried along by a sync.
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
        """Returns that of a run which was started before, wherever; made if need be, and held if no other process does.
        UsageError as create()."""
        path = runs_dir / run_id
        with on_os_error(
            UsageError,
            f"cannot write to the log folder {path}",
            hint="who may not write there can look on from another folder",
        ):
            if not own.own_folder(runs_dir, OPTION) or not os.path.lexists(path):
                return cls.create(runs_dir, run_id)
            folder = cls(path)
            folder.hold()
        return folder

    def sign(self) -> None:
        """Shows every few seconds that a process follows the run here. A lock that was removed is made again."""
        now = time.monotonic()
        if now >= self._signed + SIGN_SECONDS:
            self._signed = now
            with contextlib.suppress(OSError, UsageError):
                held = self.lock
                if held is not None and not os.fstat(held).st_nlink and self.hold():
                    os.close(held)
                    self.set_state(**self._state)
                os.utime(self.path / STATE)

    def lead(self, lease: float | None, *, leads: bool = True, detached: bool = False) -> None:
        """Notes that this process follows the run from now on. The rest: see RunState."""
        self.set_state(leader=myself(), since=time.time(), leads=leads, lease=lease, detached=detached)

    def set_state(self, **values: Any) -> None:
        """Notes for others what is done with the run (see RunState), as far as there is room for it. Where that is
        nothing, there is no such file."""
        self._state |= values
        with contextlib.suppress(OSError, FleetError), self._alone():
            before = {**read_object(self.path / STATE), **values}
            state = {
                name: it for name, it in before.items() if not name.startswith(STOPPER) or it and lives(it) is not False
            }
            if any(map(state.get, ("leader", "leads"))) or stoppers(state):
                self.write_json(STATE, state)
            else:
                os.unlink(self.path / STATE)

    def set_stopping(self, hosts: Sequence[str]) -> None:
        """Notes the hosts on which this thread stops the run from now on; others may do so on other ones."""
        me = myself()
        self.set_state(
            **{f"{STOPPER}{me['machine']}-{threading.get_native_id()}": {**me, "hosts": hosts} if hosts else None}
        )

    @property
    def is_ours(self) -> bool:
        """Returns whether this user's fleet made it, wherever it lies now."""
        with contextlib.suppress(OSError):
            return own.is_seal(own.read_own(self.path / MADE, 99).decode("ascii", "replace"), self.path.name)
        return False

    @property
    def was_launched_here(self) -> bool:
        """Returns whether this user's fleet launched the run from here, or from where the folder lay then."""
        return is_sealed(read_object(self.path / RUN), self.path.name)

    @property
    def held(self) -> bool:
        """Returns whether we are the one who writes here."""
        return self.lock is not None

    def hold(self, seconds: float = 0.0) -> bool:
        """Becomes the one who writes here, until release() or this process's end; False when another process still is
        after so long. UsageError where the folder is another user's, or a link."""
        if (why := own.foreign(self.path)) is not None:
            raise UsageError(f"{self.path} {why}", hint=f"take it away, or give another {OPTION}")
        fd = own.private(str(self.path / WRITER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        if not wait_for(fd, fcntl.LOCK_EX, seconds, lock=fcntl.flock):
            os.close(fd)
            return False
        os.utime(fd)  # no process has requested it since
        self.lock = fd
        return True

    def take_over(self, lock: int) -> None:
        """Becomes the one who writes here: of the open lock, which the process holds that started this one."""
        os.set_inheritable(lock, False)
        self.lock = lock
        adopt(lock)

    def request_lock(self) -> None:
        """Requests that a process which only fetches logs here releases the lock."""
        with contextlib.suppress(OSError):
            os.utime(self.path / WRITER, (0, 0), follow_symlinks=False)

    def is_requested(self) -> bool:
        """Returns whether a process did, since we hold it."""
        return self.lock is not None and os.fstat(self.lock).st_mtime == 0

    def release(self) -> None:
        if self.lock is not None:
            if self._state:
                self.set_state(leader=None)
            self._state = {}
            self.let_go(handed_over=False)

    def let_go(self, handed_over: bool = True) -> None:
        """Closes the lock: who has inherited it holds it alone."""
        if self.lock is not None:
            release(self.lock, handed_over)
            self.lock = None

    def begin(self, attempt: int) -> None:
        """The logs of this attempt go to HOST/ from now on, those of the one before it to attempt<k>/HOST/. What is
        here of it already comes back from there: where a restart could not begin, the last attempt is an earlier one.
        """
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
        """The logs of one host's part go to attempt<k>/HOST/: it starts another one."""
        aside = self.aside(attempt) / host
        with on_os_error(FleetError, f"cannot move its logs to {aside}", host=host):
            aside.parent.mkdir(0o700, exist_ok=True)
            (self.path / host).rename(aside)

    @property
    def attempt(self) -> int:
        """The number of the attempt whose logs are in HOST/."""
        try:
            return int(own.read_own(self.path / CURRENT, 99))
        except (OSError, ValueError):
            return 0

    def is_aside(self, attempt: int) -> bool:
        """Returns whether another one is the run's last."""
        return attempt != self.attempt

    def node(self, host: str, attempt: int | None = None) -> NodeLogs:
        """Returns the logs of a node, of that attempt."""
        return NodeLogs(self.of(attempt) / host)

    def of(self, attempt: int | None) -> Path:
        """Returns what has a folder for each host, of that attempt, None: of the last one."""
        return self.path if attempt is None or not self.is_aside(attempt) else self.aside(attempt)

    def aside(self, attempt: int) -> Path:
        """Returns where those go when another one has followed."""
        return self.path / f"{ATTEMPT}{attempt}"

    def event(self, event: RunEvent, **about: Any) -> None:
        """Append one line to events.jsonl. What a full disk does not take waits for the next event. about: its "level",
        "host", "message"."""
        self.append(event.as_json(time.time(), **about))

    def notice(
        self, level: Level, message: str, event: RunEvent, host: str | None = None, hint: str | None = None
    ) -> Notice:
        """A line of events.jsonl, and the notice of it for the onlookers."""
        return self.keep(Notice(level, message, host, hint, (event,)))

    def keep(self, notice: Notice) -> Notice:
        """Appends a line for each of its events; returns it."""
        for record in notice.records:
            self.append(record)
        return notice

    def amend(self, name: str, **values: Any) -> None:
        """Replace values of a JSON object, while others may replace other ones, of this process or of another one; as
        write_json(). One that was sealed is sealed again."""
        with self._alone():
            before, run = read_object(self.path / name), self.path.name
            after = {**before, **values}
            self.write_json(name, sealed(after, run) if is_sealed(before, run) else after)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process amends a document here meanwhile."""
        with contextlib.ExitStack() as lock:
            with contextlib.suppress(OSError):  # no folder any more: write_json() reports it
                events = lock.enter_context(open(self.path / "events.jsonl", "r+b", opener=own.private))
                lock.enter_context(alone(events.fileno()))
            yield

    def write_json(self, name: str, document: Mapping[str, Any]) -> None:
        """Replace NAME; FleetError when the disk does not take it."""
        try:
            self.replace(name, document)
        except OSError as error:
            removed = f"its folder was removed; 'fleet attach {self.path.name}' brings its logs again"
            hint = removed if error.errno == errno.ENOENT else "is the disk full?"
            raise FleetError(f"cannot write {self.path / name}: {error.strerror}", hint=hint) from None


def led_already(folder: RunFolder) -> UsageError:
    """Another process follows the run: which, and what to do."""
    leader, run, here = RunState(folder.path).leader, folder.path.name, myself()["machine"]
    who = leader if isinstance(leader, dict) else {}
    machine = str(who.get("machine", here))
    hint = f"fleet logs -f {run}"
    if machine != here and (held := folder.path / f"{WRITER}{HELD}").exists():
        hint = f"where {machine} is gone for good: rm {held}"
    of = "this machine" if machine == here else machine
    return UsageError(f"process {who.get('pid', '?')} of {of} follows {run} already", hint=hint)

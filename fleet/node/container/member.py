"""Runs this container's part in a run, attempt by attempt, as the leading container requests. Forwards the reports of
this node (run.follow) to the leading container, and the requests of that container to this node. Copies the ranks' logs
to runs/RUN/HOST and to the output of this process.

The exit code is that of the verdict if the first failure was here, and 1 if another container failed first. It is 123
if this part could not begin, and 128+n after signal n.
"""

import os
import time
from contextlib import suppress
from functools import partial

from fleet.node.base.errors import Refused, failed
from fleet.node.base.run_folder import put_verdict, request_stop, run_folder
from fleet.node.base.types import Any, Callable
from fleet.node.base.wire import start_thread
from fleet.node.container.dial import Line
from fleet.node.container.news import NONSENSE, verdict_of
from fleet.node.container.part import Part, begin_of
from fleet.node.container.record import Kept, Logs, last_of, report, summary_of
from fleet.node.gang.elastic import gang_of
from fleet.node.gang.ends import run_end
from fleet.node.run.follow import Follower, close, opened, unread
from fleet.node.run.heed import carry_out
from fleet.node.run.stacks import stacks_of
from fleet.node.run.stop import stop
from fleet.protocol.codes import EXIT_CONNECT, EXIT_PREFLIGHT
from fleet.protocol.state import ATTEMPT

BEAT_SECONDS, POLL_SECONDS = 2.0, 0.2
OPS = ("stop", "over", "renew-ranks")
NO_RUN = "what responds at MASTER_ADDR begins no run of fleet's", "give MASTER_PORT another value in all containers"
FINISH_SECONDS = 10.0  # so long the terminal may take for the ranks' last output


class Member:
    """Follows the requests of the leading container. dial(hello): returns a connection to that container. hello: this
    container's description. options: see options.py. about: fields of run.json, see started_by(). token: identifies
    this container when it connects again. begin: the last "start" message, {} before the first one. folder: the run's
    folder on this node. target: runs/RUN/HOST. signalled: the number of the platform's signal, or 0. reported: that
    signal was reported. refused: why this part could not begin."""

    def __init__(
        self, dial: "Callable[[dict[str, Any]], Line]", hello: "dict[str, Any]", options: Any, about: "dict[str, Any]"
    ) -> None:
        self.dial, self.hello, self.options, self.about = dial, hello, options, about
        self.elastic = hello["about"]["least"] != hello["about"]["most"]
        self.line: Line | None = None
        self.token: str | None = None
        self.begin: dict[str, Any] = {}
        self.part: Part | None = None
        self.logs: Logs | None = None
        self.record: Kept | None = None
        self.follower: Follower | None = None
        self.folder = self.target = ""
        self.signalled, self.reported = 0, False
        self.refused: Refused | None = None
        self.gang = gang_of({}, 0)  # the state of this container's ranks alone
        self.wrote: float | None = None  # when a rank last wrote anything, by the monotonic clock

    # -- the connection to the leading container --------------------------------------------------------------
    def send(self, **message: Any) -> None:
        with suppress(OSError):  # run() notices that the connection is gone
            if self.line is not None:
                self.line.send(**message)

    def run(self) -> int:
        """Works until the run ends, and returns the exit code. Raises Refused if no part of the run began here."""
        self.line = self.dial(self.hello)
        start_thread(self.live)
        until = time.monotonic() + self.options.wait
        while True:
            try:
                message = self.line.receive(POLL_SECONDS)
            except (OSError, ValueError) as error:
                if not self.begin and time.monotonic() < until:
                    time.sleep(POLL_SECONDS)
                    self.line = self.dial(self.hello)
                    continue
                if not self.begin:
                    raise Refused("no run began: %s" % error) from None
                if not self.resumed():
                    return self.cut_off(str(error))
                continue
            if message is not None:
                if "verdict" in message:
                    return self.over(message)
                self.handle_request(message)
            if not self.begin and time.monotonic() > until:
                raise Refused("within %g s no run began: others are missing" % self.options.wait)
            if self.signalled and not self.reported and self.begin:
                self.reported = True
                self.send(event="signal", number=self.signalled)

    def live(self) -> None:
        """Sends heartbeats to the leading container and to this node's supervisor for ever. Runs in its own thread, as
        the main thread may block when it writes to the terminal."""
        while True:
            self.send(beat=1, silent=self.wrote and time.monotonic() - self.wrote)
            self.ask(op="ping")
            if self.record is not None:
                self.record.sign()
            time.sleep(BEAT_SECONDS)

    def bring(self, logs: Logs) -> None:
        """Copies the output of ranks until the attempt is over. Runs in its own thread, as a write to the terminal may
        block for ever."""
        with suppress(OSError):  # the run's folder was removed, which is reported; or no process reads the output
            while not logs.over:
                if logs.bring() or logs.blocked:
                    self.wrote = time.monotonic()
                time.sleep(POLL_SECONDS)
            logs.finish()

    def finish(self) -> None:
        """Waits up to FINISH_SECONDS until all output of the attempt is copied."""
        if self.logs is not None:
            self.logs.over = True
            self.bringing.join(FINISH_SECONDS)

    def resumed(self) -> bool:
        """Connects again, and returns whether that succeeded. All reports of this node are then sent again."""
        try:
            self.line = self.dial({"token": self.token})
        except Refused:
            self.line = None
            return False
        if self.folder:
            self.follow()
        return True

    def handle_request(self, message: "dict[str, Any]") -> None:
        if "refused" in message:
            raise Refused(str(message["refused"]), str(message.get("hint")))
        if "token" in message:
            self.token = str(message["token"])
        elif "start" in message:
            try:
                self.begin = begin_of(message["start"])
            except NONSENSE:
                raise Refused(*NO_RUN) from None
            self.start()
        elif message.get("op") in OPS:
            self.ask(**message)
            if message["op"] == "stop" and isinstance(message.get("reason"), str):
                report("stopping: %s" % message["reason"])
        elif "stacks" in message:
            start_thread(self.take_stacks)

    # -- its part -------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Starts this container's part of an attempt. If that fails, reports it; the verdict follows."""
        begin, self.wrote = self.begin, None
        self.leave()
        self.finish()
        self.target = os.path.join(os.path.abspath(self.options.runs_dir), begin["run"], begin["host"])
        least = self.hello["about"]["least"] if self.elastic else 0
        self.part = Part(begin, self.options, self.hello["each"], least, self.hello["about"]["most"])
        self.gang = gang_of({begin["host"]: (begin["node"], self.part.numbers)}, 0)
        try:
            self.set_aside(begin["attempt"])
            if self.record is None:
                self.record = Kept(self.options.runs_dir, begin["run"], self.about)
                hosts = {begin["host"]: {"node_rank": begin["node"], "ranks": self.part.numbers}}
                self.record.begin(hosts, len(self.part.numbers), "%s:%d" % (begin["master"], begin["port"]))
            os.makedirs(self.target, 0o700, exist_ok=True)
            self.folder = self.part.start()
        except (Refused, OSError) as error:
            self.refused = error if isinstance(error, Refused) else Refused(str(error))
            self.send(event="failed", message="cannot begin: %s" % self.refused.message, hint=self.refused.hint)
            self.send(event="end")
            return
        self.logs = Logs(self.folder, self.target, begin["host"])
        self.bringing = start_thread(self.bring, self.logs)
        if not begin["attempt"]:
            values = (begin["run"], begin["node"], len(begin["nodes"]), self.target)
            report("run %s: node %d of %d, logs in %s" % values)
        self.follow()

    def set_aside(self, attempt: int) -> None:
        """Ends the processes of the last attempt K, and moves its logs to attempt<K>/HOST. Those processes may be left
        from an earlier start of this container. attempt: the number of the next attempt."""
        if not attempt:
            return
        if run_folder(self.begin["run"]):
            stop({"run": self.begin["run"], "grace": 0.0, "reason": "another attempt begins", "attempt": attempt - 1})
        run, host = os.path.split(self.target)
        aside = os.path.join(run, "%s%d" % (ATTEMPT, attempt - 1))
        os.makedirs(aside, 0o700, exist_ok=True)
        if os.path.isdir(self.target):
            os.rename(self.target, os.path.join(aside, host))

    def follow(self) -> None:
        """Starts a thread that sends the events of this node, as run.follow reports them."""
        self.leave()
        run, attempt = self.begin["run"], None if self.elastic else self.begin["attempt"]
        spec: Any = {"run": run, "attempt": attempt, "logs": False}
        try:
            self.follower = Follower(spec, opened(run, attempt))
        except (Refused, OSError) as error:
            self.send(**(failed(error) if isinstance(error, Refused) else unread(error)))
            return
        self.following = start_thread(self.report, self.follower)

    def leave(self) -> None:
        """Ends the follower. None of its further events is sent."""
        if self.follower is not None:
            self.follower.once = True
        self.follower = None

    def ask(self, **request: Any) -> None:
        """Carries out a request of the leading container."""
        if self.follower is not None:
            carry_out(self.begin["run"], self.folder, request, term=1)

    def report(self, follower: Follower) -> None:
        follower.say = partial(self.pass_on, follower)
        try:
            follower.follow()
        except OSError as error:
            follower.say(unread(error))
        finally:
            close(follower.folder)

    def pass_on(self, follower: Follower, message: "dict[str, Any]") -> None:
        if follower is self.follower:
            self.gang.receive(self.begin["host"], message, time.time())  # type: ignore[arg-type]
            self.send(**self.seen(message, self.folder))

    def seen(self, message: "dict[str, Any]", folder: str) -> "dict[str, Any]":
        """Returns the report to send. Adds the rank's last lines to the report of a failed rank."""
        if message["event"] != "rank" or not (message.get("status") or message.get("signal")):
            return message
        rank, begins = message["rank"], message.get("begins") or (0, 0)
        text = last_of(folder, "rank%d.err" % rank, begins[1], None)
        message["tail"] = text if text.strip() else last_of(folder, "rank%d.out" % rank, begins[0], None)
        until = message.get("until")
        message["before"] = message["tail"] if until is None else last_of(folder, "rank%d.err" % rank, begins[1], until)
        return message

    def take_stacks(self) -> None:
        for stack in stacks_of({"run": self.begin["run"], "ranks": None, "ended": False, "native": False})["ranks"]:
            threads = [each for each in stack["threads"] if each["main"]] or stack["threads"]
            frames = [
                "%s (%s:%d)" % (it["name"], it["file"], it["line"]) for each in threads[:1] for it in each["frames"]
            ]
            at = frames[0] if frames else stack["waits"] or stack["state"]
            lines = "".join("    %s\n" % it for it in frames[:60])
            self.send(event="stacks", rank=stack["rank"], at=at[:300], frames=lines)

    # -- the end --------------------------------------------------------------------------------------------
    def over(self, message: "dict[str, Any]") -> int:
        """Handles the verdict of the leading container, and returns the exit code. Raises Refused if no part of the run
        began here."""
        try:
            verdict = verdict_of(message["verdict"])
        except NONSENSE:
            if self.begin:
                return self.cut_off("what it sends is no verdict")
            raise Refused(*NO_RUN) from None
        if not self.begin:
            raise Refused("the run ended before this container had a part in it: " + str(verdict["message"]))
        return self.end(verdict, message.get("why"))

    def cut_off(self, why: str) -> int:
        """Ends this container's part, as the leading container is gone. Returns the exit code."""
        master = str(self.begin["master"])
        message = "the container where all meet, %s, is gone" % master
        end = run_end("lost", message, EXIT_CONNECT, master)
        if self.folder:
            request_stop(self.folder, self.options.grace, message, end)
        return self.end(dict(end, attempt=self.begin["attempt"]), why)

    def end(self, verdict: Any, why: Any) -> int:
        begin, code = self.begin, int(verdict["code"])
        if self.folder and self.follower is not None:
            self.ask(op="over")
            self.following.join(self.options.grace + 10.0)
            put_verdict(self.folder, verdict)
        self.finish()
        if verdict["by"] != "done":
            report(str(verdict["message"]) + (": %s" % why if isinstance(why, str) and why else ""))
        if self.signalled:
            code = 128 + self.signalled
        elif self.refused is not None:
            code = EXIT_PREFLIGHT
        elif code and verdict["host"] != begin["host"]:
            code = 1
        how = "done" if code == 0 else "ended by signal %d" % self.signalled if self.signalled else "failed"
        where = (begin["run"], how, begin["host"], code, self.target)
        report("run %s %s on %s, exit code %d; logs in %s" % where)
        if self.record is not None:  # end() writes only if this container shares no folder with the leading one
            self.record.end(summary_of(begin["run"], self.gang, verdict, []))
        self.send(event="over")
        return code

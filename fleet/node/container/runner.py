"""One container's part in a run, from the start of its ranks to the end of all: the end of one is the end of all.

The exit code is that of the first failure where it was here, 1 where another container failed first, which is named;
143 after SIGTERM.
"""

import os
import signal
import threading
import time

from fleet.node.base.run_folder import read_json, read_status, request_stop
from fleet.node.base.types import Any, Mapping
from fleet.node.container.line import Line
from fleet.node.container.logs import Logs, report, why
from fleet.node.container.meeting import BEAT_SECONDS, EXIT_LOST, VERDICT_SECONDS
from fleet.node.container.place import Place
from fleet.node.container.record import Record, ending, ranks_of
from fleet.node.container.start import Part
from fleet.node.run.look.trainers import trainers
from fleet.protocol.state import FINAL, LEASE

POLL_SECONDS = 0.2


class Run:
    """begin: the message that began it. line: to where all meet. record: of the run, which is written here by the
    container that leads, or one that does not share its folder. options: see Part; runs: the folder of runs."""

    def __init__(
        self, place: Place, ranks: int, begin: "dict[str, Any]", line: Line, options: Any, record: Record
    ) -> None:
        self.place, self.begin, self.options, self.record = place, begin, options, record
        self.line: Line | None = line
        self.part = Part(place, ranks, begin, line, options)
        self.host = str(begin["host"])
        self.target = os.path.join(os.path.abspath(options.runs), str(begin["run"]), self.host)
        self.mine: dict[str, Any] | None = None  # the first failure of this container's
        self.first: dict[str, Any] | None = None  # the first of all
        self.signalled = 0
        self.stopped, self.code = False, 0
        self.ended: dict[str, Any] | None = None
        self.folder = ""

    def start(self) -> None:
        """Refused where its ranks cannot be started."""
        begin = self.begin
        its = {"node_rank": begin["node"], "ranks": self.part.numbers}
        self.record.begin({self.host: its}, str(begin["master"]), begin["port"])
        os.makedirs(self.target, 0o700, exist_ok=True)
        self.folder = self.part.start()
        self.logs = Logs(self.folder, self.target, self.host)
        threading.Thread(target=self.live, daemon=True).start()

    def live(self) -> None:
        """Signs of life, also while the terminal takes no more output."""
        while True:
            self.send(beat=1)
            self.record.sign()
            try:
                os.utime(os.path.join(self.folder, LEASE))
            except OSError:
                pass
            time.sleep(BEAT_SECONDS)

    def follow(self) -> int:
        """To its end; the exit code."""
        while True:
            try:
                status = read_status(self.folder)
                self.logs.bring()
            except FileNotFoundError:
                return self.end({"state": "lost", "reason": "its folder %s was removed" % self.folder})
            if not self.place.elastic and self.mine is None and self.first is None and not self.stopped:
                self.look_at_ranks()
            self.listen()
            if self.signalled and not self.stopped:
                if self.mine is None and self.first is None:
                    message = "%s was ended by signal %d of its platform" % (self.host, self.signalled)
                    self.fail(128 + self.signalled, "signal", message)
                self.stop("signal %d" % self.signalled)
            if status.get("state") in FINAL:
                return self.end(status)
            time.sleep(POLL_SECONDS)

    # -- the others ---------------------------------------------------------------------------------------
    def send(self, **message: Any) -> None:
        try:
            if self.line is not None:
                self.line.send(**message)
        except OSError:
            pass  # listen() finds out

    def listen(self) -> None:
        try:
            while self.line is not None:
                message = self.line.receive(0.001)
                if message is None:
                    return
                if "failed" in message:
                    self.heed(message["failed"])
                elif "lost" in message:
                    self.go_on(str(message["lost"]["host"]))
        except (OSError, ValueError):
            self.line = None
            if not self.place.elastic:
                master = str(self.begin["master"])
                gone = {"host": master, "node_rank": 0, "rank": None, "exit_code": EXIT_LOST, "what": "node"}
                self.heed(self.mine or dict(gone, message="the container where all meet, %s, is gone" % master))

    def heed(self, failure: "dict[str, Any]") -> None:
        """The first failure of all ends this container's part, too."""
        if self.first is None:
            self.first = failure
            because = ": " + str(failure["why"]) if failure.get("why") else ""
            report("%s%s" % (failure["message"], because))
        self.stop(str(self.first["message"]))

    def go_on(self, host: str) -> None:
        """An elastic run goes on without a container."""
        report("%s is gone; the rest go on" % host)
        for pid in trainers(str(self.begin["run"])).values():  # they wait for it, and torchrun starts them again
            os.kill(pid, signal.SIGKILL)

    def stop(self, reason: str) -> None:
        if not self.stopped:
            self.stopped = True
            request_stop(self.folder, self.options.grace, reason)

    # -- failures of this container's ---------------------------------------------------------------------
    def fail(self, code: int, what: str, message: str, age: float = 0.0, **more: Any) -> None:
        """Have it decided which failure was the first of all."""
        about = {"host": self.host, "node_rank": self.begin["node"], "rank": None, "exit_code": code, "what": what}
        self.mine = dict(about, message=message, **more)
        self.send(failed=self.mine, age=age)
        if self.line is None:
            self.heed(self.mine)

    def refused(self, code: int, reason: str) -> None:
        """Its ranks could not be started."""
        self.fail(code, "node", "%s (node rank %s) cannot begin: %s" % (self.host, self.begin["node"], reason))
        self.conclude(code, {"code": code, "state": "unknown", "reason": reason, "ranks": {}})

    def ranks_over(self) -> "list[dict[str, Any]]":
        if not os.path.isdir(self.folder):
            return []
        names = (it for it in os.listdir(self.folder) if it.startswith("rank") and it.endswith(".json"))
        found = (read_json(os.path.join(self.folder, name)) for name in names)
        return [it for it in found if "rank" in it]

    def look_at_ranks(self) -> None:
        """The first that failed here; those that torchrun ended thereupon came later."""
        failed = [it for it in self.ranks_over() if it.get("status") or it.get("signal")]
        if not failed:
            return
        end = min(failed, key=lambda it: (it.get("signal") == signal.SIGTERM, it["time"]))
        rank, number = end["rank"], end.get("signal") or 0
        code = end.get("status") or 128 + number
        lines = self.logs.tail(rank)
        how = "signal %d" % number if number else "exit code %d" % code
        message = "rank %d on %s (node rank %d) failed: %s" % (rank, self.host, self.begin["node"], how)
        log = os.path.join(self.target, "rank%d.err" % rank)
        more = {"rank": rank, "local_rank": end.get("local_rank"), "signal": number or None, "log": log}
        self.fail(
            code, "rank", message, max(0.0, time.time() - end["time"]), why=why(lines), tail="\n".join(lines), **more
        )

    # -- the end ------------------------------------------------------------------------------------------
    def end(self, status: "Mapping[str, Any]") -> int:
        engine = status.get("engine_status")
        code = 0 if engine == 0 and status.get("state") == "exited" else int(engine or 1)
        if code and self.mine is None and self.first is None:
            self.look_at_ranks()
        if code and self.mine is None and self.first is None:
            reason = str(status.get("reason") or "exit code %d" % code)
            self.fail(
                code, "engine", "torchrun on %s (node rank %s) failed: %s" % (self.host, self.begin["node"], reason)
            )
        self.wait_for_verdict()
        first = self.first or self.mine
        if first is not None:
            by_signal = self.mine is not None and self.mine["what"] == "signal"
            code = int(first["exit_code"]) if first["host"] == self.host else 128 + self.signalled if by_signal else 1
        self.logs.finish()
        ended = {"code": code, "state": str(status["state"]), "reason": status.get("reason")}
        ended["ranks"] = ranks_of(self.ranks_over())
        self.conclude(code, ended)
        how = "done" if code == 0 else "ended by signal %d" % self.signalled if self.signalled else "failed"
        report("run %s %s on %s, exit code %d; logs in %s" % (self.begin["run"], how, self.host, code, self.target))
        return code

    def wait_for_verdict(self) -> None:
        """Of a failure here: whether it was the first."""
        until = time.monotonic() + VERDICT_SECONDS + 2 * BEAT_SECONDS
        while self.mine is not None and self.first is None and time.monotonic() < until:
            self.listen()
            time.sleep(POLL_SECONDS / 2)

    def conclude(self, code: int, ended: "dict[str, Any]") -> None:
        self.code, self.ended = code, ended
        self.send(ended=ended)

    def write_end(self) -> None:
        """Where this container keeps a record of its own."""
        hosts = {self.host: ending(self.begin["node"], self.ended)}
        try:
            self.record.end(self.code, hosts, self.first or self.mine)
        except OSError as error:
            report("the summary in %s cannot be written: %s" % (self.record.path, error.strerror))

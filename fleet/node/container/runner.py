"""One container's part in a run: meets the others, starts torchrun under fleet's supervisor, brings the ranks' logs
here and to the terminal, and sees that the end of one is the end of all.

The exit code is that of the first rank that failed in this container; 1 where another container failed first, which is
named; 143 after SIGTERM. What a rank is told, how it is held and how it is ended is the supervisor's, as on any node.
"""

import os
import signal
import subprocess
import sys
import time

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.run_folder import read_json, read_status, request_stop
from fleet.node.base.types import Any, Mapping, Sequence
from fleet.node.container.meeting import BEAT_SECONDS, Line
from fleet.node.container.place import Place
from fleet.node.facts.network import addresses
from fleet.node.run.look.trainers import trainers
from fleet.protocol.state import ARMED, COMMAND, FINAL, NODE_LOG

POLL_SECONDS, START_SECONDS = 0.2, 60.0
GRACE = 25.0  # a platform kills 30 s after SIGTERM
OF_RANKS = {"rank.py": "rank", "drain.py": "drain", "spawn.py": "spawn", "console.py": "console", ARMED: "arm"}
# of an elastic run: seconds that agents wait for more of them once there are enough, and that one may say nothing
PATIENCE, RESTARTS = "last_call_timeout=15,keep_alive_interval=3", 3
# of the launcher that started this container: torchrun would take them for its own options
UNSET = "PET_.*|RANK|WORLD_SIZE|LOCAL_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT"
BEGIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from fleet.node.run.supervise import main; main()"
MOST_TOLD = 300


class Run:
    """options: python, script (words behind the interpreter), workdir, grace, runs. begin: what the meeting said."""

    def __init__(self, place: Place, ranks: int, begin: "dict[str, Any]", line: "Line | None", options: Any) -> None:
        self.place, self.ranks, self.begin, self.line, self.options = place, ranks, begin, line, options
        self.host = str(begin["host"])
        self.logs = os.path.join(options.runs, str(begin["run"]), self.host)
        self.offsets: dict[str, int] = {}
        self.rest: dict[str, bytes] = {}
        self.mine: dict[str, Any] | None = None  # the first failure of this container's
        self.first: dict[str, Any] | None = None  # the first of all
        self.signalled = 0
        self.stopped = False
        self.folder = ""

    # -- the start ----------------------------------------------------------------------------------------
    def argv(self) -> "list[Any]":
        begin, place = self.begin, self.place
        nodes = "%d:%d" % (place.least, place.most) if place.elastic else str(begin["nodes"])
        words = [self.options.python, {"run_dir": "console.py"}, "torch.distributed.run", "torchrun"]
        words += ["--nnodes=" + nodes, "--nproc-per-node=%d" % self.ranks, "--rdzv-id=" + str(begin["run"])]
        master, port = begin["master"], begin["port"]
        if place.elastic:
            words += ["--rdzv-backend=c10d", "--rdzv-endpoint=%s:%d" % (master, port)]
            words += ["--rdzv-conf=is_host=%d,%s" % (begin["node"] == 0, PATIENCE), "--max-restarts=%d" % RESTARTS]
        else:
            words += ["--node-rank=%d" % begin["node"], "--master-addr=" + master, "--master-port=%d" % port]
            words.append("--max-restarts=0")
        words += ["--local-addr=" + self.address()] if begin["nodes"] > 1 else []
        return [*words, "--no-python", "--", {"python": True}, {"run_dir": "spawn.py"}]

    def address(self) -> str:
        """Its own, by which the others know it."""
        if self.line is None or self.begin["node"] == 0:
            return str(self.begin["master"])
        return str(self.line.sock.getsockname()[0])

    def interface(self) -> "str | None":
        for index, found in addresses().items():
            if self.address() in [one.partition("/")[0] for one in found]:
                import socket

                return socket.if_indextoname(index)
        return None

    def spec(self) -> "dict[str, Any]":
        begin, interface = self.begin, self.interface()
        env = {name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface}
        env = {name: value for name, value in env.items() if name not in os.environ}
        if self.place.elastic:
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or ranks of a later round find an earlier one's
        command = {"argv": [self.options.python, "-u", *self.options.script], "local_rank_at": None}
        return {
            "run": begin["run"],
            "host": self.host,
            "node_rank": begin["node"],
            "ranks": list(range(begin["first"], begin["first"] + self.ranks)),
            "argv": self.argv(),
            "env": env,
            "env_expand": {},
            "unset": UNSET,
            "cwd": self.options.workdir,
            "python": self.options.python,
            "activate": None,
            "devices": None,
            "lease": None,
            "grace": self.options.grace,
            "node_timeout": 3600.0,
            "time": time.time(),
            "code": None,
            "alone": False,
            "about": {"attempt": 0, "max_restarts": RESTARTS if self.place.elastic else 0},
            "files": dict(
                {name: source("run.rank." + it) for name, it in OF_RANKS.items()}, **{COMMAND: json.dumps(command)}
            ),
        }

    def start(self) -> None:
        """Refused where the supervisor cannot start it."""
        argv = [sys.executable, "-I", "-S", "-c", BEGIN, archive()]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        output = process.communicate(json.dumps(self.spec()).encode() + b"\n", START_SECONDS)[0]
        answer = answer_in(output)
        if answer.get("event") != "started":
            raise Refused(str(answer.get("message", "the supervisor did not begin")), answer.get("hint"))
        self.folder = answer["dir"]
        os.makedirs(self.logs, exist_ok=True)

    # -- while it runs ------------------------------------------------------------------------------------
    def follow(self) -> int:
        """To its end; the exit code."""
        beat = 0.0
        while True:
            status = read_status(self.folder)
            self.bring()
            self.look_at_ranks()
            if self.line is not None:
                self.listen(self.line)
                if time.monotonic() > beat + BEAT_SECONDS:
                    beat = time.monotonic()
                    self.say(beat=1)
            if self.signalled and not self.stopped:
                self.stop("signal %d" % self.signalled)
            if status.get("state") in FINAL:
                self.bring()
                return self.end(status)
            time.sleep(POLL_SECONDS)

    def say(self, **message: Any) -> None:
        try:
            if self.line is not None:
                self.line.say(**message)
        except OSError:
            self.line = None

    def listen(self, line: Line) -> None:
        try:
            said = line.hear(0.001)
            while said is not None:
                self.take(said)
                said = line.hear(0.001)
        except (OSError, ValueError):
            self.line = None
            if not self.place.elastic or self.begin["node"] != 0:
                self.others("the container of MASTER_ADDR", {"host": str(self.begin["master"])}, "is gone")

    def take(self, said: "dict[str, Any]") -> None:
        if "failed" in said and not self.place.elastic:
            self.others(
                "rank %s on %s" % (said["failed"].get("rank"), said["failed"]["host"]), said["failed"], "failed"
            )
        elif "ended" in said and said["ended"].get("code"):
            self.others(str(said["ended"]["host"]), said["ended"], "ended with %s" % said["ended"]["code"])
        elif "lost" in said and not self.place.elastic:
            self.others(str(said["lost"]["host"]), said["lost"], "was lost")
        elif "lost" in said:
            tell("%s is gone; the rest go on" % said["lost"]["host"])
            for pid in trainers(str(self.begin["run"])).values():  # they wait for it, and torchrun starts them again
                os.kill(pid, signal.SIGKILL)

    def others(self, who: str, what: "dict[str, Any]", how: str) -> None:
        """Another container's end is this one's."""
        if self.first is None:
            self.first = dict(what)
            why = str(what.get("why") or "")[:MOST_TOLD]
            tell("%s %s%s" % (who, how, ": " + why if why else ""))
        self.stop("%s %s" % (who, how))

    def stop(self, reason: str) -> None:
        if not self.stopped:
            self.stopped = True
            request_stop(self.folder, self.options.grace, reason)

    def look_at_ranks(self) -> None:
        """The first that failed here, before anybody stopped it."""
        if self.mine is not None or self.first is not None or self.stopped:
            return
        failed = []
        for name in os.listdir(self.folder):
            if name.startswith("rank") and name.endswith(".json"):
                record = read_json(os.path.join(self.folder, name))
                if record.get("status") or record.get("signal"):
                    failed.append(record)
        if failed and not self.place.elastic:
            record = min(failed, key=lambda it: (it.get("signal") == signal.SIGTERM, it["time"]))
            code = record["status"] or 128 + record["signal"]
            self.mine = {"rank": record["rank"], "code": code, "why": self.why(record["rank"])}
            self.first = dict(self.mine, host=self.host)
            self.bring()
            tell("failed: rank %s on %s, exit code %d: %s" % (record["rank"], self.host, code, self.mine["why"]))
            self.say(failed=self.mine)
            self.stop("rank %s failed" % record["rank"])

    def why(self, rank: int) -> str:
        """The last that it wrote of its errors."""
        try:
            with open(os.path.join(self.folder, "rank%d.err" % rank), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
                lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
        except OSError:
            lines = []
        return plain(lines[-1])[:MOST_TOLD] if lines else "it wrote nothing of why"

    def bring(self) -> None:
        """What is new in the ranks' logs: into the run's folder, and here."""
        for name in sorted(os.listdir(self.folder)):
            if name != NODE_LOG and not (name.startswith("rank") and name.endswith((".out", ".err"))):
                continue
            with open(os.path.join(self.folder, name), "rb") as file:
                file.seek(self.offsets.get(name, 0))
                data = file.read(1 << 20)
                while data:
                    self.offsets[name] = file.tell()
                    with open(os.path.join(self.logs, name), "ab") as log:
                        log.write(data)
                    if name != NODE_LOG:
                        self.show(name, data)
                    data = file.read(1 << 20)

    def show(self, name: str, data: bytes) -> None:
        whole, end, self.rest[name] = (self.rest.get(name, b"") + data).rpartition(b"\n")
        stream = sys.stdout if name.endswith(".out") else sys.stderr
        for line in whole.split(b"\n") if end else ():
            stream.write("[%s:%s] %s\n" % (self.host, name[4:-4], line.decode("utf-8", "replace")))
        stream.flush()

    # -- the end ------------------------------------------------------------------------------------------
    def end(self, status: "Mapping[str, Any]") -> int:
        engine = status.get("engine_status")
        code = 0 if engine == 0 and status.get("state") == "exited" else int(engine or 1)
        if self.signalled:
            code = 128 + self.signalled
        elif self.mine is not None:
            code = int(self.mine["code"])
        elif self.first is not None:
            code = 1
        self.say(ended={"code": code})
        for name, rest in self.rest.items():
            if rest:
                self.show(name, b"\n")
        summary = {"run": self.begin["run"], "host": self.host, "exit_code": code, "first_failure": self.first}
        with open(os.path.join(self.logs, "summary.json"), "w") as file:
            file.write(json.dumps(summary) + "\n")
        how = "done" if code == 0 else "ended by signal %d" % self.signalled if self.signalled else "failed"
        tell("run %s %s on %s, exit code %d; logs in %s" % (self.begin["run"], how, self.host, code, self.logs))
        return code


def answer_in(output: bytes) -> "dict[str, Any]":
    """The one message of the supervisor's frames; {} where there is none."""
    begun, _, rest = output.rpartition(b'{"event": ')
    for end in range(rest.count(b"}"), 0, -1):
        text = b'{"event": ' + b"}".join(rest.split(b"}")[:end]) + b"}"
        try:
            found = json.loads(text.decode("utf-8"))
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}
    return {}


def plain(text: str) -> str:
    return "".join(it if it.isprintable() else "?" for it in text)


def tell(text: str) -> None:
    sys.stderr.write("fleet: " + plain(text) + "\n")
    sys.stderr.flush()


def archive() -> str:
    """Where `fleet` is imported from: the zipapp, or the folder of an installed one."""
    return os.path.abspath(__file__).partition(os.sep + os.path.join("fleet", "node") + os.sep)[0]


def source(module: str) -> str:
    """The text of a module of the node half, from wherever it is."""
    import pkgutil

    name = "fleet.node." + module
    return (pkgutil.get_data(name.rpartition(".")[0], name.rpartition(".")[2] + ".py") or b"").decode("utf-8")


def script_of(words: "Sequence[str]", module: bool) -> "list[str]":
    return ["-m", *words] if module else list(words)

"""torchrun's part in this container, started under the same supervisor that a head starts on a node."""

import os
import socket
import struct
import subprocess
import sys
import time

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any
from fleet.node.container.line import Line
from fleet.node.container.place import Place
from fleet.node.facts.network import addresses
from fleet.protocol.frames import HEADER, MESSAGE, PREAMBLE
from fleet.protocol.state import ARMED, COMMAND

START_SECONDS = 60.0
LEASE_SECONDS = 30.0  # that ranks go on when their runner was killed
OF_RANKS = {
    "rank.py": "rank",
    "drain.py": "drain",
    "watch.py": "watch",
    "spawn.py": "spawn",
    "console.py": "console",
    ARMED: "arm",
}
# of an elastic run: seconds that agents wait for more of them once there are enough, and that one may be silent
PATIENCE, RESTARTS = "last_call_timeout=15,keep_alive_interval=3", 3
# of the launcher that started this container: torchrun would take them for its own options
UNSET = "PET_.*|RANK|WORLD_SIZE|LOCAL_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT"
BEGIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from fleet.node.run.supervise import main; main()"


class Part:
    """What of the run this container starts. begin: the message that began it. options: python, script (the argv behind
    the interpreter), workdir, grace."""

    def __init__(self, place: Place, ranks: int, begin: "dict[str, Any]", line: Line, options: Any) -> None:
        self.place, self.ranks, self.begin, self.options = place, ranks, begin, options
        self.numbers = list(range(begin["first"], begin["first"] + ranks))  # of its ranks
        # its own address, by which the others know it
        leads = begin["node"] == 0 or begin["nodes"] == 1
        self.address = str(begin["master"] if leads else line.sock.getsockname()[0])

    def argv(self) -> "list[Any]":
        begin, place = self.begin, self.place
        nodes = "%d:%d" % (place.least, place.most) if place.elastic else str(begin["nodes"])
        argv = [self.options.python, {"run_dir": "console.py"}, "torch.distributed.run", "torchrun"]
        argv += ["--nnodes=" + nodes, "--nproc-per-node=%d" % self.ranks, "--rdzv-id=" + str(begin["run"])]
        master, port = begin["master"], begin["port"]
        if place.elastic:
            argv += ["--rdzv-backend=c10d", "--rdzv-endpoint=%s:%d" % (master, port)]
            argv += ["--rdzv-conf=is_host=%d,%s" % (begin["node"] == 0, PATIENCE), "--max-restarts=%d" % RESTARTS]
        else:
            argv += ["--node-rank=%d" % begin["node"], "--master-addr=" + master, "--master-port=%d" % port]
            argv.append("--max-restarts=0")
        argv += ["--local-addr=" + self.address] if begin["nodes"] > 1 else []
        return [*argv, "--no-python", "--", {"python": True}, {"run_dir": "spawn.py"}]

    def interface(self) -> "str | None":
        """The network's that leads to the others."""
        for index, found in addresses().items():
            if self.address in [one.partition("/")[0] for one in found]:
                return socket.if_indextoname(index)
        return None

    def spec(self) -> "dict[str, Any]":
        """For supervise.py."""
        begin, interface = self.begin, self.interface()
        env = {name: interface for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface}
        env = {name: value for name, value in env.items() if name not in os.environ}
        if self.place.elastic:
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or ranks of a later round find an earlier one's
        command = {"argv": [self.options.python, "-u", *self.options.script], "local_rank_at": None}
        return {
            "run": begin["run"],
            "host": str(begin["host"]),
            "node_rank": begin["node"],
            "ranks": self.numbers,
            "argv": self.argv(),
            "env": env,
            "env_expand": {},
            "unset": UNSET,
            "cwd": self.options.workdir,
            "python": self.options.python,
            "activate": None,
            "devices": None,
            "lease": LEASE_SECONDS,
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

    def start(self) -> str:
        """The run's folder on this node. Refused where the supervisor cannot start it."""
        argv = [sys.executable, "-I", "-S", "-c", BEGIN, archive()]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        spec = json.dumps(self.spec()).encode() + b"\n"
        try:
            output = process.communicate(spec, START_SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Refused(
                "torchrun's supervisor did not start within %g s" % START_SECONDS, "is the disk slow?"
            ) from None
        answer = answer_in(output)
        if answer.get("event") != "started":
            raise Refused(str(answer.get("message", "the supervisor did not begin")), answer.get("hint"))
        return str(answer["dir"])


def answer_in(output: bytes) -> "dict[str, Any]":
    """The first message of the supervisor's frames; {} where there is none."""
    _, _, rest = output.partition(PREAMBLE)
    head = struct.calcsize(HEADER)
    while len(rest) >= head:
        kind, _, size = struct.unpack(HEADER, rest[:head])
        payload, rest = rest[head : head + size], rest[head + size :]
        if kind == MESSAGE:
            found = json.loads(payload.decode("utf-8"))
            return found if isinstance(found, dict) else {}
    return {}


def archive() -> str:
    """Where `fleet` is imported from: the zipapp, or the folder of an installed one."""
    return os.path.abspath(__file__).partition(os.sep + os.path.join("fleet", "node") + os.sep)[0]


def source(module: str) -> str:
    """The text of a module of the node half, from wherever it is."""
    import pkgutil

    name = "fleet.node." + module
    return (pkgutil.get_data(name.rpartition(".")[0], name.rpartition(".")[2] + ".py") or b"").decode("utf-8")

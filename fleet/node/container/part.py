"""Starts this container's part of a run, with the same supervisor that a head starts on a node."""

import os
import re
import struct
import subprocess
import sys
import time

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.types import TYPE_CHECKING, Any
from fleet.node.container.channel import SECRET, bounded
from fleet.node.container.roll import MOST
from fleet.node.facts.network import addresses
from fleet.node.facts.way import holder_of, variables
from fleet.node.run.torchrun import RESTARTABLE, RESTARTS, torchrun_options
from fleet.protocol.frames import HEADER, MESSAGE, PREAMBLE
from fleet.protocol.state import COMMAND, OF_RANKS, is_run_id

if TYPE_CHECKING:
    Started = tuple[list[Any], dict[str, Any], dict[str, str], dict[str, str]]

START_SECONDS = 60.0
LEASE_SECONDS = 30.0  # so long ranks go on after the main process of their container was killed
# the platform's variables for this container, which torchrun would read as its own options
UNSET = "PET_.*|RANK|WORLD_SIZE|LOCAL_RANK|GROUP_RANK|MASTER_ADDR|MASTER_PORT|" + SECRET
BEGIN = "import os, sys; sys.path.insert(0, sys.argv.pop(1)); from %s import main; main(); os._exit(0)"


class Part:
    """Describes what this container starts. begin: see begin_of(). options: see options.py. ranks: how many ranks this
    container has. least: the fewest nodes of an elastic run, otherwise 0. most: the most nodes."""

    def __init__(self, begin: "dict[str, Any]", options: Any, ranks: int, least: int, most: int) -> None:
        self.begin, self.options, self.least, self.most = begin, options, least, most
        self.numbers = list(range(begin["first"], begin["first"] + ranks))  # the ranks of this container
        # the address by which other containers reach this one; None: there are no others
        self.own = begin["master" if begin["node"] == 0 else "address"] if most > 1 else None

    def started(self) -> "Started":
        """Returns the engine's argv, the content of command.json, the variables that the engine needs, and its files in
        the run's folder (name -> text). Raises Refused if this Python is too old for the engine."""
        begin, options = self.begin, self.options
        if options.engine != "torchrun" or options.engine_args:
            return self._by_engine()
        found = torchrun_options(
            begin["run"],
            self.most,
            self.least,
            len(self.numbers),
            begin["node"],
            begin["master"],
            begin["port"],
            self.own,
            options.max_restarts if self.least else 0,
        )
        argv = [options.python, {"run_dir": "console.py"}, "torch.distributed.run", "torchrun", *found]
        script = ["-m"] * options.module + [options.script, *options.args]
        command = {"argv": [options.python, "-u", *script], "local_rank_at": None}
        env = dict(RESTARTABLE) if self.least else {}
        return [*argv, "--no-python", "--", {"python": True}, {"run_dir": "spawn.py"}], command, env, {}

    def _by_engine(self) -> "Started":
        name = self.options.engine
        if sys.version_info < (3, 10):
            raise Refused(
                "--engine %s takes a python3 of 3.10 or newer for fleet itself; this is %d.%d"
                % ((name, *sys.version_info[:2])),
                "start fleet.pyz with another one: python3.12 fleet.pyz ...; --python names that of the training",
            )
        engine = __import__("fleet.engines.containers", fromlist=["started"])
        found: Started = engine.started(self.options, self.begin, self.least, self.most, self.own)
        return found

    def interface_variables(self) -> "dict[str, str]":
        """Returns the variables that set the network interface for traffic to other containers, or {} if there are no
        other containers."""
        own = addresses()
        held = holder_of(self.own, own) if self.own else None
        return variables(held, own) if held else {}

    def spec(self) -> "dict[str, Any]":
        """Returns the spec of supervise.py."""
        begin, options = self.begin, self.options
        argv, command, env, files = self.started()
        env.update({name: value for name, value in self.interface_variables().items() if name not in os.environ})
        env.update(options.env)
        return {
            "run": begin["run"],
            "host": begin["host"],
            "node_rank": begin["node"],
            "ranks": self.numbers,
            "argv": argv,
            "env": env,
            "env_expand": {},
            "unset": UNSET,
            "cwd": options.workdir,
            "python": options.python,
            "activate": None,
            "devices": None,
            "lease": LEASE_SECONDS,
            "grace": options.grace,
            "node_timeout": 3600.0,
            "time": time.time(),
            "code": None,
            "alone": False,
            "about": {
                "attempt": begin["attempt"],
                "max_restarts": options.max_restarts or (RESTARTS if self.least else 0),
                "least": self.least,
                "max_log": 0,
            },
            "files": dict(
                {name: source("run.rank." + it) for name, it in OF_RANKS.items()},
                **files,
                **{COMMAND: json.dumps(command)},
            ),
        }

    def start(self) -> str:
        """Starts the supervisor, and returns the run's folder on this node. Raises Refused if it cannot start."""
        spec = json.dumps(self.spec()).encode() + b"\n"
        process = program("fleet.node.run.supervise")
        try:
            output = process.communicate(spec, START_SECONDS)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Refused("the supervisor did not start within %g s" % START_SECONDS, "is the disk slow?") from None
        answer = answer_in(output)
        if answer.get("event") != "started":
            raise Refused(str(answer.get("message", "the supervisor did not begin")), answer.get("hint"))
        return str(answer["dir"])


def begin_of(found: Any) -> "dict[str, Any]":
    """Returns the "start" message of the leading container, checked, because paths and commands are made of it: {"run",
    "host": this container's name, "node": its node rank, "first": its first rank, "attempt", "master" and "port": where
    ranks meet, "address": of this container, "nodes": [(host, ranks)]}. Raises ValueError, KeyError or TypeError for an
    invalid message."""
    bounds = {"port": 1 << 16, "node": MOST, "first": MOST, "attempt": MOST}
    begin: dict[str, Any] = {name: bounded(found[name], most) for name, most in bounds.items()}
    begin["nodes"] = [(named(host), bounded(each, MOST)) for host, each in found["nodes"]]
    begin.update({name: named(found[name]) for name in ("host", "master", "address")})
    if not isinstance(found["run"], str) or not is_run_id(found["run"]) or not begin["nodes"]:
        raise ValueError("no run")
    return dict(begin, run=found["run"])


def named(value: Any) -> str:
    """Returns `value` if it is a host name or an address. Raises ValueError for any other value."""
    if not isinstance(value, str) or not re.match(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]{0,254}\Z", value):
        raise ValueError("no name")
    return value


def program(module: str) -> "subprocess.Popen[bytes]":
    """Starts a node program, such as `fleet.node.run.supervise`, in a new process and session."""
    argv = [sys.executable, "-I", "-S", "-c", BEGIN % module, archive()]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def answer_in(output: bytes) -> "dict[str, Any]":
    """Returns the first message in a program's output, or {} if no message is complete."""
    data, head = output.partition(PREAMBLE)[2], struct.calcsize(HEADER)
    while len(data) >= head:
        kind, _, size = struct.unpack_from(HEADER, data)
        payload, data = data[head : head + size], data[head + size :]
        if kind == MESSAGE and len(payload) == size:
            return json.loads_object(payload)
    return {}


def archive() -> str:
    """Returns the path from which `fleet` is imported: the zipapp, or the folder of an installed package."""
    return os.path.abspath(__file__).partition(os.sep + os.path.join("fleet", "node") + os.sep)[0]


def source(module: str) -> str:
    """Returns the source text of a module below fleet.node, from an installed package or from the zipapp."""
    import pkgutil

    name = "fleet.node." + module
    return (pkgutil.get_data(name.rpartition(".")[0], name.rpartition(".")[2] + ".py") or b"").decode("utf-8")

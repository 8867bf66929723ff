"""Stands in for torchrun: starts a node's ranks with its variables, passes signals on to them, and ends as it does.

It has the static rendezvous only, and refuses every option that it does not know. tests/node/test_standin.py runs the
same cases through both, so that it cannot drift.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import string
import subprocess
import sys
import tempfile
import time
import uuid
from types import FrameType
from typing import Any, cast

MEETING, EXIT_BARRIER, SHUTDOWN = 900.0, 300.0, 30.0  # seconds
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
OPTIONS = {
    "nnodes": "1",
    "nproc-per-node": "1",
    "node-rank": "0",
    "master-addr": "127.0.0.1",
    "master-port": "29500",
    "local-addr": "",
    "rdzv-id": "none",
    "max-restarts": "0",
    "shutdown-timeout": str(SHUTDOWN),
}
FAILURE = """[{number}]:
  time      : {time}
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: {pid}) {signal}
  error_file: <N/A>
  traceback : {why}"""
THREADS = """
*****************************************
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being \
overloaded, please further tune the variable for optimal performance in your application as needed.
*****************************************"""
Ranks = dict[int, subprocess.Popen[bytes]]


class SignalException(Exception):
    __module__ = "torch.distributed.elastic.multiprocessing.api"


class ChildFailedError(Exception):
    __module__ = "torch.distributed.elastic.multiprocessing.errors"


class Nodes:
    """The agents of a run. Each has a connection to the first, where torch has a store."""

    def __init__(self, address: str, port: int, rank: int, count: int) -> None:
        self.rank = rank
        if rank == 0:
            self.server = socket.create_server(("", port))
            links = [self.server.accept()[0] for _ in range(1, count)]
        else:
            links = [connect(address, port)]
        self.links = [link.makefile("rw") for link in links]

    def share(self, own: int) -> dict[int, int]:
        """Returns what each node shares, by its rank, once all have."""
        if self.rank:
            self.send([self.rank, own])
            return dict(self.receive(self.links[0]))
        table = [[0, own], *map(self.receive, self.links)]
        self.send(table)
        return dict(table)

    def send(self, message: Any) -> None:
        for link in self.links:
            print(json.dumps(message), file=link, flush=True)

    def receive(self, link: Any) -> Any:
        line = link.readline()
        if not line and self.rank == 0:  # a store does not notice that an agent is gone
            time.sleep(EXIT_BARRIER)
        return json.loads(line)


def connect(address: str, port: int) -> socket.socket:
    end = time.monotonic() + MEETING
    while True:
        try:
            return socket.create_connection((address, port))
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def log(level: str, text: str) -> None:
    place = "torch/distributed/elastic/multiprocessing/api.py:1]"
    print(f"{level}{time.strftime('%m%d %H:%M:%S')}.000000 {os.getpid()} {place} {text}", file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name, default in OPTIONS.items():
        other = name.replace("-", "_")
        parser.add_argument(f"--{name}", f"--{other}", default=os.environ.get(f"PET_{other.upper()}", default))
    parser.add_argument("--no-python", "--no_python", action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("script")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if ":" in options.nnodes or options.max_restarts != "0":
        parser.error("the real torchrun has elastic runs and restarts")
    if options.standalone:
        options.master_addr, options.rdzv_id = "localhost", str(uuid.uuid4())
        with socket.create_server(("", 0)) as free:
            options.master_port = free.getsockname()[1]
    return options


def start(options: argparse.Namespace, counts: dict[int, int], node: int, folder: str) -> Ranks:
    count, world, first = counts[node], str(sum(counts.values())), sum(counts[each] for each in range(node))
    env = {
        **({"OMP_NUM_THREADS": "1"} if count > 1 else {}),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **os.environ,
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(len(counts)),
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(count),
        "WORLD_SIZE": world,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": options.master_addr,
        "MASTER_PORT": str(options.master_port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": options.rdzv_id,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": SIGNALS,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    if count > 1 and "OMP_NUM_THREADS" not in os.environ:
        print(THREADS, file=sys.stderr, flush=True)
    python = [] if options.no_python else [sys.executable, "-u", *["-m"] * options.module]
    ranks = {}
    for local in range(count):
        rank, file = str(first + local), os.path.join(folder, str(local), "error.json")
        own = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": str(local), "TORCHELASTIC_ERROR_FILE": file}
        words = [string.Template(word).safe_substitute(local_rank=local) for word in options.words]
        argv = [*python, options.script, *words]
        ranks[first + local] = subprocess.Popen(argv, env={**env, **own}, start_new_session=True)
    return ranks


def close(ranks: Ranks, signum: signal.Signals, timeout: float = SHUTDOWN) -> None:
    alive = [process for process in ranks.values() if process.poll() is None]
    for process in alive:
        log("W", f"Sending process {process.pid} closing signal {signum.name}")
        os.killpg(process.pid, signum)
    end = time.monotonic() + timeout
    for process in alive:
        try:
            process.wait(max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            log("W", f"Unable to shutdown process {process.pid} via {signum}, forcefully exiting via {signal.SIGKILL}")
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait(ranks: Ranks) -> None:
    """Returns when all ranks have ended with 0. Ends them when one of them fails, and raises torch's summary."""
    while True:
        time.sleep(0.1)
        codes = {rank: process.poll() for rank, process in ranks.items()}
        if any(codes.values()):
            break
        if None not in codes.values():
            return
    close(ranks, signal.SIGTERM)
    failed = sorted((rank for rank in ranks if ranks[rank].returncode), key=lambda rank: not codes[rank])
    parts = [failure(number, rank, rank - min(ranks), ranks[rank]) for number, rank in enumerate(failed)]
    code, pid, argv = ranks[failed[0]].returncode, ranks[failed[0]].pid, cast("list[str]", ranks[failed[0]].args)
    log("E", f"failed (exitcode: {code}) local_rank: {failed[0] - min(ranks)} (pid: {pid}) of binary: {argv[0]}")
    name = next(word for word in argv if word != sys.executable and word[0] != "-")
    edge, line, others = "=" * 60, "-" * 60, "\n".join(parts[1:]) or "  <NO_OTHER_FAILURES>"
    root = f"Root Cause (first observed failure):\n{parts[0]}"
    raise ChildFailedError(f"\n{edge}\n{name} FAILED\n{line}\nFailures:\n{others}\n{line}\n{root}\n{edge}")


def failure(number: int, rank: int, local: int, process: subprocess.Popen[bytes]) -> str:
    code, pid, name = process.returncode, process.pid, ""
    why = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    if code < 0:
        name = f"({signal.Signals(-code).name})"
        why, name = f"Signal {-code} {name} received by PID {pid}", f" {name}"
    now, host = time.strftime("%Y-%m-%d_%H:%M:%S"), socket.getfqdn()
    return FAILURE.format(
        number=number, time=now, host=host, rank=rank, local=local, code=code, pid=pid, signal=name, why=why
    )


def raise_it(signum: int, _: FrameType | None) -> None:
    name = signal.Signals(signum)
    raise SignalException(f"Process {os.getpid()} got signal: {name}", name)


def main() -> None:
    options = parse()
    nodes = Nodes(options.master_addr, int(options.master_port), int(options.node_rank), int(options.nnodes))
    counts = nodes.share(int(options.nproc_per_node))
    ranks: Ranks = {}
    with tempfile.TemporaryDirectory(prefix="torchelastic_") as folder:
        for each in SIGNALS.split(","):
            signal.signal(getattr(signal, each), raise_it)
        try:
            ranks = start(options, counts, nodes.rank, folder)
            wait(ranks)
            try:
                nodes.share(0)
            except (OSError, ValueError) as error:
                log("E", f"Error waiting on exit barrier: {error}")
        except SignalException as error:
            log("W", f"Received {error.args[1]} death signal, shutting down workers")
            close(ranks, error.args[1], float(options.shutdown_timeout))
            raise SignalException(error.args[0]) from None


if __name__ == "__main__":
    main()

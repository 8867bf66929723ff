"""A program by hand, with its own launcher over ssh, one shell a node; and by fleet: what each came to."""

from __future__ import annotations

import base64
import io
import json
import re
import shlex
import subprocess
import tarfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.foreign.packages import fetched
from tests.foreign.program import BIN, PACKAGES, WORK, WRITTEN, Program
from tests.free_port import free_port
from tests.lab.virtual_lab import VirtualLab

LIMIT = 240.0  # seconds
LOGS = "/root/by-hand"
SURVEY = Path(__file__).with_name("survey.py")
OURS = re.compile(r"^(/usr/sbin/)?sshd")  # sessions that linger
APART = (LOGS, "/root/.fleet")  # what each side has for itself
Logs = dict[tuple[int, int], tuple[bytes, bytes]]  # (attempt, rank) -> stdout, stderr


@dataclass
class Outcome:
    """code: as fleet counts. logs: the ranks'. merged: a rank's streams are one log. files: node -> path -> what it is.
    left: node -> processes, shared memory and temporary files that were not there before. said: of the launcher."""

    code: int = 0
    logs: Logs = field(default_factory=dict)
    merged: bool = False
    files: dict[int, dict[str, list[Any]]] = field(default_factory=dict)
    left: dict[int, Counter[str]] = field(default_factory=dict)
    said: str = ""
    seconds: float = 0.0
    odd: list[str] = field(default_factory=list)


class Lab:
    """Hosts of a lab, ready for programs: what each needs is copied there once."""

    def __init__(self, lab: VirtualLab) -> None:
        self.lab = lab.enrol()
        self.copied: set[str] = set()

    def survey(self, node: int) -> dict[str, Any]:
        done = self.lab.inside(self.lab.names[node], "python3", "-c", SURVEY.read_text(), WORK)
        found: dict[str, Any] = json.loads(done.stdout)
        found["processes"] = {pid: words for pid, words in found["processes"].items() if not OURS.search(words)}
        return found

    def copy(self, host: str, source: Path, target: str) -> None:
        line = f"rm -rf {shlex.quote(target)} && mkdir -p {shlex.quote(target)} && tar -xf - -C {shlex.quote(target)}"
        tar = subprocess.run(
            ["tar", "-cf", "-", "--exclude=__pycache__", "-C", str(source), "."], stdout=subprocess.PIPE, check=True
        )
        self.lab.inside(host, "sh", "-c", line, stdin=tar.stdout)

    def prepare(self, program: Program) -> list[dict[str, Any]]:
        """A new working folder on each node; what is there before the program."""
        before = []
        for node in range(program.nodes):
            host = self.lab.names[node]
            self.copy(host, WRITTEN, WORK)
            if program.package and f"{host} {program.package}" not in self.copied:
                self.copy(host, fetched(program.package), f"{PACKAGES}/{program.package}")
                self.copied.add(f"{host} {program.package}")
            self.lab.sh(host, f"rm -rf {LOGS} && touch {LOGS} {LOGS}.hosts && rm {LOGS}")
            before.append(self.survey(node))
        return before

    def collect(self, program: Program, before: list[dict[str, Any]], outcome: Outcome) -> Outcome:
        """What is there now and was not; processes that end by themselves are waited for a little."""
        for node in range(program.nodes):
            host = self.lab.names[node]
            deadline = time.monotonic() + 8
            now = self.survey(node)
            while (new := now["processes"].keys() - before[node]["processes"]) and time.monotonic() < deadline:
                time.sleep(0.5)
                now = self.survey(node)
            left = [f"process {now['processes'][pid]}" for pid in new]
            for pid in new:
                self.lab.sh(host, f"kill -9 {int(pid)}", check=False)
            paths = [p for p in now["paths"] if p not in before[node]["paths"] and not p.startswith(APART)]
            if paths:
                self.lab.inside(host, "rm", "-rf", *paths)
            outcome.left[node] = Counter(left + paths)
            old = before[node]["files"]
            outcome.files[node] = {path: what for path, what in now["files"].items() if old.get(path) != what}
        return outcome

    # -- by hand ----------------------------------------------------------------------------------------------
    def by_hand(self, program: Program) -> Outcome:
        before = self.prepare(program)
        lines = hand_lines(program, self.lab.names[: program.nodes], self.lab.address(self.lab.names[0]))
        began = time.monotonic()
        with ThreadPoolExecutor(len(lines)) as pool:
            shells = list(pool.map(self.shell, lines))
        outcome = Outcome(merged=program.launcher == "deepspeed", seconds=time.monotonic() - began)
        codes = [shell.returncode for shell in shells]
        outcome.said = "\n".join(s.stdout.decode(errors="replace") + s.stderr.decode(errors="replace") for s in shells)
        outcome.code = code_of(codes, outcome.said, program.launcher)
        if program.launcher in ("command", "script", "node", "ssh"):
            outcome.logs = {(0, rank): (shell.stdout, shell.stderr) for rank, shell in enumerate(shells)}
        else:
            for node in range(program.nodes):
                outcome.logs.update(self.hand_logs(program, node))
        return self.collect(program, before, outcome)

    def shell(self, where: tuple[str, str]) -> subprocess.CompletedProcess[bytes]:
        host, line = where
        ssh = ["ssh", "-F", str(self.lab.home / ".ssh/config"), "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", host]
        try:
            return subprocess.run([*ssh, line], input=b"", capture_output=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(late.cmd, 124, late.stdout or b"", late.stderr or b"")

    def hand_logs(self, program: Program, node: int) -> Logs:
        """What a launcher has kept of each rank."""
        packed = self.lab.sh(self.lab.names[node], f"mkdir -p {LOGS} && tar -cf - -C {LOGS} . | base64 -w0")
        logs: Logs = {}
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is None:
                    continue
                data = content.read()
                if found := re.search(r"/attempt_(\d+)/(\d+)/(stdout|stderr)\.log$", member.name):
                    attempt, rank = int(found[1]), node * program.ranks + int(found[2])
                    out, err = logs.get((attempt, rank), (b"", b""))
                    logs[attempt, rank] = (data, err) if found[3] == "stdout" else (out, data)
                elif found := re.search(r"_rank(\d+)\.log$", member.name):
                    logs[0, int(found[1])] = (data, b"")
        return logs

    # -- by fleet ---------------------------------------------------------------------------------------------
    def inventory(self, program: Program, folder: Path) -> None:
        hosts = {
            name: {"address": self.lab.address(name), "slots": program.ranks}
            for name in self.lab.names[: program.nodes]
        }
        defaults = {"user": "root", "python": f"{BIN}/python", "workdir": WORK}
        (folder / "fleet.yaml").write_text(json.dumps({"defaults": defaults, "hosts": hosts}))  # JSON is YAML

    def by_fleet(self, program: Program, folder: Path) -> Outcome:
        before = self.prepare(program)
        self.inventory(program, folder)
        words = fleet_words(program)
        began = time.monotonic()
        done = self.lab.fleet("-i", "fleet.yaml", *words, cwd=folder, timeout=LIMIT)
        outcome = Outcome(done.returncode, said=done.stdout + done.stderr, seconds=time.monotonic() - began)
        runs = [path for path in folder.glob("runs/*-*") if path.is_dir() and not path.is_symlink()]
        if len(runs) != 1:
            outcome.odd.append(f"{len(runs)} runs: {done.stderr[-1500:]}")
            return self.collect(program, before, outcome)
        (run,) = runs
        if incomplete := json.loads((run / "summary.json").read_text())["incomplete_logs"]:
            outcome.odd.append(f"incomplete logs: {incomplete}")
        outcome.logs = fleet_logs(run)
        outcome.odd += not_shown(outcome.logs, done.stdout)
        return self.collect(program, before, outcome)


def fleet_logs(run: Path) -> Logs:
    logs: Logs = {}
    last = len([path for path in run.glob("attempt*") if path.is_dir()])
    for out in run.rglob("rank*.out"):
        found = re.fullmatch(r"attempt(\d+)", out.parent.parent.name)
        key = int(found[1]) if found else last, int(out.stem[4:])
        logs[key] = (out.read_bytes(), out.with_suffix(".err").read_bytes())
    return logs


def not_shown(logs: Logs, screen: str) -> list[str]:
    """Ranks whose last line did not come to fleet's own stdout."""
    odd = []
    for (attempt, rank), (out, _) in logs.items():
        lines = [line for line in out.decode(errors="replace").splitlines() if line.strip().isascii() and line.strip()]
        if lines and len(lines[-1]) < 200 and lines[-1] not in screen:
            odd.append(f"attempt {attempt}'s rank {rank}: not on the screen: {lines[-1]!r}")
    return odd


# -- command lines ------------------------------------------------------------------------------------------------
def hand_lines(program: Program, hosts: list[str], address: str) -> list[tuple[str, str]]:
    """(host, what is typed there) for each shell."""
    port = free_port()
    words = shlex.join(program.filled(port + 2))
    options = shlex.join(program.options)
    world, n = program.nodes * program.ranks, program.ranks
    lines = []
    for node, host in enumerate(hosts):
        if program.launcher in ("torchrun", "ssh"):
            where = f"--node-rank {node} --master-addr {address} --master-port {port}"
            if "--max-restarts" in program.options:
                where = f"--rdzv-backend c10d --rdzv-endpoint {address}:{port} --rdzv-id {port}"
            logs = f"--log-dir {LOGS} --redirects 3" if program.launcher == "torchrun" else ""
            line = f"torchrun --nnodes {len(hosts)} --nproc-per-node {n} {where} {logs} {options} {words}"
        elif program.launcher == "accelerate":
            where = f"--machine_rank {node} --main_process_ip {address} --main_process_port {port}"
            many = f"--multi_gpu --num_machines {len(hosts)} --num_processes {world} {where}"
            line = f"accelerate launch {many} --log_dir {LOGS} --tee 3 {options} {words}"
        elif program.launcher == "deepspeed":
            hostfile = "".join(f"{name} slots={n}\\n" for name in hosts)
            where = f"--no_ssh --hostfile {LOGS}.hosts --node_rank {node} --master_addr {address} --master_port {port}"
            line = f"deepspeed {where} --enable_each_rank_log {LOGS} {options} {words}"
            line = f"printf '{hostfile}' > {LOGS}.hosts && {line}"
        elif program.launcher == "colossalai":
            kept = f"--extra_launch_args log_dir={LOGS},redirects=3"
            line = f"colossalai run --nproc_per_node {n} --master_port {port} {kept} {options} {words}"
        elif program.launcher in ("script", "node"):
            known = f"NNODES={len(hosts)} NODE_RANK={node} NPROC_PER_NODE={n} MASTER_ADDR={address} MASTER_PORT={port}"
            line = f"export {known}; {'./' * (program.launcher == 'script')}{words}"
        else:
            for local in range(n):
                known = f"RANK={node * n + local} LOCAL_RANK={local} WORLD_SIZE={world} LOCAL_WORLD_SIZE={n}"
                known = f"{known} NODE_RANK={node} NNODES={len(hosts)} MASTER_ADDR={address} MASTER_PORT={port}"
                lines.append((host, f"export {known}; {words}"))
            continue
        lines.append((host, line))
    env = shlex.join(f"{name}={value}" for name, value in program.environment.items())
    return [(host, f"cd {WORK} && export PATH={BIN}:$PATH {env} && {{ {line}; }}; exit $?") for host, line in lines]


def fleet_words(program: Program) -> list[str]:
    words = ["launch"]
    if program.launcher not in ("ssh", "script"):  # torchrun is the default, a shell script is started once a node
        words += ["--engine", *(["command", "--per", "node"] if program.launcher == "node" else [program.launcher])]
    for name, value in program.environment.items():
        words += ["--env", f"{name}={value}"]
    if program.launcher == "accelerate":
        words += ["--multi-gpu"]
    return [*words, *program.options, *program.filled(free_port())]


ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):.*?exitcode\s*: (-?\d+)", re.S)


def code_of(codes: list[int], said: str, launcher: str) -> int:
    """What fleet ends with, of what the shells by hand ended with: torchrun makes 1 of all, and reports the first
    failure's, with minus for a signal; so does DeepSpeed's launcher, as its own code."""
    if not any(codes):
        return 0
    started = launcher not in ("command", "script", "node")  # by it, and not by something in it
    causes = [int(code) for code in ROOT_CAUSE.findall(said)] if started else []
    code = causes[0] if causes else next(code for code in codes if code)
    if launcher == "deepspeed" and code > 192:
        code -= 256
    return 128 - code if code < 0 else code

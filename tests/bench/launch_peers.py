"""Table 2: a 4-node script that forms a process group, adds one number up and ends."""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable

from tests.bench.fleet_lab import BIN, FLEET, BenchLab
from tests.bench.harness import RUN_LIMIT, Contestant, Done, command

AIMS = {"bare ssh + torchrun": 1.0, "deepspeed launcher (pdsh)": 0.65}
WORKDIR = "/root/bench"
SCRIPT = """\
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {value.item():g}", flush=True)
dist.destroy_process_group()
"""


def prepare(lab: BenchLab) -> None:
    """The script to every node, the interface that training traffic takes there into `interface`."""
    source = lab.home / "job"
    source.mkdir()
    (source / "sum.py").write_text(SCRIPT)
    lab.fleet("sync", str(source), "--to", WORKDIR)


def interface_of(lab: BenchLab) -> str:
    line = f"ip -o -4 addr show to {lab.addresses[lab.names[0]]}"
    argv = ["ssh", "-F", str(lab.ssh_config), lab.names[0], line]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()[1]


def all_summed(nodes: int) -> Callable[[Done], str | None]:
    def check(done: Done) -> str | None:
        wanted = [f"rank {rank} of {nodes}: sum {nodes}" for rank in range(nodes)]
        if done.status or not all(line in done.output for line in wanted):
            return f"exit status {done.status}: {done.output[-300:]!r}"
        return None

    return check


def bare_ssh(lab: BenchLab, interface: str) -> Callable[[], Done]:
    """One ssh a node, torchrun with its node rank: what people do by hand, in the shape that is fastest."""
    env = f"env GLOO_SOCKET_IFNAME={interface} OMP_NUM_THREADS=1"

    def run() -> Done:
        port = 20000 + free_port() % 9000
        started = []
        for rank, name in enumerate(lab.names):
            line = (
                f"cd {WORKDIR} && {env} {shlex.quote(str(BIN / 'torchrun'))} --nnodes {len(lab.names)} "
                f"--nproc-per-node 1 --node-rank {rank} --master-addr {lab.addresses[lab.names[0]]} "
                f"--master-port {port} sum.py"
            )
            started.append(
                subprocess.Popen(
                    ["ssh", "-F", str(lab.ssh_config), name, line],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        output, status = "", 0
        deadline = time.monotonic() + RUN_LIMIT
        try:
            for process in started:
                output += process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
                status = status or process.returncode
        except subprocess.TimeoutExpired:
            return Done(124, f"no end within {RUN_LIMIT:g} s")
        finally:
            for process in started:
                process.kill()  # nothing to do where it has ended
                process.wait()
        return Done(status, output)

    return run


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def deepspeed(lab: BenchLab, interface: str) -> Contestant:
    name = "deepspeed launcher (pdsh)"
    gone = [tool for tool in ("deepspeed", "pdsh") if not shutil.which(tool, path=lab.env["PATH"])]
    if gone:
        return Contestant(name, lambda: Done(1, ""), lambda done: None, f"{' and '.join(gone)} not installed")
    hostfile = lab.home / "hostfile"
    hostfile.write_text("".join(f"{host} slots=1\n" for host in lab.names))
    # it calls `ssh` by name and takes no option for it: this one reads the lab's configuration
    tools = lab.home / "bin"
    tools.mkdir()
    wrapper = tools / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {shlex.quote(str(lab.ssh_config))} "$@"\n')
    wrapper.chmod(0o755)
    env = {
        **lab.env,
        "PATH": f"{tools}:{lab.env['PATH']}",
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    # what it exports to the nodes beside its own list
    (lab.home / ".deepspeed_env").write_text(
        f"GLOO_SOCKET_IFNAME={interface}\nDS_ACCELERATOR=cpu\nOMP_NUM_THREADS=1\nPATH={BIN}:/usr/bin:/bin\n"
    )
    argv = [
        "deepspeed",
        "--hostfile",
        str(hostfile),
        "--launcher",
        "pdsh",
        "--master_addr",
        lab.addresses[lab.names[0]],
        "--force_multi",
        f"{WORKDIR}/sum.py",
    ]
    return Contestant(name, command(argv, env, str(lab.home)), all_summed(len(lab.names)))


def contestants(lab: BenchLab) -> tuple[Contestant, list[Contestant]]:
    """(fleet, peers); one rank on each host."""
    prepare(lab)
    interface = interface_of(lab)
    check = all_summed(len(lab.names))
    launch = [FLEET, "-i", "lab", "launch", "--workdir", WORKDIR, "sum.py"]
    return (
        Contestant("fleet", command(launch, lab.env, str(lab.home)), check),
        [Contestant("bare ssh + torchrun", bare_ssh(lab, interface), check), deepspeed(lab, interface)],
    )

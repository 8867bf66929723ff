"""Hosts of the lab as a platform's containers: the same command is started in each, in any order; nothing reaches from
one to another but what they open themselves. No ssh, nothing installed: the zipapp, on Debian's python."""

from __future__ import annotations

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fleet.ops.pack import pack
from tests.lab.virtual_lab import LabFactory, VirtualLab
from tests.node.nodes import until

pytestmark = pytest.mark.slow
PROGRAM = """\
import os, signal, sys, time
import torch, torch.distributed as dist

def save(*_):
    print("saved", flush=True)
    sys.exit(0)

dist.init_process_group("gloo")
rank, x = dist.get_rank(), torch.ones(1)
dist.all_reduce(x)
print("sum", int(x), sorted(n for n in os.environ if n.startswith("PET_")), flush=True)
if "fail" in sys.argv and rank == 2:
    raise ValueError("no such sample")
if "fail" in sys.argv or "hold" in sys.argv:
    signal.signal(signal.SIGTERM, save)
    time.sleep(600)
while "steps" in sys.argv and not os.path.exists("/share/over"):
    x = torch.ones(1)
    dist.all_reduce(x)
    if rank == 0:
        print("world", int(x), flush=True)
    time.sleep(0.3)
"""
Out = Future[tuple[int, str]]


@pytest.fixture(scope="module")
def lab(lab_factory: LabFactory, tmp_path_factory: pytest.TempPathFactory) -> VirtualLab:
    lab = lab_factory(4)
    file = pack(tmp_path_factory.mktemp("pack") / "fleet.pyz")
    for name, text in (("fleet.pyz", file.read_bytes()), ("t.py", PROGRAM.encode())):
        lab.inside(lab.names[0], "sh", "-c", f"cat >/share/{name}", stdin=text)
    return lab


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8)


class Job:
    """What a platform does: environ and command, of each container."""

    def __init__(self, lab: VirtualLab, pool: ThreadPoolExecutor, words: str, **environ: str) -> None:
        self.lab, self.pool, self.words = lab, pool, words
        self.environ = {"NPROC_PER_NODE": "2", "MASTER_ADDR": lab.names[0], "MASTER_PORT": "29500", **environ}
        lab.inside(lab.names[0], "sh", "-c", "rm -rf /share/over /share/*.log")

    def start(self, number: int, **environ: str) -> Out:
        """(exit code, all output) of a container's."""
        host = self.lab.names[number]
        given = " ".join(f"{name}='{value}'" for name, value in {**self.environ, **environ}.items())
        line = f"mkdir -p ~/c && cd ~/c && cp /share/t.py . && {given} /usr/bin/python3 /share/fleet.pyz"
        line += f" --python {sys.executable} {self.words} >/share/{host}.log 2>&1"

        def run() -> tuple[int, str]:
            done = self.lab.inside(host, "timeout", "200", "bash", "-c", line, check=False)
            return done.returncode, self.said(number)

        return self.pool.submit(run)

    def said(self, number: int) -> str:
        return self.lab.sh(self.lab.names[0], f"cat /share/{self.lab.names[number]}.log 2>/dev/null || true")


def ranks(lab: VirtualLab) -> int:
    return sum(int(lab.sh(host, "pgrep -fc '[p]ython.* t\\.py' || true")) for host in lab.names)


def test_started_in_any_order(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py", NNODES="3", RDZV_ID="a")
    outs = []
    for number in (2, 1, 0):
        outs.insert(0, job.start(number))
        time.sleep(4)
    found = [out.result(200) for out in outs]
    assert [code for code, _ in found] == [0, 0, 0], found
    assert [text.count("] sum 6 []") for _, text in found] == [2, 2, 2]
    first = lab.names[0]
    assert (
        f"waiting for {first}:29500, which begins first" in found[2][1] and f"{first} is there, 1 of 3" in found[0][1]
    )
    assert "[" + lab.names[0] + ":0]" in found[0][1], "the container of MASTER_ADDR is node 0"
    logs = lab.sh(first, "cat ~/c/runs/t-*/*/rank0.out")
    assert logs == "sum 6 []"


def test_the_platforms_own_ranks(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    """Kubeflow's: torchrun would take PET_* for its options."""
    first = lab.names[0]
    pet = {"PET_NNODES": "2", "PET_MASTER_ADDR": first, "PET_MASTER_PORT": "29500", "PET_NPROC_PER_NODE": "1"}
    job = Job(lab, pool, "t.py", WORLD_SIZE="2", **pet, PET_MAX_RESTARTS="7")
    outs = [job.start(number, RANK=rank, PET_NODE_RANK=rank) for number, rank in ((0, "0"), (1, "1"))]
    found = [out.result(200) for out in outs]
    assert [code for code, _ in found] == [0, 0] and "kubeflow: this is node rank 1, one of 2" in found[1][1], found
    assert [
        f"[{name}:{rank}] sum 2 []" in text
        for rank, (name, (_, text)) in enumerate(zip(lab.names, found, strict=False))
    ]


def test_the_first_failure_ends_all(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py fail", NNODES="3", RDZV_ID="b")
    found = [out.result(200) for out in [job.start(number) for number in range(3)]]
    failed = next(name for name, (_, text) in zip(lab.names, found, strict=False) if "fleet: failed: rank 2 on" in text)
    for name, (code, text) in zip(lab.names, found, strict=False):
        assert code == 1 and "ValueError: no such sample" in text, text
        assert (name == failed) != (f"rank 2 on {failed} failed" in text)
    until(lambda: ranks(lab) == 0)


def test_a_signal_of_the_platform_reaches_the_ranks_of_all(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py hold", NNODES="2", RDZV_ID="c")
    outs = [job.start(number) for number in range(2)]
    until(lambda: all("sum 4" in job.said(number) for number in range(2)))
    lab.sh(lab.names[1], "pkill -TERM -f '^/usr/bin/python3 /share/fleet.pyz'")
    found = [out.result(200) for out in outs]
    assert [code for code, _ in found] == [1, 143] and [text.count("saved") for _, text in found] == [2, 2], found


def test_an_elastic_run_goes_on_without_one_and_takes_another(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py steps", MIN_NNODES="2", MAX_NNODES="4", RDZV_ID="d")
    outs = [job.start(number) for number in (0, 1, 3)]
    until(lambda: "world 6" in job.said(0))
    lab.fleet("lab", "kill", lab.names[3], check=True)
    try:
        until(lambda: "world 4" in job.said(0), 120)
        outs.append(job.start(2))
        until(lambda: job.said(0).rpartition("world 4")[2].count("world 6") > 2, 120)
        lab.sh(lab.names[0], "touch /share/over")
        assert [outs[number].result(200)[0] for number in (0, 1, 3)] == [0, 0, 0], job.said(0)
        assert f"{lab.names[3]} is gone; the rest go on" in job.said(0)
    finally:
        lab.fleet("lab", "up", check=True)
        lab.refresh()


def test_what_cannot_meet_is_told(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    """Two of one rank, another run's rendezvous, another program, nobody: each within seconds, and nothing stays."""
    first, second, _, fourth = lab.names
    job = Job(lab, pool, "--wait 12 t.py", NNODES="3", RDZV_ID="e")
    leads = job.start(0)
    until(lambda: "is there, 1 of 3" in job.said(0))
    assert "another run answers there: e, of 3 nodes; this is x, of 3 nodes" in job.start(1, RDZV_ID="x").result(60)[1]
    assert "another run answers there" in job.start(1, NNODES="2").result(60)[1]
    code, text = leads.result(60)
    assert code == 123 and "within 12 s no run began" in text and "others are missing" in text, text
    ranked = Job(lab, pool, "--wait 12 t.py", NNODES="3", MASTER_PORT="29501")
    outs = [ranked.start(number, NODE_RANK=rank) for number, rank in ((0, "0"), (1, "1"))]
    until(lambda: "2 of 3" in ranked.said(0))
    assert f"two containers have node rank 1: {second} and {fourth}" in ranked.start(3, NODE_RANK="1").result(60)[1]
    assert [out.result(60)[0] for out in outs] == [123, 123]
    other = Job(lab, pool, "--wait 5 t.py", NNODES="2", RDZV_ID="f", MASTER_PORT="29502")
    code, text = other.start(1).result(60)
    assert code == 123 and f"within 5 s no run began at {first}:29502: nothing listens there" in text, text
    assert "does not resolve" in other.start(1, MASTER_ADDR="nowhere.invalid").result(60)[1]
    server = (
        "import socket; s=socket.create_server(('', 29502)); c,_=s.accept(); c.sendall(b'HTTP/1.1 400\\r\\n\\r\\n' * 9)"
    )
    held = pool.submit(lab.inside, first, "timeout", "20", "python3", "-c", server, check=False)
    time.sleep(1)
    assert f"what answers at {first}:29502 is no fleet" in other.start(1).result(60)[1]
    assert held.result(60) is not None and ranks(lab) == 0

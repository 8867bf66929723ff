"""Hosts of the lab as a platform's containers: the same command is started in each, in any order; nothing reaches from
one to another but what they open themselves. No ssh, nothing installed: the zipapp, on Debian's python."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fleet.node.run.rank.rank import STACK_SIGNAL
from fleet.ops.pack import pack
from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.node.nodes import until
from tests.standin import standin_python

PROGRAM = """\
import os, signal, sys, time

def save(*_):
    print("saved", flush=True)
    sys.exit(0)

if "hold" in sys.argv:
    signal.signal(signal.SIGTERM, save)
    print("held", flush=True)
    time.sleep(600)

rank, x = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
if "gloo" in sys.argv or "steps" in sys.argv:
    import torch, torch.distributed as dist

    dist.init_process_group("gloo")
    x = torch.ones(1)
    dist.all_reduce(x)
print("sum", int(x), sorted(n for n in os.environ if n.startswith("PET_")), flush=True)
if "fail" in sys.argv:
    if rank == 2:
        time.sleep(1)
        raise ValueError("no such sample")
    while "gloo" in sys.argv:
        dist.all_reduce(x)
    time.sleep(600)
while "steps" in sys.argv and not os.path.exists("/share/over"):
    x = torch.ones(1)
    dist.all_reduce(x)
    if rank == 0:
        print("world", int(x), flush=True)
    time.sleep(0.3)
if "torch" in sys.modules:
    dist.destroy_process_group()
"""
# what of a process its program may depend on
SHOWS = """\
import json, os, resource, sys, threading
import torch, torch.distributed as dist

status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
found = {
    "argv": sys.argv, "executable": sys.executable, "cwd": os.getcwd(), "path": sys.path, "flags": repr(sys.flags),
    "env": dict(os.environ), "umask": status["Umask"], "ignored": status["SigIgn"], "caught": status["SigCgt"],
    "blocked": status["SigBlk"], "affinity": sorted(os.sched_getaffinity(0)), "nice": os.nice(0),
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    "stdin": os.readlink("/proc/self/fd/0"),
    "files": [os.readlink(f) for f in map("/proc/self/fd/%d".__mod__, range(3, 64)) if os.path.islink(f)],
    "threads": torch.get_num_threads(),
}
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
found["sum"], found["rank"] = int(x), dist.get_rank()
dist.barrier()
dist.destroy_process_group()
folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
json.dump(found, open("%s/%s" % (folder, found["rank"]), "w"))
"""
# the oldest python at hand; hosts of the lab see this machine's
OLD = min(Path("/root/.pyenv/versions").glob("3.6.*/bin/python"), default=Path("/usr/bin/python3"))
STANDIN = standin_python()
Out = Future[tuple[int, str]]


@pytest.fixture(scope="module")
def lab(breakable: BreakableLab, tmp_path_factory: pytest.TempPathFactory) -> VirtualLab:
    lab = breakable
    file = pack(tmp_path_factory.mktemp("pack") / "fleet.pyz")
    for name, text in (("fleet.pyz", file.read_bytes()), ("t.py", PROGRAM.encode()), ("shows.py", SHOWS.encode())):
        lab.inside(lab.names[0], "sh", "-c", f"cat >/share/{name}", stdin=text)
    return lab


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8)


class Job:
    """What a platform does: environ and command, of each container. python: the zipapp's. train: the interpreter that
    the ranks have."""

    def __init__(
        self,
        lab: VirtualLab,
        pool: ThreadPoolExecutor,
        words: str,
        python: object = "/usr/bin/python3",
        train: str = STANDIN,
        **environ: str,
    ) -> None:
        self.lab, self.pool = lab, pool
        self.command = f"{python} /share/fleet.pyz --python {train} {words}"
        self.environ = {"NPROC_PER_NODE": "2", "MASTER_ADDR": lab.names[0], "MASTER_PORT": "29500", **environ}
        lab.inside(lab.names[0], "sh", "-c", "rm -rf /share/over /share/*.log")

    def start(self, number: int, **environ: str) -> Out:
        """(exit code, all output) of a container's."""
        host = self.lab.names[number]
        given = " ".join(f"{name}='{value}'" for name, value in {**self.environ, **environ}.items())
        line = f"mkdir -p ~/c && cd ~/c && cp /share/*.py . && export {given}; exec >/share/{host}.log 2>&1 </dev/null"
        line += f"; {self.command}"

        def run() -> tuple[int, str]:
            done = self.lab.inside(host, "timeout", "200", "bash", "-c", line, check=False)
            return done.returncode, self.output(number)

        return self.pool.submit(run)

    def begun(self, count: int, text: str) -> list[Out]:
        """Of so many containers, once each has printed it."""
        outs = [self.start(number) for number in range(count)]
        self.until(lambda: all(text in self.output(number) for number in range(count)))
        return outs

    def until(self, condition: Callable[[], Any], timeout: float = 60.0) -> None:
        """Waits for it; a failure shows what the containers wrote."""
        try:
            until(condition, timeout)
        except AssertionError as error:
            texts = "\n".join(f"--- {name}\n{self.output(at)}" for at, name in enumerate(self.lab.names))
            raise AssertionError(f"{error}\n{texts}") from None

    def signal(self, number: int, name: str) -> None:
        """To a container's runner alone."""
        self.lab.sh(self.lab.names[number], f"pkill -{name} -f '^/usr/bin/python3 /share/fleet.pyz'")

    def output(self, number: int) -> str:
        return self.lab.sh(self.lab.names[0], f"cat /share/{self.lab.names[number]}.log 2>/dev/null || true")


def ranks(lab: VirtualLab) -> int:
    return sum(int(lab.sh(host, "pgrep -fc '[p]ython.* t\\.py' || true")) for host in lab.names)


@pytest.mark.slow
def test_started_in_any_order(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py", NNODES="3", RDZV_ID="a")
    outs = []
    for number, begun in ((2, "which begins first"), (1, "which begins first"), (0, "is there, 1 of 3")):
        outs.insert(0, job.start(number))
        job.until(lambda number=number, begun=begun: begun in job.output(number))  # type: ignore[misc]
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("python", "train", "how"),
    [
        (OLD, STANDIN, "fail"),
        pytest.param("/usr/bin/python3", sys.executable, "fail gloo", marks=pytest.mark.real),
    ],
    ids=["standin", "real"],
)
def test_the_first_failure_ends_all(
    lab: VirtualLab, pool: ThreadPoolExecutor, python: object, train: str, how: str
) -> None:
    """It took the others down, whose errors are not in its place; one record of all, where they share a folder."""
    words = f"--runs-dir /share/runs t.py {how}"
    job = Job(lab, pool, words, python, train, NNODES="3", RDZV_ID="b", NPROC_PER_NODE="1")
    lab.inside(lab.names[0], "rm", "-rf", "/share/runs")
    found = [out.result(200) for out in [job.start(number) for number in range(3)]]
    summary = json.loads(lab.sh(lab.names[0], "cat /share/runs/t-*/summary.json"))
    first = summary["first_failure"]
    cause = f"rank 2 on {first['host']} (node rank 2) failed: exit code 1"
    assert (first["rank"], first["message"], first["why"]) == (2, cause, "ValueError: no such sample"), summary
    assert summary["exit_code"] == 1 and list(summary["hosts"]) == sorted(lab.names[:3]) and summary["unknown"] == []
    for code, text in found:
        assert code == 1 and f"fleet: {cause}: ValueError: no such sample" in text, text
    shown = lab.sh(lab.names[0], f"cd /share && {sys.executable} -m fleet runs")
    assert re.search(r"^t-\S+ +failed +1 ", shown, re.M), shown
    until(lambda: ranks(lab) == 0)


@pytest.mark.slow
def test_a_container_that_is_killed(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "--grace 5 t.py hold", NNODES="3", RDZV_ID="k")
    outs = job.begun(3, "held")
    job.signal(2, "KILL")
    found = [out.result(100) for out in outs]
    assert [code for code, _ in found[:2]] == [1, 1] and found[2][0] in (137, -9), found  # of a shell, or its own
    for _, text in found[:2]:
        assert f"fleet: {lab.names[2]} (node rank 2) was lost: its connection ended" in text and "saved" in text, text
    until(lambda: ranks(lab) == 0, 60)


@pytest.mark.slow
def test_one_that_cannot_begin_reports_why_to_all(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py hold", NNODES="2", RDZV_ID="n")
    lab.sh(lab.names[1], "rm -rf ~/.fleet && touch ~/.fleet")
    try:
        found = [out.result(100) for out in [job.start(number) for number in range(2)]]
    finally:
        lab.sh(lab.names[1], "rm -f ~/.fleet")
    assert [code for code, _ in found] == [1, 123], found
    assert f"fleet: {lab.names[1]} (node rank 1) cannot begin: " in found[0][1] and ".fleet" in found[0][1], found
    until(lambda: ranks(lab) == 0)


@pytest.mark.slow
def test_a_signal_of_the_platform_reaches_the_ranks_of_all(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py hold", NNODES="2", RDZV_ID="c")
    outs = job.begun(2, "held")
    job.signal(1, "TERM")
    found = [out.result(200) for out in outs]
    assert [code for code, _ in found] == [1, 143] and [text.count("saved") for _, text in found] == [2, 2], found
    assert all(f"fleet: {lab.names[1]} was ended by signal 15 of its platform" in text for _, text in found), found


@pytest.mark.real
def test_an_elastic_run_goes_on_without_one_and_takes_another(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    nodes = {"MIN_NNODES": "2", "MAX_NNODES": "4", "RDZV_ID": "d", "NPROC_PER_NODE": "1"}
    job = Job(lab, pool, "t.py steps", train=sys.executable, **nodes)
    outs = [job.start(number) for number in (0, 1, 3)]
    job.until(lambda: "world 3" in job.output(0))
    lab.fleet("lab", "kill", lab.names[3], check=True)
    try:
        job.until(lambda: "world 2" in job.output(0), 120)
        outs.append(job.start(2))
        job.until(lambda: job.output(0).rpartition("world 2")[2].count("world 3") > 2, 120)
        lab.sh(lab.names[0], "touch /share/over")
        assert [outs[number].result(200)[0] for number in (0, 1, 3)] == [0, 0, 0], job.output(0)
        assert f"{lab.names[3]} is gone; the rest go on" in job.output(0)
    finally:
        lab.fleet("lab", "up", check=True)
        lab.refresh()


@pytest.mark.slow
def test_what_cannot_meet_is_reported(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    """Two of one rank, another run's rendezvous, another program, nobody: each within seconds, and nothing stays."""
    first, second, _, fourth = lab.names
    job = Job(lab, pool, "--wait 12 t.py", NNODES="3", RDZV_ID="e")
    leads = job.start(0)
    job.until(lambda: "is there, 1 of 3" in job.output(0))
    assert "another run answers there: e, of 3 nodes; this is x, of 3 nodes" in job.start(1, RDZV_ID="x").result(60)[1]
    assert "another run answers there" in job.start(1, NNODES="2").result(60)[1]
    code, text = leads.result(60)
    assert code == 123 and "within 12 s no run began" in text and "others are missing" in text, text
    ranked = Job(lab, pool, "--wait 12 t.py", NNODES="3", MASTER_PORT="29501")
    outs = [ranked.start(number, NODE_RANK=rank) for number, rank in ((0, "0"), (1, "1"))]
    ranked.until(lambda: "2 of 3" in ranked.output(0))
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


# name of a variable -> what fleet has in the place of what is there by hand
OTHER_VARIABLES = {
    r"FLEET_\w+": "fleet's own",
    r"(GLOO|NCCL)_SOCKET_IFNAME": "the network that leads to the others",
    r"MASTER_ADDR": "the same host by its address, where by hand it is a name",
    r"MASTER_PORT|TORCHELASTIC_(RUN_ID|ERROR_FILE|MAX_RESTARTS)": "another port, id, folder",
    r"TORCHELASTIC_USE_AGENT_STORE": "by hand the store is the agent's, as the rendezvous is c10d",
    r"PATH|VIRTUAL_ENV": "the folder of the training interpreter comes first",
    r"PYTHONUNBUFFERED": "lines come as they are written",
    r"_": "what a shell sets that starts torchrun",
}


@pytest.mark.real
def test_the_same_by_hand(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    """The note's torchrun line, and fleet: what a rank finds is alike, but for what is named."""
    hand = Job(lab, pool, "", NNODES="2", RDZV_ID="h")
    torchrun = Path(sys.executable).with_name("torchrun")
    hand.command = (
        f"{torchrun} --nnodes $NNODES --nproc_per_node $NPROC_PER_NODE --rdzv_id $RDZV_ID --rdzv_backend c10d"
        " --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT shows.py /share/hand --lr '1 2'"
    )
    fleet = Job(lab, pool, "shows.py /share/fleet --lr '1 2'", train=sys.executable, NNODES="2", RDZV_ID="h2")
    sides = []
    for job, folder in ((hand, "hand"), (fleet, "fleet")):
        lab.sh(lab.names[0], f"rm -rf /share/{folder}")
        found = [out.result(200) for out in [job.start(number) for number in range(2)]]
        assert [code for code, _ in found] == [0, 0], found
        text = lab.sh(lab.names[0], f"cd /share/{folder} && for r in 0 1 2 3; do cat $r; echo; done")
        sides.append([json.loads(line) for line in text.splitlines() if line])
    for by_hand, by_fleet in zip(*sides, strict=True):
        assert by_hand.pop("argv")[1:] == ["/share/hand", *by_fleet.pop("argv")[2:]]
        mine, theirs = by_fleet.pop("env"), by_hand.pop("env")
        # where its stacks are written to, when a signal of fleet's own asks for them
        assert re.fullmatch(r"/root/\.fleet/runs/.*\.stack", by_fleet["files"].pop()), by_fleet
        assert int(by_fleet.pop("caught"), 16) ^ int(by_hand.pop("caught"), 16) == 1 << STACK_SIGNAL - 1
        for side in (by_fleet, by_hand):  # the run's mark, see node/run/marks.py
            side["limits"].pop("RLIMIT_RTTIME")
        assert by_fleet == by_hand
        other = {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}
        known = "|".join(OTHER_VARIABLES)
        of_node = {"GROUP_RANK", "RDZV_ID"}  # c10d ranks nodes as they come
        assert {name for name in other - of_node if not re.fullmatch(known, name)} == set()


@pytest.mark.slow
def test_the_playbook(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    """Where fleet is in the image."""
    book = Path(__file__).parents[2] / "playbooks" / "aistation.yaml"
    lab.inside(lab.names[0], "sh", "-c", "cat >/share/aistation.yaml", stdin=book.read_bytes())
    job = Job(lab, pool, "", NNODES="2", RDZV_ID="p")
    variables = f"--var script=t.py --var python={STANDIN}"
    job.command = f"{sys.executable} -m fleet play /share/aistation.yaml {variables}"
    found: list[Any] = [out.result(200) for out in [job.start(number) for number in range(2)]]
    assert [code for code, _ in found] == [0, 0], found
    assert all("sum 4 []" in text for _, text in found), found

"""Hosts of the lab as a platform's containers: the same command is started in each, in any order; nothing reaches from
one to another but what they open themselves. No ssh, nothing installed: the zipapp, on Debian's python."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator
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

if "saves" in sys.argv:
    began, seconds = [], float(sys.argv[-1])

    def note(number, _):
        began.append(time.monotonic())
        print("got", number, flush=True)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, note)
    print("held", flush=True)
    while not began or time.monotonic() < began[0] + seconds:
        time.sleep(0.1)
        if began:
            print("lasted %.1f" % (time.monotonic() - began[0]), flush=True)
    print("saved", flush=True)
    sys.exit()

rank, x = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
attempt = os.environ.get("FLEET_ATTEMPT")
if "lines" in sys.argv:
    for number in range(60):
        print("line", number, flush=True)
        time.sleep(0.2)
if "secret" in sys.argv:
    print("knows", [n for n, v in os.environ.items() if "s3cr" in n + v or n == "FLEET_SECRET"], flush=True)
    time.sleep(3)
if "once" in sys.argv:
    print("attempt", attempt, flush=True)
    if attempt == "0":
        time.sleep(1 + 600 * (rank != 1))
        sys.exit(7)
if "wait0" in sys.argv:
    print("attempt", attempt, flush=True)
    time.sleep(600 * (attempt == "0"))
if "stall" in sys.argv:
    print("begun", flush=True)
    time.sleep(600)
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
def pool(lab: VirtualLab) -> Iterator[ThreadPoolExecutor]:
    """Nothing of a job is left to the next one, whatever became of it."""
    with ThreadPoolExecutor(8) as pool:
        yield pool
        for host in lab.names:
            lab.sh(
                host,
                "pkill -KILL -f '[f]leet.pyz'; pkill -KILL -f '[f]leet.node'; pkill -KILL -f '[t]\\.py'",
                check=False,
            )


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
        lab.inside(lab.names[0], "sh", "-c", "rm -rf /share/over /share/runs /share/*.log")

    def start(self, number: int, **environ: str) -> Out:
        """(exit code, all output) of a container's."""
        host = self.lab.names[number]
        given = " ".join(f"{name}='{value}'" for name, value in {**self.environ, **environ}.items())
        line = f"mkdir -p ~/c && cd ~/c && cp /share/*.py . && export {given}; exec >/share/{host}.log 2>&1 </dev/null"
        line += f"; {self.command}"

        def run() -> tuple[int, str]:
            done = self.lab.inside(host, "timeout", "500", "bash", "-c", line, check=False, timeout=600)
            return done.returncode, self.output(number)

        return self.pool.submit(run)

    def begun(self, count: int, text: str) -> list[Out]:
        """Of so many containers, once each rank of each has printed it."""
        outs, ranks = [self.start(number) for number in range(count)], int(self.environ["NPROC_PER_NODE"])
        self.until(lambda: all(self.output(number).count(text) >= ranks for number in range(count)))
        return outs

    def until(self, condition: Callable[[], Any], timeout: float = 60.0) -> None:
        """Waits for it; a failure shows what the containers wrote."""
        try:
            until(condition, timeout)
        except AssertionError as error:
            texts = "\n".join(f"--- {name}\n{self.output(at)}" for at, name in enumerate(self.lab.names))
            raise AssertionError(f"{error}\n{texts}") from None

    def summary(self, folder: str = "~/c/runs") -> dict[str, Any]:
        """Returns the run's, as the container that leads wrote it."""
        text = self.lab.sh(self.lab.names[0], f"cat {folder}/latest/summary.json")
        found: dict[str, Any] = json.loads(text)
        assert found["exit_code"] == found["end"]["code"]
        return found

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
    ("python", "train", "how", "why"),
    [
        (OLD, STANDIN, "fail", None),
        ("/usr/bin/python3", STANDIN, "fail", "ValueError: no such sample"),
        pytest.param(
            "/usr/bin/python3", sys.executable, "fail gloo", "ValueError: no such sample", marks=pytest.mark.real
        ),
    ],
    ids=["old", "standin", "real"],
)
def test_the_first_failure_ends_all(
    lab: VirtualLab, pool: ThreadPoolExecutor, python: object, train: str, how: str, why: str | None
) -> None:
    """It took the others down, whose errors are not in its place; one record of all, where they share a folder. Reading
    a rank's last words takes a python of 3.10; the record of an older one has them as they are."""
    words = f"--runs-dir /share/runs t.py {how}"
    job = Job(lab, pool, words, python, train, NNODES="3", RDZV_ID="b", NPROC_PER_NODE="1")
    lab.inside(lab.names[0], "rm", "-rf", "/share/runs")
    found = [out.result(200) for out in [job.start(number) for number in range(3)]]
    summary = json.loads(lab.sh(lab.names[0], "cat /share/runs/t-*/summary.json"))
    first = summary["first_failure"]
    cause = f"rank 2 on {first['host']} (node rank 2) failed: exit code 1"
    assert (first["rank"], first["message"], first["why"]) == (2, cause, why), summary
    assert summary["end"]["first"]["tail"].endswith("ValueError: no such sample\n")
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
    assert (
        f"fleet: {lab.names[1]} (node rank 1) ended its part: cannot begin: " in found[0][1] and ".fleet" in found[0][1]
    ), found
    until(lambda: ranks(lab) == 0)


@pytest.mark.slow
def test_a_signal_of_the_platform_reaches_the_ranks_of_all(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py hold", NNODES="2", RDZV_ID="c")
    outs = job.begun(2, "held")
    job.signal(1, "TERM")
    found = [out.result(200) for out in outs]
    assert [code for code, _ in found] == [1, 143] and [text.count("saved") for _, text in found] == [2, 2], found
    assert all(f"fleet: {lab.names[1]} was ended by signal 15 of its platform" in text for _, text in found), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seconds", "got"), [("INT", 6, ["2", "15"]), ("TERM", 6, ["15"]), ("TERM", 60, ["15"])]
)
def test_each_rank_of_each_container_has_the_whole_grace(
    lab: VirtualLab, pool: ThreadPoolExecutor, name: str, seconds: int, got: list[str]
) -> None:
    """Each signal comes once: at a Ctrl-C in one container SIGINT, and SIGTERM at half of the grace."""
    job = Job(lab, pool, f"--grace 9 t.py saves {seconds}", NNODES="2", RDZV_ID=f"{name}{seconds}")
    outs = job.begun(2, "held")
    job.signal(1, name)
    found = [out.result(100) for out in outs]
    assert [code for code, _ in found] == [1, 128 + int(got[0])], found
    for number, rank in ((0, 0), (0, 1), (1, 2), (1, 3)):
        own = re.findall(rf"\[\S+:{rank}\] (.*)", found[number][1])
        assert [line[4:] for line in own if line.startswith("got")] == got, own
        lasted = max(float(line[7:]) for line in own if line.startswith("lasted"))
        assert ("saved" in own, lasted > 8.5) == (seconds == 6, seconds == 60), own
    assert job.summary()["killed"] == ([] if seconds == 6 else [0, 1, 2, 3])


@pytest.mark.real
def test_an_elastic_run_goes_on_without_one_and_takes_another(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    nodes = {"MIN_NNODES": "2", "MAX_NNODES": "4", "RDZV_ID": "d", "NPROC_PER_NODE": "1"}
    job = Job(lab, pool, "t.py steps", train=sys.executable, **nodes)
    outs = [job.start(number) for number in (0, 1, 3)]
    job.until(lambda: "world 3" in job.output(0), 150)
    lab.fleet("lab", "kill", lab.names[3], check=True)
    try:
        job.until(lambda: "world 2" in job.output(0), 200)
        outs.append(job.start(2))
        job.until(lambda: job.output(0).rpartition("world 2")[2].count("world 3") > 2, 200)
        lab.sh(lab.names[0], "touch /share/over")
        assert [outs[number].result(200)[0] for number in (0, 1, 3)] == [0, 0, 0], job.output(0)
        assert f"{lab.names[3]} is gone; the rest go on" in job.output(0)
    finally:
        lab.fleet("lab", "up", check=True)
        lab.refresh()


@pytest.mark.slow
def test_what_cannot_meet_is_reported(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    """Two of one rank, another run's rendezvous, another program, nobody: each within seconds, and nothing stays."""
    first = lab.names[0]
    job = Job(lab, pool, "--wait 20 t.py", NNODES="3", RDZV_ID="e")
    leads = job.start(0)
    job.until(lambda: "is there, 1 of 3" in job.output(0))
    for other in ({"RDZV_ID": "x"}, {"NNODES": "2"}):
        code, text = job.start(1, **other).result(60)
        assert code == 123 and "error: another run meets there" in text, text
    code, text = leads.result(60)
    assert code == 123 and "within 20 s no run began" in text and "others are missing" in text, text
    ranked = Job(lab, pool, "--wait 20 t.py", NNODES="3", MASTER_PORT="29501")
    outs = [ranked.start(number, NODE_RANK=rank) for number, rank in ((0, "0"), (1, "1"))]
    ranked.until(lambda: "2 of 3" in ranked.output(0))
    assert "error: two containers have node rank 1" in ranked.start(3, NODE_RANK="1").result(60)[1]
    assert [out.result(60)[0] for out in outs] == [123, 123]
    other = Job(lab, pool, "--wait 5 t.py", NNODES="2", RDZV_ID="f", MASTER_PORT="29502")
    code, text = other.start(1).result(60)
    assert code == 123 and f"within 5 s nothing responded at {first}:29502: nothing listens there" in text, text
    assert "does not resolve" in other.start(1, MASTER_ADDR="nowhere.invalid").result(60)[1]
    server = (
        "import socket; s=socket.create_server(('', 29502)); c,_=s.accept(); c.sendall(b'HTTP/1.1 400\\r\\n\\r\\n' * 9)"
    )
    held = pool.submit(lab.inside, first, "timeout", "20", "python3", "-c", server, check=False)
    time.sleep(1)
    assert f"what responds at {first}:29502 is no fleet" in other.start(1).result(60)[1]
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


# -- restarts, stalls, engines --------------------------------------------------------------------------------
def test_a_failure_starts_all_ranks_again(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(
        lab, pool, "--max-restarts 2 --runs-dir /share/runs t.py once", NNODES="2", RDZV_ID="r", NPROC_PER_NODE="1"
    )
    found = [out.result(200) for out in [job.start(number) for number in range(2)]]
    assert [code for code, _ in found] == [0, 0], found
    summary = job.summary("/share/runs")
    assert (summary["attempt"], summary["exit_code"], summary["first_failure"]) == (1, 0, None)
    (restart,) = summary["restarts"]
    assert (restart["rank"], restart["exit_code"], restart["host"]) == (1, 7, sorted(lab.names[:2])[1])
    for folder, attempt in (("attempt0/*", "0"), (lab.names[0], "1"), (lab.names[1], "1")):
        lines = lab.sh(lab.names[0], f"grep -h ^attempt /share/runs/latest/{folder}/rank*.out").split("\n")
        assert set(lines) == {f"attempt {attempt}"}, (folder, lines)
    assert len(lab.sh(lab.names[0], "ls /share/runs/latest/attempt0/*/rank*.out").split()) == 2
    assert all("restart 1 of 2 in 1 s: rank 1 on " in text for _, text in found[:1]), found


@pytest.mark.slow
def test_a_container_that_its_platform_starts_again(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    """It takes its place in the restart, with the same rank."""
    job = Job(lab, pool, "--max-restarts 1 --grace 2 --runs-dir /share/runs t.py wait0", NNODES="2", NPROC_PER_NODE="1")
    outs = [job.start(number, NODE_RANK=str(number)) for number in range(2)]
    job.until(lambda: all("attempt 0" in job.output(number) for number in range(2)))
    job.signal(1, "KILL")
    outs[1].result(60)
    again = job.start(1, NODE_RANK="1")
    found = [outs[0].result(120), again.result(120)]
    assert [code for code, _ in found] == [0, 0] and all("attempt 1" in text for _, text in found), found
    summary = job.summary("/share/runs")
    assert (summary["attempt"], len(summary["restarts"]), sorted(summary["hosts"])) == (1, 1, sorted(lab.names[:2]))


@pytest.mark.slow
def test_ranks_that_write_nothing_any_more(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "--stall-timeout 10 t.py stall", NNODES="2", RDZV_ID="s", NPROC_PER_NODE="1")
    found = [out.result(150) for out in [job.start(number) for number in range(2)]]
    summary = job.summary()
    assert (summary["exit_code"], summary["end"]["by"]) == (124, "stall"), summary
    assert sorted(code for code, _ in found) == [1, 124], found
    assert all("no rank wrote anything for 10 s (--stall-timeout)" in text for _, text in found), found
    stacks = lab.sh(lab.names[0], "cat ~/c/runs/latest/stacks.txt")
    assert all(f"{name} rank " in stacks for name in lab.names[:2]) and "t.py:" in stacks, stacks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/usr/bin/python3", f"--python {STANDIN} --engine command w.sh 3"),
        pytest.param(
            sys.executable, f"--python {sys.executable} --engine accelerate t.py gloo", marks=pytest.mark.real
        ),
        pytest.param(
            sys.executable,
            f"--python {sys.executable} --env DS_ACCELERATOR=cpu --engine deepspeed t.py gloo",
            marks=pytest.mark.real,
        ),
    ],
    ids=["command", "accelerate", "deepspeed"],
)
def test_other_engines(lab: VirtualLab, pool: ThreadPoolExecutor, python: str, words: str) -> None:
    lab.sh(
        lab.names[0], "printf '#!/bin/sh\\necho sum $((WORLD_SIZE * 1)) $RANK $1\\n' >/share/w.sh; chmod +x /share/w.sh"
    )
    job = Job(lab, pool, "", NNODES="2", RDZV_ID="g")
    job.command = f"cp /share/w.sh . ; exec {python} /share/fleet.pyz {words}"
    found = [out.result(200) for out in [job.start(number) for number in range(2)]]
    assert [code for code, _ in found] == [0, 0] and [text.count("] sum 4 ") for _, text in found] == [2, 2], found


def test_an_engine_that_takes_a_newer_python(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    if Path("/usr/bin/python3") == OLD:
        pytest.skip("no python of 3.6 is at hand")
    job = Job(lab, pool, "--engine command t.py", OLD, NNODES="1", NODE_RANK="0")
    code, text = job.start(0).result(60)
    assert code == 123 and "--engine command takes a python3 of 3.10 or newer for fleet itself; this is 3.6" in text, (
        text
    )


# -- who may speak --------------------------------------------------------------------------------------------
def test_a_secret(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    """It is in no rank's environment, no argv, no log; who has another one, or none, takes no part."""
    job = Job(lab, pool, "--wait 60 --runs-dir /share/runs t.py secret", NNODES="2", RDZV_ID="y", NPROC_PER_NODE="1")
    job.command = f"[ ! -s ~/key ] || export FLEET_SECRET=$(cat ~/key); exec {job.command}"

    def start(number: int, key: str) -> Out:
        lab.inside(lab.names[number], "sh", "-c", "cat >~/key", stdin=key.encode())
        return job.start(number)

    outs = [start(0, "s3cr-right")]
    job.until(lambda: "is there, 1 of 2" in job.output(0))
    for wrong, why in (("", "this one has none"), ("s3cr-wrong", "have another secret")):
        code, text = start(1, wrong).result(60)
        assert code == 123 and why in text and "s3cr" not in text, text
    outs.append(start(1, "s3cr-right"))
    job.until(lambda: all("knows []" in job.output(number) for number in range(2)))
    for host in lab.names[:2]:
        assert lab.sh(host, "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 's3[c]r' || true") == "0"
    assert [out.result(60)[0] for out in outs] == [0, 0]
    assert "a container without a secret (FLEET_SECRET) was refused" in job.output(0)
    for host, folders in ((lab.names[0], "/share/runs ~/.fleet /share/*.log"), (lab.names[1], "~/.fleet")):
        assert lab.sh(host, f"grep -rl s3cr {folders} || true") == "", "it is in no file"


# -- links, kills, signals ------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_link_that_is_cut_for_three_seconds(lab: BreakableLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py lines", NNODES="2", RDZV_ID="l", NPROC_PER_NODE="1")
    outs = job.begun(2, "line 5")
    lab.fleet("lab", "cut", lab.names[1], check=True)
    time.sleep(3)
    lab.fleet("lab", "heal", lab.names[1], check=True)
    found = [out.result(100) for out in outs]
    assert [code for code, _ in found] == [0, 0], found
    for number in range(2):
        lines = lab.sh(lab.names[number], "cat ~/c/runs/latest/*/rank*.out").split("\n")
        assert [line for line in lines if "line" in line] == [f"line {each}" for each in range(60)]
    assert job.summary()["unknown"] == []


@pytest.mark.slow
def test_what_leads_is_killed(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "--grace 5 t.py hold", NNODES="3", RDZV_ID="q")
    outs = job.begun(3, "held")
    lab.sh(lab.names[0], "pkill -KILL -f 'fleet.node.container.[c]oordinator'")
    found = [out.result(100) for out in outs]
    assert [code for code, _ in found] == [1, 1, 1] or found[0][0] == 122, found
    for _, text in found:
        assert "the container where all meet, " in text and " is gone" in text and "saved" in text, text
    until(lambda: ranks(lab) == 0, 60)


@pytest.mark.slow
def test_sigterm_while_it_waits(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    job = Job(lab, pool, "t.py", NNODES="3", RDZV_ID="w")
    outs = [job.start(number) for number in range(2)]
    job.until(lambda: "is there, 2 of 3" in job.output(0))
    job.signal(1, "TERM")
    code, text = outs[1].result(30)
    assert code == 143 and "ended by signal 15 before the run began" in text, text
    job.until(lambda: f"{lab.names[1]} is gone" in job.output(0))
    job.signal(0, "TERM")
    assert outs[0].result(30)[0] == 143
    assert lab.sh(lab.names[0], "pgrep -fc '[f]leet.node' || true") == "0"
    again = Job(lab, pool, "t.py", NNODES="2", RDZV_ID="w")
    assert [out.result(60)[0] for out in [again.start(number) for number in range(2)]] == [0, 0], "the port is free"


@pytest.mark.real
def test_ipv6(lab: VirtualLab, pool: ThreadPoolExecutor) -> None:
    own = "all.disable_ipv6=0 net.ipv6.conf.eth0.disable_ipv6=0"
    for number, host in enumerate(lab.names[:2]):
        lab.sh(host, f"sysctl -qw net.ipv6.conf.{own} || true")
        lab.sh(host, f"ip -6 addr replace fd00:f1ee:7::{number + 1}/64 dev eth0 nodad")
    job = Job(lab, pool, "t.py gloo", train=sys.executable, NNODES="2", RDZV_ID="6", MASTER_ADDR="fd00:f1ee:7::1")
    try:
        found = [out.result(200) for out in [job.start(number) for number in range(2)]]
        assert [code for code, _ in found] == [0, 0] and [text.count("] sum 4 []") for _, text in found] == [2, 2], (
            found
        )
        assert "meeting at [fd00:f1ee:7::1]:29500" in found[1][1], found
    finally:
        for number, host in enumerate(lab.names[:2]):
            lab.sh(host, f"ip -6 addr del fd00:f1ee:7::{number + 1}/64 dev eth0", check=False)

"""A run's engine in a container of podman's on each host: logs, codes and ends as without one, and nothing left. The
image is an empty one, on which the machine's own Python and torch are mounted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.node.base.processes import with_env
from tests.lab.test_launch import summary, text, until
from tests.lab.virtual_lab import LabFactory, VirtualLab

pytestmark = [pytest.mark.slow, pytest.mark.real]
IMAGE = "train:1"
# crun takes no cgroup of the lab's hosts
PREPARE = """
mkdir -p /var/lib/containers && mount -t tmpfs none /var/lib/containers && mount -t cgroup2 none /sys/fs/cgroup
mkdir /tmp/image && cd /tmp/image && mkdir usr etc proc sys dev tmp root run var && ln -s usr/bin usr/lib usr/lib64 .
"""
PROGRAM = """
import os, signal, sys, time
import torch, torch.distributed as dist
how, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
def save(*_):
    time.sleep(2)
    print("saved", flush=True)
    dist.destroy_process_group()
    sys.exit(0)
if how == "save":
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, save)
print("sum", total.item(), os.environ.get("TOKEN"), os.getcwd(), oct(os.umask(0o22)), flush=True)
dist.barrier()
dist.destroy_process_group()  # gloo's threads would need the interpreter, which may be ending
if how == "fails" and rank == 1:
    raise RuntimeError("boom")
if how == "killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if how == "once" and os.environ["FLEET_ATTEMPT"] == "0" and rank == 2:
    sys.exit(3)
def wait_for_data():
    time.sleep(600)
if how not in ("well", "once") and (how != "again" or os.environ["FLEET_ATTEMPT"] == "0"):
    wait_for_data()
"""


@pytest.fixture(scope="module")
def three(lab_factory: LabFactory) -> VirtualLab:
    """Hosts with podman, the image, and the program."""
    lab = lab_factory(3).enrol()
    for host in lab.names:
        lab.sh(host, PREPARE)
        lab.inside(host, "sh", "-c", "mkdir -p ~/work && cat > ~/work/t.py", stdin=PROGRAM.encode())
    lab.sh(lab.names[0], f"tar -C /tmp/image -c . | podman import - {IMAGE}")
    image = lab.inside(lab.names[0], "podman", "save", IMAGE).stdout
    for host in lab.names[1:]:
        lab.inside(host, "podman", "load", stdin=image)
    return lab


@pytest.fixture
def ready(three: VirtualLab) -> Iterator[VirtualLab]:
    with three.narrowed(2) as two:
        yield two


def arguments() -> list[str]:
    """The options of a launch in that image."""
    folders = dict.fromkeys(("/usr", "/etc", sys.prefix, sys.base_prefix))
    own = ["--cgroups=disabled", *(f"--volume={folder}:{folder}:ro" for folder in folders)]
    options = ["--container", IMAGE, "--python", sys.executable, *(f"--container-arg={arg}" for arg in own)]
    return ["-i", "lab", "launch", "--nproc-per-node", "2", "--workdir", "~/work", *options]


@pytest.fixture
def begun(ready: VirtualLab, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a run, and returns when its ranks are up. At the end nothing is left of any."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*args: str, folder: Path = tmp_path) -> subprocess.Popen[bytes]:
        folder.mkdir(exist_ok=True)
        process = ready.popen(*arguments(), "--no-preflight", *args, cwd=folder, env={"TOKEN": "not-in-argv"})
        started.append(process)
        until(lambda: sum("sum" in text(out) for out in outs(folder)) == 4, process=process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    until(lambda: not remains(ready), 60)


def outs(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs/*-*/*/rank*.out"))


def remains(lab: VirtualLab) -> str:
    """What podman has, or runs, on the hosts."""
    line = "podman ps --all --quiet; pgrep --list-name 'podman|conmon|crun' || true"
    return "".join(lab.sh(host, line) for host in lab.names)


def marked(folder: Path) -> dict[int, int]:
    """Returns the processes of its run, in whatever pid namespace."""
    (run,) = [path.name for path in folder.glob("runs/*-*")]
    return with_env("FLEET_RUN_ID", run)


def fleet(lab: VirtualLab, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return lab.fleet(*arguments(), *args, cwd=folder, env={"TOKEN": "not-in-argv"})


# prints the first host's pid of what is killed there; a container's first process has the number 1 in its pid namespace
PIDS = {
    "supervisor": "pgrep --oldest fleet-supervise",
    "client": "pgrep --oldest --exact podman",
    "first process": "grep -lE '^NSpid:.*[0-9]\\s+1$' /proc/[0-9]*/status | cut -d / -f 3",
}


def test_it_trains_and_says_so_as_without(ready: VirtualLab, tmp_path: Path) -> None:
    done = fleet(ready, tmp_path, "--env", "TOKEN", "t.py", "well")
    assert done.returncode == 0, done.stderr
    assert {out.read_text() for out in outs(tmp_path)} == {"sum 4.0 not-in-argv /root/work 0o22\n"}
    assert not marked(tmp_path)
    until(lambda: not remains(ready))  # conmon looks around before it ends
    (run,) = tmp_path.glob("runs/*-*/run.json")
    assert json.loads(run.read_text())["launch"]["container"] == IMAGE
    line = ("-i", "lab", "launch", "--dry-run", "--again", "latest", "--env", "TOKEN")
    again = ready.fleet(*line, cwd=tmp_path, env={"TOKEN": "other"})
    assert f"in a container of {IMAGE}" in again.stdout


@pytest.mark.parametrize(("how", "code", "why"), [("fails", 1, "boom"), ("killed", 137, "signal 9")])
def test_the_first_failure_ends_all_and_is_named(
    ready: VirtualLab, tmp_path: Path, how: str, code: int, why: str
) -> None:
    done = fleet(ready, tmp_path, "--no-preflight", "t.py", how)
    assert done.returncode == code and why in done.stderr, done.stderr
    assert f"rank 1 on {ready.names[0]}" in done.stderr
    assert summary(tmp_path)["first_failure"]["rank"] == 1
    assert not marked(tmp_path)
    until(lambda: not remains(ready))  # conmon looks around before it ends


def test_ctrl_c_lets_all_ranks_save(
    ready: VirtualLab, begun: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = begun("--env", "TOKEN", "t.py", "save")
    lines = "".join(ready.sh(host, "ps -eo args=") for host in ready.names)
    assert IMAGE in lines and "not-in-argv" not in lines
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert ["saved" in text(out) for out in outs(tmp_path)] == [True] * 4
    assert not marked(tmp_path)
    until(lambda: not remains(ready))  # conmon looks around before it ends


@pytest.mark.parametrize("who", ["fleet", *PIDS])
def test_whatever_is_killed_no_container_is_left(
    who: str, ready: VirtualLab, begun: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = begun("--lease", "3", "--grace", "5", "t.py", "sleeps")
    if who == "fleet":
        for pid in children(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()
    else:
        ready.sh(ready.names[0], f"kill -9 $({PIDS[who]})")
        assert process.wait(120) not in (0, 125)
        assert not marked(tmp_path)
    if who == "first process":
        failure = summary(tmp_path)["first_failure"]
        assert (failure["rank"], failure["signal"], process.returncode) == (None, signal.SIGKILL, 137)
    until(lambda: not marked(tmp_path) and not remains(ready), 60)


# ends a client on its host: argv[1] seconds after it has appeared
KILL_CLIENT = """
import os, sys, time
def is_client(pid):
    try:
        words = open("/proc/%s/cmdline" % pid).read().split("\\0")
    except OSError:
        return False
    return words[0].endswith("podman") and any(word.startswith("--name=fleet-") for word in words)
while True:
    for pid in filter(is_client, filter(str.isdigit, os.listdir("/proc"))):
        time.sleep(float(sys.argv[1]))
        os.kill(int(pid), 9)
        sys.exit()
    time.sleep(0.002)
"""


@pytest.mark.parametrize("number", range(3))
def test_a_client_killed_while_it_starts_its_container_leaves_nothing(
    number: int, ready: VirtualLab, tmp_path: Path
) -> None:
    """At drawn moments: 0.2 s is in the middle of crun's start."""
    moment = random.uniform(number * 0.15, number * 0.15 + 0.15)
    line = (*arguments(), "--no-preflight", "--grace", "3", "t.py", "sleeps")
    process = ready.popen(*line, cwd=tmp_path)
    try:
        ready.inside(ready.names[0], sys.executable, "-c", KILL_CLIENT, str(moment), timeout=60)
        assert process.wait(120) not in (0, 125), moment
        assert not marked(tmp_path), moment
        until(lambda: not remains(ready))
    finally:
        process.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(each) for each in found.split()] + [it for each in found.split() for it in children(int(each))]


def test_a_restart_has_a_container_of_its_own(ready: VirtualLab, tmp_path: Path) -> None:
    done = fleet(ready, tmp_path, "--no-preflight", "--max-restarts", "1", "t.py", "once")
    assert done.returncode == 0, done.stderr
    assert not marked(tmp_path)
    until(lambda: not remains(ready))  # conmon looks around before it ends


def test_a_spare_takes_the_place_of_a_lost_host(three: VirtualLab, tmp_path: Path) -> None:
    first, lost, spare = three.names
    line = (*arguments(), "--no-preflight", "--spares", "1", "--node-timeout", "10", "t.py", "again")
    process = three.popen(*line, cwd=tmp_path)
    try:
        until(lambda: sum("sum" in text(out) for out in outs(tmp_path)) == 4, process=process)
        three.fleet("lab", "freeze", lost, check=True)
        error = process.communicate(timeout=300)[1].decode()
    finally:
        process.kill()
        three.fleet("lab", "heal", lost, check=True)
    assert process.returncode == 0 and f"restart with {spare} instead of {lost}" in error, error
    assert list(summary(tmp_path)["hosts"]) == [first, spare]
    until(lambda: not marked(tmp_path) and not remains(three), 60)


def test_two_runs_at_once_and_where_their_ranks_are(
    ready: VirtualLab, begun: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    one, other = (tmp_path / name for name in ("one", "other"))
    first, second = (begun("--share", "t.py", "sleeps", folder=folder) for folder in (one, other))
    stacks = ready.fleet("-i", "lab", "stacks", "latest", cwd=one)
    assert stacks.returncode == 0 and "wait_for_data" in stacks.stdout, stacks
    second.send_signal(signal.SIGINT)
    assert second.wait(120) == 130
    assert not marked(other)
    assert first.poll() is None and len(marked(one)) >= 8
    first.send_signal(signal.SIGINT)
    assert first.wait(120) == 130
    assert not marked(one)
    until(lambda: not remains(ready))


def test_what_the_image_lacks_is_found_before_anything_starts(ready: VirtualLab, tmp_path: Path) -> None:
    for options, why in (
        (("--container", "other:2"), "podman does not have image other:2"),
        (("--python", "python9"), "python9"),
    ):
        done = fleet(ready, tmp_path, *options, "t.py", "well")
        assert done.returncode == 123 and why in done.stderr, done.stderr
    assert not remains(ready) and not list(tmp_path.glob("runs/*-*/*/rank*"))


def test_a_run_is_stopped_from_elsewhere(
    ready: VirtualLab, begun: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = begun("t.py", "save")
    stopped = ready.fleet("-i", "lab", "stop", "latest", cwd=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    process.wait(120)
    assert ["saved" in text(out) for out in outs(tmp_path)] == [True] * 4

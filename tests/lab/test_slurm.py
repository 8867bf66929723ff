"""A real Slurm (slurm-wlm of Debian, with proctrack/cgroup and task/affinity), from which fleet has its hosts.

What is asserted of the batch system's own (allocations, signals, grace) is Slurm's; of fleet, what it makes of that.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.ops.pack import pack
from tests.lab.virtual_lab import FLEET, LabFactory, VirtualLab
from tests.node.nodes import until
from tests.standin import standin_python

pytestmark = [pytest.mark.slow, pytest.mark.real]
PROGRAM = """\
import os, signal, sys, time

def save(*_):
    time.sleep(2)
    open(f"saved{os.environ['RANK']}", "w").close()
    print("saved", flush=True)
    sys.exit(0)

def world():
    if "gloo" not in sys.argv:
        return os.environ["WORLD_SIZE"]
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    mean = torch.ones(1)
    dist.all_reduce(mean)
    dist.destroy_process_group()
    return int(mean)

if "hold" in sys.argv:
    signal.signal(signal.SIGTERM, save)
slurm = [name for name in os.environ if name.startswith(("SLURM_PROCID", "SLURM_NTASKS", "PMI"))]
print("sum", world(), len(os.sched_getaffinity(0)), os.environ.get("CUDA_VISIBLE_DEVICES"), slurm, flush=True)
if "fail" in sys.argv:
    time.sleep(1)
    if os.environ["RANK"] == "2":
        raise ValueError("no such sample")
    time.sleep(600)
while "hold" in sys.argv:
    time.sleep(0.1)
"""
PYTHON = standin_python()
ALLOCATION = "-N3 -n3 -c2 --gres=gpu:2"
LAUNCH = f"{FLEET} --on slurm launch --workdir /root/job --python {PYTHON}"


@pytest.fixture(scope="module")
def slurm(lab_factory: LabFactory) -> VirtualLab:
    lab = lab_factory(3, "--slurm")
    for host in lab.names:
        lab.inside(host, "sh", "-c", "mkdir -p /root/job && cat >/root/job/t.py", stdin=PROGRAM.encode())
    until(lambda: lab.sh(lab.names[0], "sinfo -h -t idle -o %D") == "3")
    return lab


@pytest.fixture(autouse=True)
def clean(slurm: VirtualLab) -> None:
    for host in slurm.names:
        slurm.sh(host, "scancel --me; rm -rf /root/job/runs* /root/job/saved* /root/job/*.out")


def salloc(lab: VirtualLab, script: str, options: str = ALLOCATION) -> tuple[int, str]:
    """(exit status, all output) of a script in an allocation, whose shell is the first host's."""
    line = f"cd /root/job; salloc {options} bash -c {shlex.quote(script)} 2>&1"
    done = lab.inside(lab.names[0], "bash", "-c", line, check=False)
    return done.returncode, done.stdout.decode()


def sbatch(lab: VirtualLab, command: str, options: str = ALLOCATION) -> str:
    """The number of a job that runs it."""
    script = f"#!/bin/bash\nexec {command}\n"
    argv = ["sbatch", "--parsable", *options.split(), "--chdir", "/root/job", "-o", "/root/job/%j.out"]
    return lab.inside(lab.names[0], *argv, stdin=script.encode()).stdout.decode().strip()


def output(lab: VirtualLab, job: str) -> str:
    return lab.sh(lab.names[0], f"cat /root/job/{job}.out 2>/dev/null || true")


def ended(lab: VirtualLab, job: str) -> bool:
    return lab.sh(lab.names[0], f"squeue -h -j {job} 2>/dev/null || true") == ""


def document(lab: VirtualLab, name: str, runs: str = "runs") -> dict[str, Any]:
    text = lab.sh(lab.names[0], f"cat /root/job/{runs}/latest/{name}")
    found: dict[str, Any] = json.loads(text)
    return found


def ranks(lab: VirtualLab) -> int:
    """Processes of the program on all hosts."""
    return sum(int(lab.sh(host, "pgrep -fc '[t]\\.py' || true")) for host in lab.names)


def test_the_hosts_of_an_allocation(slurm: VirtualLab) -> None:
    code, said = salloc(slurm, f"{FLEET} hosts; {FLEET} --on slurm --json hosts", "-N2 -n2 --gres=gpu:1")
    assert "no inventory found; this is job" in said and "give --on slurm to take its hosts" in said
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    hosts: Mapping[str, Any] = json.loads(line)["hosts"]
    assert code == 0 and list(hosts) == slurm.names[:2]
    assert [host["address"] for host in hosts.values()] == [slurm.address(name) for name in hosts]
    assert [host["slots"] for host in hosts.values()] == [1, 1]


def test_torchrun_in_an_allocation(slurm: VirtualLab) -> None:
    code, said = salloc(slurm, f"{LAUNCH} --python {sys.executable} t.py gloo")
    assert code == 0, said
    cpus = int(slurm.sh(slurm.names[0], "scontrol show node -o $(hostname) | grep -o 'CPUTot=[0-9]*' | cut -d= -f2"))
    lines = [line.partition("] ")[2] for line in said.splitlines() if "] sum" in line]
    assert lines == [f"sum 6 {cpus} 0,1 []"] * 6, "all CPUs and GPUs of the allocation, and no task of Slurm's"
    assert document(slurm, "summary.json")["exit_code"] == 0 and ranks(slurm) == 0


def test_the_first_failure_ends_all(slurm: VirtualLab) -> None:
    code, said = salloc(slurm, f"{LAUNCH} t.py fail")
    assert "why: ValueError: no such sample" in said and code == 1, said
    failure = document(slurm, "summary.json")["first_failure"]
    assert (failure["rank"], failure["host"]) == (2, slurm.names[1])
    assert ranks(slurm) == 0


def test_other_verbs_are_steps_beside_it_and_a_head_that_is_killed_is_followed_again(slurm: VirtualLab) -> None:
    script = f"""
        {LAUNCH} t.py hold >first.out 2>&1 & head=$!
        for i in $(seq 300); do [ $(grep -c '] sum' first.out) = 6 ] && break; sleep 0.1; done
        {FLEET} --on slurm exec -- sh -c 'pgrep -fc "[t]\\.py hold"'
        {FLEET} --on slurm stacks latest
        {FLEET} --on slurm ps
        kill -9 $head; sleep 1
        (sleep 4; {FLEET} --on slurm stop latest) & {FLEET} --on slurm attach latest; echo code $?
        wait"""
    _, said = salloc(slurm, script)
    assert "6/6" in said and re.search(r"ranks 0-5 in <module> \(t\.py:\d+\)", said), said
    assert "code 130" in said and said.count("saved\n") == 6, said
    assert document(slurm, "summary.json")["end"]["by"] == "stop" and ranks(slurm) == 0
    until(lambda: slurm.sh(slurm.names[0], "pgrep -x srun || true") == "")


@pytest.mark.parametrize("how", ["scancel", "the head's own step"])
def test_what_slurm_ends_saves_its_work(slurm: VirtualLab, how: str) -> None:
    job = sbatch(slurm, f"{LAUNCH} t.py hold")
    until(lambda: output(slurm, job).count("] sum") == 6)
    slurm.sh(slurm.names[0], f"scancel {job}" if how == "scancel" else f"scancel -s TERM {job}.0")
    until(lambda: ended(slurm, job))
    said = output(slurm, job)
    end = "ended by Slurm: CANCELLED after" if how == "scancel" else "interrupted after"
    assert said.count("saved\n") == 6 and end in said, said
    assert document(slurm, "summary.json")["exit_code"] == 130
    assert [slurm.sh(host, "ls /root/job | grep -c saved") for host in slurm.names] == ["2", "2", "2"]
    assert ranks(slurm) == 0


LYING = """\
import json, sys
from fleet.cli.main import main
from fleet.transport import srun, step
from tests.changed import changed

_, name, other, *sys.argv[1:] = sys.argv
says = f"import os\\nif os.environ['SLURMD_NODENAME'] == '{name}': os.environ['SLURMD_NODENAME'] = '{other}'"
step.packed = lambda program, spec: changed(program, says) + json.dumps(spec).encode() + b"\\n"
srun.Step = lambda job, hosts, *more: step.Step(job, [*hosts][::-1], *more)
main()
"""


def test_a_node_speaks_for_itself(slurm: VirtualLab) -> None:
    """Its agent says that it is another host's: that one's command runs there all the same. The hosts' order is not
    Slurm's."""
    first, liar, last = slurm.names
    root = Path(__file__).parents[2]
    slurm.inside(slurm.names[0], "sh", "-c", "cat >/root/job/lying.py", stdin=LYING.encode())
    words = "--on slurm --json --connect-timeout 8 exec -- hostname"
    code, said = salloc(slurm, f"PYTHONPATH={root} {sys.executable} lying.py {liar} {first} {words}")
    (document,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    hosts: Mapping[str, Any] = document["hosts"]
    assert code == 122 and {name: hosts[name].get("stdout") for name in (first, last)} == {
        first: f"{first}\n",
        last: f"{last}\n",
    }
    why = f"no agent of Slurm's step within 8 s; {slurm.address(liar)} claimed to be {first}, without its token"
    assert why in json.dumps(hosts[liar]), hosts[liar]


def test_two_jobs_on_the_same_nodes_do_not_meet(slurm: VirtualLab) -> None:
    share = "-N3 -n3 -c1 --mem=100 --gres=gpu:1"
    jobs = [sbatch(slurm, f"{LAUNCH} --runs-dir runs{number} t.py hold", share) for number in (1, 2)]
    for job in jobs:
        until(lambda job=job: output(slurm, job).count("] sum 3") == 3 or ended(slurm, job))  # type: ignore[misc]
        assert not ended(slurm, job), output(slurm, job)
    slurm.sh(slurm.names[0], f"scancel {jobs[0]}")
    until(lambda: ended(slurm, jobs[0]))
    assert not ended(slurm, jobs[1]) and ranks(slurm) >= 3
    slurm.sh(slurm.names[0], f"scancel {jobs[1]}")
    until(lambda: ended(slurm, jobs[1]))
    assert output(slurm, jobs[1]).count("saved\n") == 3


def test_documents_have_the_same_shape_as_over_ssh(slurm: VirtualLab, tmp_path: Path) -> None:
    slurm.enrol()
    words = ("-i", "lab", "launch", "--workdir", "/root/job", "--nproc-per-node", "2", "t.py")
    slurm.fleet(*words, cwd=tmp_path, check=True)
    code, said = salloc(slurm, f"{LAUNCH} t.py")
    assert code == 0, said
    here = tmp_path / "runs/latest"
    for name in ("summary.json", "run.json"):
        assert shape(json.loads((here / name).read_text()), slurm) == shape(document(slurm, name), slurm)
    events = slurm.sh(slurm.names[0], "cat /root/job/runs/latest/events.jsonl")
    assert kinds((here / "events.jsonl").read_text()) == kinds(events)
    files = sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file())
    assert (
        files
        == slurm.sh(slurm.names[0], "cd /root/job/runs/latest/ && find . -type f | cut -c3- | LC_ALL=C sort").split()
    )


# what was typed, and what the inventory's hosts are
VARY = ("env", "code", "launch", "inventory")


def shape(value: Any, lab: VirtualLab) -> Any:
    """A document's keys, and what kind each value is."""
    if isinstance(value, dict):
        return {key: shape(item, lab) for key, item in value.items() if key not in VARY}
    return [shape(item, lab) for item in value] if isinstance(value, list) else type(value).__name__


def kinds(events: str) -> dict[str, list[str]]:
    return {record["event"]: sorted(record) for record in map(json.loads, events.splitlines())}


def test_a_lab_with_slurm_leaves_nothing(lab_factory: LabFactory, tmp_path: Path) -> None:
    lab = lab_factory(1, "--slurm")
    name = lab.names[0]
    until(lambda: lab.sh(name, "sinfo -h -t idle -o %D") == "1")
    lab.fleet("lab", "kill", name, check=True)
    lab.fleet("lab", "up", check=True)
    lab.refresh()
    until(lambda: lab.sh(name, "srun -n1 hostname", check=False) == name)
    made = lab.sh(name, "awk '$5 == \"/sys/fs/cgroup/freezer\" { print $4 }' /proc/self/mountinfo").split("/")[1]
    assert made.startswith("fl")
    lab.fleet("lab", "down", check=True)
    script = f"mount --make-rprivate / && mount -t cgroup -o freezer none {tmp_path} && ls {tmp_path}"
    seen = subprocess.run(["unshare", "--mount", "sh", "-c", script], check=True, capture_output=True, text=True).stdout
    assert made not in seen.split()


# -- from a login node: the folder is one that all nodes share ------------------------------------------------
RUNS = "until grep -qs sum runs/latest/*/rank0.out; do sleep 0.2; done"
SUBMIT = f"{FLEET} launch --on slurm --nodes 2 --gres gpu:2 --workdir /share/job --python {PYTHON}"


@pytest.fixture
def login(slurm: VirtualLab) -> VirtualLab:
    """The third host: where users log in."""
    line = "rm -rf /share/job && mkdir /share/job && cat > /share/job/t.py"
    slurm.inside(slurm.names[2], "sh", "-c", line, stdin=PROGRAM.encode())
    return slurm


def typed(lab: VirtualLab, line: str, host: int = 2) -> tuple[int, str]:
    """(exit code, all output) of a line in the shared folder."""
    done = lab.inside(lab.names[host], "bash", "-c", f"cd /share/job; {{ {line}; }} 2>&1", check=False)
    return done.returncode, done.stdout.decode()


def interrupted(command: str, when: str) -> str:
    """A line that runs a command and sends it SIGINT when it has printed that."""
    wait = f"until grep -qs '{when}' said || ! kill -0 $!; do sleep 0.1; done"
    return f"set -m; {command} >said 2>&1 & {wait}; kill -INT $!; wait $!; cat said; rm said"


def test_submit_wait_and_follow(login: VirtualLab) -> None:
    code, said = typed(login, f"{SUBMIT} t.py")
    assert code == 0 and said.count("sum 4 ") == 4 and "is job " in said, said
    assert "done after" in said and "exit code 0" in said
    code, said = typed(login, f"{FLEET} attach; {FLEET} logs latest; {FLEET} stop latest", host=1)
    assert code == 0 and said.count("sum 4 ") == 4 and "done after" in said and "had ended" in said, said
    code, said = typed(login, f"{FLEET} launch --yes --again latest")
    assert code == 0 and said.count("sum 4 ") == 4, said
    code, said = typed(login, "sed -i /made.by/d runs/latest/job.sh; sbatch --wait runs/latest/job.sh; ls -d runs/t-*")
    assert code == 0 and len(re.findall("^runs/t-", said, re.MULTILINE)) == 3, "plain sbatch makes a run of its own"


def test_the_first_failure_of_a_job(login: VirtualLab) -> None:
    code, said = typed(login, f"{SUBMIT} t.py fail")
    assert code == 1 and "failed: rank 2 on" in said and "ValueError: no such sample" in said, said
    until(lambda: ranks(login) == 0)


def test_the_job_leads_the_run_whoever_looks_on(login: VirtualLab) -> None:
    """The process that submitted it is killed; another login node looks on, leaves, and stops it."""
    line = f"{SUBMIT} t.py hold >login.out 2>&1 & {RUNS}; kill -9 $!"
    assert typed(login, line)[0] == 0
    code, said = typed(login, f"timeout -s INT 20 {FLEET} attach; {FLEET} runs", host=1)
    assert code == 0 and "goes on as before" in said and "followed" in said, said
    code, said = typed(login, f"{FLEET} --on slurm ps")
    assert code == 0 and re.search(r"^t-\S+ +running .* 4/4 ", said, re.M), said
    code, said = typed(login, f"{FLEET} stop latest", host=1)
    assert code == 0 and "stopped" in said, said
    code, said = typed(login, f"{FLEET} attach", host=0)
    assert code == 130 and "stopped by root@" in said, said
    assert typed(login, "ls saved0 saved1 saved2 saved3")[0] == 0


@pytest.mark.parametrize("signal", ["TERM", "HUP"])
def test_a_login_node_that_goes_down_leaves_the_job(login: VirtualLab, signal: str) -> None:
    line = (
        f"{SUBMIT} t.py hold >login.out 2>&1 & {RUNS}; kill -{signal} $!; wait $!; sleep 3; squeue -h -n t -o state=%T"
    )
    code, said = typed(login, f"{line}; {FLEET} stop latest; {FLEET} attach")
    assert "state=RUNNING" in said and code == 130 and "stopped by root@" in said, said


def test_what_users_set_for_sbatch_is_heard(login: VirtualLab) -> None:
    line = f"{SUBMIT} --detach --sbatch-arg=-H t.py; squeue -h -n t -o 'limit %l'; scancel --me"
    _, said = typed(login, f"export SBATCH_TIMELIMIT=7; {line}; cat runs/latest/job.sh")
    assert "limit 7:00" in said and "SBATCH_TIMELIMIT=7" in said, said


def test_scancel_is_called_what_it_was(login: VirtualLab) -> None:
    line = f"{RUNS}; scancel --name=t"
    code, said = typed(login, f"({line}) & {SUBMIT} t.py hold")
    assert code == 130 and "ended by Slurm: CANCELLED after" in said, said
    until(lambda: ranks(login) == 0)


def test_a_job_that_waits_is_cancelled(login: VirtualLab) -> None:
    nodes = ",".join(login.names)
    line = f"salloc -N3 --gres=gpu:2 -w {nodes} sleep 60 2>/dev/null & "
    line += "until squeue -h -t R | grep -q .; do sleep 0.1; done; "
    line += f"{interrupted(f'{SUBMIT} t.py', 'waits: PENDING, Resources')}; squeue -h -n t; scancel --me"
    code, said = typed(login, line)
    assert "waits: PENDING, Resources" in said and "was cancelled before a rank ran" in said, said
    assert "\nt " not in said and code == 0
    code, said = typed(
        login, f"{SUBMIT} --detach --sbatch-arg=-H t.py; {FLEET} runs; {FLEET} stop latest; squeue -h -n t"
    )
    assert "is out of the queue" in said and "goes on by itself" in said, said


def test_a_refused_submission_leaves_nothing(login: VirtualLab) -> None:
    code, said = typed(login, f"{SUBMIT} --partition nowhere t.py")
    assert code == 2 and "Slurm refuses the job: invalid partition" in said and "sinfo -s" in said, said
    assert typed(login, "ls runs")[1] == ""


def test_a_late_answer_is_no_refusal(login: VirtualLab) -> None:
    """slurmctld is frozen for longer than sbatch waits: the job is submitted all the same, once."""
    first = login.names[0]
    login.sh(first, "pkill -STOP -x slurmctld; (sleep 14; pkill -CONT -x slurmctld) >/dev/null 2>&1 &")
    code, said = typed(login, f"{SUBMIT} t.py; echo code $?; ls -d runs/t-*; squeue -h -n t")
    assert code == 0 and "code 0" in said and said.count("sum 4 ") == 4 and "is job " in said, said
    assert len(re.findall("^runs/t-", said, re.MULTILINE)) == 1, said
    assert {*re.findall(r"(?m)^ *(\d+) +gpu1 ", said)} <= {*re.findall(r"is job (\d+) ", said)}, (
        "it may take a moment to end"
    )


def test_what_preflight_finds_in_the_job_is_there_at_once(login: VirtualLab) -> None:
    code, said = typed(login, f"{SUBMIT} --python /nowhere/python t.py; echo code $?; {FLEET} runs")
    assert "code 123" in said and "/nowhere/python: no such program" in said, said
    assert re.search(r" failed +123 ", said) and code == 0


SIGNALLED = """\
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("got USR1", flush=True))
print("sum", flush=True)
while True:
    time.sleep(0.1)
"""


def test_signals_for_ranks_reach_each_once(login: VirtualLab) -> None:
    """As --signal=USR1@60 (steps) and B:USR1@60 (the batch shell) send them, and both at once."""
    login.inside(login.names[2], "sh", "-c", "cat >/share/job/s.py", stdin=SIGNALLED.encode())
    sent = "; ".join(f"scancel {how} -s USR1 $job; sleep 4" for how in ("", "-b", "-f"))
    line = f"{SUBMIT} --detach s.py; {RUNS}; job=$(squeue -h -n s -o %i); {sent}; {FLEET} stop latest; {FLEET} logs"
    _, said = typed(login, line)
    assert said.count("got USR1") == 4 * 3, said


def test_a_run_goes_on_at_its_time_limit(login: VirtualLab) -> None:
    line = f"""
        back() {{ for i in $(seq 240); do scontrol update job=$(squeue -h -t PD -o %i) StartTime=now; sleep 1; done; }}
        back 2>/dev/null & {SUBMIT} --time 3 --grace 30 --requeue 1 --setup 'export SET_UP=yes' t.py hold
        echo code $?; kill %1
        ls -d runs/latest/attempt*"""
    _, said = typed(login, line)
    assert said.count("sum 4 ") == 8 and said.count("saved\n") == 8 and "runs/latest/attempt0" in said, said
    assert "ended by Slurm: TIMEOUT after" in said and "code 124" in said, "once, and no more"


SLOW = """\
#!/bin/sh
case "$*" in "show job -o "*) sleep {};; esac
exec /usr/bin/scontrol "$@"
"""


@pytest.mark.parametrize(("seconds", "code", "end"), [(8, 124, "TIMEOUT"), (60, 130, "a signal of Slurm's; why is")])
def test_an_answer_that_comes_late_is_no_answer_of_no(login: VirtualLab, seconds: int, code: int, end: str) -> None:
    """Within the job, at its time limit: ranks save their work meanwhile. One that never comes is no cancel."""
    login.inside(login.names[2], "sh", "-c", "cat >/share/job/scontrol", stdin=SLOW.format(seconds).encode())
    setup = "--setup 'export PATH=/share/job:$PATH'"
    _, said = typed(login, f"chmod +x scontrol; {SUBMIT} --time 1 {setup} t.py hold; echo code $?; {FLEET} runs")
    assert f"ended by {end}" in said.replace("Slurm: ", "") and f"code {code}\n" in said, said
    assert said.count("saved\n") == 4 and "interrupted" not in said, said


def test_a_job_of_its_own_from_inside_an_allocation(login: VirtualLab) -> None:
    submit = SUBMIT.replace("--nodes 2", "--submit --nodes 1")
    code, said = typed(login, f"salloc -N1 --gres=gpu:2 sh -c {shlex.quote(f'{submit} t.py; {FLEET} attach latest')}")
    assert code == 0 and said.count("sum 2 ") == 2 and said.count("done after") == 2, said


def test_a_job_that_is_put_back_goes_on_as_the_next_attempt(login: VirtualLab) -> None:
    """By `scontrol requeue`, and since a node of it is down; what Slurm calls the job then hides both."""
    node = login.names[1]
    line = f"""
        {SUBMIT} t.py hold >login.out 2>&1 &
        {RUNS}; job=$(squeue -h -n t -o %i)
        back() {{
            for i in $(seq 300); do squeue -h -t PD | grep -q . && break; sleep 0.2; done
            scontrol update job=$job StartTime=now
        }}
        scontrol requeue $job; back
        for i in $(seq 300); do [ $(grep -c '] sum' login.out) = 8 ] && break; sleep 0.5; done
        scontrol update nodename={node} state=down reason=tried; back
        scancel $job; wait $!; echo code $?
        scontrol update nodename={node} state=idle
        cat login.out runs/latest/job.out; ls -d runs/latest/attempt*"""
    _, said = typed(login, line)
    assert "code 122" in said and "ended by Slurm: REQUEUED after" in said, said
    assert f"ended by Slurm: NODE_FAIL, {node} after" in said and "runs/latest/attempt0" in said, said
    assert said.count("saved\n") >= 4


def test_the_grace_that_a_user_gives_is_before_the_time_limit(login: VirtualLab) -> None:
    """Longer than Slurm waits between SIGTERM and SIGKILL."""
    code, said = typed(login, f"{SUBMIT} --time 3 --grace 40 t.py hold")
    assert code == 124 and said.count("saved\n") == 4 and "ended by Slurm: TIMEOUT after" in said, said
    again = f"{FLEET} --dry-run launch --again latest -x {login.names[0]} --time 1:00"
    code, said = typed(login, again)
    asked = {"--nodes=2", "--gres=gpu:2", "--time=1:00", f"--exclude={login.names[0]}", "--signal=TERM@70"}
    assert code == 0 and asked <= set(re.findall("^#SBATCH (.*)", said, re.MULTILINE)), said


def test_logs_of_a_job_that_waits_are_waited_for(login: VirtualLab) -> None:
    line = f"""
        {SUBMIT} --detach --sbatch-arg=-H t.py; {FLEET} runs
        (sleep 3; scontrol release $(squeue -h -n t -o %i)) & {FLEET} logs -f; {FLEET} runs"""
    code, said = typed(login, line)
    assert code == 0 and said.count("sum 4 ") == 4 and " queued " in said and " done " in said, said


JOBS = f"{SUBMIT.replace('--nodes 2', '--nodes 3')} --single-node-jobs"
NONE_LEFT = 'for i in $(seq 60); do [ -z "$(squeue -h -n t)" ] && break; sleep 1; done; squeue -h -n t'


def test_jobs_of_a_node_each_begin_and_end_together(login: VirtualLab) -> None:
    code, said = typed(login, f"{JOBS} t.py; {NONE_LEFT}")
    assert code == 0 and said.count("sum 6 ") == 6 and "is job " in said and "_0 of Slurm" in said, said
    assert "done after" in said and " gpu1 " not in said, "nobody holds a node"
    line = f"{RUNS}; {FLEET} stacks; scancel $(squeue -h -r -o %i | grep _2)"
    code, said = typed(login, f"rm -rf runs; ({line}) & {JOBS} t.py hold; echo code $?; wait; {NONE_LEFT}")
    assert "code 130" in said and "ended by Slurm: CANCELLED after" in said and said.count("saved\n") == 6, said
    assert "ranks 0-5 on" in said and " gpu1 " not in said
    until(lambda: ranks(login) == 0)


def test_a_leader_that_is_killed_holds_no_node(login: VirtualLab) -> None:
    kill = "scancel -s KILL --batch $(squeue -h -r -o %i | grep _0)"
    line = f"{JOBS} --detach --lease 15 t.py hold; {RUNS}; {kill}; {NONE_LEFT}"
    _, said = typed(login, line)
    assert " gpu1 " not in said, said
    until(lambda: ranks(login) == 0)


def test_jobs_of_which_one_never_begins_are_let_go(login: VirtualLab) -> None:
    line = f"salloc -w {login.names[0]} --gres=gpu:2 sleep 120 2>/dev/null & "
    line += "until squeue -h -t R | grep -q .; do sleep 0.1; done; "
    line += f"{JOBS} --start-within 5 t.py; echo code $?; squeue -h -n t -t PD,CF,R"
    _, said = typed(login, line)
    assert "within 5 s 2 of 3 nodes are there; Slurm of the others:" in said and "PENDING, Resources" in said, said
    assert "\ncode 124\n" in said and " gpu1 " not in said, said  # those that were there may still be ending


def test_nodes_and_why_they_are_not_used(login: VirtualLab) -> None:
    first, node, _ = login.names
    line = f"""
        scontrol update nodename={node} state=drain reason='ECC errors | see 7'
        {FLEET} hosts --from slurm gpu1; {FLEET} hosts --from slurm -x {first} --format nodeset
        {FLEET} hosts --from slurm nowhere; scontrol update nodename={node} state=resume"""
    _, said = typed(login, line)
    assert re.search(rf"{node} +2 +drained +ECC errors \| see 7", said) and " idle" in said, said
    assert f"\n{node.removesuffix('02')}[02-03]\n" in said and "partitions there are: gpu1" in said


def test_files_for_a_slurm_of_ones_own(login: VirtualLab, tmp_path: Path) -> None:
    """Slurm reads them, and the nodes have what their lines say."""
    login.enrol()
    shown = login.fleet("-i", "lab", "slurm-conf", "--to", "conf", cwd=tmp_path, check=True).stdout
    assert "fleet -i lab exec -- apt-get install -y slurm-wlm munge" in shown, shown
    again = login.fleet("-i", "lab", "slurm-conf", "--to", "conf", cwd=tmp_path)
    assert again.returncode == 2 and "--force replaces it" in again.stderr
    text = (tmp_path / "conf/slurm.conf").read_text()
    for name in login.names:
        has = login.sh(name, "slurmd -C")
        for key in ("CPUs", "RealMemory"):
            said, real = (int(re.findall(rf"{key}=(\d+)", it)[0]) for it in (re.findall(f"{name} .*", text)[0], has))
            assert 0 < said <= real, (key, text, has)
    for file in ("slurm.conf", "gres.conf", "cgroup.conf"):
        login.inside(login.names[0], "sh", "-c", f"cat >/share/{file}", stdin=(tmp_path / "conf" / file).read_bytes())
    said = login.sh(login.names[0], "SLURM_CONF=/share/slurm.conf scontrol show config 2>&1 || true")
    assert said.startswith("Configuration data as of "), said


@pytest.mark.parametrize("name, ranks", [("slurm", 4), ("slurm-master-worker", 6)])
def test_playbooks(login: VirtualLab, name: str, ranks: int) -> None:
    given = {"code": "/share/job", "script": "t.py", "nodes": ranks // 2, "gres": "gpu:2", "cpus": 1, "python": PYTHON}
    variables = " ".join(f"--var {key}={value}" for key, value in given.items())
    text = (Path(__file__).parents[2] / "playbooks" / f"{name}.yaml").read_bytes()
    login.inside(login.names[2], "sh", "-c", f"cat >/share/job/{name}.yaml", stdin=text)  # it sees no clone's
    code, said = typed(login, f"{FLEET} play {name}.yaml {variables}")
    assert code == 0 and said.count(f"sum {ranks} ") == ranks and "done after" in said, said


def test_a_step_that_starts_the_zipapp(slurm: VirtualLab, tmp_path: Path) -> None:
    """The platform `slurm-step`, live: nodes, ranks and where they meet are the step's."""
    slurm.inside(slurm.names[0], "sh", "-c", "cat >/share/fleet.pyz", stdin=pack(tmp_path / "fleet.pyz").read_bytes())
    step = f"cd /root/job && srun {ALLOCATION} --cpu-bind=none python3 /share/fleet.pyz --python {PYTHON} t.py"
    said = slurm.sh(slurm.names[0], f"{step} 2>&1; {step} fail 2>&1; echo rc $?")
    assert said.count("] sum 6 2 ") == 12 and said.endswith("rc 1"), said
    cause = f"fleet: rank 2 on {slurm.names[1]} (node rank 1) failed: exit code 1: ValueError: no such sample"
    assert said.count(cause) == 3, said


@pytest.mark.parametrize(("script", "then", "code"), [("t.py", "", 0), ("t.py hold", "scancel $job", 130)])
def test_a_slurmctld_that_has_forgotten_an_end_makes_no_second_run(
    login: VirtualLab, script: str, then: str, code: int
) -> None:
    """Killed, and started with what it knew before the job began, it begins the job once more, and counts from 0."""
    line = f"""
        state=/var/spool/slurmctld
        again() {{ pkill -$1 -x slurmctld; while pgrep -x slurmctld; do sleep 0.1; done; eval "$2"; slurmctld </dev/null
            until scontrol ping | grep -q UP; do sleep 0.2; done; scontrol release $job; }}
        {SUBMIT} --detach --sbatch-arg=-H {script}; job=$(squeue -h -n t -o %i)
        again TERM "rm -rf /before; cp -a $state /before"
        {RUNS}; {then}
        {FLEET} attach; echo code $?
        again KILL "rm -rf $state; cp -a /before $state"
        until grep -qs 'begins job' runs/latest/job.out; do sleep 0.2; done; cat runs/latest/job.out
        sleep 1; scontrol show job $job; {FLEET} runs; ls -d runs/t-*"""
    _, said = typed(login, f"timeout 120 bash -c {shlex.quote(line)}", host=0)
    assert f"code {code}\n" in said and f"has ended, with exit code {code}, and Slurm begins job" in said, said
    assert f" ExitCode={code}:0" in said and " Restarts=0 " in said, "what Slurm calls the job is its run's end"
    assert len(re.findall("^runs/t-", said, re.MULTILINE)) == 1 and said.count("sum 4 ") <= 4, said


# what starts a step's tasks as pyxis does, as far as fleet sees it: in user and mount namespaces of their own, with the
# variables that it sets. It has the host's files. Its last three arguments are sh -c LINE
LIKE_PYXIS = """#!/bin/bash
given=()
for arg in "${@:1:$#-3}"; do
    case $arg in (--container-*|--no-container-*) inside=yes ;; (*) given+=("$arg") ;; esac
done
[ "$inside" ] || exec /usr/bin/srun "$@"
exec /usr/bin/srun "${given[@]}" env INSIDE=$inside RANK=7 LOCAL_RANK=7 \
    unshare --user --map-root-user --mount "${@: -3}"
"""


def test_a_slurm_without_pyxis_refuses_a_container(slurm: VirtualLab) -> None:
    code, said = salloc(slurm, f"{LAUNCH} --container train:1 t.py")
    assert code == 122 and "]: srun: unrecognized option '--container-image=train:1'" in said, said
    assert "this Slurm has no pyxis, or another one: srun --help | grep -A 2 container" in said
    assert "Traceback" not in said and ranks(slurm) == 0


def test_agents_and_ranks_are_in_the_container_of_a_step(slurm: VirtualLab) -> None:
    """Not a real pyxis, see above. Other verbs reach the run from outside."""
    first = slurm.names[0]
    slurm.inside(first, "sh", "-c", "mkdir -p /opt/like && cat >/opt/like/srun", stdin=LIKE_PYXIS.encode())
    slurm.sh(first, "chmod +x /opt/like/srun")
    show = "import os; print('is', os.environ.get('INSIDE'), os.environ['RANK'], os.readlink('/proc/self/ns/user'))"
    slurm.inside(first, "sh", "-c", "cat >/root/job/c.py", stdin=f"{show}\n".encode())
    line = f"PATH=/opt/like:$PATH; {LAUNCH} --sync --container train:1 "
    code, said = salloc(slurm, f"{line} c.py; readlink /proc/self/ns/user")
    found = re.findall(r"is yes ([0-5]) (user:\S+)", said)
    assert code == 0 and sorted(rank for rank, _ in found) == list("012345"), said
    assert said.split()[-1] not in {space for _, space in found}
    job = sbatch(slurm, f"env PATH=/opt/like:/usr/sbin:/usr/bin:/sbin:/bin {LAUNCH} --container train:1 t.py hold")
    until(lambda: ranks(slurm) >= 6)
    of_job = f"SLURM_JOB_ID={job} SLURM_JOB_NODELIST=$(squeue -h -j {job} -o %N)"
    slurm.sh(first, f"cd /root/job && {of_job} {FLEET} --on slurm stop latest")
    until(lambda: ended(slurm, job))
    assert output(slurm, job).count("saved") >= 6 and ranks(slurm) == 0, output(slurm, job)


def test_a_node_that_slurm_or_the_network_loses(login: VirtualLab) -> None:
    """The last: Slurm takes minutes to have such a node back."""
    first, node, _ = login.names
    code, said = typed(login, f"{SUBMIT} -w {first},{node} --detach --node-timeout 8 t.py hold; {RUNS}")
    assert code == 0, said
    login.sh(node, "pkill -x slurmd")
    code, said = typed(login, f"sleep 4; {FLEET} runs")
    assert " followed " in said and ranks(login) >= 4, "a run needs it no more, once it runs"
    login.fleet("lab", "cut", node, check=True)
    try:
        code, said = typed(login, f"{FLEET} attach")
    finally:
        login.fleet("lab", "heal", node, check=True)
    assert code == 122 and f"{node} (node rank 1) was lost: silent for 8 s" in said, said
    assert f"fleet launch --again t-{said.split('run t-')[1].split()[0]} -x {node}" in said, "with another in its place"

"""On Slurm's nodes: how long a trivial run takes beside `srun torchrun`, and how often slurmctld is asked."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from tests.bench.fleet_lab import FLEET, BenchLab
from tests.bench.followed import Figure
from tests.bench.harness import RUN_LIMIT, Contestant, command
from tests.bench.launch_peers import SCRIPT, all_summed

AIMS = {"srun torchrun": 1.5}
FOLDER = "/share/bench"
# of slurmd and slurmctld themselves, whatever anybody runs
THEIRS = re.compile(
    "MESSAGE_NODE_REGISTRATION|MESSAGE_EPILOG|REQUEST_PING|REQUEST_STATS|REQUEST_STEP_COMPLETE|.*_COMPLETE_.*"
)


def on_first(lab: BenchLab, line: str) -> list[str]:
    return ["ssh", "-F", str(lab.ssh_config), lab.names[0], f"cd {FOLDER} 2>/dev/null; {line}"]


def ask(lab: BenchLab, line: str) -> str:
    return subprocess.run(on_first(lab, line), capture_output=True, text=True, timeout=RUN_LIMIT, check=False).stdout


def prepare(lab: BenchLab) -> None:
    """The script where all nodes see it, and Slurm awake."""
    ask(lab, f"mkdir -p {FOLDER}; printf %s {shlex.quote(SCRIPT)} > {FOLDER}/sum.py")
    ask(lab, f'for i in $(seq 60); do [ "$(sinfo -h -t idle -o %D)" = {len(lab.names)} ] && break; sleep 1; done')


def lines(lab: BenchLab) -> dict[str, str]:
    """What is typed, by its name."""
    nodes, python = len(lab.names), shlex.quote(sys.executable)
    launch = f"--workdir {FOLDER} --python {python} sum.py"
    torchrun = f"{python} -m torch.distributed.run --nnodes {nodes} --nproc-per-node 1 --rdzv-backend c10d"
    meet = f"--rdzv-endpoint {lab.addresses[lab.names[0]]}:29511"
    by_hand = f"srun --ntasks-per-node 1 --cpu-bind=none {torchrun} {meet} sum.py"
    return {
        "fleet --on slurm launch": f"salloc -Q -N{nodes} {FLEET} --on slurm launch {launch}",
        "srun torchrun": f"salloc -Q -N{nodes} {by_hand}",
        "fleet launch --on slurm": f"{FLEET} launch --on slurm --nodes {nodes} {launch}",
        "sbatch --wait": f"sbatch --wait -N{nodes} -o all.out --wrap {shlex.quote(by_hand)}; cat all.out",
    }


def contestants(lab: BenchLab) -> tuple[Contestant, list[Contestant]]:
    prepare(lab)
    typed = lines(lab)
    found = {
        name: Contestant(name, command(on_first(lab, typed[name])), all_summed(len(lab.names)))
        for name in ("fleet --on slurm launch", "srun torchrun")
    }
    own, peer = found.values()
    return own, [peer]


def asked(lab: BenchLab) -> list[Figure]:
    """Requests that slurmctld had for one run, by what was typed."""
    figures = []
    for name, line in lines(lab).items():
        ask(lab, "sdiag -r")
        ask(lab, line)
        by_type = ask(lab, "sdiag").partition("by message type")[2].partition("by user")[0]
        counts = {kind: int(n) for kind, n in re.findall(r"^\s*(\w+)\s*\(\s*\d+\) count:(\d+)", by_type, re.M)}
        counts = {kind: n for kind, n in counts.items() if not THEIRS.match(kind)}
        most = ", ".join(
            f"{n} {kind.removeprefix('REQUEST_').lower()}"
            for kind, n in sorted(counts.items(), key=lambda it: -it[1])[:4]
        )
        figures.append(Figure(f"requests to slurmctld, {name}", f"{sum(counts.values())}: {most}"))
    return figures

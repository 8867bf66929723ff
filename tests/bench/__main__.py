"""`make bench`: fleet beside its peers, in a lab; ratios with their spread, as markdown and JSON.

    python -m tests.bench [--runs N] [--only help,one,launch,preflight,output,exec,runs,code,get,slurm,broadcast]
                          [--hosts 64] [--json FILE]

A timing is never a test: this prints numbers, exits 0, and says where an aim was missed.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench import (
    broadcast_peers,
    code_peers,
    exec_peers,
    followed,
    get_peers,
    launch_peers,
    output_peers,
    slurm_peers,
)
from tests.bench.fleet_lab import FLEET, bench_lab
from tests.bench.harness import Contestant, Done, command, race, record, table


def show(title: str, own: Contestant, peers: Sequence[Contestant], aims: dict[str, float], rounds: int) -> object:
    race(title, [own, *peers], rounds)
    print(table(title, own, peers, aims), flush=True)
    return record(title, own, peers, aims)


def show_runs(hosts: int, rounds: int) -> list[object]:
    """Of runs under way: on so many nodes, then on 16."""
    tables = []
    with bench_lab(hosts) as lab:
        figures = [*followed.idle(lab), followed.first_words(lab, rounds)]
        for title, own, peers in followed.asked(lab):
            tables.append(show(title, own, peers, followed.AIMS, rounds))
        followed.rest(lab)
    with bench_lab(16) as lab:
        figures += followed.flood(lab) + followed.ending(lab, rounds)
    print(followed.table("Runs under way", figures), flush=True)
    return [*tables, {"title": "Runs under way", "figures": [asdict(figure) for figure in figures]}]


def no_error(done: Done) -> str | None:
    return f"exit status {done.status}: {done.output[-300:]!r}" if done.status else None


def hostfile() -> str:
    """A folder with a list of sixteen hosts."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-bench."))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "hosts.txt").write_text("".join(f"gpu{n:02}\n" for n in range(16)))
    return str(folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="rounds of each table [5]")
    parser.add_argument("--hosts", type=int, default=64, help="of the tables of exec and of runs [64]")
    parser.add_argument("--link", default="100mbit", help="of the broadcast table [100mbit]")
    parser.add_argument("--size", type=int, default=244, help="of the broadcast table, MiB [244: 256 MB]")
    parser.add_argument("--files", type=int, default=20000, help="of the code table [20000]")
    parser.add_argument(
        "--only", default="help,one,launch,preflight,output,exec,runs,code,get,slurm,broadcast", help="tables, by comma"
    )
    parser.add_argument("--json", type=Path, default=Path("runs/bench.json"), metavar="FILE")
    args = parser.parse_args()
    # ended politely, the lab is taken down as on Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = f"{os.cpu_count()} CPUs, {platform.platform()}, Python {platform.python_version()}"
    print(f"{machine}; {args.runs} rounds, median (min-max)\n", flush=True)
    tables = []
    wanted = args.only.split(",")
    if "help" in wanted:
        own = Contestant("fleet --help", command([FLEET, "--help"]), lambda done: None)
        python = Contestant("python -c pass", command([sys.executable, "-c", "pass"]), lambda done: None)
        tables.append(show("Start-up (aim: fleet --help under 0.15 s)", own, [python], {}, args.runs * 3))
        hosts = Contestant("fleet hosts", command([FLEET, "-i", "hosts.txt", "hosts"], cwd=hostfile()), no_error)
        tables.append(
            show("The inventory (aim: at most 1.5 of fleet --help)", hosts, [own], {own.name: 1.5}, args.runs * 3)
        )
    if "one" in wanted:
        with bench_lab(1) as lab:
            argv = [FLEET, "-i", "lab", "exec", "-w", lab.names[0], "--", "true"]
            own = Contestant("fleet exec", command(argv, lab.env, str(lab.home)), no_error)
            ssh = Contestant("ssh", command(["ssh", "-F", str(lab.ssh_config), lab.names[0], "true"]), no_error)
            tables.append(show("`true` on one host", own, [ssh], {"ssh": 2.5}, args.runs * 3))
    if "launch" in wanted:
        with bench_lab(4) as lab:
            own, peers = launch_peers.contestants(lab)
            tables.append(show("Launch of a trivial script on 4 nodes", own, peers, launch_peers.AIMS, args.runs))
    if "preflight" in wanted:
        with bench_lab(16) as lab:
            argv = [FLEET, "-i", "lab", "launch", "--engine", "command", "--workdir", "/", "/bin/true"]
            own = Contestant("fleet launch", command(argv, lab.env, str(lab.home)), no_error)
            bare = [*argv[:4], "--no-preflight", *argv[4:]]
            without = Contestant("--no-preflight", command(bare, lab.env, str(lab.home)), no_error)
            tables.append(show("Launch of `true` on 16 nodes: what preflight adds", own, [without], {}, args.runs))
    if "output" in wanted:
        with bench_lab(1) as lab:
            for case in output_peers.CASES:
                own, peers = output_peers.contestants(lab, case)
                tables.append(show(case, own, peers, {}, args.runs))
    if "exec" in wanted:
        with bench_lab(args.hosts) as lab:
            own, peers = exec_peers.contestants(lab)
            tables.append(show(f"`hostname` on {args.hosts} hosts", own, peers, exec_peers.AIMS, args.runs))
    if "runs" in wanted:
        tables += show_runs(args.hosts, args.runs)
    if "code" in wanted:
        with bench_lab(16) as lab:
            tree = code_peers.make_tree(lab, args.files)
            for case in code_peers.CASES:
                own, peers = code_peers.contestants(lab, tree, case)
                title = f"{args.files} files to {len(lab.names)} nodes, {case}"
                tables.append(show(title, own, peers, code_peers.AIMS, min(args.runs, 3)))
    if "get" in wanted:
        with bench_lab(4) as lab:
            get_peers.make_files(lab)
            for of in get_peers.CASES:
                own, peers = get_peers.contestants(lab, of)
                tables.append(show(f"get: {', '.join(of)}", own, peers, get_peers.AIMS, args.runs))
    if "slurm" in wanted:
        with bench_lab(2, "--slurm") as lab:
            own, peers = slurm_peers.contestants(lab)
            tables.append(show("A trivial script on 2 nodes of Slurm", own, peers, slurm_peers.AIMS, args.runs))
            figures = slurm_peers.asked(lab)
            print(followed.table("What Slurm is asked", figures), flush=True)
            tables.append({"title": "What Slurm is asked", "figures": [asdict(figure) for figure in figures]})
    if "broadcast" in wanted:
        with bench_lab(16, "--link", args.link, mesh=True) as lab:
            own, peers = broadcast_peers.contestants(lab, args.size << 20)
            title = f"{args.size} MiB to {len(lab.names)} nodes, every link {args.link}"
            tables.append(show(title, own, peers, broadcast_peers.AIMS, min(args.runs, 3)))
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"machine": machine, "rounds": args.runs, "tables": tables}, indent=1) + "\n")
    print(f"as JSON: {args.json}")
    return 0


try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)

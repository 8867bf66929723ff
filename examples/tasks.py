"""Tasks for fabric. `fleet play tasks.py --list` shows them, `fleet play tasks.py report` runs one on all hosts.

The housekeeping of GPU hosts as a fabfile has it: a setting that needs sudo, and a script that is put on each host,
runs there, and whose report is brought back.
"""

import json
from io import BytesIO, StringIO
from pathlib import Path

from fabric import ThreadingGroup, task
from invoke import Context, Exit

LIMITS = "# memory that NCCL and RDMA pin\n* soft memlock unlimited\n* hard memlock unlimited\n"
TARGET = "/etc/security/limits.d/90-training.conf"
REPORT = "import json, os, platform\nprint(json.dumps({'host': platform.node(), 'cpus': os.cpu_count()}))\n"


@task
def limits(c, undo=False):
    """Locked memory without a limit, for all users; --undo takes it back."""
    if undo:
        c.sudo(f"rm -f {TARGET}", hide="stderr")
        return
    there = BytesIO()
    if c.run(f"test -e {TARGET}", warn=True).ok:
        c.get(TARGET, there)
        if there.getvalue().decode() != LIMITS:
            raise Exit(f"{TARGET} is there, and another one", code=3)
    c.put(StringIO(LIMITS), "/tmp/90-training.conf")
    c.sudo(f"install -o root -m 644 /tmp/90-training.conf {TARGET}", hide="stderr")
    c.run(f"rm /tmp/90-training.conf; stat -c '%U %a %s' {TARGET}")


@task
def report(c, to="reports", python="python3"):
    """What each host is, as one file a host in the folder --to."""
    folder = c.run("mktemp -d", hide=True).stdout.strip()
    c.put(StringIO(REPORT), f"{folder}/report.py")
    with c.cd(folder):
        c.run(f"{python} report.py > report.json", env={"LC_ALL": "C"})
    c.get(f"{folder}/report.json", f"{to}/{c.original_host}.json")
    c.run(f"rm -r {folder}")


@task
def kernels(hosts: ThreadingGroup):
    """Which kernels there are: one task that asks all hosts."""
    found = {result.stdout.strip() for result in hosts.run("uname -r", hide=True).values()}
    print(f"{len(hosts)} hosts, of {len(found)} kind: {', '.join(sorted(found))}")


@task
def cpus(c: Context, reports="reports"):
    """All CPUs together, of the reports: once, here."""
    print(sum(json.loads(path.read_text())["cpus"] for path in Path(reports).glob("*.json")), "CPUs")

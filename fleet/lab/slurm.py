"""Runs Slurm in the lab: Debian's munged and slurmd in every host, slurmctld in the first, as root.

Control groups track a host's processes, as on real nodes: a process that leaves its session still ends with its step.
The hosts share this machine's freezer hierarchy. Each sees one folder of it, as if that were the whole.
"""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fleet.errors import LabError
from fleet.lab.host import ENVIRONMENT
from fleet.lab.processes import which
from fleet.node.base.processes import read_file
from fleet.slurmconf import SlurmNode, gres_conf, slurm_conf

KEY = "munge.key"  # in the lab's folder, if the lab has Slurm
PARTITION = "gpu1"
GPUS = ("/dev/zero", "/dev/full")  # Slurm counts files as GPUs
MEMORY_MIB = 4000
SECONDS = 60.0
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n"
SETUP = r"""
set -e
umask 022
mkdir -p /run/munge /var/log/munge /var/lib/munge /etc/munge
mkdir -p /etc/slurm /var/spool/slurmd /var/spool/slurmctld /var/log/slurm
echo {key} | base64 -d >/etc/munge/munge.key
chmod 0700 /etc/munge /var/log/munge /var/lib/munge
chmod 0400 /etc/munge/munge.key
chown -R munge:munge /etc/munge /var/log/munge /var/lib/munge /run/munge
echo {slurm} | base64 -d >/etc/slurm/slurm.conf
echo {gres} | base64 -d >/etc/slurm/gres.conf
echo {cgroup} | base64 -d >/etc/slurm/cgroup.conf
if ! [ -d /sys/fs/cgroup/freezer ]; then
    mount -t tmpfs none /sys/fs/cgroup
    mkdir /sys/fs/cgroup/freezer /sys/fs/cgroup/all
    mount -t cgroup -o freezer none /sys/fs/cgroup/all
    mkdir -p /sys/fs/cgroup/all/{tag}/{host}
    mount --bind /sys/fs/cgroup/all/{tag}/{host} /sys/fs/cgroup/freezer
    umount /sys/fs/cgroup/all
fi
pgrep -x munged >/dev/null || setpriv --reuid=munge --regid=munge --clear-groups munged --force </dev/null
pkill -x slurmd || true
pkill -x slurmctld || true
while pgrep -x 'slurmd|slurmctld' >/dev/null; do sleep 0.1; done
if [ {host} = {first} ]; then slurmctld </dev/null; fi
slurmd </dev/null
"""
REMOVE = """
mount --make-rprivate / && mount -t cgroup -o freezer none {at} || exit 0
if [ -d {at}/{tag} ]; then find {at}/{tag} -depth -type d -exec rmdir '{{}}' +; fi
"""


def start(folder: Path, tag: str, pids: Mapping[str, int]) -> None:
    """Starts Slurm on these hosts. pids: host name -> its first process. tag: the name of the lab's control groups."""
    if not (folder / KEY).exists():
        with open(os.open(folder / KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(128))
    key = (folder / KEY).read_bytes()
    memory = min(MEMORY_MIB, int(read_file("/proc/meminfo").split()[1]) >> 11)
    nodes = [SlurmNode(name, os.cpu_count() or 1, memory, GPUS) for name in pids]
    files = {
        "key": key,
        "slurm": slurm_conf(nodes, cluster="lab", partition=PARTITION, user="root").encode(),
        "gres": gres_conf(nodes).encode(),
        "cgroup": CGROUP_CONF.encode(),
    }
    encoded = {name: base64.b64encode(data).decode() for name, data in files.items()}
    for name, pid in pids.items():
        script = SETUP.format(host=name, first=nodes[0].name, tag=tag, **encoded)
        _run([which("nsenter") or "nsenter", "-t", str(pid), "-a", "sh", "-s"], script, name)


def remove(folder: Path, tag: str) -> None:
    """Removes the control groups and the key of a lab that has ended."""
    if (folder / KEY).exists():
        with tempfile.TemporaryDirectory(prefix="fleet-lab.") as at:
            _run(["unshare", "--mount", "sh", "-s"], REMOVE.format(at=at, tag=tag), None)
        (folder / KEY).unlink()


def _run(argv: list[str], script: str, host: str | None) -> None:
    try:
        done = subprocess.run(
            argv, input=script.encode(), env=ENVIRONMENT, capture_output=True, timeout=SECONDS, check=False
        )
        output, status = done.stderr.decode("utf-8", "replace").strip(), done.returncode
    except subprocess.TimeoutExpired:
        output, status = f"not in {SECONDS:g} s", 1
    if status:
        raise LabError(f"Slurm does not start: {output.splitlines()[-1] if output else status}", host=host)

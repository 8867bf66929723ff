"""fleet/api from programs on a real lab: the page that tells of it, and Ctrl-C in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.lab.test_launch import until
from tests.lab.virtual_lab import VirtualLab
from tests.pages import BLOCKS
from tests.standin import standin_python

PAGE = "".join(block.text for block in BLOCKS if block.page == "docs/api.md" and block.kind == "python")
# one write a line: an event has what came at once
TRAIN = """\
import os, sys
sys.stdout.write("rank {RANK} of {WORLD_SIZE}\\n".format(**os.environ))
"""
SLEEPER = """
import sys, fleet
hosts = fleet.open()
try:
    if sys.argv[1] == "exec":
        hosts.exec(["sleep", "4242"])
    else:
        with hosts.launch("/bin/sleep", ["4242"], engine="command", grace=1, workdir="/") as run:
            for event in run:
                print(event, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


def two(lab: VirtualLab, folder: Path) -> None:
    hosts = "".join(f"  {name}: {{address: {lab.address(name)}}}\n" for name in lab.names[:2])
    (folder / "fleet.yaml").write_text(f"defaults: {{user: root, python: {standin_python()}}}\nhosts:\n{hosts}")


def test_what_the_page_shows(lab: VirtualLab, tmp_path: Path) -> None:
    lab.enrol()
    two(lab, tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    done = subprocess.run(
        [sys.executable, "-c", PAGE],
        cwd=tmp_path,
        env=lab.env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for host in lab.names[:2]:
        lab.sh(host, "rm -r /root/work /root/.work.fleet-sync")  # other tests sync their own there
        assert f"{host} 0 {host}\n" in done.stdout
    for rank in range(4):
        assert f"rank {rank} of 4\\n" in done.stdout
    assert done.stdout.splitlines()[-1].split()[1] == "0" and done.stderr == ""


def sleeping(lab: VirtualLab) -> int:
    """On how many hosts it runs."""
    return sum(lab.sh(name, "pgrep -fx '(/bin/)?sleep 4242'", check=False) != "" for name in lab.names[:2])


def test_ctrl_c(lab: VirtualLab, tmp_path: Path) -> None:
    lab.enrol()
    two(lab, tmp_path)
    for verb in ("exec", "launch"):
        with subprocess.Popen(
            [sys.executable, "-c", SLEEPER, verb], cwd=tmp_path, env=lab.env, stdout=subprocess.PIPE, text=True
        ) as program:
            until(lambda: sleeping(lab) == 2 or program.poll() is not None)
            program.send_signal(signal.SIGINT)
            out, _ = program.communicate(timeout=300)
        assert program.returncode == 130 and "interrupted" in out, out
        until(lambda: sleeping(lab) == 0)  # a busy host ends what `exec` started when it comes to that

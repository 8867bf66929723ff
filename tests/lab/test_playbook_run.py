"""One of fleet's own playbooks, whole, with a script that trains nothing. The others: test_playbooks.py."""

from __future__ import annotations

from pathlib import Path

from tests.lab.virtual_lab import VirtualLab
from tests.standin import standin_python

SCRIPT = "import os; print('rank {RANK} of {WORLD_SIZE} at {MASTER_ADDR}'.format(**os.environ))\n"


def test_torchrun(lab: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(SCRIPT)
    names = lab.names[:2]
    hosts = ", ".join(f"{name}: {{address: {lab.address(name)}}}" for name in names)
    defaults = f"{{user: root, workdir: ~/played, slots: 2, python: {standin_python()}}}"
    (tmp_path / "fleet.yaml").write_text(f"defaults: {defaults}\nhosts: {{{hosts}}}\n")
    given = {"password_file": lab.password_file, "code": tmp_path / "code", "script": "train.py", "ranks": 2}
    variables = (word for name, value in given.items() for word in ("--var", f"{name}={value}"))
    done = lab.fleet("play", "torchrun.yaml", *variables, cwd=tmp_path, check=True)
    assert "playing fleet's own playbooks/torchrun.yaml" in done.stderr
    said = sorted(path.read_text() for path in tmp_path.glob("runs/torchrun-*/*/rank*.out"))
    assert said == [f"rank {rank} of 4 at {lab.address(names[0])}\n" for rank in range(4)]
    for name in names:
        lab.sh(name, "rm -r /root/played /root/.played.fleet-sync")

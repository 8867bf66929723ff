"""What came with a host's training interpreter is found there: by a run, by exec; and by whom python: misleads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab.virtual_lab import VirtualLab
from tests.standin import standin_python

TRAIN = """
import os, sys  # two ranks share the file: each line is one write
words = [os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["VIRTUAL_ENV"], str(sys.argv[1:])]
sys.stdout.write(" ".join(words) + "\\n")
"""


def test_torchrun_is_found_where_python_says(ready_lab: VirtualLab, tmp_path: Path) -> None:
    env = Path(standin_python()).parents[1]
    name = ready_lab.names[0]
    line = f"cd && mkdir env && cd env && ln -s {env} .venv && cat > t.py"
    ready_lab.inside(name, "sh", "-c", line, stdin=TRAIN.encode())
    (tmp_path / "fleet.yaml").write_text(
        f"defaults: {{user: root, workdir: ~/env, python: .venv/bin/python, activate: 'PATH=/usr/bin:/bin'}}\n"
        f"hosts: {{{name}: {{address: {ready_lab.address(name)}}}}}\n"
    )
    try:
        told = ready_lab.fleet(
            "exec", "--env-of", "python", "--shell", "command -v torchrun; echo $VIRTUAL_ENV", cwd=tmp_path
        )
        assert told.stdout.splitlines()[-2:] == ["/root/env/.venv/bin/torchrun", "/root/env/.venv"], told
        assert ready_lab.fleet("exec", "--", "torchrun", "--version", cwd=tmp_path).returncode == 127, "not asked for"

        words = ["--standalone", "--nproc-per-node", "2", "t.py", "--lr", "1"]
        done = ready_lab.fleet("launch", "--engine", "command", "-q", "torchrun", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        (out,) = tmp_path.glob("runs/*-*/*/rank0.out")
        assert sorted(out.read_text().splitlines()) == [f"{rank} 2 /root/env/.venv ['--lr', '1']" for rank in (0, 1)]

        (tmp_path / "fleet.yaml").write_text((tmp_path / "fleet.yaml").read_text().replace(".venv/bin", ".vemv/bin"))
        wrong = ready_lab.fleet("exec", "--env-of", "python", "--", "true", cwd=tmp_path)
        assert (wrong.returncode, "no such interpreter" in wrong.stderr) == (127, True)
        for verb in (["check", "--json"], ["launch", "--json", "t.py"]):
            said = ready_lab.fleet(*verb, cwd=tmp_path)
            assert said.returncode == 123
            assert "in fleet.yaml: python: /root/env/.venv/bin/python" in said.stdout, said.stdout
            assert "torch 2." in said.stdout
        assert json.loads(said.stdout.splitlines()[-1])["exit_code"] == 123
    finally:
        ready_lab.sh(name, "rm -rf ~/env")

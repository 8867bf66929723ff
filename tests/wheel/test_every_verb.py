"""Each verb on a lab, by the installed fleet. A verb that has no function here fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.line.verbs import VERBS
from tests.lab.virtual_lab import VirtualLab
from tests.standin import standin_python
from tests.wheelmaker import make_wheel

SETUP = "from setuptools import setup\nsetup(name='tinyext', version='0.1', py_modules=['tinyext'])\n"


def ask(lab: VirtualLab, *args: str) -> dict[str, Any]:
    """The JSON document of a command that must succeed on every host."""
    done = lab.fleet("-i", "lab", "--json", *args, check=True, timeout=300)
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["ok"] and all(host["ok"] for host in document["hosts"].values())
    return dict(document)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def init(lab: VirtualLab, tmp_path: Path) -> None:
    """Of hosts that are enrolled: who they are, and with what they train."""
    file = tmp_path / "fleet.yaml"
    lines = "".join(f"ssh root@{lab.address(name)} -p 22\n" for name in lab.names)
    done = lab.fleet("-i", str(file), "--json", "init", "--tofu", "-", stdin=lines)
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["written"], done.stderr
    text = file.read_text()
    assert all(f"address: {lab.address(name)}" in text for name in lab.names), text


def hosts(lab: VirtualLab, tmp_path: Path) -> None:
    assert list(ask(lab, "hosts")["hosts"]) == lab.names


def setup_ssh(lab: VirtualLab, tmp_path: Path) -> None:
    assert list(ask(lab, "setup-ssh")["hosts"]) == lab.names
    host = lab.names[1]
    config = lab.home / ".ssh/config"
    assert f"Host {host}" in config.read_text()


def exec_(lab: VirtualLab, tmp_path: Path) -> None:
    said = ask(lab, "exec", "--", "printf", "%s", "a  b")
    assert {host["stdout"] for host in said["hosts"].values()} == {"a  b"}


def sync(lab: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a.py").write_text("print('a')\n")
    ask(lab, "sync", str(tmp_path / "code"), "--to", "~/code")
    (tmp_path / "model").write_bytes(b"weights" * 99999)
    ask(lab, "sync", "--data", f"{tmp_path / 'model'}:/models/base")
    make_wheel(tmp_path / "wheels")
    ask(lab, "sync", "--wheels", str(tmp_path / "wheels"))
    for name, told in ask(lab, "hosts")["hosts"].items():
        python = told["python"]
        assert lab.sh(name, "cat ~/code/a.py; cksum </models/base") == "print('a')\n" + lab.sh(
            name, f"{python} -c 'import tinypkg; print(end=\"\")'; cksum </models/base"
        )


def build(lab: VirtualLab, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "tinyext.py").write_text("")
    said = ask(lab, "build", str(tmp_path), "--builds-dir", str(lab.home / "builds"))
    assert Path(said["wheel"]).is_file()
    assert {host["wheels"]["tinyext"] for host in said["hosts"].values()} == {"installed"}


def check(lab: VirtualLab, tmp_path: Path) -> None:
    assert list(ask(lab, "check")["hosts"]) == lab.names


def pack(lab: VirtualLab, tmp_path: Path) -> None:
    said = json.loads(lab.fleet("pack", "--json", str(tmp_path / "fleet.pyz"), check=True).stdout)
    done = subprocess.run(
        [sys.executable, said["file"], "explain-env"], env={"NNODES": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "platform   aistation" in done.stdout, done.stderr


def explain_env(lab: VirtualLab, tmp_path: Path) -> None:
    done = lab.fleet("explain-env", "--json")
    assert done.returncode == 2 and "how many nodes" in json.loads(done.stdout)["wrong"][0]["message"]


def slurm_conf(lab: VirtualLab, tmp_path: Path) -> None:
    said = ask(lab, "slurm-conf", "--to", str(tmp_path / "slurm"))
    assert all(Path(file).is_file() for file in said["files"]) and len(said["files"]) == 3
    text = (tmp_path / "slurm/slurm.conf").read_text()
    assert all(f"NodeName={name} " in text for name in lab.names)


def launch(lab: VirtualLab, tmp_path: Path) -> None:
    (lab.home / "job").mkdir()
    (lab.home / "job/job.py").write_text("import os; print('rank', os.environ['RANK'], flush=True)\n")
    words = ("launch", "--sync", "--workdir", "~/job", "job.py")
    lab.fleet("-i", "lab", *words, cwd=lab.home / "job", check=True, timeout=300)
    logs = {path.read_text() for path in (lab.home / "job/runs").glob("*/*/rank*.out")}
    assert logs == {"rank 0\n", "rank 1\n"}


def ps(lab: VirtualLab, tmp_path: Path) -> None:
    """A run left to itself, for the three verbs behind this one."""
    script = "import time\nfor n in range(100000): print('step', n, flush=True); time.sleep(0.1)\n"
    (lab.home / "job/steps.py").write_text(script)
    words = ("launch", "--detach", "--sync", "--workdir", "~/job", "--engine", "command", "--", "python3", "steps.py")
    lab.fleet("-i", "lab", *words, cwd=lab.home / "job", check=True, timeout=300)
    (run,) = ask(lab, "ps")["runs"]
    assert (run["state"], run["lease"], list(run["nodes"])) == ("running", None, lab.names)
    for name in lab.names:  # the three want ranks that are at their work
        until(lambda name=name: lab.sh(name, "cat ~/.fleet/runs/*/rank?.out").count("step "))


def logs(lab: VirtualLab, tmp_path: Path) -> None:
    folder = str(lab.home / "job/runs")
    shown = lab.fleet("-i", "lab", "logs", "--rank", "0", "--tail", "1", "--runs-dir", folder, check=True).stdout
    assert shown.startswith("step ")


def top(lab: VirtualLab, tmp_path: Path) -> None:
    said = ask(lab, "top", "latest", "--once", "--runs-dir", str(lab.home / "job/runs"))
    assert all(host["sample"]["memory"] > 0 and host["sample"]["runs"] for host in said["hosts"].values()), said


def stacks(lab: VirtualLab, tmp_path: Path) -> None:
    said = ask(lab, "stacks", "latest", "--runs-dir", str(lab.home / "job/runs"))
    assert [len(host["ranks"]) for host in said["hosts"].values()] == [1, 1] and said["places"], said
    assert all(rank["pid"] > 0 for host in said["hosts"].values() for rank in host["ranks"]), said


def report(lab: VirtualLab, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    said = lab.fleet("--json", "report", "--html", str(page), "--runs-dir", str(lab.home / "job/runs"), check=True)
    assert json.loads(said.stdout)["world_size"] == 2 and "Attempts and ranks" in page.read_text()


def attach(lab: VirtualLab, tmp_path: Path) -> None:
    process = lab.popen("-i", "lab", "attach", cwd=lab.home / "job")
    assert process.stdout and b"step " in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 0


def stop(lab: VirtualLab, tmp_path: Path) -> None:
    said = ask(lab, "stop", "latest", "--runs-dir", str(lab.home / "job/runs"))
    assert {host["was"] for host in said["hosts"].values()} == {"running"}
    assert ask(lab, "ps")["runs"] == []


def get(lab: VirtualLab, tmp_path: Path) -> None:
    said = ask(lab, "get", "~/job/steps.py", "--to", str(tmp_path / "back"))["hosts"]
    assert [(tmp_path / "back" / name / "steps.py").is_file() for name in said] == [True, True]


def forget(lab: VirtualLab, tmp_path: Path) -> None:
    done = lab.fleet("-i", "lab", "forget", "latest", "--runs-dir", str(lab.home / "job/runs"))
    assert done.returncode == 2 and "needs none of its hosts any more" in done.stderr, done.stderr


def runs(lab: VirtualLab, tmp_path: Path) -> None:
    folder = str(lab.home / "job/runs")

    def states() -> list[str]:
        said = json.loads(lab.fleet("runs", "--json", "--runs-dir", folder, check=True).stdout)
        return [run["state"] for run in said["runs"]]

    until(lambda: "followed" not in states())  # who followed it notes that it was stopped
    assert states() == ["stopped", "done"]


def ssh(lab: VirtualLab, tmp_path: Path) -> None:
    assert lab.fleet("-i", "lab", "ssh", lab.names[1], "hostname", check=True).stdout.strip() == lab.names[1]


def forward(lab: VirtualLab, tmp_path: Path) -> None:
    said = lab.fleet("-i", "lab", "--dry-run", "forward", lab.names[1], "22:18022", check=True).stdout
    assert said == f"127.0.0.1:18022 here is port 22 of {lab.names[1]}\n"


def kill_port(lab: VirtualLab, tmp_path: Path) -> None:
    ask(lab, "kill-port", "-y", "29500")


def play(lab: VirtualLab, tmp_path: Path) -> None:
    """One of fleet's own, by its bare name: it is there wherever fleet is installed."""
    (tmp_path / "job.py").write_text("import os; print('rank', os.environ['RANK'], 'is here', flush=True)\n")
    given = {"password_file": lab.password_file, "code": tmp_path, "script": "job.py", "ranks": 1}
    variables = (word for name, value in given.items() for word in ("--var", f"{name}={value}"))
    done = lab.fleet("-i", "lab", "play", "torchrun.yaml", *variables, check=True, timeout=300)
    assert "playing fleet's own playbooks/torchrun.yaml" in done.stderr
    assert all(f"rank {rank} is here" in done.stdout for rank in (0, 1))


@pytest.mark.real
def test_the_demo(lab: VirtualLab) -> None:
    """With what it trains, which is there too."""
    lab.train_with(sys.executable)
    done = lab.fleet(
        "-i",
        "lab",
        "play",
        "demo.yaml",
        "--var",
        f"password_file={lab.password_file}",
        "--var",
        f"node={lab.names[1]}",
        check=True,
        timeout=300,
    )
    assert "playing fleet's own playbooks/demo.yaml" in done.stderr
    assert "test accuracy: 0.9" in done.stdout
    lab.train_with(standin_python())


def examples(lab: VirtualLab, tmp_path: Path) -> None:
    lab.fleet("examples", "--to", str(tmp_path), check=True)
    assert (tmp_path / "examples/digits.py").is_file() and (tmp_path / "playbooks/demo.yaml").is_file()
    template = lab.fleet("examples", "two-nodes.yaml", check=True).stdout
    (tmp_path / "fleet.yaml").write_text(template)
    assert lab.fleet("hosts", "--format", "names", cwd=tmp_path, check=True).stdout == "node1\nnode2\n"


def help_(lab: VirtualLab, tmp_path: Path) -> None:
    assert "--nproc-per-node" in lab.fleet("help", "launch", check=True).stdout


def lab_(lab: VirtualLab, tmp_path: Path) -> None:
    said = json.loads(lab.fleet("lab", "status", "--json", check=True).stdout)
    assert [host["up"] for host in said["hosts"].values()] == [True, True]


@pytest.mark.parametrize("verb", VERBS)
def test_verb(verb: str, lab: VirtualLab, tmp_path: Path) -> None:
    name = verb.replace("-", "_") + "_" * (verb in ("exec", "help", "lab"))
    assert name in globals(), f"this file has no function {name}() that runs 'fleet {verb}'"
    does: Callable[[VirtualLab, Path], None] = globals()[name]
    does(lab, tmp_path)

"""The lines that users of Slurm type, and fleet's for the same, on a real Slurm: scripts as they stand in the playbook
and on the pages, with the lab's numbers for theirs; and a run for each line of a file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from fleet.ops.pack import pack
from tests.lab.test_slurm import PROGRAM, PYTHON, typed
from tests.lab.virtual_lab import FLEET, LabFactory, VirtualLab
from tests.node.nodes import until
from tests.wheelmaker import make_wheel

pytestmark = [pytest.mark.slow, pytest.mark.real]
ROOT = Path(__file__).parents[2]
PATHS = f"export PATH={Path(FLEET).parent}:$PATH"
SUBMIT = f"fleet launch --on slurm --workdir /share/job --python {PYTHON}"
SINGLE = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks-per-node=8 --cpus-per-task=8
export WORLD_SIZE=1
python main.py
"""


@pytest.fixture(scope="module")
def slurm(lab_factory: LabFactory) -> VirtualLab:
    lab = lab_factory(3, "--slurm")
    for host in lab.names:
        lab.sh(host, f"mkdir -p /opt/train && ln -s {Path(PYTHON).parents[1]} /opt/conda")
        lab.inside(host, "sh", "-c", "cat >/opt/train/train.py", stdin=PROGRAM.encode())
    until(lambda: lab.sh(lab.names[0], "sinfo -h -t idle -o %D") == "3")
    return lab


@pytest.fixture
def login(slurm: VirtualLab) -> VirtualLab:
    line = "rm -rf /share/job && mkdir /share/job && cd /share/job && cat >t.py && cp t.py train.py && cp t.py main.py"
    slurm.sh(slurm.names[0], "scancel --me")
    slurm.inside(slurm.names[2], "sh", "-c", line, stdin=PROGRAM.encode())
    until(lambda: slurm.sh(slurm.names[0], "sinfo -h -t idle -o %D") == "3")
    return slurm


def fitted(script: str) -> str:
    """A script with the numbers of the lab's nodes: two of them, with two GPUs each."""
    numbers = {"nodes=4": "nodes=2", "ntasks-per-node=8": "ntasks-per-node=2", "nproc_per_node 8": "nproc_per_node 2"}
    for theirs, ours in {**numbers, "gpu:8": "gpu:2"}.items():
        script = script.replace(theirs, ours)
    return re.sub("cpus-per-task=[0-9]+", "cpus-per-task=1", script)


def of_playbook() -> str:
    """The script that playbooks/slurm.yaml replaces, as its first comment has it."""
    lines = re.findall("(?m)^#   (.*)", (ROOT / "playbooks/slurm.yaml").read_text())
    return "\n".join(["#!/bin/bash", *[line for line in lines if "squeue" not in line]]) + "\n"


def of_page() -> list[str]:
    """The batch scripts of docs/slurm.md."""
    return re.findall("```bash\n(#!/bin/bash\n.*?)```", (ROOT / "docs/slurm.md").read_text(), re.DOTALL)


def played(lab: VirtualLab, script: str) -> str:
    """What a script prints that sbatch is given, as its users do; it ends well."""
    lab.inside(lab.names[2], "sh", "-c", "cat >/share/job/job.sh", stdin=script.encode())
    code, said = typed(lab, f"{PATHS}; sbatch --wait --output=job.out job.sh; echo code $?; cat job.out")
    assert code == 0 and "code 0" in said, said
    return said


def sums(text: str) -> list[str]:
    """What ranks found: their number, their CPUs, their GPUs."""
    return sorted(re.findall(r"sum (\d+ \d+ \S+)", text))


def test_several_nodes_by_srun_and_by_fleet(login: VirtualLab) -> None:
    by_hand = played(login, fitted(of_playbook()))
    code, said = typed(login, f"{PATHS}; {SUBMIT} --nodes 2 --gres gpu:2 --cpus-per-task 1 train.py")
    assert code == 0 and len(sums(said)) == 4, said
    # srun writes what ranks print as it comes: by hand, lines may be cut into each other
    assert {tuple(it.split()[::2]) for it in sums(by_hand)} == {tuple(it.split()[::2]) for it in sums(said)}, by_hand


def test_a_script_that_starts_once(login: VirtualLab) -> None:
    """However many tasks it asks for: the line of docs/launchers.md does the same."""
    by_hand = played(login, fitted(SINGLE))
    page = (ROOT / "docs/launchers.md").read_text()
    (line,) = re.findall("which starts once \\| `fleet launch --on slurm (.*?) main.py`", page)
    options = fitted(line.replace(" 8", "=8")).replace("=", " ")
    code, said = typed(login, f"{PATHS}; {SUBMIT} {options} main.py")
    assert code == 0 and len(sums(by_hand)) == len(sums(said)) == 1, (by_hand, said)


def test_a_script_whose_last_line_is_fleet(login: VirtualLab) -> None:
    """With --sync in the job: the code comes to a folder of each node's own."""
    said = played(login, fitted(of_page()[0]).replace("launch ", f"launch --python {PYTHON} "))
    assert len(sums(said)) == 4 and "done after" in said, said
    assert [login.sh(host, "ls ~/work/train.py 2>&1 || true") for host in login.names[:2]] == [
        "/root/work/train.py"
    ] * 2


def test_a_script_that_brings_the_zipapp(login: VirtualLab, tmp_path: Path) -> None:
    zipapp = pack(tmp_path / "fleet.pyz").read_bytes()
    for host in login.names:
        login.inside(host, "sh", "-c", "cat >/opt/fleet.pyz", stdin=zipapp)
    said = played(login, fitted(of_page()[1]))
    assert len(sums(said)) >= 4, said


def test_code_and_wheels_are_brought_into_a_job(login: VirtualLab) -> None:
    """--sync in the job's own step; what a setup line installs before it; one that fails has its end on record."""
    line = f"{SUBMIT.replace('/share/job', '/root/own')} --nodes 2 --gres gpu:2"
    setup = "--setup 'fleet --on slurm exec -- mkdir -p /root/set-up'"
    code, said = typed(login, f"{PATHS}; {line} --sync {setup} t.py")
    assert code == 0 and len(sums(said)) == 4, said
    assert all(login.sh(host, "ls -d /root/set-up /root/own/t.py") for host in login.names[:2])
    code, said = typed(login, f"{PATHS}; {line} --setup 'exit 9' t.py; echo code $?; fleet runs")
    assert "code 9\n" in said and re.search(" failed +9 ", said), said


def test_wheels_are_installed_within_a_job(login: VirtualLab, tmp_path: Path) -> None:
    """Before ranks start, into the Python that they are started with; what goes wrong is the run's end on record."""
    site = next(Path(PYTHON).parents[1].glob("lib/python3*/site-packages"))
    for host in login.names:
        behind = f"echo {site} >$(echo /opt/own/lib/python3*/site-packages)/behind.pth"
        login.sh(host, f"rm -rf /opt/own; {sys.executable} -m venv --without-pip /opt/own && {behind}")
    program = b"import tinypkg; print('has', tinypkg.__version__)"
    login.inside(login.names[2], "sh", "-c", "cd /share/job && mkdir wheels unmet && cat >has.py", stdin=program)
    for folder, wheel in (
        ("wheels", make_wheel(tmp_path / "wheels", "tinypkg", "1.0")),
        ("unmet", make_wheel(tmp_path / "unmet", "tinypkg", "2.0", requires=["nowhere"])),
    ):
        to = f"cat >/share/job/{folder}/{wheel.name}"
        login.inside(login.names[2], "sh", "-c", to, stdin=wheel.read_bytes())
    line = f"{SUBMIT.replace(PYTHON, '/opt/own/bin/python3')} --nodes 2 --gres gpu:2"
    code, said = typed(login, f"{PATHS}; {line} --wheels wheels has.py")
    assert code == 0 and said.count("has 1.0") == 4, said
    for folder, exit_code, why in (("unmet", 123, "unmet: "), ("none", 2, "none does not exist")):
        code, said = typed(login, f"{PATHS}; {line} --wheels {folder} has.py; echo code $?; fleet runs")
        assert f"code {exit_code}\n" in said and why in said and re.search(f" failed +{exit_code} ", said), said


def test_a_run_for_each_line(login: VirtualLab) -> None:
    """A request, a run and a job a line: one is stopped, and the others are left."""
    line = f"""
        {PATHS}; printf 'one\\n# no run\\nhold\\nthree\\n' >lines.txt
        {SUBMIT} --nodes 1 --gres gpu:2 --each lines.txt t.py
        for i in $(seq 90); do [ $(fleet runs | grep -c ' done ') = 2 ] && break; sleep 1; done
        squeue -h -r -o 'there %i'; fleet --on slurm ps; fleet stop t-2; fleet attach t-3; fleet runs
        squeue -h -r -o 'left %i'"""
    code, said = typed(login, line)
    assert code == 0 and "are job " in said and len(re.findall("there [0-9]+_2\n", said)) == 1, said
    shown = dict(re.findall(r"(?m)^t-([123])-\S+ +(\w+)", said.split("RUN ")[-1]))
    assert shown == {"1": "done", "2": "stopped", "3": "done"}, said
    assert re.findall("there ", said) == ["there "] and "left" not in said, said
    for number, words in ((1, "['one']"), (3, "['three']")):
        document = json.loads(login.sh(login.names[2], f"cat /share/job/runs/t-{number}-*/run.json"))
        assert str(document["launch"]["args"]) == words
        assert login.sh(login.names[2], f"cat /share/job/runs/t-{number}-*/job.out") != ""


def test_python_is_there() -> None:
    assert Path(sys.executable).with_name("torchrun").exists(), "by hand it is the real one"

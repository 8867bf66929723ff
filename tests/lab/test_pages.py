"""What the README and docs/ show to be typed, typed: in the order of each page, in a stranger's folder, on an inventory
of its own. What cannot be typed here is marked with the reason, or with where it is tried."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.pages import BLOCKS, ROOT
from tests.standin import standin_python
from tests.wheelmaker import make_wheel

pytestmark = pytest.mark.slow

# by the beginning of the command: why it is not typed here
MARKED = {
    "pip install": "tests/wheel installs it",
    "make test": "it runs this",
    "make demo": "test_quick_start",
    "fleet lab": "the lab here is the tests'; test_lab, test_quick_start",
    "fleet --on slurm": "in an allocation: test_slurm",
    "fleet launch --on slurm": "from a login node: test_slurm",
    "fleet hosts --from slurm": "test_slurm",
    "salloc": "test_slurm",
    "python3 /share/fleet.pyz": "test_containers",
    "fleet -i lab": "the block to rehearse: test_quick_start",
    "fleet init": "asks on a terminal: test_init",
    "fleet ssh gpu01": "a terminal's: test_shell",
    "fleet ps --watch": "a terminal's: tests/node/test_live_screen.py",
    "fleet top latest": "a live run's: tests/node/test_live_screen.py",
    "fleet exec -w @failed": "of the verb before: tests/unit/test_hosts_elsewhere.py",
    "sinfo": "Slurm's: tests/unit/test_hosts_elsewhere.py gives such names on stdin",
    "fleet forward": "ends with Ctrl-C: test_shell",
    "fleet sync --data /data/imagenet": "a folder of this machine outside the test's: test_sync",
    "fleet sync --image": "it needs images: test_images",
    "fleet build deepspeed": "takes minutes: test_playbooks",
    "fleet play --prompt-for-sudo-password": "asks on a terminal: test_tasks",
    "fleet launch --engine deepspeed train.py": "its train.py is a DeepSpeed program: test_launch_engines",
    "fleet play torchrun.yaml": "test_playbooks",
    "fleet attach train-20261121": "a run's id of then",
    "fleet stop train-20261121": "a run's id of then",
    "fleet forget train-20261121": "a run's id of then",
    "fleet launch --from train-20261122": "a run's id of then",
}
# by the beginning of the command: what needs torch, or more of torchrun than the stand-in has
REAL = (
    "fleet launch --sync examples/digits.py",
    "fleet launch --nnodes 2:4",
    "fleet launch --engine deepspeed --env",
    "fleet launch --engine accelerate",
    "fleet launch --engine colossalai",
    "fleet play playbooks/demo.yaml --var password_file=pw",
)
# what ends otherwise here than with 0, and why
ENDS = {
    "fleet explain-env": (2, "no platform's variables here"),
    "fleet explain-env --platform kubeflow": (2, "no platform's variables here"),
    "fleet exec -w 'gpu[01-03]' -x gpu02 -- nvidia-smi -L": (127, "no GPU"),
    "fleet exec -- nvidia-smi -L": (127, "no GPU"),
    "fleet exec nvidia-smi -L": (127, "no GPU"),
    "fleet exec -- nvidia-smi -q -i 0": (127, "no GPU"),
    "fleet exec --timeout 20 -- nvidia-smi": (127, "no GPU"),
    "fleet stacks latest": (2, "the run is over by then: test_stacks"),
    "fleet stacks latest --rank 0,8 --all-threads": (2, "the run is over by then: test_stacks"),
    "fleet forget latest": (2, "the run is over by then: test_runs"),
}
# what is typed behind it, as somebody who reads on would have waited: it repeats a run that was detached
THEN = {"fleet launch --again latest -x gpu04": "fleet attach latest"}
PAGES = [page for page in dict.fromkeys(block.page for block in BLOCKS) if page not in ("docs/json.md", "docs/api.md")]
TRAIN = """\
import pathlib, time
pathlib.Path("checkpoints").mkdir(exist_ok=True)
pathlib.Path("checkpoints/last.pt").write_text("weights")
for step in range(4):
    print("step", step, flush=True)
    time.sleep(0.5)
"""
SETUP = "from setuptools import setup\nsetup(name='tinyext', version='0.1', py_modules=['tinyext'])\n"
TASKS = """\
from fabric import task

@task
def build(c):
    c.run("echo built")

@task
def deploy(c, branch="main"):
    c.run(f"echo {branch}")
"""


def typed() -> Iterator[tuple[str, str, str | None]]:
    """Yields (page, command, why it is not typed here): a command once, or once on each page of a first evening."""
    known = set[tuple[str, str]]()
    for block in BLOCKS:
        lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
        for line in lines if block.kind == "console" and block.page in PAGES else ():
            once = (block.page if block.page.startswith("docs/evening") else "", line)
            if once not in known:
                known.add(once)
                yield block.page, line, next((why for start, why in MARKED.items() if line.startswith(start)), None)


TYPED = list(typed())


@pytest.fixture(scope="module")
def gpus(breakable: BreakableLab) -> VirtualLab:
    """Four hosts that its inventory calls gpu01 to gpu04."""
    return breakable.enrol()


def stranger(folder: Path, lab: VirtualLab, page: str, python: str) -> None:
    """A folder with what the pages speak of."""
    for name in ("examples", "playbooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("my_package", "my-extension", "checkpoints", "data", "src"):
        (folder / name).mkdir()
    hosts = "".join(f"  gpu{n:02}: {{address: {lab.address(name)}}}\n" for n, name in enumerate(lab.names, 1))
    defaults = f"user: root, workdir: ~/{page.replace('/', '-')}, slots: 1, python: {python}"
    texts = {
        "fleet.yaml": f"defaults: {{{defaults}}}\nhosts:\n{hosts}groups: {{a100: 'gpu[01-02]'}}\n",
        "hostfile": "".join(f"{lab.address(name)} slots=1\n" for name in lab.names),
        ".gitignore": "runs/\nwheels/\npw\n",
        "train.py": TRAIN,
        "tasks.py": TASKS,
        "fabfile.py": TASKS,
        "sft.sh": "#!/bin/sh\necho node $NODE_RANK of $NNODES $1\n",
        "setup.sh": "echo set up\n",
        "default.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\n",
        "my_package/__init__.py": "",
        "my_package/train.py": "print('packed')\n",
        "my-extension/setup.py": SETUP,
        "my-extension/tinyext.py": "",
        "data/a": "a",
        "src/model.py": "",
        "model.safetensors": "weights" * 9999,
        "requirements.txt": "--no-index\n--find-links wheels\ntinypkg\n",
        "checkpoints/last.pt": "weights",
        "pw": lab.password_file.read_text(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "pw").chmod(0o600)
    make_wheel(folder / "wheels")


NEED_TORCH = sorted({page for page, line, why in TYPED if why is None and line.startswith(REAL)})


@pytest.mark.parametrize(
    ("page", "real"),
    [
        *(pytest.param(page, False, id=page) for page in PAGES),
        *(pytest.param(page, True, id=f"{page}-real", marks=pytest.mark.real) for page in NEED_TORCH),
    ],
)
def test_a_page_as_it_is_typed(page: str, real: bool, gpus: VirtualLab, tmp_path: Path) -> None:
    stranger(tmp_path, gpus, page + "-real" * real, sys.executable if real else standin_python())

    def end(line: str) -> tuple[int, str]:
        done = gpus.typed(line, tmp_path, {"WANDB_API_KEY": "none"})
        return done.returncode, done.stdout + done.stderr

    assert end("fleet sync")[0] == 0
    wrong = list[str]()
    for of, line, why in TYPED:
        if of == page and why is None and (real or not line.startswith(REAL)):
            code, output = end(line)
            if line in THEN:
                assert end(THEN[line])[0] == 0
            if code != ENDS.get(line, (0, ""))[0]:
                wrong.append(f"$ {line}\n{output}-- exit code {code}")
    assert not wrong, "\n".join(wrong)


def test_what_is_marked_is_shown_somewhere_and_most_is_typed() -> None:
    marked = [line for _, line, why in TYPED if why is not None]
    assert all(any(line.startswith(start) for line in marked) for start in MARKED)
    assert all(any(line.startswith(start) for _, line, why in TYPED if why is None) for start in REAL)
    assert ENDS.keys() <= {line for _, line, why in TYPED if why is None}
    assert len(TYPED) - len(marked) >= 60

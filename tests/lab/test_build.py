"""Builds over real sshd: a real compiler on one host, the wheel on all. (deepspeed: test_playbooks.py)"""

from __future__ import annotations

import json
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab

PYTHON = "/opt/train/bin/python3"
SETUP = (
    'from setuptools import Extension, setup\nsetup(name="fleetext", version="0.1", ext_modules=['
    'Extension("fleetext", ["fleetext.c"])])\n'
)
CODE = """#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fleetext", "", -1, methods};
PyMODINIT_FUNC PyInit_fleetext(void) { return PyModule_Create(&module); }
"""


@pytest.fixture(scope="module")
def forge(breakable: BreakableLab) -> VirtualLab:
    """Hosts with a training environment of their own, and an inventory that names it in ~/own.yaml."""
    lab = breakable.enrol().first(2)
    site = sysconfig.get_path("purelib")
    for name in lab.names:
        lab.sh(
            name,
            f"{sys.executable} -m venv --without-pip /opt/train && "
            f"echo {site} > $(echo /opt/train/lib/python3*/site-packages)/behind.pth",
        )
    lines = [f"  {n}: {{address: {lab.address(n)}, python: {PYTHON}}}" for n in lab.names]
    (lab.home / "own.yaml").write_text("defaults: {user: root}\nhosts:\n" + "\n".join(lines) + "\n")
    return lab


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "ext"
    folder.mkdir()
    (folder / "setup.py").write_text(SETUP)
    (folder / "fleetext.c").write_text(CODE.replace("ANSWER", "42"))
    return folder


def test_a_c_extension_is_built_on_one_host_and_works_on_all(forge: VirtualLab, tree: Path, tmp_path: Path) -> None:
    done = forge.fleet(
        "-i",
        "own.yaml",
        "--json",
        "build",
        str(tree),
        "--on",
        forge.names[1],
        "--builds-dir",
        str(tmp_path / "builds"),
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["on"] == forge.names[1] and document["arch"] == []
    wheel = Path(document["wheel"])
    assert wheel.exists() and "fleetext.c" in (wheel.parent / "build.log").read_text()
    assert {h["wheels"]["fleetext"] for h in document["hosts"].values()} == {"installed"}
    for name in forge.names:
        assert forge.sh(name, f"{PYTHON} -c 'import fleetext; print(fleetext.answer())'") == "42"
    assert forge.sh(forge.names[1], "ls -A ~/.fleet/builds") == ""


def test_a_compilers_error_is_the_summary(forge: VirtualLab, tree: Path, tmp_path: Path) -> None:
    (tree / "fleetext.c").write_text(CODE)
    done = forge.fleet("-i", "own.yaml", "build", str(tree), "--builds-dir", str(tmp_path / "b"), timeout=300)
    assert done.returncode == 1
    assert "error: 'ANSWER' undeclared" in done.stderr.replace("‘", "'").replace("’", "'").split("error: host")[1]
    assert "the log:" in done.stderr and len(list((tmp_path / "b").glob("*/build.log"))) == 1
    assert not list((tmp_path / "b").glob("*/*.whl"))


def test_no_compiler_is_said_before_anything_is_sent(forge: VirtualLab, tree: Path, tmp_path: Path) -> None:
    first = forge.names[0]
    inventory = forge.home / "bare.yaml"
    inventory.write_text((forge.home / "own.yaml").read_text() + "env: {CC: gcc-99, CXX: g++-99}\n")
    done = forge.fleet("-i", "bare.yaml", "build", str(tree), "--builds-dir", str(tmp_path / "b"))
    assert done.returncode == 123
    assert f"host {first}: no gcc there; no g++ there" in done.stderr and "apt-get install" in done.stderr
    assert not list((tmp_path / "b").glob("*/build.log"))


@pytest.mark.slow
def test_the_gpus_of_the_whole_fleet_decide(forge: VirtualLab, tree: Path, tmp_path: Path) -> None:
    smi = (
        '#!/bin/sh\ncase "$*" in *compute_cap*) echo \'Field "compute_cap" is not a valid field\' ; exit 2;; '
        "*query-gpu*) echo '0, NVIDIA GPU_NAME, 81559, GPU-1, 470.1, 0';; esac\n"
    )
    nvcc = "#!/bin/sh\necho 'Cuda compilation tools, release {0}, V{0}.1'\n"
    site = sysconfig.get_path("purelib")
    gpus = dict(zip(forge.names, ("H100 PCIe", "A100-SXM4-80GB"), strict=False))
    try:
        for name, gpu in gpus.items():
            forge.inside(
                name,
                "sh",
                "-c",
                "cat > /usr/local/bin/nvidia-smi; chmod +x /usr/local/bin/nvidia-smi",
                stdin=smi.replace("GPU_NAME", gpu).encode(),
            )
            forge.inside(
                name,
                "sh",
                "-c",
                "cat > /usr/local/bin/nvcc; chmod +x /usr/local/bin/nvcc",
                stdin=nvcc.format("9.0").encode(),
            )
        done = forge.fleet("-i", "own.yaml", "build", str(tree), "--builds-dir", str(tmp_path / "b"))
        assert done.returncode == 123
        # which of the two is said depends on the torch that the tests run with
        assert "nvcc is 9.0, torch is" in done.stderr or "built without CUDA, which GPUs (8.0;9.0) need" in done.stderr
        (tree / "setup.py").write_text("import os; print('for', os.environ['TORCH_CUDA_ARCH_LIST'])\n" + SETUP)
        for name in forge.names:
            forge.inside(
                name,
                "sh",
                "-c",
                "cat > /usr/local/bin/nvcc; chmod +x /usr/local/bin/nvcc",
                stdin=nvcc.format("12.4").encode(),
            )
            # without torch: nothing to disagree with
            forge.sh(
                name,
                "cd /opt/train/lib/python3*/site-packages; mkdir /opt/behind; for part in pip setuptools "
                f"wheel _distutils_hack pkg_resources; do ln -s {site}/$part* /opt/behind/; done; "
                "mv behind.pth /opt/behind.pth; echo /opt/behind > b2.pth",
            )
        built = forge.fleet(
            "-i",
            "own.yaml",
            "--json",
            "build",
            str(tree),
            "--no-install",
            "--builds-dir",
            str(tmp_path / "c"),
            timeout=300,
        )
        assert built.returncode == 0, built.stdout + built.stderr
        document = json.loads(built.stdout)
        assert document["arch"] == ["8.0", "9.0"]
        assert "for 8.0;9.0" in Path(document["log"]).read_text()
    finally:
        for name in forge.names:
            forge.sh(
                name,
                "rm -f /usr/local/bin/nvidia-smi /usr/local/bin/nvcc; cd "
                "/opt/train/lib/python3*/site-packages && rm -f b2.pth && "
                "{ [ ! -e /opt/behind.pth ] || mv /opt/behind.pth behind.pth; }; rm -rf /opt/behind",
            )


@pytest.mark.slow
def test_ctrl_c_ends_the_build_with_its_tree(forge: VirtualLab, tree: Path, tmp_path: Path) -> None:
    (tree / "setup.py").write_text("import subprocess; subprocess.run(['sleep', '4711'])\n" + SETUP)
    first = forge.names[0]
    process = forge.popen("-i", "own.yaml", "build", str(tree), "--builds-dir", str(tmp_path / "b"))
    deadline = time.monotonic() + 300
    while not forge.sh(first, "pgrep -f 'slee[p] 4711'", check=False):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    process.send_signal(2)
    _out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    deadline = time.monotonic() + 300
    while forge.sh(first, "pgrep -f 'slee[p] 4711'", check=False) or forge.sh(first, "ls -A ~/.fleet/builds"):
        assert time.monotonic() < deadline
        time.sleep(0.2)

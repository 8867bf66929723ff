"""Requirement files of well-known projects on four hosts that have torch: what travels is what pip by hand downloads
there, and `pip check` finds nothing wrong. Each file finds what those before it brought, as in a project's life.

None names torchvision: the registry's is built for CUDA, and the torch here is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.virtual_lab import VirtualLab
from tests.torch_site import torch_site

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
PYTHON = "/opt/train/bin/python3"
TORCH = subprocess.run(
    [sys.executable, "-c", "from importlib.metadata import version; print(version('torch'))"],
    capture_output=True,
    text=True,
    check=True,
).stdout.strip()
FILES = {
    "torchmetrics": "numpy>1.20.0\npackaging>17.1\ntorch>=2.0.0\nlightning-utilities>=0.8.0\ntorchmetrics\n",
    "deepspeed": "einops\nhjson\nmsgpack\nninja\nnumpy\npackaging>=20\npsutil\npy-cpuinfo\npydantic>=2\ntorch\ntqdm\n",
    "accelerate": "numpy>=1.17\npackaging>=20.0\npsutil\npyyaml\ntorch>=2.0.0\nsafetensors>=0.4.3\naccelerate[rich]\n",
    "nanogpt": "torch\nnumpy\ntransformers\ntiktoken\ntqdm\n",
    "diffusers": "diffusers[torch]\ntransformers>=4.25.1\nftfy\ntensorboard\nJinja2\npeft>=0.7.0\n",
    "lightning": "torch>=2.1.0\nfsspec[http]>=2022.5.0\npackaging>=20.0\ntqdm>=4.57.0\nlightning[extra]\n",
    "peft": "numpy>=1.17\npsutil\ntorch>=1.13\ntransformers\naccelerate>=0.21\nhuggingface_hub>=0.25\npeft==0.21.*\n",
    "x-transformers": "x-transformers\nvector-quantize-pytorch==1.28.*\neinx>=0.3.0\n",
    "sentence-transformers": "sentence-transformers[train]\n",
    "stable-baselines3": "stable-baselines3\ngymnasium>=0.29.1,<1.4\n",
    "pytorch-geometric": "torch-geometric\naiohttp\nscikit-learn\n",
    "kornia": "kornia_rs>=0.1.9\npackaging\ntorch>=2.0.0 ; python_version >= '3.9'\nkornia\n",
}


@pytest.fixture(scope="module")
def four(breakable: BreakableLab) -> VirtualLab:
    """Hosts whose interpreter has torch, what torch needs, pip and numpy."""
    lab = breakable.enrol()
    make = "from pathlib import Path; from tests.torch_site import torch_site; torch_site(Path('/opt/site'))"
    lines = [f"  {n}: {{address: {lab.address(n)}, python: {PYTHON}}}" for n in lab.names]
    (lab.home / "torch.yaml").write_text("defaults: {user: root}\nhosts:\n" + "\n".join(lines) + "\n")
    for name in lab.names:
        lab.sh(
            name,
            f'{sys.executable} -m venv --without-pip /opt/train && cd {ROOT} && {sys.executable} -c "{make}" && '
            "echo /opt/site > $(echo /opt/train/lib/python3*/site-packages)/behind.pth",
        )
    return lab


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of the same kind on this machine, and no fleet."""
    folder = tmp_path_factory.mktemp("by_hand")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    site = next((folder / "env").glob("lib/python3*/site-packages"))
    (site / "behind.pth").write_text(f"{torch_site(folder / 'site')}\n")
    return folder


def downloads(by_hand: Path, file: Path) -> dict[str, str]:
    """Returns file name -> sha256 of what pip downloads and installs."""
    report = by_hand / "report.json"
    argv = [by_hand / "env/bin/python3", "-m", "pip", "install", "-q", "--only-binary=:all:"]
    subprocess.run([*argv, "--report", report, "-r", file], check=True, timeout=1200)
    installed: list[dict[str, Any]] = json.loads(report.read_text())["install"]
    infos = [each["download_info"] for each in installed]
    return {i["url"].rpartition("/")[2].replace("%2B", "+"): i["archive_info"]["hashes"]["sha256"] for i in infos}


@pytest.mark.parametrize("project", FILES)
def test_what_travels_is_what_pip_downloads(four: VirtualLab, by_hand: Path, tmp_path: Path, project: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(FILES[project])
    expected = downloads(by_hand, file)
    done = four.fleet("-i", "torch.yaml", "--json", "sync", "--wheels", str(file), timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = {wheel["file"]: wheel["sha256"] for wheel in json.loads(done.stdout)["wheels"]}
    assert sent == expected and not any(name.startswith("torch-") for name in sent)
    print(f"{project}: {len(sent)} wheels, as by hand")
    for name in four.names:
        assert four.sh(name, f"{PYTHON} -m pip check") == "No broken requirements found."
        assert four.sh(name, f"{PYTHON} -m pip list | grep '^torch '").split() == ["torch", TORCH]
    again = four.fleet("-i", "torch.yaml", "sync", "--wheels", str(file), check=True)
    assert "nothing to do, it has what was asked for" in again.stdout

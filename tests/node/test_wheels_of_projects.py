"""Requirement files of well-known projects on four hosts that have torch: what travels is what pip by hand downloads
there, in count and bytes, and `pip check` has nothing to say afterwards. From the package registry."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Inventory
from fleet.ops.facts import HasFacts
from fleet.ops.wheels.download import collect
from fleet.ops.wheels.node import ask
from fleet.ops.wheels.present import breaks
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.node.projects import FILES
from tests.torch_site import torch_site

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has torch, what torch needs, numpy and pip."""
    folder = tmp_path_factory.mktemp("train")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    site = next((folder / "env").glob("lib/python3*/site-packages"))
    (site / "behind.pth").write_text(f"{torch_site(folder / 'site')}\n")
    return folder / "env/bin/python3"


@pytest.fixture(scope="module")
def facts(python: Path) -> dict[str, dict[str, Any]]:
    hosts = tuple(Host(f"gpu{i}", "127.0.0.1", python=str(python)) for i in range(1, 5))
    answers = ask(Inventory(hosts), (), Runtime(LocalTransport()))
    return {each.host: each.read(HasFacts).facts for each in answers}


@pytest.mark.parametrize("project", FILES)
def test_what_travels_is_what_pip_downloads(
    python: Path, facts: dict[str, dict[str, Any]], tmp_path: Path, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, report = tmp_path / "requirements.txt", tmp_path / "report.json"
    file.write_text(FILES[project])
    argv = [python, "-m", "pip", "install", "-q", "--dry-run", "--only-binary=:all:", "--report", report, "-r", file]
    subprocess.run(argv, check=True, timeout=1200)
    infos = [each["download_info"] for each in json.loads(report.read_text())["install"]]
    by_hand = {info["url"].rpartition("/")[2]: info["archive_info"]["hashes"]["sha256"] for info in infos}
    wheels = collect(file, facts, Runtime(LocalTransport()))
    travels = {wheel.path.name: wheel.sha256 for wheel in wheels}
    size = sum(wheel.size for wheel in wheels)
    print(f"{project}: {len(travels)} wheels, {size} bytes; by hand {len(by_hand)}")
    assert travels == by_hand  # the same digests: the same bytes
    assert not any(name.startswith(("torch-", "nvidia_", "triton-")) for name in travels)
    assert [breaks(found, wheels) for found in facts.values()] == [[]] * 4

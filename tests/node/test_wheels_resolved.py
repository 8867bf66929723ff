"""Requirements against what real interpreters have: real pip on both ends, an index that is a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fleet.errors import FleetError, Interrupted, UsageError
from fleet.model import Report
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.node.installs import error, says, site, states, sync
from tests.trap import project, tarred
from tests.wheelmaker import make_env, make_wheel, offline_index


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return offline_index(tmp_path, monkeypatch)


def asks(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "requirements.txt").write_text(text)
    return folder / "requirements.txt"


def has(python: Path, name: str, version: str, **more: list[str]) -> None:
    """Installs a package by hand."""
    wheel = make_wheel(python.parent / "by hand", name, version, **more)
    argv = [python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--ignore-installed", wheel]
    subprocess.run(argv, check=True)


def brought(report: Report) -> list[str]:
    assert report.ok, [str(r.error) for r in report.results]
    return sorted(f"{wheel['name']} {wheel['version']}" for wheel in report.data["wheels"])


def test_what_the_hosts_have_in_a_fitting_version_does_not_travel(python: Path, folder: Path, index: Path) -> None:
    has(python, "basepkg", "2.0", requires=["lowpkg"])
    has(python, "lowpkg", "1.0")
    make_wheel(index, "basepkg", "3.0")
    make_wheel(index, "lowpkg", "3.0")
    make_wheel(index, "toppkg", requires=["basepkg>=1"])
    file = asks(folder, "toppkg\nbasepkg\n")
    assert brought(sync(file, python)) == ["toppkg 1.0"]
    assert says(python, "import basepkg; print(basepkg.__version__)") == "2.0"
    again = sync(file, python)
    assert brought(again) == [] and states(again) == [{}]


@pytest.mark.slow
def test_a_host_that_is_new_gets_what_the_others_have(python: Path, folder: Path, index: Path, tmp_path: Path) -> None:
    has(python, "basepkg", "2.0")
    for version in ("2.0", "3.0"):
        make_wheel(index, "basepkg", version)
    new = make_env(tmp_path / "new")
    report = sync(asks(folder, "basepkg\n"), python, new)
    assert brought(report) == ["basepkg 2.0"] and says(new, "import basepkg; print(basepkg.__version__)") == "2.0"
    # which the index no longer has: then all get another one, once the user agrees
    has(python, "basepkg", "1.5")
    subprocess.run([new, "-m", "pip", "uninstall", "-q", "-y", "basepkg"], check=True)
    with pytest.raises(UsageError, match=r"replaces basepkg 1\.5 by 3\.0 on n1; not agreed to"):
        sync(asks(folder, "basepkg\n"), python, new)


def test_torch_is_kept_unless_the_file_pins_another(python: Path, folder: Path, index: Path) -> None:
    has(python, "torch", "2.0+cpu", requires=["nvidia-nccl-cu12==2.1"])
    has(python, "nvidia_nccl_cu12", "2.1")
    make_wheel(index, "torch", "9.0", requires=["nvidia-nccl-cu12==9.0"])
    make_wheel(index, "nvidia_nccl_cu12", "9.0")
    make_wheel(index, "visionpkg", "1.0", requires=["torch==2.0"])
    make_wheel(index, "visionpkg", "2.0", requires=["torch==9.0"])
    assert brought(sync(asks(folder, "torch\nvisionpkg\n"), python)) == ["visionpkg 1.0"]
    make_wheel(index, "needypkg", "2.0", requires=["torch==9.0"])
    with pytest.raises(FleetError, match=r"needypkg 2\.0 depends on torch==9\.0; .*torch==2\.0\+cpu") as failed:
        sync(asks(folder, "needypkg\n"), python)
    assert "the hosts keep torch 2.0+cpu unless the file pins another: torch==VERSION" in str(failed.value.hint)
    file = asks(folder, "torch==9.0\nvisionpkg\n")
    text = r"replaces nvidia-nccl-cu12 2\.1 by 9\.0 on n1; replaces torch 2\.0\+cpu by 9\.0 on n1; replaces visionpkg"
    with pytest.raises(UsageError, match=text) as asked:
        sync(file, python)
    assert asked.value.hint == f"to replace it: fleet sync --wheels {file} --yes"
    assert says(python, "import torch; print(torch.__version__)") == "2.0+cpu"
    questions: list[str] = []
    agrees = Runtime(LocalTransport(), ask=lambda question: not questions.append(question))
    assert "torch 9.0" in brought(sync(file, python, runtime=agrees))
    assert len(questions) == 1 and says(python, "import torch; print(torch.__version__)") == "9.0"


def test_a_folder_that_would_replace_torch_asks(python: Path, folder: Path) -> None:
    has(python, "torch", "2.0")
    make_wheel(folder, "torch", "9.0")
    with pytest.raises(UsageError, match=r"replaces torch 2\.0 by 9\.0 on n1"):
        sync(folder, python)
    assert states(sync(folder, python, yes=True)) == [{"torch": "installed"}]


def test_what_would_break_is_named_and_refused_without_force(python: Path, folder: Path) -> None:
    has(python, "hubpkg", "1.5")
    has(python, "formerpkg", "5.0", requires=["hubpkg>=1", "hubpkg<2; extra == 'x'"])
    has(python, "brokenpkg", "1.0", requires=["hubpkg>=7"])  # before, too
    make_wheel(folder, "hubpkg", "0.20")
    report = sync(folder, python)
    assert error(report).message == "unmet: formerpkg needs hubpkg>=1 (gets 0.20)" and report.exit_code == 123
    assert says(python, "import hubpkg; print(hubpkg.__version__)") == "1.5"
    found = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False).stdout
    assert "formerpkg" not in found
    assert states(sync(folder, python, force=True)) == [{"hubpkg": "installed"}]
    found = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False).stdout
    assert "formerpkg 5.0 has requirement hubpkg>=1, but you have hubpkg 0.20" in found


def test_each_wheel_is_imported_in_a_process_of_its_own(python: Path, folder: Path) -> None:
    make_wheel(folder, "apkg")
    make_wheel(folder, "bpkg", files={"bpkg.py": "import sys\nassert 'apkg' not in sys.modules, 'after apkg'\n"})
    assert states(sync(folder, python)) == [{"apkg": "installed", "bpkg": "installed"}]


@pytest.mark.slow
def test_pip_setuptools_and_wheel_in_one_file(python: Path, folder: Path) -> None:
    """As on the hosts' first day; from the registry."""
    assert {"pip", "setuptools"} <= {
        line.split()[0]
        for line in brought(
            sync(asks(folder, "pip==23.3\nsetuptools==69.0.2\nwheel==0.42.0\n"), python, yes=True, force=True)
        )
    }


def test_an_import_that_failed_is_a_failure_also_the_next_time(python: Path, folder: Path, index: Path) -> None:
    make_wheel(
        index, "sadpkg", files={"sadpkg.py": "import os\nif os.path.exists('/nosuch'):\n    pass\nraise OSError('x')\n"}
    )
    file = asks(folder, "sadpkg\n")
    for _ in range(2):
        assert "'import sadpkg' fails: OSError: x" in error(sync(file, python)).message
    (site(python) / "sadpkg.py").write_text("")  # mended by hand, and its size is another
    make_wheel(index, "sadpkg")
    assert brought(sync(file, python, refresh=True)) == ["sadpkg 1.0"]
    assert brought(sync(file, python)) == []


def test_a_hash_that_does_not_match_is_called_that_and_nothing_else(python: Path, folder: Path, index: Path) -> None:
    make_wheel(index, "goodpkg")
    wrong = [digit * 64 for digit in "01"]
    text = "goodpkg==1.0" + "".join(f" --hash=sha256:{each}" for each in wrong)
    with pytest.raises(FleetError, match="goodpkg.*: it was tampered with, or uploaded again") as caught:
        sync(asks(folder, f"{text}\n"), python)
    assert caught.value.kind == "hash" and caught.value.hint is None
    assert f"expected {' or '.join(wrong)}, got " in caught.value.message


def test_ctrl_c_is_heard_while_wheels_are_read(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg").write_bytes(b"is found damaged when it is read to its end")
    runtime = Runtime(LocalTransport())
    runtime.cancel.set()
    with pytest.raises(Interrupted):
        sync(folder, python, runtime=runtime)


def test_no_url_and_no_path_in_what_a_host_has_is_used(python: Path, folder: Path, index: Path, tmp_path: Path) -> None:
    mark = tmp_path / "MARK"
    archive = tarred(project(tmp_path / "evil", mark), tmp_path / "evil-1.0.tar.gz")
    wheel = make_wheel(tmp_path / "elsewhere", "awaypkg")
    has(python, "lyingpkg", "1.0", requires=[f"evil @ {archive.as_uri()}", f"awaypkg @ {wheel.as_uri()}"])
    make_wheel(index, "toppkg", requires=["lyingpkg"])
    with pytest.raises(FleetError, match="No matching distribution found for (evil|awaypkg)"):
        sync(asks(folder, "toppkg\n"), python)
    assert not mark.exists()

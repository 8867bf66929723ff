"""Files that somebody handed over, where fleet reads: none is read without end, none leads a write elsewhere."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.errors import UsageError
from fleet.ops.run.kept.logs import NodeLogs

ROOT = Path(__file__).parents[2]
INVENTORY = "hosts: {h: {address: 127.0.0.1, port: 1}}\n"
SYNC = "--transport local sync src --to work"


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(20 << 30)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def deep(path: Path) -> None:
    path.write_text("a: " + "[" * 200_000 + "\n# ansible_host: x\n")


def digits(path: Path) -> None:
    path.write_text("distributed_type: " + "1" * 5000)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def file(path: Path) -> None:
    path.write_text("a file, where a folder is to be")


CELLS: list[tuple[str, Callable[[Path], None], str]] = [
    (".fleet/password-files", huge, SYNC),
    (".fleet/password-files", endless, SYNC),
    (".fleet/brought/aa", huge, SYNC),
    ("src/.fleetignore", huge, SYNC),
    ("src/.git", huge, SYNC),
    ("fleet.yaml", pipe, "hosts"),
    ("slurm", file, "--transport local slurm-conf --to slurm"),
    ("odd.txt", pipe, "-i odd.txt exec -- true"),
    ("passwords", endless, "setup-ssh --tofu --password-file passwords"),
    ("accelerate.yaml", digits, "launch --dry-run --engine accelerate --config-file accelerate.yaml train.py"),
    ("ansible.yaml", deep, "init ansible.yaml -i new.yaml -y"),
    ("examples/examples/digits.py", endless, "examples --to examples digits.py"),
    ("examples/hostfiles", endless, "examples --to examples"),
]


@pytest.mark.parametrize("name, kind, line", CELLS, ids=[f"{kind.__name__} {name}" for name, kind, _ in CELLS])
def test_what_is_read_has_bounds(name: str, kind: Callable[[Path], None], line: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(INVENTORY)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("")
    path = tmp_path / name
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    kind(path)
    done = subprocess.run(
        [sys.executable, "-m", "fleet", *line.split()],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)),
    )
    assert done.returncode in (0, 1, 2, 121, 122) and "a fault in fleet" not in done.stderr, done.stderr


def test_an_inventory_may_come_through_a_pipe_of_the_command_itself(tmp_path: Path) -> None:
    fleet = f"{sys.executable} -m fleet"
    line = f"{fleet} -i <(echo gpu1) hosts --format names; echo gpu2 | {fleet} -i /dev/stdin hosts --format names"
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "gpu1\ngpu2\n", done


def test_a_record_of_setup_ssh_that_is_nested_too_deep_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run(["setup-ssh", "--undo"]) == 1
    record = Path(capfd.readouterr().err.partition("it would be ")[2].strip())
    record.parent.mkdir(0o700, parents=True)
    record.write_text("[" * 200_000)
    assert run(["setup-ssh", "--undo"]) == 1
    assert f"{record} is damaged" in capfd.readouterr().err


def test_no_example_is_copied_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "to/examples").mkdir(parents=True)
    (tmp_path / "to/examples/digits.py").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert run(["examples", "--to", "to", "digits.py"]) == 2
    assert not (tmp_path / "elsewhere").exists()


def test_no_log_is_written_through_a_link_of_its_hosts_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/h").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="run/h is a link"):
        NodeLogs(tmp_path / "run/h").write("rank0.out", 0, b"abc")
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.timeout(60)
def test_a_log_that_is_a_pipe_is_waited_for_by_nobody(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path / "h")
    os.mkfifo(tmp_path / "h/rank0.out")
    writer = threading.Thread(target=logs.write, args=("rank0.out", 0, b"abc"), daemon=True)
    writer.start()
    writer.join(20)
    assert not writer.is_alive() and logs.blocked


def test_a_disk_is_tried_through_no_link(tmp_path: Path) -> None:
    logs = NodeLogs(tmp_path / "h")
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "h/.probe").symlink_to(tmp_path / "kept")
    assert logs.try_again() and (tmp_path / "kept").read_text() == "kept"

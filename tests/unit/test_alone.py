"""`fleet` alone: what is here, and the one command to type next, by what lies in the folder and at home."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.ops.setup_ssh.record import Record
from tests.command_lines import accept
from tests.run_folders import leads, run_folder

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGp2jQ0sPj3d2nq8m0n7nFfBvT5Q8F2gk0Vb8xkzK0aB"
RUN = "train-20261121-101500-ab12"
OLD = "eval-20261121-091500-ab12"


def inventory(text: str = "hosts: {gpu01: {}, gpu02: {}}\n") -> None:
    Path("fleet.yaml").write_text(text)


def known() -> None:
    """ssh has been at both hosts."""
    inventory()
    ssh = Path.home() / ".ssh"
    ssh.mkdir(0o700)
    (ssh / "known_hosts").write_text(f"gpu01 {KEY}\ngpu02 {KEY}\n")


def set_up(*names: str) -> None:
    """setup-ssh has been at these hosts."""
    inventory()
    record = Record.load(Path.home(), "fleet.yaml")
    for name in names:
        record.host(name).note("authorized_keys", ["a key"])
    record.save()


def host_key() -> None:
    inventory("hosts: {gpu01: {host_key: 'SHA256:" + "a" * 43 + "'}}\n")


def goes_on() -> None:
    known()
    leads(run_folder(Path("runs"), RUN))


def ended() -> None:
    known()
    leads(run_folder(Path("runs"), OLD, summary={"exit_code": 0}), leads=False)


def died() -> None:
    """The process that led it is gone; the hosts go on for their lease."""
    known()
    leads(run_folder(Path("runs"), RUN), start=1, lease=3600)


def script(name: str = "train.py") -> None:
    known()
    Path(name).write_text("print(1)\n")


def synced(*names: str) -> None:
    known()
    for name in names:
        Path(name).write_text("print(1)\n")
    assert run(["--transport", "local", "-w", "gpu01", "sync", "--to", f"{Path.cwd()}-there"]) == 0


def changed() -> None:
    synced("train.py")
    Path("train.py").write_text("print(2, 2)\n")


def data_only() -> None:
    known()
    inventory("hosts: {gpu01: {}, gpu02: {}}\nsync: {data: ['/data/set:/data/']}\n")


def at_home() -> None:
    known()
    os.chdir(Path.home())
    inventory()


ANSWERS: dict[str, tuple[Callable[[], object], str, str | None]] = {
    "nothing": (lambda: None, "inventory  none: no fleet.yaml or hostfile here", "fleet init"),
    "a hostfile that is wrong": (lambda: inventory("hosts: {a: {adress: b}}\n"), "unknown key 'adress'", None),
    "a folder that is gone": (lambda: Path.cwd().rmdir(), "cd to another one", None),
    "hosts": (inventory, "ssh        not set up: gpu[01-02]", "fleet setup-ssh"),
    "hosts, half of them set up": (lambda: set_up("gpu01"), "not set up: gpu02", "fleet setup-ssh"),
    "hosts, all of them set up": (lambda: set_up("gpu01", "gpu02"), "never synced", "fleet sync"),
    "hosts that ssh knows": (known, "inventory  fleet.yaml, 2 hosts", "fleet sync"),
    "a host whose key the inventory has": (host_key, "ssh        set up", "fleet sync"),
    "a script, not synced": (script, "code       never synced from this folder", "fleet sync"),
    "a run": (goes_on, f"run        {RUN} goes on", f"fleet attach {RUN}"),
    "a run whose head died": (died, f"run        {RUN} goes on", f"fleet attach {RUN}"),
    "a run that has ended": (ended, "never synced", "fleet sync"),
    "synced": (lambda: synced("train.py", "model.py"), "0 files changed since", "fleet launch train.py"),
    "synced, one other script": (
        lambda: synced("pre train.py"),
        "script     pre train.py",
        "fleet launch 'pre train.py'",
    ),
    "synced, no script": (lambda: synced("a.py", "b.py"), "no train.py in this folder", "fleet check"),
    "changed since": (changed, "1 file changed since", "fleet launch --sync train.py"),
    "a sync: section without code": (data_only, "code       not from here", "fleet check"),
    "at home": (at_home, "code       not from here", "fleet check"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_comes_next(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, seen, command = ANSWERS[name]
    for variable in ("FLEET_INVENTORY", "SLURM_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    make()
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert run([]) == 0
    said = capsys.readouterr()
    assert said.err == "" and seen in said.out
    first, *_, following, empty, last = said.out.splitlines()
    if command is None:
        assert "next:" not in said.out
        return
    assert first == "fleet takes a list of hosts to a running distributed training job, and back."
    assert (following, empty, last) == (f"next: {command}", "", "fleet --help shows all verbs")
    assert len(said.out.splitlines()) <= 12 and max(map(len, said.out.splitlines())) <= 80
    accept(command)
    assert sorted(tmp_path.rglob("*")) == before, "it leaves nothing"


def test_it_is_not_in_the_way_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--quiet"]) == 2 and "a verb is missing" in capsys.readouterr().err

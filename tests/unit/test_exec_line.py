"""`fleet exec` without "--", and --outdir."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.in_process import LocalTransport, command_line


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("a\nb\n")
    return tmp_path


def fleet(line: str) -> tuple[int, str, str]:
    seen = command_line(shlex.split(line)[1:], LocalTransport())
    return seen.code, seen.out, seen.err


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("printf %s -L", "-L"),
        ("printf %s --color=never", "--color=never"),
        ("printf %s -5", "-5"),
        ("printf -- %s -w", "-w"),
        ("printf %s -", "-"),
        ("printf %s -h", "-h"),
        ("printf %s --help", "--help"),
        ("-w a,b printf %s -L", "-L"),
    ],
)
def test_an_option_that_fleet_has_not_is_the_commands(command: str, shown: str) -> None:
    assert fleet(f"fleet exec {command}") == (0, f"--- a,b (2) ---\n{shown}\n", "")


@pytest.mark.parametrize(
    ("command", "option", "hint"),
    [
        ("nvidia-smi -q -i 0", "-q", "fleet exec -q -i 0 -- nvidia-smi; or fleet exec -- nvidia-smi -q -i 0"),
        ("hostname -wa", "-wa", "fleet exec -- hostname -wa"),
        ("tail -n 3 x", "-n", "fleet exec -- tail -n 3 x"),
        ("tar -xf x", "-xf", "fleet exec -- tar -xf x"),
        ("ls -l --json", "--json", "fleet exec -- ls -l --json"),
        ("ls --dry_run", "--dry_run", "fleet exec --dry_run -- ls; or fleet exec -- ls --dry_run"),
        ("ls --timeout=3", "--timeout=3", "fleet exec --timeout=3 -- ls; or fleet exec -- ls --timeout=3"),
        ("ls --no-stdin", "--no-stdin", "fleet exec -- ls --no-stdin"),
        ("git log -n 3 -- x", "-n", "fleet exec -- git log -n 3 -- x"),
    ],
)
def test_one_that_both_have_is_not_guessed(command: str, option: str, hint: str) -> None:
    code, out, err = fleet(f"fleet exec {command}")
    first = f"error: {option} after {command.split()[0]}: without '--' it could be fleet's or the command's"
    assert (code, out, " ".join(err.split())) == (2, "", f"{first} hint: {hint}")


# -- --outdir --------------------------------------------------------------------------------------------
SAY = "--shell 'echo $FLEET_HOST; echo $FLEET_RANK >&2; exit $FLEET_RANK'"


def test_each_hosts_output_is_in_files_of_its_own(here: Path) -> None:
    code, out, _ = fleet(f"fleet exec --outdir out/new {SAY}")
    assert code == 1 and "--- a ---\na\n" in out, "it is shown all the same"
    files = {path.name: path.read_text() for path in (here / "out/new").iterdir()}
    assert files == {"a.out": "a\n", "a.err": "0\n", "b.out": "b\n", "b.err": "1\n"}
    (here / "out/new/other").touch()
    assert fleet("fleet exec --outdir out/new -w b true")[0] == 0
    files = {path.name: path.read_text() for path in (here / "out/new").iterdir()}
    assert files == {"a.out": "a\n", "a.err": "0\n", "b.out": "", "b.err": "", "other": ""}, "b's alone are new"


def test_much_of_it_comes_whole(here: Path) -> None:
    assert fleet("fleet exec --outdir out -w a --no-fold seq 200000")[0] == 0
    assert (here / "out/a.out").read_text() == "".join(f"{n}\n" for n in range(1, 200001))


def test_nothing_is_written_where_a_link_leads(here: Path) -> None:
    (here / "victim").write_text("mine\n")
    (here / "out").mkdir()
    (here / "out/a.out").symlink_to(here / "victim")
    os.link(here / "victim", here / "out/b.out")
    assert fleet("fleet exec --outdir out echo hello")[0] == 0
    assert (here / "victim").read_text() == "mine\n"
    assert [(here / f"out/{name}.out").read_text() for name in "ab"] == ["hello\n", "hello\n"]


def test_a_folder_in_which_others_may_write_is_refused(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out").chmod(0o777)
    code, _, err = fleet("fleet exec --outdir out touch ran")
    assert code == 2 and "can be written by every user" in err and not (here / "ran").exists()


@pytest.mark.parametrize("folder", ["hostfile", "out"])
def test_what_is_in_the_way_is_named_before_anything_runs(folder: str, here: Path) -> None:
    (here / "out/b.out").mkdir(parents=True)
    code, _, err = fleet(f"fleet exec --outdir {folder} touch ran")
    assert code == 2 and re.search("hostfile is a file|out/b.out: Is a directory", " ".join(err.split()))
    assert not (here / "ran").exists()


def test_a_disk_that_is_full_is_that_hosts_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, flags: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fleet.ops.execute.private", full)
    code, _, err = fleet("fleet exec --outdir out echo hello")
    assert code != 0 and "host a,b: out takes no more output: No space left on device" in " ".join(err.split())

"""`-w -`, `-w ^FILE`, `-w @failed`: hosts that stand elsewhere than on the command line; and what a command finds of
its host in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.cli.inventory import hosts_of
from tests.in_process import LocalTransport, command_line, typed

NAMES = "gpu01 gpu02  # two\n\n# none\n@g\ngpu[03-04]\n"
INVENTORY = 'hosts: {gpu01: {}, gpu02: {}, gpu03: {}, gpu04: {}, b: {}}\ngroups: {g: "gpu[01-02]"}\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "fleet.yaml").write_text(INVENTORY)
    (tmp_path / "names").write_text(NAMES)
    (tmp_path / "empty").write_text("# none\n")
    (tmp_path / "others").write_text("gpu01\ngpu09\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("-w ^names", "gpu[01-04]"),
        ("-w ^~/names", "gpu[01-04]"),
        ("-w ^names!gpu02", "gpu[01,03-04]"),
        ("-w b,^names&@g", "gpu[01-02]"),
        ("-w @g^^names", "gpu[03-04]"),
        ("-w b^gpu01", "b,gpu01"),
        ("-w b -w ^names", "b,gpu[01-04]"),
        ("-x ^names", "b"),
        ("-w @all!^names", "b"),
    ],
)
def test_names_from_a_file(words: str, left: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(["hosts", *words.split(), "--format", "nodeset"]) == 0
    assert capsys.readouterr().out == f"{left}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-w ^nope", "-w '^nope': it cannot be read: No such file or directory"),
        ("-x ^.", "-x '^.': it cannot be read: Is a directory"),
        ("-w ^empty", "-w '^empty': it names no host"),
        ("-w ^others", "-w '^others': no host 'gpu09' in the inventory"),
        ("-w @failed", "-w '@failed': no host is on record that failed in the last verb"),
    ],
)
def test_what_names_no_host(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(["hosts", *words.split()]) == 121
    assert capsys.readouterr().err.splitlines()[0] == f"error: fleet.yaml: {message}"


def piped(text: str, *words: str) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", "fleet", "--transport", "local", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(argv, input=text, capture_output=True, text=True, env=env, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("text", "words", "left"),
    [("gpu01,b\n", "-w -", "b,gpu01"), ("gpu01 gpu02", "-x -", "b,gpu[03-04]"), (NAMES, "-w -!@g", "gpu[03-04]")],
)
def test_names_from_standard_input(text: str, words: str, left: str) -> None:
    assert piped(text, "hosts", *words.split(), "--format", "nodeset") == (0, f"{left}\n", "")


def test_what_has_the_names_is_not_sent_to_the_command() -> None:
    assert piped("gpu01\n", "exec", "-w", "-", "--", "cat") == (0, "", "")
    code, _, err = piped("gpu01\n", "exec", "-w", "-", "--stdin", "--", "cat")
    assert code == 2 and err.startswith("error: --stdin: standard input is what -w - reads\n")


def test_a_hint_names_the_hosts_that_were_meant() -> None:
    code, _, err = piped("b\ngpu01\n", "exec", "-w", "-", "--", "uname -a")
    assert code == 127 and "fleet -w b,gpu01 --transport local exec -- uname -a" in err


def test_each_step_of_a_playbook_works_with_the_hosts_that_it_began_with(here: Path) -> None:
    (here / "book.yaml").write_text("- exec: {shell: 'echo $FLEET_HOST'}\n- exec: {shell: 'echo $FLEET_RANK'}\n")
    code, out, err = piped("gpu02", "play", "-w", "-", "book.yaml")
    assert (code, out) == (0, "--- gpu02 ---\ngpu02\n--- gpu02 ---\n0\n"), err


def fleet(*words: str) -> tuple[int, str]:
    hosts_of.cache_clear()  # another process
    seen = command_line(words, LocalTransport())
    return seen.code, seen.out


def failed() -> str:
    code, out = fleet("hosts", "-w", "@failed", "--format", "nodeset")
    return out.strip() if code == 0 else ""


def test_the_hosts_that_failed_in_the_last_verb(here: Path) -> None:
    assert fleet("exec", "--shell", "exit $FLEET_RANK")[0] == 4
    assert failed() == "b,gpu[02-04]"
    assert fleet("exec", "-w", "@failed", "--json", "--shell", "exit $FLEET_RANK")[0] == 3
    assert failed() == "b,gpu[03-04]", "of those, one went well"
    assert fleet("ps")[0] == 0 and failed() == "b,gpu[03-04]", "it only looks"
    (here / "other.yaml").write_text("hosts: {x: {}}")
    assert fleet("-i", "other.yaml", "exec", "--", "false")[0] == 1
    assert failed() == "b,gpu[03-04]", "of this inventory"
    assert fleet("exec", "-x", "@failed", "--", "true")[0] == 0 and failed() == "", "all is well now"


def test_a_group_of_that_name_is_the_group(here: Path) -> None:
    (here / "fleet.yaml").write_text("hosts: {a: {}, b: {}}\ngroups: {failed: a}\n")
    assert fleet("exec", "-w", "b", "--", "false")[0] == 1
    assert failed() == "a"


def test_a_home_that_cannot_be_written_costs_nothing(here: Path) -> None:
    (here / ".fleet").write_text("a file")
    assert fleet("exec", "--", "false")[0] == 1 and failed() == ""


@pytest.mark.parametrize("record", ["[", "{}", "[1]", '["gpu01", "../x"]'])
def test_a_broken_record_is_an_error(record: str, here: Path) -> None:
    assert fleet("exec", "--", "false")[0] == 1
    for file in (here / ".fleet/failed").iterdir():
        file.write_text(record)
    assert fleet("hosts", "-w", "@failed")[0] == 121


def test_a_command_finds_its_hosts_name_and_its_place_in_the_selection(here: Path) -> None:
    code, out = fleet("exec", "-w", "gpu03,b", "--json", "--shell", "echo $FLEET_HOST $FLEET_RANK")
    hosts = json.loads(out)["hosts"]
    assert code == 0 and {name: host["stdout"] for name, host in hosts.items()} == {"gpu03": "gpu03 0\n", "b": "b 1\n"}

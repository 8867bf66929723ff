"""The one place where errors are printed: the verb is the one that ran, usage errors keep the contract's form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.cli.main import cli, plain, run


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("exec slots=2\nlab slots=2\n")
    return tmp_path


def fleet(*words: str, cwd: Path, script: str = "") -> subprocess.CompletedProcess[str]:
    """fleet as a process of its own; `script` is what a shell does around it ("$@")."""
    argv = [sys.executable, "-c", "from fleet.cli.main import main; main()", *words]
    return subprocess.run(["sh", "-c", script or '"$@"', "sh", *argv], cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:surrogateescape"])  # the last: LC_ALL=C
def test_a_terminal_that_is_not_utf_8_is_shown_what_it_can_show(encoding: str, inventory: Path) -> None:
    (inventory / "hostfile").write_text("gpu1 workdir=/w\u00e4rm/\u2713\n", encoding="utf-8")
    argv = [sys.executable, "-c", "from fleet.cli.main import main; main()", "hosts"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    encoding = encoding.partition(":")[0]
    there = "/w\\xe4rm/\\u2713" if encoding == "ascii" else "/w\u00e4rm/\\u2713"
    assert there in done.stdout.decode(encoding)
    assert plain(UnicodeEncodeError(encoding, "x\u2500\u2500\u2713", 1, 4, "")) == ("--\\u2713", 4)


def test_an_interrupt_before_anything_began_is_told_in_a_word(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Impatient:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'click':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Impatient())\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    argv = [sys.executable, "-m", "fleet", "--version"]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_an_interrupt_while_a_class_is_made_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python up to 3.11 makes a RuntimeError of one that comes within __set_name__, as a request's fields have it."""

    class Impatient:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def invoke(ctx: object) -> None:
        type("Request", (), {"field": Impatient()})

    monkeypatch.setattr(cli, "invoke", invoke)
    assert run(["runs"]) == 130 and capsys.readouterr().err == "interrupted\n"


def test_the_verb_in_json_is_the_one_that_ran_not_a_host_of_that_name(
    inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["-w", "lab", "--json", "play", "nosuch.yaml"]) == 121
    assert json.loads(capsys.readouterr().out)["verb"] == "play"


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "--timeout", "x", "--json", "--", "true"],
        ["exec", "--json", "--timeout", "nan", "--", "true"],
        ["--connect-timeout", "inf", "--json", "exec", "--", "true"],
        ["--json", "kill-port"],
        ["kill-port", "99999", "--json"],
        ["--json", "nosuch"],
        ["--json", "exec", "--", ""],
        ["--json", "launch", ""],
        ["--json", "sync", ""],
        ["--json"],
    ],
)
def test_usage_errors_are_json_where_json_was_asked_for(
    words: list[str], inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert said.err == "" and document["exit_code"] == 2 and not document["ok"]
    assert document["error"]["kind"] == "usage" and document["error"]["message"]


def test_usage_errors_read_as_all_others(inventory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exec", "--timeout", "0", "--", "prog", "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "error: --timeout 0: must be a number, more than 0",
        "  hint: see fleet exec --help",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["exec", "--", "true"],
        ["sync"],
        ["check"],
        ["setup-ssh"],
        ["launch", "x.py"],
    ],
)
def test_a_dry_run_is_a_document_like_any_other(
    words: list[str], inventory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(inventory.parent / "home"))
    assert run(["--json", "--dry-run", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] and document["exit_code"] == 0 and document["dry_run"] and document["verb"] == words[0]
    assert {name: host["error"] for name, host in document["hosts"].items()} == {"exec": None, "lab": None}
    assert document["plan"] is not None


@pytest.mark.parametrize("words", [["ssh", "lab"], ["ssh", "lab", "true"], ["forward", "lab", "80"]])
def test_what_goes_on_in_this_terminal_is_no_document(
    words: list[str], inventory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--json", *words]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["message"] == f"{words[0]} takes no --json"
    assert run(["--json", "--dry-run", *words]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_no_trouble(closed: str, inventory: Path) -> None:
    done = fleet("hosts", cwd=inventory, script=f'"$@" {closed}')
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_gets_the_number_of_a_closed_standard_stream(tmp_path: Path) -> None:
    code = (
        "import os; from fleet.cli.main import open_standard_streams; open_standard_streams(); "
        "print(os.open('/', 0), file=open('n', 'w'))"
    )
    subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert int((tmp_path / "n").read_text()) > 2


def test_a_full_disk_behind_stdout_is_named(inventory: Path) -> None:
    done = fleet("hosts", "--json", cwd=inventory, script='"$@" >/dev/full')
    assert done.returncode == 125
    assert done.stderr.splitlines()[0] == "error: this machine: No space left on device"


@pytest.mark.parametrize("words, code", [(["-w", "nosuch", "hosts"], 121), (["hosts", "--nosuch"], 2)])
def test_an_error_that_stdout_cannot_take_goes_to_stderr(words: list[str], code: int, inventory: Path) -> None:
    done = fleet("--json", *words, cwd=inventory, script='"$@" >/dev/full')
    assert done.returncode == code and "nosuch" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("words, code", [(["hosts"], 0), (["-w", "nosuch", "hosts"], 121), (["nosuch"], 2)])
def test_talk_that_cannot_be_written_does_not_cost_the_exit_code(words: list[str], code: int, inventory: Path) -> None:
    assert fleet(*words, cwd=inventory, script='"$@" 2>/dev/full').returncode == code


def test_a_current_folder_that_is_gone_is_named(inventory: Path) -> None:
    gone = inventory / "gone"
    gone.mkdir()
    done = fleet("hosts", cwd=gone, script=f'rmdir "{os.fspath(gone)}"; "$@"')
    assert done.returncode == 2
    assert done.stderr.startswith("error: the current folder is gone: ")

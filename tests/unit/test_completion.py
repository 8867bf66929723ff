"""Tab in real shells: a line is typed into an interactive bash or zsh on a terminal, and what stands there is read."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
INVENTORY = """\
hosts: {gpu01: {slots: 4}, gpu02: {slots: 4}, rented1: {slots: 4}, "fe80::1": {}}
groups: {a100: "gpu[01-02]"}
"""
# typed up to the Tab -> what the line holds then
LINES = {
    "fleet exe": "fleet exec",
    "fleet setup_": "fleet setup_",
    "fleet exec --no-f": "fleet exec --no-fold",
    "fleet exec --no_f": "fleet exec --no_fold",
    "fleet setup_ssh --key_type=ed": "fleet setup_ssh --key_type=ed25519",
    "fleet -v exe": "fleet -v exec",
    "fleet -i inv -w re": "fleet -i inv -w rented1",
    "fleet hosts --form": "fleet hosts --format",
    "fleet hosts --fan": "fleet hosts --fan",
    "fleet launch --engine dee": "fleet launch --engine deepspeed",
    "fleet launch --engine=dee": "fleet launch --engine=deepspeed",
    "fleet -i inv exec -w re": "fleet -i inv exec -w rented1",
    "fleet -i inv exec -w gpu01,re": "fleet -i inv exec -w gpu01,rented1",
    "fleet -i inv exec -w gpu[01-02],re": "fleet -i inv exec -w gpu[01-02],rented1",
    "fleet -i inv exec -w @a": "fleet -i inv exec -w @a100",
    "fleet -i inv exec -x rented1@@a1": "fleet -i inv exec -x rented1@@a100",
    "fleet -i inv exec --hosts=gpu01,re": "fleet -i inv exec --hosts=gpu01,rented1",
    "fleet -i inv exec -w fe80:": "fleet -i inv exec -w fe80::1",
    "fleet -i inv build deepspeed --on re": "fleet -i inv build deepspeed --on rented1",
    "fleet -i inv setup-ssh --replace-key re": "fleet -i inv setup-ssh --replace-key rented1",
    "fleet -i nosuch exec -w re": "fleet -i nosuch exec -w re",
    "fleet -i broken exec -w re": "fleet -i broken exec -w re",
    "fleet launch train.py --engine dee": "fleet launch train.py --engine dee",
    "fleet launch tra": "fleet launch train.py",
    "fleet launch --again trai": "fleet launch --again train-20260101-000000-0001",
    "fleet logs -f trai": "fleet logs -f train-20260101-000000-0001",
    "fleet help lab fre": "fleet help lab freeze",
    "fleet examples playbooks/dem": "fleet examples playbooks/demo.yaml",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("completion")
    (here / "inv").write_text(INVENTORY)
    (here / "broken").write_text("hosts: {a: {adress: b}}\n")
    (here / "train.py").touch()
    (here / "runs/train-20260101-000000-0001").mkdir(parents=True)
    (here / "runs/train-20260101-000000-0001/events.jsonl").touch()
    (here / "bin").mkdir()
    command = here / "bin" / "fleet"
    command.write_text(f"#!{sys.executable}\nfrom fleet.cli.main import main\nmain()\n")
    command.chmod(0o755)
    return here


def environ(here: Path) -> dict[str, str]:
    return {
        "PATH": f"{here / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(here),
        "TERM": "dumb",
        "PS1": "> ",
        "LC_ALL": "C.UTF-8",
    }


def typed(here: Path, argv: list[str], setup: str, *lines: str) -> list[str]:
    """What an interactive shell on a terminal prints as "GOT:..." for each line; one is typed when the last is through,
    as typing ahead of a shell is another thing."""
    terminal, its_end = pty.openpty()
    shell = subprocess.Popen(
        ["setsid", "--ctty", *argv], cwd=here, env=environ(here), stdin=its_end, stdout=its_end, stderr=its_end
    )
    os.close(its_end)
    said = b""
    try:
        for number, line in enumerate([setup + "; args ready", *lines]):
            os.write(terminal, line.encode() + b"\r")
            until = time.monotonic() + 120
            while said.count(b"\nGOT:") <= number or not said.endswith(b"> "):
                assert time.monotonic() < until, said
                if select.select([terminal], [], [], 1)[0]:
                    said += os.read(terminal, 65536)
    finally:
        os.close(terminal)
        os.killpg(shell.pid, signal.SIGKILL)  # with what it has begun; setsid has made it a group's first
        shell.wait()
    text = said.decode("utf-8", "replace").replace("\r", "")
    assert "error" not in text and "Traceback" not in text, text
    return [line[4:].rstrip() for line in text.splitlines() if line.startswith("GOT:")][1:]


# to the beginning of the line, so that it is printed and not run
ASK = "\t\x01args \x05"
BASH = """set -f; args() { printf 'GOT:%s\\n' "$*"; }; eval "$(_FLEET_COMPLETE=bash_source fleet)\""""
ZSH = (
    "setopt noglob nobeep; bindkey -e; autoload -Uz compinit; compinit -u -D; unset zle_bracketed_paste; "
    """args() { print -r -- "GOT:$*" }; eval "$(_FLEET_COMPLETE=zsh_source fleet)\""""
)


def test_bash(here: Path) -> None:
    got = typed(here, ["bash", "--norc", "--noprofile", "-i"], BASH, *(line + ASK for line in LINES))
    assert dict(zip(LINES, got, strict=True)) == LINES


def test_bash_within_quotes_and_with_the_inventory_behind(here: Path) -> None:
    got = typed(
        here,
        ["bash", "--norc", "--noprofile", "-i"],
        BASH,
        'fleet -i inv exec -w "gpu[01-02],re' + ASK,
        "fleet exec -i inv -w re -- hostname" + "\x02" * 12 + ASK,
        "fleet exec -w re -i inv" + "\x02" * 7 + ASK,
    )
    assert got == [
        "fleet -i inv exec -w gpu[01-02],rented1",
        "fleet exec -i inv -w rented1 -- hostname",
        "fleet exec -w rented1 -i inv",
    ]


def test_zsh(here: Path) -> None:
    got = typed(here, ["zsh", "-f", "-i"], ZSH, *(line + ASK for line in LINES))
    assert dict(zip(LINES, got, strict=True)) == LINES


def test_fish(here: Path) -> None:
    script = (
        "_FLEET_COMPLETE=fish_source fleet | source\nfor line in $argv; complete --do-complete $line; echo END; end"
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", script, *LINES],
        cwd=here,
        env=environ(here),
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    for (line, whole), offered in zip(LINES.items(), done.stdout.split("END\n"), strict=False):
        words = [row.partition("\t")[0] for row in offered.split("\n")]
        last = whole.rpartition(" ")[2]
        assert (last in words) == (whole != line), (line, words)


def test_a_shell_that_is_not_known_is_told(here: Path) -> None:
    done = subprocess.run(
        ["fleet"],
        cwd=here,
        env={**environ(here), "_FLEET_COMPLETE": "tcsh_source"},
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == "" and "bash, zsh and fish" in done.stderr


def test_an_inventory_that_would_hold_up_the_shell_is_left_alone(here: Path) -> None:
    os.mkfifo(here / "pipe")
    line = f"fleet -i {here / 'pipe'} exec -w "
    done = subprocess.run(
        ["fleet"],
        cwd=here,
        timeout=300,
        capture_output=True,
        env={
            **environ(here),
            "_FLEET_COMPLETE": "bash_complete",
            "COMP_LINE": line,
            "COMP_HEAD": line,
            "COMP_WORD": "",
            "COMP_BREAKS": "",
        },
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"", b"")

"""-v says more, for every verb; -q says only what went wrong."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import run
from fleet.transport.base import Target
from tests.free_port import free_port
from tests.in_process import LocalTransport, command_line

VERBS = [
    "hosts",
    "exec -- true",
    "sync src --to {here}/to",
    "check --engine command",
    "kill-port {free}",
    "play book",
    "launch --engine command --nproc-per-node 1 --workdir {here} ./job",
    "--dry-run setup-ssh",
    "--dry-run build deepspeed",
    "lab status",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLEET_LAB", "nosuch")
    for folder in ("home", "src", "to"):
        Path(folder).mkdir()
    Path("src/a").write_text("a")
    Path("job").write_text("#!/bin/sh\nexit 0\n")
    Path("job").chmod(0o755)
    Path("fleet.yaml").write_text(f"hosts: {{me: {{python: {sys.executable}, env: {{TOKEN: s3cret}}}}}}\n")
    Path("book").write_text("- exec: [echo, hello]\n")
    return tmp_path


def said(line: str, here: Path, free: int, capfd: pytest.CaptureFixture[str], *, code: int = 0) -> tuple[str, str]:
    transport = [] if "setup-ssh" in line else ["--transport", "local"]
    assert run([*transport, *shlex.split(line.format(here=here, free=free))]) == code
    return capfd.readouterr()


@pytest.fixture
def free() -> int:
    """A port on which nobody listens."""
    return free_port()


@pytest.mark.parametrize("line", VERBS)
def test_v_says_more_for_every_verb(line: str, here: Path, free: int, capfd: pytest.CaptureFixture[str]) -> None:
    _, plain = said(line, here, free, capfd)
    _, more = said(f"-v {line}", here, free, capfd)
    assert len(more.splitlines()) > len(plain.splitlines())
    assert " s, exit code 0\n" in more and "s3cret" not in more
    if not line.startswith("lab"):
        assert f"inventory {here}/fleet.yaml, 1 host\n" in more
    if "--dry-run" not in line and line not in ("hosts", "lab status"):
        assert any(row.startswith("me: ") and row.endswith(" s, ok") for row in more.splitlines()), more


def test_v_with_json_is_one_document_and_no_talk(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["-v", "--json", "--transport", "local", "exec", "--", "true"]) == 0
    out, err = capfd.readouterr()
    assert out.count("\n") == 1 and err == ""


def test_v_shows_the_columns_that_a_table_leaves_out(capfd: pytest.CaptureFixture[str]) -> None:
    Path("fleet.yaml").write_text("hosts: {a: {identity_file: ~/key, activate: source x, env: {K: v}}}\n")
    assert run(["hosts"]) == 0 and "source x" not in capfd.readouterr().out
    assert run(["hosts", "-v"]) == 0
    out = capfd.readouterr().out
    assert "~/key" in out and "source x" in out and "  K\n" in out


def test_v_tells_where_a_host_was_reached_and_where_a_fault_of_fleet_is() -> None:
    class Odd(LocalTransport):
        def resolve(self, host: Any) -> Any:
            return Target("10.0.0.1", 33, "root")

        def connect(self, host: Any, cancel: Any) -> Any:
            if host.name == "c":
                raise ValueError("odd")
            return super().connect(host, cancel)

    def shown(hosts: str, line: str) -> str:
        Path("fleet.yaml").write_text(f"hosts: [{hosts}]\n")
        done = command_line(["-v", "exec", "--shell", line], Odd())
        return re.sub(r"\d+\.\d\d s", "0.00 s", " ".join(done.err.split()))

    assert "a: root@10.0.0.1:33, 0.00 s, ok " in shown("a", "true")
    assert "a: root@10.0.0.1:33, 0.00 s, exit status 3 " in shown("a", "exit 3")
    err = shown("c", "true")
    assert "0.00 s, internal Traceback" in err and "in connect" in err and "ValueError: odd" in err


def test_v_shows_the_traceback_of_a_fault(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("fleet.transport.local.LocalTransport.__init__", lambda self, options, hosts: 1 // 0)
    assert run(["--transport", "local", "exec", "--", "true"]) == 125
    assert "Traceback" not in capfd.readouterr().err
    assert run(["-v", "--transport", "local", "exec", "--", "true"]) == 125
    err = capfd.readouterr().err
    assert "Traceback" in err and "hint: -v shows where" in err


@pytest.mark.parametrize(
    "line",
    [
        "sync src --to {here}/to",
        "check --engine command -q",
        "kill-port -y {free}",
        "play book",
        "launch --engine command --nproc-per-node 1 --workdir {here} ./job",
    ],
)
def test_q_is_silent_when_all_is_well(line: str, here: Path, free: int, capfd: pytest.CaptureFixture[str]) -> None:
    Path("book").write_text(f"- sync: {{src: src, to: {here}/to}}\n")
    assert said(f"-q {line}", here, free, capfd) == ("", "")


def test_q_leaves_what_was_asked_for(here: Path, free: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert said("-q exec -- echo hello", here, free, capfd) == ("--- me ---\nhello\n", "")
    assert "me" in said("-q hosts", here, free, capfd)[0]
    assert "nothing listens" in said("-q --dry-run kill-port {free}", here, free, capfd)[0]


def test_q_tells_what_went_wrong(here: Path, free: int, capfd: pytest.CaptureFixture[str]) -> None:
    out, err = said("-q sync src --to /proc/nosuch", here, free, capfd, code=1)
    assert out == "" and err.startswith("error: host me: ")
    Path("fleet.yaml").write_text("hosts: {me: {python: /nosuch/python}}\n")
    out, err = said("-q check", here, free, capfd, code=123)
    assert "python-missing" in out and "compared" not in out

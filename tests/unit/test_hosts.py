"""`fleet hosts` as a command, and its output read by the programs it is meant for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import fleet
from fleet.cli.main import run
from fleet.model import Host

STARTERS = sorted(Path(__file__).parents[2].joinpath("hostfiles").iterdir())


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    return tmp_path


@pytest.mark.parametrize("path", STARTERS, ids=lambda p: p.name)
def test_the_inventories_to_start_from_load(path, here, capsys):
    assert "TEMPLATE" in path.read_text().splitlines()[0]
    assert run(["hosts", "-i", str(path)]) == 0
    printed = capsys.readouterr()
    assert all(name in printed.out for name in fleet.open(path).names)
    assert not printed.err


@pytest.mark.parametrize("args", [["--json"], ["--format", "json"], ["--json", "--format", "names"]])
def test_the_json_document(args, here, capsys):
    Path("fleet.yaml").write_text("env: {E: 1}\nhosts: {b: {port: 3, devices: 0-1, env: {A: x}}, a: }\ngroups: {g: a}")
    assert run(["hosts", *args]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verb"], document["ok"], document["exit_code"]) == ("hosts", True, 0)
    assert list(document["hosts"]) == ["b", "a"]
    assert (document["groups"], document["env"], document["source"]) == ({"g": ["a"]}, {"E": "1"}, "fleet.yaml")
    b = document["hosts"]["b"]
    assert {f.name for f in fields(Host)} | {"ok", "error", "node_rank"} <= set(b)
    assert (b["ok"], b["node_rank"], b["port"], b["env"]) == (True, 0, 3, {"A": "x"})
    assert (b["slots"], b["devices"]) == (2, [0, 1])


def test_options_stand_before_and_behind_the_verb(here, capsys):
    Path("hostfile").write_text("c\na\nb\n")
    for args in (["-w", "a,c", "hosts", "--format", "names"], ["hosts", "--format", "names", "-w", "a,c"]):
        assert run(args) == 0
        assert capsys.readouterr().out == "c\na\n"


def test_w_and_x_add_up_where_they_are_repeated(here, capsys):
    Path("hostfile").write_text("c\na\nb\nd\n")
    assert run(["hosts", "--format", "names", "-w", "a,b", "-w", "c", "-w", "d", "-x", "d", "-x", "a"]) == 0
    assert capsys.readouterr().out == "c\nb\n"
    assert run(["-w", "a", "hosts", "--format", "names", "-w", "c"]) == 0
    assert capsys.readouterr().out == "c\n", "what stands behind the verb wins over what stands before it"


def test_no_inventory_is_121_and_says_where_it_looked(here, capsys):
    assert run(["hosts"]) == 121
    printed = capsys.readouterr()
    assert not printed.out
    for place in ("-i", "$FLEET_INVENTORY", str(here / "fleet.yaml"), str(here / "hostfile")):
        assert place in printed.err


def test_an_unknown_format_is_usage(here, capsys):
    Path("hostfile").write_text("a\n")
    assert run(["hosts", "--format", "xml"]) == 2
    assert "deepspeed" in capsys.readouterr().err


def test_no_escape_code_of_a_file_reaches_the_terminal(here, capsys):
    Path("fleet.yaml").write_text('hosts: {a: {workdir: "\\e[31mred\\u202e"}}')
    assert run(["hosts"]) == 121
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err


def test_a_long_table_is_not_cut_in_a_pipe(here, capsys):
    Path("fleet.yaml").write_text(f"hosts: {{a: {{workdir: /{'x' * 150}, python: /{'y' * 150}}}}}")
    assert run(["hosts"]) == 0
    assert f"/{'y' * 150}  /{'x' * 150}" in capsys.readouterr().out


def test_it_loads_no_ssh(here):
    Path("hostfile").write_text("a\n")
    program = (
        "import sys; from fleet.cli.main import run; code = run(['hosts']);"
        "sys.exit(code or any(m in sys.modules for m in ('paramiko', 'fabric')))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300).returncode == 0


SSH = """hosts:
  door: {address: 203.0.113.1, port: 2222, user: jump}
  gpu1: {address: "fe80::1%lo", user: 'DOM\\u', identity_file: "~/my keys/%h", proxy_jump: "door,u@[fd00::1]:3"}
"""


@pytest.mark.skipif(not shutil.which("ssh"), reason="no OpenSSH client here")
def test_openssh_reads_the_ssh_config(here, capsys):
    Path("fleet.yaml").write_text(SSH)
    assert run(["hosts", "--format", "ssh-config"]) == 0
    config = here / "config"
    config.write_text(capsys.readouterr().out)
    said = subprocess.run(["ssh", "-G", "-F", config, "gpu1"], capture_output=True, text=True, check=True, timeout=300)
    for line in (
        "hostname fe80::1%lo",
        "port 22",
        "user DOM\\u",
        "identityfile ~/my keys/%%h",
        "proxyjump door,u@[fd00::1]:3",
    ):
        assert line in said.stdout.splitlines()
    said = subprocess.run(["ssh", "-G", "-F", config, "door"], capture_output=True, text=True, check=True, timeout=300)
    assert {"hostname 203.0.113.1", "port 2222", "user jump"} <= set(said.stdout.splitlines())


@pytest.mark.skipif(not shutil.which("pdsh"), reason="no pdsh here")
def test_pdsh_reads_the_pdsh_form(here, capsys):
    Path("hostfile").write_text("gpu[01-02] user=root\nb\n")
    assert run(["hosts", "--format", "pdsh"]) == 0
    line = capsys.readouterr().out.strip()
    said = subprocess.run(["pdsh", "-R", "exec", "-w", line, "echo", "%u"], capture_output=True, text=True, timeout=300)
    me = subprocess.run(["id", "-un"], capture_output=True, text=True, timeout=300).stdout.strip()
    assert sorted(said.stdout.splitlines()) == [f"b: {me}", "gpu01: root", "gpu02: root"]


def test_what_a_form_cannot_say_is_refused(here, capsys):
    for text, form in (("a user=u@corp", "pdsh"), ("a", "deepspeed"), ("a identity_file='a\"b'", "ssh-config")):
        Path("hostfile").write_text(text)
        assert run(["hosts", "--format", form]) == 121
        assert "host a" in capsys.readouterr().err

"""--dry-run tells people what would be done, as text on stdout; as JSON it is what it was."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from fleet.cli.main import run
from fleet.ops.setup_ssh.record import Record

INVENTORY = """\
defaults: {user: root, workdir: ~/work}
env: {TOKEN: s3cret}
hosts:
  gpu[01-02]: {slots: 4}
  other: {workdir: /srv, activate: source x}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    Path("fleet.yaml").write_text(INVENTORY)
    Path("src/deep").mkdir(parents=True)
    for number in range(30):
        Path(f"src/f{number:02}").write_text("x" * number)
    Path("src/deep/large").write_bytes(bytes(3 << 20))
    Path("src/setup.py").touch()
    Path("wheels").mkdir()
    Path("wheels/x-1-py3-none-any.whl").write_bytes(bytes(2048))
    return tmp_path


def text(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["--dry-run", *shlex.split(line)]) == 0
    said = capsys.readouterr()
    assert "s3cret" not in said.out + said.err and "{" not in said.out
    return said.out


def test_exec(capsys: pytest.CaptureFixture[str]) -> None:
    assert text("exec -- grep 'a b'", capsys) == (
        "gpu[01-02]: would run grep 'a b'\n  env: TOKEN\n"
        "other: would run grep 'a b'\n  behind: source x\n  env: TOKEN\n"
    )
    within = text("exec -w gpu01 --env-of python -- true", capsys)
    assert within == "gpu01: would run true\n  in the environment of python3\n  env: TOKEN\n"
    assert text("exec -w gpu01 --shell 'df | tail'", capsys).startswith("gpu01: would run, in its shell: df | tail\n")


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gpu[01-02]: training interpreter python3\n  workdir ~/work\n" in text("check", capsys)


def test_sync_names_the_files_with_their_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = text("sync src", capsys).splitlines()
    assert lines[0].endswith("/src, 32 files, 3.0 MiB; would be sent as far as a host does not have it:")
    assert lines[1:3] == ["     3.0 MiB  deep/large", "         0 B  f00"]
    assert lines[21:] == [
        "  and 12 more; -v shows all",
        "gpu[01-02]: into ~/work",
        "other: into /srv",
        "deleted there: what fleet delivered, is as it was delivered, and is gone, not only left out, here",
        "a host stops where its own files are in the way",
    ]
    everything = text("sync src -v", capsys)
    assert "more" not in everything and "        29 B  f29\n" in everything


def test_sync_of_data_and_wheels(capsys: pytest.CaptureFixture[str]) -> None:
    said = text("sync --data src/deep:/d/ --limit 100MB", capsys)
    assert "     3.0 MiB  large\n" in said and "gpu[01-02],other: to /d/deep\n" in said and "95.4 MiB/s" in said
    said = text("sync --wheels wheels", capsys)
    assert "     2.0 KiB  x-1-py3-none-any.whl\ngpu[01-02],other: in python3\n" in said


def test_what_a_sync_could_not_read_is_refused_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--dry-run", "sync", "nosuch"]) == 2
    assert "nosuch does not exist" in capsys.readouterr().err
    for words in (["nosuch"], ["--data", "nosuch"], ["--wheels", "nosuch"]):
        assert run(["--json", "--dry-run", "sync", *words]) == 2, words
        document = json.loads(capsys.readouterr().out)
        assert "nosuch" in document["error"]["message"] and not document["ok"], document


def test_setup_ssh(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    said = text("setup-ssh", capsys)
    assert f"this machine: key {here}/home/.ssh/id_ed25519: create (ed25519)\n" in said
    assert "gpu01: root@gpu01:22, host key: show and ask\n" in said and said.endswith("would verify 9 pairs\n")
    assert said.count("authorise the keys of all 3 hosts") == 1, "alike hosts are told of together"
    assert not Path("home/.ssh").exists()


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_what_cannot_be_undone_is_refused_now(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--dry-run", *words, "setup-ssh", "--undo"]) == 1
    said = capsys.readouterr()
    assert "nothing to undo" in said.out + said.err


@pytest.mark.parametrize("words", [["--tofu"], ["--replace-key", "gpu01"], ["--key-type", "rsa"], ["--no-mesh"]])
def test_undo_takes_no_options_of_a_setup(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["setup-ssh", "--undo", *words]) == 2
    assert "--undo removes what was added" in capsys.readouterr().err


def test_setup_ssh_undo(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    record = Record.load(here / "home", "fleet.yaml")
    record.head.files = {"known_hosts": ["k"], "config": []}
    for name in ("gpu01", "gpu02"):
        record.host(name).files = {"authorized_keys": ["a", "b"], "config": []}
    record.save()
    of_a_host = "would take 2 lines out of authorized_keys\n  would take its block out of config\n"
    head = "this machine: would take 1 line out of known_hosts\n  would take its block out of config\n"
    assert text("setup-ssh --undo", capsys) == f"{head}gpu[01-02]: {of_a_host}"
    head = "this machine: would keep its part for the hosts not selected: gpu02\n"
    assert text("-w gpu01 setup-ssh --undo", capsys) == f"{head}gpu01: {of_a_host}"


def test_build_and_launch(capsys: pytest.CaptureFixture[str]) -> None:
    said = text("build deepspeed --ops cpu_adam --no-install", capsys)
    assert said.startswith("would build deepspeed on gpu01, from deepspeed==") and "  ops: cpu_adam\n" in said
    assert said.endswith("and install it nowhere\n")
    assert run(["--dry-run", "launch", "-w", "gpu01", "train.py"]) == 0
    assert "gpu01: node rank 0, ranks 0-3, in ~/work\n" in capsys.readouterr().out


def test_launch_tells_once_what_all_hosts_start(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> list[str]:
        assert run(["--dry-run", "launch", *words, "train.py"]) == 0
        return capsys.readouterr().out.splitlines()

    lines = said("--engine", "deepspeed")
    assert [line.partition(",")[0] for line in lines[1:4]] == [
        "gpu01: node rank 0",
        "gpu02: node rank 1",
        "other: node rank 2",
    ]
    assert lines[5] == "gpu[01-02]: starts" and "--node_rank=NODE_RANK " in lines[6] and lines[8] == "  env: TOKEN"
    assert lines[9] == "other: starts" and lines[12:] == ["  behind: source x", "  env: TOKEN"]
    assert any("--node_rank=1 " in line for line in said("-v", "--engine", "deepspeed"))


@pytest.mark.parametrize(
    ("options", "guessed", "counted"),
    [
        ("", ["other"], "GPUs"),
        ("--nproc-per-node auto", ["gpu01", "gpu02", "other"], "GPUs, or else CPUs,"),
        ("--nproc-per-node gpu -w gpu01:0,2 -w other", ["other"], "GPUs"),
        ("--nproc-per-node cpu -w gpu01:0,2", ["gpu01"], "CPUs"),
        ("--nproc-per-node 3", [], ""),
        ("--engine command --per node --nproc-per-node auto", [], ""),
        ("-w gpu01", [], ""),
    ],
)
def test_a_guess_of_the_ranks_is_called_so(
    options: str, guessed: list[str], counted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--dry-run", "launch", *options.split(), "train.py"]) == 0
    said = capsys.readouterr().out
    assert ("a guess" in said.splitlines()[0]) is bool(guessed)
    if guessed:
        assert f": 1 rank is a guess: a run counts {counted} there, a plan asks no host\n" in said
    assert run(["--dry-run", "--json", "launch", *options.split(), "train.py"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"].get("guessed", []) == guessed


@pytest.mark.parametrize(
    "line", ["exec -- true", "check", "sync src", "sync --wheels wheels", "setup-ssh", "build ./src"]
)
def test_json_is_still_json(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--dry-run", "--json", *shlex.split(line)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dry_run"] and document["ok"] and document["plan"] and list(document["hosts"])[-1] == "other"


def test_a_lab_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_LAB", "nosuch")
    assert run(["lab", "up", "3", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("would bring up 3 hosts, under ")
    assert run(["lab", "up", "3", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verb"] == "lab" and document["dry_run"] and document["plan"]["up"] == 3

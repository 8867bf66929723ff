"""run.json says what started a run, `launch --again` and `--from` start it once more. Hosts are this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.cli.main import run
from fleet.errors import UsageError
from tests.events import undocumented
from tests.run_folders import written_by_fleet

HOSTS = "defaults: {workdir: %s}\nenv: {OF_ALL: 1}\nhosts:\n  a: {address: 127.0.0.1}\n  b:\n  c:\n"


def test_a_secret_among_the_arguments_is_where_again_needs_it_alone(
    first: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "--transport",
        "local",
        "-w",
        "a",
        "--json",
        "launch",
        "--name",
        "told",
        "show.sh",
        "--token=hunter2",
        "--lr",
        "1",
    ]
    assert run(argv) == 0
    (folder,) = Path("runs").glob("told-*")
    plan = next(json.loads(line) for line in capfd.readouterr().out.splitlines() if '"plan"' in line)
    assert plan["hosts"]["a"]["command"][-3:] == ["--token=***", "--lr", "1"]
    holds = [path.name for path in folder.iterdir() if path.is_file() and b"hunter2" in path.read_bytes()]
    document = json.loads((folder / "run.json").read_text())
    assert holds == ["run.json"] and document["launch"].pop("args")[0] == "--token=hunter2"
    assert "hunter2" not in json.dumps(document)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on one of three hosts."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "fleet.yaml").write_text(HOSTS % folder)
    (folder / "show.sh").write_text('echo "$MODE $HF_TOKEN $OF_ALL $*"\n')
    words = ["--env", "MODE=fast", "--env", "HF_TOKEN=hunter2", "--grace", "2", "show.sh", "--lr", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["--transport", "local", "-w", "a", "launch", *words]) == 0
    return folder


@pytest.fixture
def first(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The run.json of such a run in the current folder."""
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    for path in (tmp_path / "fleet.yaml", *tmp_path.glob("runs/show*/run.json")):
        path.write_text(path.read_text().replace(str(made), str(tmp_path)))
    monkeypatch.chdir(tmp_path)
    written_by_fleet(path, found := document("latest"))
    return found


def document(word: str) -> dict[str, Any]:
    found = json.loads((Path("runs") / word / "run.json").read_text())
    assert isinstance(found, dict)
    return found


def lines() -> list[str]:
    """What the ranks of the last run wrote."""
    return [path.read_text().strip() for path in sorted((Path("runs") / document("latest")["run"]).glob("*/rank*.out"))]


def test_what_started_a_run(first: dict[str, Any]) -> None:
    path = Path("runs") / first["run"] / "run.json"
    assert path.stat().st_mode & 0o777 == 0o600 and "hunter2" not in path.read_text()
    assert first["fleet"]["argv"][:6] == ["fleet", "--transport", "local", "-w", "a", "launch"]
    assert (first["fleet"]["folder"], first["fleet"]["transport"]) == (str(Path.cwd()), "local")
    assert first["launch"]["env"] == {"MODE": "fast", "HF_TOKEN": None}
    assert (first["launch"]["script"], first["launch"]["args"]) == ("show.sh", ["--lr", "1"])
    assert first["inventory"]["selected"] == "a" and len(first["inventory"]["hosts"]) == 3
    tell = "import platform; print(platform.python_version())"
    version = subprocess.run(["python3", "-c", tell], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    assert first["facts"]["a"]["python"]["version"] == version
    assert first["code"]["folder"] == str(Path.cwd())


def test_again(first: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "--again", "latest"]) == 2
    said = capfd.readouterr().err
    assert f"run {first['run']}: what may be secret is not kept, so give it again: HF_TOKEN" in said
    assert run(["launch", "--again", "show", "--env", "HF_TOKEN=x"]) == 0
    assert lines() == ["fast x 1 --lr 1"]
    assert document("latest")["repeats"] == first["run"] and document("latest")["grace"] == 2.0
    Path("fleet.yaml").write_text(HOSTS.replace("OF_ALL: 1", "OF_ALL: 2") % Path.cwd())
    words = ["--again", "latest", "--env", "HF_TOKEN=y", "--env", "MODE=slow", "--grace", "3", "./show.sh"]
    assert run(["launch", *words]) == 0, (
        "the same host of what the inventory says now, with another mode, and no arguments"
    )
    assert lines() == ["slow y 2"] and document("latest")["grace"] == 3.0


def test_from(first: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    Path("fleet.yaml").write_text("hosts: [other]\n")
    Path("show.sh").write_text('echo "now $MODE $HF_TOKEN $OF_ALL $*"\n')
    assert run(["launch", "--from", "latest", "--env", "HF_TOKEN=x"]) == 0
    assert lines() == ["now fast x 1 --lr 1"]
    assert "warning: a: script, by its sha256, is" in capfd.readouterr().err
    assert run(["launch", "--again", document("latest")["run"], "--env", "HF_TOKEN=x"]) == 121, "a is gone there"


WHICH: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, ["--again", "latest"], ["a"]),
    ({}, ["--from", "latest", "-w", "a,c"], ["a", "c"]),
    ({"selected": "c,b"}, ["--from", "latest"], ["b", "c"]),
    ({"selected": "b:0,2,c:1"}, ["--from", "latest"], ["b", "c"]),
    ({"whole": True}, ["--again", "latest", "-x", "b"], ["a", "c"]),
    ({"whole": True, "nnodes": "3"}, ["--again", "latest", "-x", "b"], ["a", "c"]),
    ({"whole": True, "nnodes": "3"}, ["--again", "latest", "--nnodes", "1"], ["a"]),
    ({"whole": True, "nnodes": "2", "spares": 1}, ["--again", "latest", "-x", "b"], ["a", "c"]),
]


def test_on_which_hosts(first: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    for asked, words, hosts in WHICH:
        changed = {**first, "inventory": {**first["inventory"], **asked}}
        changed["launch"] = {**first["launch"], "nnodes": asked.get("nnodes"), "spares": asked.get("spares", 0)}
        (Path("runs") / first["run"] / "run.json").write_text(json.dumps(changed))
        capfd.readouterr()
        assert run(["--dry-run", "--json", "launch", *words, "--env", "HF_TOKEN=x"]) == 0
        assert list(json.loads(capfd.readouterr().out)["hosts"]) == hosts, words
    words = ["--dry-run", "launch", "--again", "latest", "--env", "HF_TOKEN=x", "--sync", "--force"]
    assert run(words) == 0 and run([*words[:-2], "--force"]) == 2
    changed["launch"] = {**first["launch"], "sync": True}
    (Path("runs") / first["run"] / "run.json").write_text(json.dumps(changed))
    assert run([*words[:-2], "--force"]) == 0, "it was mirrored then, and is again"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--again", "x", "--from", "y"], "exclude each other"),
        (["--again", "nope"], "runs: no run nope: no run is known"),
        (["--from", "old"], "run.json is not as fleet wrote it: launch is missing"),
        (["--from", "odd"], "run.json is not there: it was not started from here"),
        (
            ["--from", "half"],
            "half-20260101-000000-0000/run.json cannot be read: Unterminated string starting at: line 1 column 9",
        ),
        (["--again", "list"], "list-20260101-000000-0000/run.json cannot be read: it holds no JSON object"),
        (
            ["--again", "bytes"],
            "bytes-20260101-000000-0000/run.json cannot be read: 'utf-8' codec can't decode byte 0xff",
        ),
        (["--again", "folder"], "folder-20260101-000000-0000/run.json cannot be read: Is a directory"),
        (["--again", ""], "RUN is empty"),
        (["--from", ""], "RUN is empty"),
        (["--from", "", "--again", "x"], "exclude each other"),
        ([], "Missing argument 'SCRIPT'"),
    ],
)
def test_what_cannot_be_repeated(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"old": b'{"run": "old", "engine": "torchrun"}', "half": b'{"run": "h', "list": b"[]", "bytes": b"\xff"}
    for name in ("odd", "folder", *texts) if "nope" not in words else ():
        folder = tmp_path / "runs" / f"{name}-20260101-000000-0000"
        folder.mkdir(parents=True)
        (folder / "events.jsonl").touch()
        if name in texts:
            (folder / "run.json").write_bytes(texts[name])
        elif name == "folder":
            (folder / "run.json").mkdir()
    code, told = run(["launch", *words]), capfd.readouterr().err
    assert code == 2 and said in told, told


def test_an_inventory_that_is_gone_since(first: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    gone = Path(first["inventory"]["source"])
    gone.rename(gone.with_suffix(".away"))
    code, told = run(["--dry-run", "launch", "--again", "latest", "--env", "HF_TOKEN=x"]), capfd.readouterr().err
    assert code == 121 and f"the inventory that it was started with, {gone}, is not there any more" in told, told
    assert f"launch --from {first['run']}' takes" in told
    assert run(["--dry-run", "launch", "--from", "latest", "--env", "HF_TOKEN=x"]) == 0


ODD: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("launch", "args"), "--lr", "launch.args '--lr': must be a list of texts"),
    (("launch", "grace"), "x", "launch.grace 'x': must be a number, 0 or more"),
    (("launch", "env", "MODE"), 7, "launch.env must be a mapping of texts to texts ('MODE' is int)"),
    (("launch", "lease"), -5, "launch.lease -5: must be a number, 1 or more"),
    (("launch", "master_port"), 70000, "launch.master_port 70000: must be a whole number from 0 to 65535"),
    (("launch", "script"), 7, "launch.script 7: must be a text"),
    (("launch", "nnodes"), "4:2", "launch.nnodes 4:2: not a number of nodes"),
    (("launch", "force"), True, "launch.force has a meaning with --sync or --wheels only"),
    (("launch", "per"), ["node"], "is ['node']"),
    (("inventory",), {}, "inventory.source is missing"),
    (("inventory", "env", "LD PRELOAD"), "x", "LD PRELOAD"),
    (("inventory", "hosts"), [{"name": "a"}], "is missing"),
    (("inventory", "hosts", 0, "name"), "../../a", "../../a"),
    (("inventory", "hosts", 0, "address"), "-oProxyCommand=x", "-oProxyCommand=x"),
    (("inventory", "hosts", 0, "user"), "\33[2J", "\\x1b[2J"),
    (("inventory", "hosts", 0, "port"), "22", "is '22'"),
    (("inventory", "hosts", 0, "odd"), 1, "is 'odd'"),
    (("fleet", "transport"), None, "fleet.transport is None"),
    (("facts",), {"a": {"packages": ["torch"]}}, "packages is ['torch']"),
    (("code",), {"commit": "$(reboot)"}, "code.commit is '$(reboot)'"),
]


@pytest.mark.parametrize("way, value, said", ODD, ids=[".".join(map(str, way)) for way, _, _ in ODD])
def test_a_run_json_is_not_believed(
    first: dict[str, Any], way: tuple[str | int, ...], value: Any, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    place: Any = first
    for key in way[:-1]:
        place = place[key]
    place[way[-1]] = value
    (Path("runs") / first["run"] / "run.json").write_text(json.dumps(first))
    for words in (["--from"], ["--again"]):
        assert run(["--dry-run", "launch", *words, "latest", "--env", "HF_TOKEN=x"]) == 2
        told = capfd.readouterr().err
        assert "run.json is not as fleet wrote it" in told and said in told and "\33" not in told
    with pytest.raises(UsageError, match="is not as fleet wrote it"):
        fleet.reopen()


def test_a_playbooks_step_and_a_program_are_repeated_too(first: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "- vars: {mode: x}\n- launch: {script: show.sh, args: [two], env: {MODE: '${mode}', A_KEY: k}}\n  on: a\n"
    )
    assert run(["--transport", "local", "play", "p.yaml", "--var", "mode=slow"]) == 0
    assert document("latest")["fleet"]["argv"][-6:-1] == ["--env", "MODE=slow", "--env", "A_KEY=***", "show.sh"]
    with pytest.raises(UsageError, match="A_KEY"):
        fleet.reopen().again()
    with fleet.reopen().again(env={"A_KEY": "z"}, grace=1) as once_more:
        events = list(once_more)
    assert once_more.report.ok and lines() == ["slow  1 two"]
    assert not [event for event in events if getattr(event, "level", "") == "warning"]


def test_events_are_as_documented(first: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert run(["--json", "launch", "--again", "latest", "--env", "HF_TOKEN=x", "show.sh", "exit"]) == 0
    said = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    path = Path("runs") / document("latest")["run"] / "events.jsonl"
    for events in (said, [json.loads(line) for line in path.read_text().splitlines()]):
        assert (events[0]["event"], events[0]["version"], events[-1]["event"]) == ("version", 1, "summary")
        assert undocumented(events) == []


def test_the_document_is_json_all_through(first: dict[str, Any]) -> None:
    assert json.loads(json.dumps(first)) == first


def test_secrets_of_the_inventory_are_given_again_for_its_hosts_alone(first: dict[str, Any]) -> None:
    a, b, _ = first["inventory"]["hosts"]
    first["inventory"]["env"]["ALL_KEY"] = a["env"]["A_KEY"] = b["env"]["B_KEY"] = None
    written_by_fleet(Path("runs") / first["run"] / "run.json", first)
    with pytest.raises(UsageError, match="ALL_KEY, A_KEY"):
        fleet.reopen(env={"B_KEY": "x"})
    everyone = fleet.reopen(env={"A_KEY": "x", "ALL_KEY": "y"}).everyone
    assert (everyone.env["ALL_KEY"], everyone.hosts[0].env, everyone.hosts[1].env) == ("y", {"A_KEY": "x"}, {})

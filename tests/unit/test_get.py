"""What a node may say of the files that it gives, and where it cannot lead them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from fleet.model import Host
from fleet.ops.get.names import name_of, name_of_run, without_repositories
from fleet.protocol.state import PROTOCOL
from tests.hostile import error_of, hostile
from tests.in_process import fleet_here


def entry(path: str, kind: str = "f", *, size: int = 0, mtime: Any = 0, link: str = "") -> Any:
    return [path, kind, 0o644, size, mtime, link]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workdir and the home of the only host, which is this machine."""
    (tmp_path / "node").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "node"))
    return tmp_path / "node"


def get(what: str, to: Path) -> Any:
    return fleet_here(Host("a", "a", workdir=os.environ["HOME"])).get(what, to=to)


def run_of_the_node(node: Path, run: str) -> str:
    """A run that is over, in whose folder nothing was written."""
    folder, cwd = node / ".fleet/runs" / run, node / "cwd"
    folder.mkdir(parents=True)
    cwd.mkdir(exist_ok=True)
    spec = {"run": run, "protocol": PROTOCOL, "node": os.uname().nodename, "ranks": [0], "cwd": str(cwd)}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "status.json").write_text('{"state": "exited", "time": 1.0}')
    return run


def test_a_word_that_begins_several_runs_names_them(node: Path, tmp_path: Path) -> None:
    for number in range(2):
        run_of_the_node(node, f"train-20261122-10000{number}-ab12")
    with pytest.raises(UsageError, match="2 runs begin so: train-20261122-100001-ab12, train-20261122-100000-ab12"):
        get("train-2026", tmp_path)
    with pytest.raises(UsageError, match="no host has tra"):  # the first letters of a name may be a path
        get("tra", tmp_path)


def test_the_latest_run_where_there_is_none(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no run latest: none was launched from this folder"):
        get("latest", tmp_path / "here")
    with pytest.raises(UsageError, match="no host has train"):
        get("train", tmp_path / "here")
    (node / "latest").write_text("a path of that name")
    assert get("latest", tmp_path / "here").exit_code == 0


@pytest.mark.parametrize(
    "name",
    [
        *({"path": path} for path in ("/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", ".", "a/")),
        *({"mtime": 1e300}, {"mtime": 1 << 63}, {"path": "a\0b"}, {"path": "\ud800"}, {"link": "\ud800"}),
    ],
)
def test_what_leads_nowhere_or_what_no_disk_takes_is_no_entry(tmp_path: Path, name: dict[str, Any]) -> None:
    given = entry(**{"path": "a", **name})
    listed = {
        "event": "tree",
        "path": "/w/x",
        "entries": [given],
        "allocated": {},
        "skipped": [],
        "linked": [],
        "unsafe": [],
    }
    report = hostile({**listed, "mode": 0o755, "more": False}).get("/w/x", to=tmp_path)
    assert error_of(report).kind == "protocol" and not os.listdir(tmp_path)


@pytest.mark.parametrize("path", ["..", "~/x/..", "/", "/r/.fleet-get", "./..", "a/./..//"])
def test_what_has_no_name_of_its_own_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="no name of its own"):
        name_of(path)


def test_names_are_made_of_what_was_asked() -> None:
    asked = {"~/w/x/": "x", "~": "home", "~bob": "bob", "/w/./y/.": "y", "~/a b": "a b", "w/~x": "~x"}
    assert {path: name_of(path) for path in asked} == asked


def test_a_run_has_the_name_of_its_folder_as_this_machine_knows_it(tmp_path: Path) -> None:
    run = "train-20261122-100000-ab12"
    assert name_of_run(run, "gpu1", "latest", tmp_path) == run, "nothing a node said"
    assert name_of_run(run, "gpu1", "train", tmp_path) == "train", "it was asked for by that name"
    for record in ("[]", "{", '{"hosts": 3}', '{"hosts": {"gpu1": {"workdir": "~"}, "gpu2": 7}}'):
        (tmp_path / run).mkdir(exist_ok=True)
        (tmp_path / run / "run.json").write_text(record)
        assert name_of_run(run, "gpu1", "latest", tmp_path) == run
    (tmp_path / run / "run.json").write_text('{"hosts": {"gpu1": {"workdir": "~/one/"}, "gpu2": {"workdir": "/b"}}}')
    assert [name_of_run(run, host, "latest", tmp_path) for host in ("gpu1", "gpu2", "gpu3")] == ["one", "b", "one"]


def test_repositories_are_left_out_at_any_depth_and_by_what_git_takes_for_one() -> None:
    def names(*paths: str) -> tuple[list[str], list[str]]:
        left, out = without_repositories(entry(path) for path in paths)
        return [each[0] for each in left], out

    assert names("a", "a/.git", "a/.git/config", "b/.GIT", ".gitignore", "c/.hg", "c/.hg/hgrc") == (
        ["a", ".gitignore"],
        ["a/.git", "b/.GIT", "c/.hg"],
    )
    assert names("m", "m/HEAD", "m/objects", "m/refs", "m/config", "n/HEAD", "n/refs") == (["n/HEAD", "n/refs"], ["m"])
    assert names("m/HEAD", "m/commondir", "x") == (["x"], ["m"])
    assert names("HEAD", "objects", "refs", "x") == ([], ["."]), "the folder that was asked for is one"


def test_a_run_that_wrote_nothing_is_no_path_that_nobody_has(node: Path, tmp_path: Path) -> None:
    run = run_of_the_node(node, "r-20261122-100000-ab12")
    with pytest.raises(UsageError, match=f"run {run} has written nothing"):
        get(run, tmp_path)
    with pytest.raises(UsageError, match="no host has s"):
        get("s", tmp_path)

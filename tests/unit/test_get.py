"""What a node may say of the files that it gives, and where it cannot lead them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from fleet.delivery.tree import Tree
from fleet.errors import UsageError
from fleet.model import Host, Inventory
from fleet.node.delivery import give
from fleet.ops import get
from fleet.ops.get import Asked, GetPlan
from fleet.ops.get.names import name_of, name_of_run, without_repositories
from fleet.ops.run.find.find import FoundRun
from fleet.protocol.decode import Misfit, decode
from fleet.protocol.messages.chain import Entry
from fleet.requests.runs import Get
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport


def entry(path: str, kind: str = "f", *, size: int = 0, mtime: Any = 0, link: str = "") -> Any:
    return [path, kind, 0o644, size, mtime, link]


def test_a_word_that_begins_several_runs_names_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = [FoundRun(f"train-20261122-10000{n}-ab12", {}, {}) for n in range(2)]
    monkeypatch.setattr(get, "find", lambda *_, **__: (runs, ()))
    monkeypatch.setattr(FoundRun, "live", False)
    runtime = Runtime(LocalTransport(), 1, lambda _: None)
    inventory = Inventory((Host("a", "a", workdir=str(tmp_path)),))
    with pytest.raises(UsageError, match="2 runs begin so: train-20261122-100000-ab12, train-20261122-100001-ab12"):
        get.run(GetPlan(inventory, Get("train-2026", to=tmp_path)), runtime)
    with pytest.raises(UsageError, match="no host has tra"):  # the first letters of a name may be a path
        get.run(GetPlan(inventory, Get("tra", to=tmp_path)), runtime)


def test_the_latest_run_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(get, "find", lambda *_, **__: ([], ()))
    runtime = Runtime(LocalTransport(), 1, lambda _: None)
    inventory = Inventory((Host("a", "a", workdir=str(tmp_path)),))
    with pytest.raises(UsageError, match="there is no run yet"):
        get.run(GetPlan(inventory, Get("latest", to=tmp_path / "here")), runtime)
    with pytest.raises(UsageError, match="no host has train"):
        get.run(GetPlan(inventory, Get("train", to=tmp_path / "here")), runtime)
    (tmp_path / "latest").write_text("a path of that name")
    assert get.run(GetPlan(inventory, Get("latest", to=tmp_path / "here")), runtime).exit_code == 0


def test_what_a_node_cannot_read_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def converse(spec: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/proc/l\u00f6op".encode())

    told: list[Any] = []
    for name, instead in (("start", dict), ("converse", converse), ("send_json", told.append), ("send_exit", int)):
        monkeypatch.setattr(give, name, instead)
    give.main()
    assert told == [{"event": "failed", "message": "/proc/l\u00f6op: Permission denied", "hint": None}]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", ".", "a/"])
def test_a_name_leads_nowhere_else(path: str) -> None:
    with pytest.raises(Misfit):
        decode(Entry, entry(path))
    assert decode(Entry, entry("a/b..c"))[0] == "a/b..c"


@pytest.mark.parametrize(
    "name", [{"mtime": 1e300}, {"mtime": 1 << 63}, {"path": "a\0b"}, {"path": "\ud800"}, {"link": "\ud800"}]
)
def test_what_no_disk_takes_is_no_entry(name: dict[str, Any]) -> None:
    with pytest.raises(Misfit):
        decode(Entry, entry(**{"path": "a", **name}))


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


@pytest.mark.parametrize("run, said", [("r", "run r has written nothing"), (None, "no host has r")])
def test_a_run_that_wrote_nothing_is_no_path_that_nobody_has(
    run: str | None, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Host("a", "a")
    monkeypatch.setattr(get, "_asked", lambda *_: ({"a": Asked({"path": "~", "run": run}, "x")}, []))
    monkeypatch.setattr(get, "listing", lambda *_: (Tree(Path("~"), ()), ()))
    with pytest.raises(UsageError, match=said):
        get.run(GetPlan(Inventory((here,)), Get("r", to=tmp_path)), Runtime(LocalTransport(), 1, lambda _: None))

"""What a node may say of the files that it gives, and where it cannot lead them."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from fleet.delivery.tree import Tree
from fleet.errors import HostFailed, UsageError
from fleet.model import Host, Inventory
from fleet.node.delivery import give
from fleet.ops import get
from fleet.ops.get import GetPlan, _places
from fleet.ops.get.receive import Received
from fleet.ops.runs.find import FoundRun
from fleet.protocol.decode import Misfit, decode
from fleet.protocol.messages.chain import Entry
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
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
        get.run(GetPlan(inventory, "train-2026", tmp_path), runtime)
    with pytest.raises(UsageError, match="no host has tra"):  # the first letters of a name may be a path
        get.run(GetPlan(inventory, "tra", tmp_path), runtime)


def test_the_latest_run_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(get, "find", lambda *_, **__: ([], ()))
    runtime = Runtime(LocalTransport(), 1, lambda _: None)
    inventory = Inventory((Host("a", "a", workdir=str(tmp_path)),))
    with pytest.raises(UsageError, match="there is no run yet"):
        get.run(GetPlan(inventory, "latest", tmp_path / "here"), runtime)
    with pytest.raises(UsageError, match="no host has train"):
        get.run(GetPlan(inventory, "train", tmp_path / "here"), runtime)
    (tmp_path / "latest").write_text("a path of that name")
    assert get.run(GetPlan(inventory, "latest", tmp_path / "here"), runtime).exit_code == 0


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


def received(tmp_path: Path) -> Received:
    class Session:
        host = Host("n1", "n1")

    spec: Any = {"path": "~/x", "since": None}
    return Received(Session(), spec, tmp_path / "to/x", tmp_path / "stage", Cancel(), lambda done, total: None)  # type: ignore[arg-type]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    got = received(tmp_path)
    (tmp_path / "stage/tree/a").mkdir(parents=True)
    (tmp_path / "stage/tree/a/b").write_text("x")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "to/x").mkdir(parents=True)
    (tmp_path / "to/x/a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HostFailed, match="is a link here"):
        got._place([entry("a/b")])
    assert not list((tmp_path / "elsewhere").iterdir())


def test_links_come_last_and_replace(tmp_path: Path) -> None:
    got = received(tmp_path)
    (tmp_path / "stage/tree").mkdir(parents=True)
    (tmp_path / "stage/tree/b").write_text("new")
    (tmp_path / "to/x").mkdir(parents=True)
    (tmp_path / "to/x/b").write_text("old")
    got._place([entry("a", "l", link="b"), entry("b", size=3), entry("c", "d")])
    assert (tmp_path / "to/x/a").read_text() == "new" and (tmp_path / "to/x/c").is_dir()


def test_what_lies_staged_of_something_else_leaves_nothing_in_holes(tmp_path: Path) -> None:
    """Zero bytes are not sent: what an earlier get of another file of that name left must go first."""
    given, to = tmp_path / "given", tmp_path / "to/given"
    given.mkdir()
    (given / "w").write_bytes(b"a" * (1 << 20) + bytes(2 << 20) + b"b" * 100)
    (tmp_path / "stage/tree").mkdir(parents=True)
    (tmp_path / "stage/tree/w").write_bytes(b"x" * (2 << 20))
    session = LocalTransport().connect(Host("n1", "n1"), Cancel())
    spec: Any = {"path": str(given), "since": None}
    Received(session, spec, to, tmp_path / "stage", Cancel(), lambda done, total: None).bring()
    assert (to / "w").read_bytes() == (given / "w").read_bytes()


@pytest.mark.parametrize(
    "name", [{"mtime": 1e300}, {"mtime": 1 << 63}, {"path": "a\0b"}, {"path": "\ud800"}, {"link": "\ud800"}]
)
def test_what_no_disk_takes_is_no_entry(name: dict[str, Any]) -> None:
    with pytest.raises(Misfit):
        decode(Entry, entry(**{"path": "a", **name}))


@pytest.mark.parametrize("path", ["..", "../..", ".", "/r/.fleet-get"])
def test_a_host_names_no_other_place_here(path: str) -> None:
    plan = GetPlan(Inventory(()), "x", Path("/to"))
    with pytest.raises(UsageError, match="no name of its own"):
        _places(plan, {"gpu1": path})
    assert _places(plan, {"gpu1": "/r/x/y/.."}) == {"gpu1": Path("/to/x")}


@pytest.mark.parametrize("since, said", [(1.0, "run r has written nothing"), (None, "no host has r")])
def test_a_run_that_wrote_nothing_is_no_path_that_nobody_has(
    since: float | None, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = Host("a", "a")
    monkeypatch.setattr(get, "_specs", lambda *_: ({"a": {"path": "~", "since": since}}, []))
    monkeypatch.setattr(get, "listing", lambda *_: Tree(Path("~"), ()))
    with pytest.raises(UsageError, match=said):
        get.run(GetPlan(Inventory((here,)), "r", tmp_path), Runtime(LocalTransport(), 1, lambda _: None))

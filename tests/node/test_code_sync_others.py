"""Two projects and one folder on the node: what one delivered is not lost to the other's sync without a word."""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Inventory, Report
from fleet.ops import sync
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport
from tests.node.nodes import Running, until
from tests.node.test_code_sync import node_with
from tests.node.test_code_sync_kinds import KILLED_AT_ITS_END

pytestmark = pytest.mark.usefixtures("own_home")

Tree = dict[str, str]


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "node" / "work"


def project(tmp_path: Path, name: str, files: Tree) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def mirror(
    source: Path, dest: Path, *, says: bool | None = None, names: str = "n1", killed: str = "", **options: Any
) -> Report:
    """killed: puts into the node's program what ends it."""
    questions: list[str] = []

    def ask(question: str) -> bool | None:
        questions.append(question)
        return says

    inventory = Inventory(tuple(Host(n, "127.0.0.1") for n in names.split()))
    transport = node_with(killed) if killed else LocalTransport()
    report = sync.run(sync.plan(inventory, Sync(source, str(dest), **options)), Runtime(transport, ask=ask))
    assert len(questions) <= 1
    return Report(report.verb, report.results, report.exit_code, {**report.data, "asked": questions})


def there(dest: Path) -> list[str]:
    return sorted(str(path.relative_to(dest)) for path in dest.rglob("*") if path.is_file())


def test_another_folder_is_refused_and_nothing_is_lost(tmp_path: Path, dest: Path) -> None:
    first = project(tmp_path, "A", {"a.py": "1", "pkg/b.py": "2", "same.py": "A"})
    second = project(tmp_path, "B", {"same.py": "of B"})
    assert mirror(first, dest).ok
    refused = mirror(second, dest)
    assert there(dest) == ["a.py", "pkg/b.py", "same.py"] and (dest / "same.py").read_text() == "A"
    (result,) = refused.results
    assert refused.exit_code == 123 and result.error and result.error.kind == "other-source"
    assert (result.data["deleted"], result.data["replaced"]) == (2, 1)
    assert f"holds what was synced from {result.data['source']['host']}:{first}:" in result.error.message
    assert f"fleet sync {second} --to {dest} --force --max-delete=2" in str(result.error.hint)
    assert json.loads(json.dumps(refused.as_json()))["hosts"]["n1"]["error"]["kind"] == "other-source"
    # the first goes on as if nothing had been
    (first / "a.py").unlink()
    assert mirror(first, dest).ok and there(dest) == ["pkg/b.py", "same.py"]


KILLED_AFTER_ONE_FILE = """
import os
from fleet.node.delivery.commit import Commit
honest = Commit.enter
def enter(self, new, path):
    honest(self, new, path)
    os._exit(9)
Commit.enter = enter
"""
KILLED_BEFORE_THE_RECORD_IS_ONE = """
import os
from fleet.node.delivery import journal
journal.os.unlink = lambda path: os._exit(9) if path.endswith(b"/switching") else os.remove(path)
"""


@pytest.mark.parametrize("first", ["B's", "nobody's"])
@pytest.mark.parametrize("killed", [KILLED_AFTER_ONE_FILE, KILLED_AT_ITS_END, KILLED_BEFORE_THE_RECORD_IS_ONE])
def test_what_a_delivery_that_was_killed_put_there_is_its_sources(
    tmp_path: Path, dest: Path, first: str, killed: str
) -> None:
    a = project(tmp_path, "A", {"a.py": "of A", "both.py": "also of A", "pkg/x": ""})
    b = project(tmp_path, "B", {"both.py": "of B", "b.py": "2"})
    if first == "B's":
        assert mirror(b, dest).ok
    assert not mirror(a, dest, force=True, max_delete="all", killed=killed).ok
    before = there(dest)
    for _ in range(2):
        refused = mirror(b, dest)
        (result,) = refused.results
        assert result.error and result.error.kind == "other-source" and there(dest) == before
        assert result.data["source"]["path"] == str(a) and result.data["deleted"] >= 1
    assert mirror(b, dest, says=True, max_delete="all").ok and there(dest) == ["b.py", "both.py"]
    (b / "b.py").unlink()
    again = mirror(b, dest)
    assert again.ok and not again.data["asked"] and there(dest) == ["both.py"], "it is B's alone by now"


def test_consent_is_to_all_sources_whose_files_would_be_lost(tmp_path: Path, dest: Path) -> None:
    a, b, c = (project(tmp_path, name, {f"{name}.py": name, "z.py": name}) for name in "ABC")
    for other in (a, b):
        assert not mirror(other, dest, force=True, max_delete="all", killed=KILLED_AFTER_ONE_FILE).ok
    (refused,) = mirror(c, dest).results
    assert refused.error and f":{a} and " in refused.error.message and f":{b}: " in refused.error.message
    assert mirror(c, dest, says=True).ok and there(dest) == ["C.py", "z.py"]


@pytest.mark.parametrize("force", [["*.py"], ["a b", "c"]])
def test_a_line_that_is_proposed_has_force_once(tmp_path: Path, dest: Path, force: list[str]) -> None:
    a, b = project(tmp_path, "A", {"a.py": "1"}), project(tmp_path, "B", {"b.py": "1"})
    assert mirror(a, dest).ok
    (result,) = mirror(b, dest, force=force).results
    assert result.error and f"fleet sync {b} --to {dest} --force --max-delete=1" in str(result.error.hint)
    (a / "a.py").unlink()
    (result,) = mirror(a, dest, force=force).results
    patterns = shlex.join(f"--force={pattern}" for pattern in force)
    assert result.error and f"--to {dest} {patterns} --max-delete=1;" in str(result.error.hint)


def test_a_delivery_that_was_killed_goes_on_and_its_sources_is_not_asked_about(tmp_path: Path, dest: Path) -> None:
    a = project(tmp_path, "A", {"a.py": "1", "b.py": "1"})
    for text in ("1", "22", "333"):
        (a / "b.py").write_text(text)
        assert not mirror(a, dest, killed=KILLED_AFTER_ONE_FILE).ok
    (a / "a.py").unlink()
    done = mirror(a, dest)
    assert done.ok and not done.data["asked"] and there(dest) == ["b.py"]


def test_what_another_source_put_there_and_this_one_leaves_out_is_never_this_ones_to_delete(
    tmp_path: Path, dest: Path
) -> None:
    a = project(tmp_path, "A", {"a.py": "1", "data/x": "of A"})
    b = project(tmp_path, "B", {"a.py": "1", ".fleetignore": "data\n"})
    assert mirror(a, dest).ok and mirror(b, dest).ok, "nothing is lost"
    (b / ".fleetignore").unlink()
    done = mirror(b, dest)
    assert done.ok and done.results[0].data["deleted"] == 1 and there(dest) == ["a.py", "data/x"]


def test_another_clone_of_the_same_is_no_other_one(tmp_path: Path, dest: Path) -> None:
    """A fresh checkout has other times: by content nothing is lost, and what fleet delivered stays delivered."""
    first = project(tmp_path, "A", {"a.py": "1", "b.py": "2"})
    second = project(tmp_path, "B", {"a.py": "1", "b.py": "2"})
    os.utime(second / "a.py", (1, 1))
    assert mirror(first, dest).ok
    (result,) = mirror(second, dest).results
    assert result.ok and (result.data["sent"], result.data["deleted"]) == (0, 0), result.error
    (second / "a.py").unlink()
    assert mirror(second, dest).ok and not (dest / "a.py").exists()
    (first / "b.py").write_text("3")
    (result,) = mirror(first, dest).results
    assert result.error and result.error.kind == "other-source" and result.data["replaced"] == 1


@pytest.mark.parametrize("now", ["a link", "a folder"])
def test_another_folders_link_and_a_file_that_becomes_a_folder_are_not_replaced_without_a_word(
    tmp_path: Path, dest: Path, now: str
) -> None:
    first, second = project(tmp_path, "A", {}), project(tmp_path, "B", {})
    if now == "a link":
        (first / "latest").symlink_to("ckpt-1")
        (second / "latest").symlink_to("ckpt-2")
    else:
        (first / "latest").write_text("of A")
        (second / "latest").mkdir()
    assert mirror(first, dest).ok
    (result,) = mirror(second, dest).results
    assert result.error and result.error.kind == "other-source" and result.data["replaced"] == 1
    assert not (dest / "latest").is_dir()


def test_force_and_a_yes_go_on_and_a_no_does_not(tmp_path: Path, dest: Path) -> None:
    first, second = project(tmp_path, "A", {"a.py": "1"}), project(tmp_path, "B", {"b.py": "2"})
    assert mirror(first, dest).ok
    assert mirror(second, dest, says=False).exit_code == 123 and there(dest) == ["a.py"]
    agreed = mirror(second, dest, says=True)
    assert agreed.ok and there(dest) == ["b.py"]
    assert str(first) in agreed.data["asked"][0] and str(second) in agreed.data["asked"][0]
    # it is the second's now
    assert mirror(second, dest, says=False).data["asked"] == []
    assert mirror(first, dest, force=True).exit_code == 2
    assert mirror(first, dest, force=True, max_delete=1).ok and there(dest) == ["a.py"]


def test_hosts_that_share_the_folder_are_asked_about_once(tmp_path: Path, dest: Path) -> None:
    first, second = project(tmp_path, "A", {"a.py": "1"}), project(tmp_path, "B", {"b.py": "2"})
    assert mirror(first, dest, names="n1 n2 n3").ok
    refused = mirror(second, dest, names="n1 n2 n3")
    assert not any(r.ok for r in refused.results) and there(dest) == ["a.py"]
    assert mirror(second, dest, names="n1 n2 n3", says=True).ok and there(dest) == ["b.py"]


def test_nothing_is_asked_where_nothing_would_be_lost(tmp_path: Path, dest: Path) -> None:
    first = project(tmp_path, "A", {"a.py": "1"})
    assert mirror(first, dest).ok
    moved = first.rename(tmp_path / "moved")
    (moved / "more.py").write_text("2")
    assert mirror(moved, dest).ok and there(dest) == ["a.py", "more.py"]
    # it is the new one's now, and what a node changed is its own
    (dest / "a.py").write_text("changed on the node")
    other = project(tmp_path, "B", {})
    refused = mirror(other, dest)
    assert refused.results[0].data["deleted"] == 1 and str(moved) in str(refused.results[0].data["source"])


class Slow(LocalTransport):
    """Reaches one of its hosts late."""

    def __init__(self, late: str) -> None:
        self.late = late

    def connect(self, host: Host, cancel: Cancel) -> Session:
        time.sleep(1.0 if host.name == self.late else 0.0)
        return super().connect(host, cancel)


@pytest.mark.parametrize("force", [False, True])
def test_of_two_syncs_at_once_one_wins_whole(tmp_path: Path, force: bool) -> None:
    """Each of them is the first to come to another host."""
    trees = [project(tmp_path, name, {"a.py": name, f"only-{name}": "x"}) for name in ("A", "B")]
    hosts = [Host(name, "127.0.0.1", workdir=str(tmp_path / name)) for name in ("n1", "n2", "n3")]
    inventory = Inventory(tuple(hosts))
    reports: dict[str, Report] = {}

    def run(tree: Path, late: str) -> None:
        plan = sync.plan(inventory, Sync(tree, None, force=force))
        reports[tree.name] = sync.run(plan, Runtime(Slow(late)))

    threads = [threading.Thread(target=run, args=each) for each in zip(trees, ("n2", "n1"), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    found = {tuple(there(tmp_path / host.name)) for host in hosts}
    assert len(found) == 1, "one tree, everywhere"
    winner = found.pop()[1].removeprefix("only-")
    assert reports[winner].ok
    loser = reports["B" if winner == "A" else "A"]
    if not force:  # the later one wins by force
        assert {r.error and r.error.kind for r in loser.results} == {"other-source"}


def test_where_another_sync_has_the_first_host_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.delivery.lock_order.LOCK_WAIT_SECONDS", 0.3)
    tree = project(tmp_path, "A", {"a.py": "1"})
    inventory = Inventory(tuple(Host(name, "127.0.0.1", workdir=str(tmp_path / name)) for name in ("n1", "n2", "n3")))
    spec = {
        "dest": str(tmp_path / "n1"),
        "sync": "x",
        "host": "n1",
        "head": "desk (pid 7)",
        "wait": 0,
        "patience": 30,
        "source": {"host": "desk", "path": "/b", "id": ""},
        "replaces": [],
        "max_delete": None,
        "force": False,
        "mark": None,
    }
    with Running("delivery.code_sync", spec, tmp_path) as other:
        next(other.frames())
        report = sync.run(sync.plan(inventory, Sync(tree, None)), Runtime(LocalTransport()))
    errors = [r.error for r in report.results]
    assert all(error and error.kind == "busy" and "from desk (pid 7)" in error.message for error in errors)
    assert not (tmp_path / "n2").exists() and not (tmp_path / "n3").exists()


def test_a_lock_whose_holder_hears_nothing_of_its_head_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cut the head is told of it first, and its user syncs again before the node has given the old one up."""
    monkeypatch.setattr("fleet.delivery.lock_order.LOCK_WAIT_SECONDS", 0.3)
    tree, target = project(tmp_path, "A", {"a.py": "1"}), tmp_path / "n1"
    spec = {"dest": str(target), "sync": "x", "host": "n1", "head": "desk (pid 7)", "wait": 0, "patience": 8}
    spec |= {"source": {"host": "desk", "path": "/b", "id": ""}, "replaces": [], "mark": None}
    spec |= {"force": False, "max_delete": None}
    with Running("delivery.code_sync", spec, tmp_path) as it:
        next(it.frames())
        (lock,) = tmp_path.glob("**/lock")
        os.utime(lock, (1, 1))
        it.send({"op": "ping"})
        until(lambda: lock.stat().st_mtime > 1)
        os.utime(lock, (1, 1))
        inventory = Inventory((Host("n1", "127.0.0.1", workdir=str(target)),))
        report = sync.run(sync.plan(inventory, Sync(tree, None)), Runtime(LocalTransport()))
    assert report.ok and (target / "a.py").exists(), report.results

"""Broadcasts on this machine: the real chain with its links, programs and files, only ssh left out."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import UsageError
from fleet.events import Event, Notice, Progress
from fleet.model import Host, Inventory, Report
from fleet.ops import broadcast
from fleet.requests.sync import SyncData
from fleet.runtime import Runtime
from fleet.transport import program
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport
from tests.changed import changed
from tests.free_port import free_port
from tests.node.nodes import until
from tests.node.test_code_sync import snapshot
from tests.node.test_preflight import facts

pytestmark = pytest.mark.usefixtures("own_home")
MB = 1 << 20


class Fleet:
    """Nodes n1..nN whose files live in folders of these names."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.names = [f"n{i + 1}" for i in range(count)]
        self.inventory = Inventory(tuple(Host(n, "127.0.0.1", workdir=str(folder / n)) for n in self.names))
        self.events: list[Event] = []

    def send(
        self,
        source: Path,
        cancel: Cancel | None = None,
        to: str = "data/",
        transport: LocalTransport | None = None,
        **options: Any,
    ) -> Report:
        dests = {host.name: f"{host.workdir}/{to}" for host in self.inventory.hosts}
        plan = broadcast.plan(self.inventory, SyncData(data=[f"{source}:X"], **options))
        items = tuple(
            broadcast.Item(item.source, {n: d + source.name if d.endswith("/") else d for n, d in dests.items()})
            for item in plan.items
        )
        plan = replace(plan, items=items)
        return broadcast.run(
            plan, Runtime(transport or LocalTransport(), emit=self.events.append, cancel=cancel or Cancel())
        )

    def ok(self, source: Path, **options: Any) -> Report:
        report = self.send(source, **options)
        assert report.exit_code == 0, [(str(r.error), r.error and r.error.hint) for r in report.results]
        return report

    def path(self, name: str, *parts: str) -> Path:
        return self.folder.joinpath(name, "data", *parts)

    def while_sending(self, source: Path, limit: str, act: Callable[[], Any], **options: Any) -> Report:
        """Send with a limit, `act` once the last node has 6 MiB."""
        reports: list[Report] = []
        thread = threading.Thread(target=lambda: reports.append(self.send(source, limit=limit, **options)))
        self.events.clear()
        thread.start()
        try:
            until(
                lambda: any(
                    isinstance(e, Progress) and e.host == self.names[-1] and e.done > 6 * MB for e in list(self.events)
                )
            )
            act()
        finally:
            thread.join(300)
        return reports[0]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, 3)


def test_a_run_does_not_begin_from_half_of_the_data(fleet: Fleet, big: Path) -> None:
    def data(workdir: Path) -> Any:
        return facts(Path.home(), free_port(), workdir=str(workdir))["data"]

    seen: list[Any] = []
    cancel = Cancel()

    def look() -> None:
        seen.append(data(fleet.folder / "n3"))
        cancel.set()

    fleet.while_sending(big, "1MB", look, cancel=cancel)  # a loaded machine takes its time to look
    target = str(fleet.path("n3", big.name))
    assert seen[0] == {"folder": target, "busy": f"{socket.gethostname()} (pid {os.getpid()})"}
    until(lambda: data(fleet.folder / "n3") == {"folder": target, "busy": None})
    assert data(fleet.path("n3")) == data(fleet.path("n3", big.name, "sub")) == {"folder": target, "busy": None}
    assert data(fleet.folder / "n30") is None
    fleet.ok(big)
    assert data(fleet.folder / "n3") is None
    notes = (Path.home() / ".fleet/data").iterdir()  # other tests share this home, and some leave transfers half done
    ours = [note.read_text() for note in notes if str(fleet.folder) in note.read_text()]
    assert ours and all(json.loads(note)["whole"] for note in ours)


def test_what_was_in_place_when_its_sync_was_killed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, source = Fleet(tmp_path, 1), tmp_path / "set"
    (source / "sub").mkdir(parents=True)
    for name in ("x.bin", "sub/y.bin"):
        (source / name).write_text(name)
    dies = "import os\nfrom fleet.node.delivery.journal import Journal\nJournal.finish = lambda *args: os._exit(9)\n"
    text, honest = changed("delivery.chain.member", dies), program.shipped
    with monkeypatch.context() as patch:
        patch.setattr(program, "shipped", lambda name: text if name == "delivery.chain.member" else honest(name))
        assert not fleet.send(source).ok
    with (fleet.folder / "n1/data/.set.fleet-data/switching").open("a") as journal:
        journal.write('[["torn", "f"')
    (source / "sub/y.bin").write_text("another")
    assert [fleet.ok(source).results[0].data["files"] for _ in range(2)] == [1, 0]


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(os.urandom(20 * MB + 12345))
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "set"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "empty").mkdir(mode=0o711)
    (folder / "zero").touch()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o751)
    (folder / "a" / "b" / "space 'n\" $(id)\nnewline*").write_bytes(b"odd")
    Path(os.fsdecode(os.fsencode(folder) + b"/latin-\xe9")).write_bytes(b"\xff\x00")
    (folder / "#autosave#").write_text("no comment")
    (folder / ";").write_text("neither")
    (folder / ".x.fleet-sync").mkdir()
    (folder / ".x.fleet-sync/lock").touch()
    (folder / "link").symlink_to("a/b")
    (folder / "dangling").symlink_to("/nowhere/at all")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("data is data")
    for i in range(60):
        (folder / "a" / f"f{i}").write_bytes(os.urandom(i * 7))
    return folder


def received(report: Report) -> list[int]:
    return [result.data.get("bytes", 0) for result in report.results]


def test_a_tree_arrives_as_it_is_and_a_second_time_nothing_moves(fleet: Fleet, tree: Path) -> None:
    report = fleet.ok(tree)
    shutil.rmtree(tree / ".x.fleet-sync")  # what fleet keeps for itself is no data
    for name in fleet.names:
        assert snapshot(fleet.path(name, "set")) == snapshot(tree)
    total = sum(p.lstat().st_size for p in tree.rglob("*") if p.is_file() and not p.is_symlink())
    assert received(report) == [total] * 3
    assert report.data["sent"] == total
    assert received(fleet.ok(tree)) == [0, 0, 0]
    (tree / "a" / "f9").write_text("changed")
    assert received(fleet.ok(tree)) == [7, 7, 7]
    assert fleet.path("n3", "set", "a", "f9").read_text() == "changed"


def test_only_what_a_node_lacks_is_sent_to_it_whoever_has_it(fleet: Fleet, big: Path) -> None:
    os.truncate(big, MB)
    fleet.ok(big)
    fleet.path("n2", "model.bin").unlink()
    report = fleet.ok(big)
    assert received(report) == [0, big.stat().st_size, 0]
    assert fleet.path("n2", "model.bin").read_bytes() == big.read_bytes()


def test_a_copy_from_elsewhere_is_recognised_by_its_digest(fleet: Fleet, big: Path) -> None:
    os.truncate(big, 3 * MB)
    times = (big.stat().st_atime_ns, big.stat().st_mtime_ns)
    for name, data in (("n1", big.read_bytes()), ("n2", b"\0" * big.stat().st_size)):
        fleet.path(name).mkdir(parents=True)
        fleet.path(name, "model.bin").write_bytes(data)
        os.utime(fleet.path(name, "model.bin"), ns=times)
    report, size = fleet.send(big), big.stat().st_size
    error = report.results[1].error
    assert report.exit_code == 123 and error and "model.bin (3.0 MiB, written" in error.message
    assert report.data["sent"] == 0 and not fleet.path("n3", "model.bin").exists()
    kept = fleet.send(big, keep=True)
    assert received(kept) == [0, 0, size] and not any(fleet.path("n2", "model.bin").read_bytes())
    fleet.path("n2", "model.bin").write_bytes(b"1" * size)
    os.utime(big)
    report = fleet.send(big, force=True)
    assert fleet.path("n2", "model.bin").read_bytes() == big.read_bytes()
    assert Path(report.results[1].data["aside"][0], "model.bin").read_bytes() == b"1" * size


def test_the_head_may_be_one_of_the_hosts(fleet: Fleet, big: Path) -> None:
    inode = big.stat().st_ino
    plan = broadcast.plan(Inventory(fleet.inventory.hosts[:1]), SyncData(data=[str(big)]))
    report = broadcast.run(plan, Runtime(LocalTransport()))
    assert report.exit_code == 0 and received(report) == [0]
    assert big.stat().st_ino == inode


def test_interrupted_and_run_again_it_sends_the_rest(fleet: Fleet, big: Path) -> None:
    cancel = Cancel()
    report = fleet.while_sending(big, "3MB", cancel.set, cancel=cancel)
    assert report.exit_code != 0
    until(lambda: not any(fleet.path(n, "model.bin").exists() for n in fleet.names))
    again = fleet.ok(big)
    assert all(count < big.stat().st_size - 3 * MB for count in received(again))
    assert again.data["sent"] < big.stat().st_size - 3 * MB
    for name in fleet.names:
        assert fleet.path(name, "model.bin").read_bytes() == big.read_bytes()


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as f:
        f.seek(offset)
        byte = f.read(1)
        f.seek(offset)
        f.write(bytes([byte[0] ^ 1]))


def part_of(fleet: Fleet, name: str) -> Path:
    return fleet.path(name, ".model.bin.fleet-data", "stage", "model.bin")


def test_a_flipped_bit_costs_what_follows_it_and_not_the_whole_file(fleet: Fleet, big: Path) -> None:
    report = fleet.while_sending(big, "3MB", lambda: flip(part_of(fleet, "n3"), 5 * MB))
    assert report.exit_code == 0 and fleet.path("n3", "model.bin").read_bytes() == big.read_bytes()
    size = big.stat().st_size
    assert received(report)[2] == 2 * size - 4 * MB  # blocks are of 4 MiB


def test_two_names_of_one_place_are_found_out_by_the_node(fleet: Fleet, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    for name in fleet.names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "way").symlink_to(".")
    items = tuple(
        broadcast.Item(tmp_path / source, {n: str(tmp_path / n / to) for n in fleet.names})
        for source, to in (("one", "x"), ("two", "way/x"))
    )
    report = broadcast.run(broadcast.BroadcastPlan(fleet.inventory.hosts, items, None), Runtime(LocalTransport()))
    assert report.exit_code == 1 and "two sources go to" in str(report.results[0].error)
    assert not (tmp_path / "n1/x").exists()


@pytest.mark.parametrize(
    ("outer", "inner", "to", "found"),
    [
        ({"x": "1", "sub/z": "2", "sub/y": "3"}, {"z": "4"}, "set/sub", {"x": "1", "sub/z": "4", "sub/y": "3"}),
        ({"x": "1", "y": "2"}, {"": "3"}, "set/x", {"x": "3", "y": "2"}),
        ({"x": "1", "y": "2"}, {"z": "3"}, "set/x", {"x/z": "3", "y": "2"}),
        ({"x/y": "1", "z": "2"}, {"": "3"}, "set/x", {"x": "3", "z": "2"}),
        ({"x": "1"}, {"y": "2"}, "set/new/er", {"x": "1", "new/er/y": "2"}),
    ],
)
def test_what_goes_into_a_destination_that_lies_in_anothers_is_of_the_inner_one(
    fleet: Fleet, tmp_path: Path, outer: dict[str, str], inner: dict[str, str], to: str, found: dict[str, str]
) -> None:
    for name, files in (("outer", outer), ("inner", inner)):
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
    items = tuple(
        broadcast.Item(tmp_path / source, {n: str(fleet.path(n, where)) for n in fleet.names})
        for source, where in (("inner", to), ("outer", "set"))
    )
    for count in (len(found), 0):
        report = broadcast.run(broadcast.BroadcastPlan(fleet.inventory.hosts, items, None), Runtime(LocalTransport()))
        assert report.exit_code == 0, [r.error for r in report.results]
        assert {r.data["files"] for r in report.results} == {count}
        for name in fleet.names:
            at = fleet.path(name, "set")
            there = {path.relative_to(at): path for path in at.rglob("*") if ".fleet" not in str(path.relative_to(at))}
            assert {str(path): full.read_text() for path, full in there.items() if full.is_file()} == found


def test_what_a_kill_left_of_a_link_is_in_nobodys_way(fleet: Fleet, tree: Path) -> None:
    long = "l" * 250
    (tree / long).symlink_to("a")
    fleet.ok(tree)
    meta = fleet.path("n2", ".set.fleet-data")
    (meta / "link.new").symlink_to("half")
    fleet.path("n2", "set", "link.fleet-new").symlink_to("of an earlier version")
    (tree / "link").unlink()
    (tree / "link").symlink_to("a")
    fleet.ok(tree)
    assert os.readlink(fleet.path("n2", "set", "link")) == "a" == os.readlink(fleet.path("n2", "set", long))


def holders(fleet: Fleet, name: str) -> set[int]:
    """The pids of what receives model.bin there."""
    lock = os.stat(fleet.path(name, ".model.bin.fleet-data", "lock")).st_ino
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(line[4]) for line in lines if line[5].endswith(f":{lock}")}


@pytest.mark.slow
def test_a_bit_that_flips_in_a_part_file_never_reaches_the_name(fleet: Fleet, big: Path) -> None:
    fleet.while_sending(big, "3MB", lambda: flip(part_of(fleet, "n2"), 1000))
    for name in fleet.names:
        final = fleet.path(name, "model.bin")
        assert not final.exists() or final.read_bytes() == big.read_bytes()
    fleet.ok(big)
    assert fleet.path("n2", "model.bin").read_bytes() == big.read_bytes()


@pytest.mark.slow
def test_a_bit_that_flipped_between_two_runs_is_sent_again(fleet: Fleet, big: Path) -> None:
    cancel = Cancel()
    fleet.while_sending(big, "3MB", cancel.set, cancel=cancel)
    until(lambda: not holders(fleet, "n2"))
    flip(part_of(fleet, "n2"), 1000)
    report = fleet.ok(big)
    assert received(report)[1] == big.stat().st_size, "the first block is the broken one"
    assert fleet.path("n2", "model.bin").read_bytes() == big.read_bytes()


def test_a_source_that_changes_while_it_is_read_never_gets_its_name(fleet: Fleet, big: Path) -> None:
    def change() -> None:
        with big.open("r+b") as f:
            f.seek(-5, os.SEEK_END)
            f.write(b"later")

    report = fleet.while_sending(big, "3MB", change)
    assert report.exit_code == 1
    assert all(r.error and "changed" in r.error.message for r in report.results)
    assert not any(fleet.path(n, "model.bin").exists() for n in fleet.names)


@pytest.mark.slow
def test_a_source_that_shrinks(fleet: Fleet, big: Path) -> None:
    report = fleet.while_sending(big, "3MB", lambda: os.truncate(big, 7 * MB))
    assert report.exit_code == 1 and not any(fleet.path(n, "model.bin").exists() for n in fleet.names)


def test_a_node_that_is_killed_is_left_out_and_the_rest_ends_well(fleet: Fleet, big: Path) -> None:
    def kill() -> None:
        (pid,) = holders(fleet, "n2")
        os.kill(pid, 9)

    report = fleet.while_sending(big, "3MB", kill)
    assert [r.ok for r in report.results] == [True, False, True]
    assert not fleet.path("n2", "model.bin").exists()
    assert fleet.path("n3", "model.bin").read_bytes() == big.read_bytes()
    assert [cut["host"] for cut in report.data["cuts"]] == ["n2"]
    assert any(isinstance(e, Notice) and e.host == "n2" for e in fleet.events)
    assert received(fleet.ok(big))[1] < big.stat().st_size - 3 * MB


def test_two_at_once_to_one_place(fleet: Fleet, big: Path) -> None:
    other: list[Report] = []
    thread = threading.Thread(target=lambda: other.append(fleet.send(big)))
    report = fleet.while_sending(big, "3MB", thread.start)
    thread.join(300)
    assert report.exit_code == 0
    # it waited, then found everything in place
    assert other[0].exit_code == 0 and received(other[0]) == [0, 0, 0]


def test_some_destinations_shared_and_some_not(fleet: Fleet, tmp_path: Path) -> None:
    items = []
    for source, where in (("own", "{}/x"), ("common", "all/x")):
        (tmp_path / source).write_text(source)
        items.append(broadcast.Item(tmp_path / source, {n: str(tmp_path / where.format(n)) for n in fleet.names}))
    report = broadcast.run(
        broadcast.BroadcastPlan(fleet.inventory.hosts, tuple(items), None), Runtime(LocalTransport())
    )
    assert report.exit_code == 0, [r.error for r in report.results]
    assert (tmp_path / "all/x").read_text() == "common" and (tmp_path / "n3/x").read_text() == "own"
    assert report.data["sent"] == 9 and len(report.results[0].data["to"]) == 2


def test_one_folder_on_several_nodes_is_written_once(fleet: Fleet, big: Path) -> None:
    hosts = tuple(Host(n, "127.0.0.1", workdir=str(fleet.folder / ("n1" if n != "n3" else n))) for n in fleet.names)
    fleet.inventory = Inventory(hosts)
    os.truncate(big, 5 * MB)
    report = fleet.ok(big)
    assert sorted(received(report)) == [0, big.stat().st_size, big.stat().st_size]
    assert sum("shared_with" in r.data for r in report.results) == 1


@pytest.mark.parametrize("kind", ["missing", "unreadable", "socket"])
def test_bad_sources(fleet: Fleet, tmp_path: Path, kind: str) -> None:
    source = tmp_path / "s"
    if kind == "socket":
        os.mkfifo(source)
    elif kind == "unreadable":
        if os.getuid() == 0:
            source = Path("/proc/self/mem/x")
        else:
            source.touch(0)
    with pytest.raises(UsageError):
        fleet.send(source)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.mkdir(parents=True), "is a folder"),
        (lambda p: (p.parent.mkdir(parents=True), p.symlink_to("/etc/passwd")), "model.bin (a link"),
        (lambda p: (p.parent.parent.mkdir(parents=True), p.parent.write_text("x")), "is a file"),
    ],
)
def test_one_bad_destination_keeps_everything_from_being_sent(
    fleet: Fleet, big: Path, make: Callable[[Path], Any], words: str
) -> None:
    make(fleet.path("n2", "model.bin"))
    report = fleet.send(big)
    assert report.exit_code in (1, 123) and report.data["sent"] == 0
    errors = {r.host: r.error for r in report.results}
    assert errors["n2"] and words in errors["n2"].message
    assert errors["n1"] and "nothing was sent, because of host n2" in errors["n1"].message
    assert not fleet.path("n1", "model.bin").exists()


def test_nothing_is_written_through_a_link_on_the_node(fleet: Fleet, tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    fleet.path("n1", "set").mkdir(parents=True)
    fleet.path("n1", "set", "a").symlink_to(outside)
    report = fleet.send(tree)
    assert report.exit_code == 123 and "a (a link" in str(report.results[0].error)
    assert list(outside.iterdir()) == []


def test_names_as_long_as_they_can_be(fleet: Fleet, tmp_path: Path) -> None:
    name = "\u00fc" * 125 + "x" * 5
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / name).write_bytes(b"w" * 3000)
    fleet.ok(tmp_path / "src")
    fleet.ok(tmp_path / "src" / name)
    for node in fleet.names:
        assert (fleet.path(node, "src", name)).read_bytes() == fleet.path(node, name).read_bytes() == b"w" * 3000
    assert all(r.data["files"] == 0 for r in fleet.ok(tmp_path / "src" / name).results)


def test_what_links_lead_to_goes_in_their_place(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/0a").write_bytes(b"w" * 3000)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/model.bin").symlink_to("../blobs/0a")
    fleet.ok(tmp_path / "src")
    assert [e.message for e in fleet.events if isinstance(e, Notice)] == [
        "links to what is not sent: model.bin -> ../blobs/0a; --copy-unsafe-links sends what they lead to"
    ]
    assert fleet.path("n1", "src/model.bin").is_symlink()
    fleet.events.clear()
    fleet.ok(tmp_path / "src", copy_unsafe_links=True)
    for node in fleet.names:
        assert fleet.path(node, "src/model.bin").read_bytes() == b"w" * 3000
        assert not fleet.path(node, "src/model.bin").is_symlink()
    assert not [e for e in fleet.events if isinstance(e, Notice)]


def test_a_file_of_data_that_grows_is_sent_as_far_as_it_was(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    log = tmp_path / "src/log"
    log.write_bytes(os.urandom(16 * MB))

    def grow() -> None:
        with log.open("ab") as file:
            file.write(b"more")

    report = fleet.while_sending(tmp_path / "src", "20MB", grow)
    assert report.exit_code == 0, report.results
    for node in fleet.names:
        assert fleet.path(node, "src/log").read_bytes() == log.read_bytes()[: 16 * MB]
    assert [e.message for e in fleet.events if isinstance(e, Notice)] == [
        "sent up to the size that it had when it was listed, as it grows: log"
    ]


class Ending(LocalTransport):
    """Another package's transport: it ends the thread that connects host n2, or fails as it hangs up."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def connect(self, host: Host, cancel: Cancel) -> Session:
        session = super().connect(host, cancel)
        if host.name == "n2" and self.at == "connect":
            raise SystemExit("no such thing")
        if host.name == "n2":
            close = session.close

            def hang_up() -> None:
                close()
                raise ValueError("no such thing")

            session.close = hang_up  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("at", ["connect", "close"])
def test_a_fault_of_a_transport_ends_the_part_of_its_host_and_shows(fleet: Fleet, big: Path, at: str) -> None:
    cancel = Cancel()
    late = threading.Timer(60, cancel.set)
    late.start()
    report = fleet.send(big, cancel, transport=Ending(at))
    late.cancel()
    assert not cancel.is_set()
    error = report.results[1].error
    assert error is not None and error.kind == "internal" and "no such thing" in error.message
    assert [result.ok for result in report.results] == [True, False, True]

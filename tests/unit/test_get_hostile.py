"""What a node may answer to `fleet get`, and that nothing of it comes to lie where it was not asked for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import FleetError
from tests.clock import HandClock
from tests.hostile import PREAMBLE, Node, frame
from tests.in_process import fleet_over
from tests.liar import Says

VERSION = "4 5 6 7"
SHA = hashlib.sha256(b"evil").hexdigest()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def row(path: str, kind: str = "f", size: int = 4, link: str = "") -> list[Any]:
    return [path, kind, 0o644 if kind == "f" else 0o755, size if kind == "f" else 0, 0, link]


def tree(*rows: list[Any], path: str = "/w/ckpt/last.pt", mode: int | None = None, **more: Any) -> dict[str, Any]:
    said = {
        "event": "tree",
        "path": path,
        "entries": list(rows),
        "allocated": {},
        "skipped": [],
        "linked": [],
        "unsafe": [],
        "mode": mode,
        "more": False,
    }
    return {**said, **more}


def begin(index: int = 0, offset: int = 0, size: int = 4, version: str = VERSION) -> dict[str, Any]:
    return {"event": "begin", "index": index, "offset": offset, "size": size, "mtime": 0, "version": version}


GIVEN = {"event": "given", "sha256": SHA, "growing": False}
FILE = tree(row(""))
FEW = {"event": "few", "index": 0, "files": [f"{VERSION} {SHA}"]}


def typed(node: Any, what: str = "/w/ckpt/last.pt") -> Any:
    return fleet_over(node, "gpu1").get(what, to=Path())


def found(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if ".fleet-get" not in path.parts)


def test_an_honest_answer_is_written_under_the_name_that_was_asked_for(here: Path) -> None:
    assert typed(Says(FILE, begin(), b"evil", GIVEN)).ok and found(here) == ["last.pt"]
    (here / "last.pt").unlink()
    assert typed(Says(FILE, FEW, b"evil")).ok and found(here) == ["last.pt"]


@pytest.mark.parametrize(
    "said",
    [
        tree(row(""), path="/w/ckpt/.git/config"),
        tree(row(""), path="/w/ckpt/.bashrc"),
        tree(row(""), path="fabfile.py"),
        tree(row(""), path="/w/ckpt/last.pt/.."),
        tree(row("config"), mode=0o755, path="/w/ckpt/.git"),
        tree(row("x")),
        tree(row(""), mode=0o755),
        tree(row(""), row("")),
        tree(row("", "l", link="/etc/passwd")),
        tree(row("", "d"), mode=None),
        tree(row("a/b"), mode=0o755),
        tree(row("a", "l", link="/tmp"), row("a/b"), mode=0o755),
        tree(row("a"), row("a/b"), mode=0o755),
        tree(row("a"), row("a", "d"), mode=0o755),
        tree(row("a"), row("a"), mode=0o755),
        tree(row(".."), mode=0o755),
        tree(row("/etc/cron.d/x"), mode=0o755),
        tree(row("a\0b"), mode=0o755),
        tree(row("x", "d"), row("x/.fleet-sync", "d"), row("x/.fleet-sync/state"), mode=0o755),
        tree(more=True),
        begin(),
        GIVEN,
        b"bytes",
    ],
)
def test_a_list_of_something_else_is_refused_whole(said: Any, here: Path) -> None:
    report = typed(Says(said, begin(), b"evil", GIVEN))
    assert report.results[0].error is not None and report.results[0].error.kind == "protocol"
    assert found(here) == []


@pytest.mark.parametrize(
    "said",
    [
        [begin(1)],
        [begin(offset=2), b"il", GIVEN],
        [begin(version="../../x"), b"evil", GIVEN],
        [begin(), b"evil more than it said", GIVEN],
        [begin(), b"", b"evil", GIVEN],
        [b"evil"],
        [GIVEN],
        [begin(), b"evil"],
        [begin(), b"evil", GIVEN, begin(), b"evil", GIVEN],
        [begin()] * 11,
        [begin(), {"event": "piece", "offset": 5}],
        [begin(), {"event": "piece", "offset": 0}],
        [begin(), {"event": "piece", "offset": 3}, {"event": "piece", "offset": 2}],
        [FILE],
        [FEW],
        [FEW, b"evil more than it said"],
        [{**FEW, "index": 1}, b"evil"],
        [{**FEW, "files": []}],
        [{**FEW, "files": [""]}],
        [{**FEW, "files": FEW["files"] * 2}, b"evilevil"],
        [{**FEW, "files": [f"4 {1 << 63} 6 7 {SHA}"]}, b"evil"],
        [{**FEW, "files": [f"- - - - {SHA}"]}, b"evil"],
        [{"event": "moving", "index": 7, "quiet": []}],
        [{"event": "gone", "index": 0}] * 2,
        [],
    ],
)
def test_files_come_in_their_turn_or_not_at_all(said: list[Any], here: Path) -> None:
    report = typed(Says(FILE, *said))
    assert report.results[0].error is not None and report.results[0].error.kind == "protocol"
    assert found(here) == []


RUN: dict[str, Any] = {
    "run": "train-20261122-100000-ab12",
    "host": "gpu1",
    "node_rank": 0,
    "ranks": [0],
    "devices": None,
    "cwd": "/w/ckpt/last.pt",
    "about": None,
    "lease": None,
    "grace": 1.0,
    "node_timeout": 15.0,
    "status": {"state": "exited"},
    "alive": False,
    "up": 0,
    "ended": [],
    "silent": None,
    "last": "",
    "unheard": None,
    "verdict": None,
    "term": 0,
}


class Program(Says):
    """Lists its one run first, whatever program that is; then come the parts."""

    def connect(self, host: Any, cancel: Any) -> Any:
        parts, self.parts = self.parts, self.later
        return Says(*parts).connect(host, cancel)

    later: Any = ()


def test_what_it_gives_of_a_run_is_a_folder(here: Path) -> None:
    node = Program({"event": "runs", "runs": [RUN]})
    node.later = (FILE, begin(), b"evil", GIVEN)
    error = typed(node, RUN["run"]).results[0].error
    assert error is not None and error.kind == "protocol" and "its list of files" in error.message
    assert found(here) == []


def test_bytes_that_are_not_what_it_read_never_get_in_place(here: Path) -> None:
    for said in ([begin(), b"good", GIVEN], [FEW, b"good"]):
        report = typed(Says(FILE, *said))
        error = report.results[0].error
        assert error is not None and "did not arrive as it was read" in error.message
        assert found(here) == []


def test_what_takes_more_room_than_there_is_is_not_begun(here: Path) -> None:
    report = typed(Says(FILE, begin(size=1 << 61), GIVEN))
    assert report.results[0].error is not None and report.results[0].error.kind == "no-space"
    with pytest.raises(FleetError, match="are to come to"):
        typed(Says(tree(row("", size=1 << 61))))
    assert found(here) == []


def test_the_line_to_copy_holds_no_command_of_the_nodes(here: Path) -> None:
    quiet = [["$(reboot).pt", 60], ["a/../../b", 3], ["x\x1b[2J", 1]]
    error = typed(Says(FILE, {"event": "moving", "index": 0, "quiet": quiet})).results[0].error
    assert error is not None and error.kind == "moving" and "was never whole and at rest" in error.message
    assert str(error.hint).endswith("fleet get '/w/ckpt/$(reboot).pt' --from gpu1")
    assert "x\x1b" not in str(error.hint) and "a/.." not in str(error.hint)


class Timed(Node):
    """Each of its frames comes a second after the one before."""

    def __init__(self, clock: HandClock, *parts: dict[str, Any] | bytes) -> None:
        frames = (part if isinstance(part, bytes) else frame(b"J", json.dumps(part).encode()) for part in parts)
        super().__init__(PREAMBLE, *frames)
        self.clock = clock

    def start(self, command: str) -> Any:
        channel, recv = super().start(command), super().start(command).recv

        def later(timeout: float) -> bytes:
            self.clock.now += 1.0
            return recv(timeout)

        channel.recv = later
        return channel


@pytest.mark.parametrize("parts", [[], [FILE], [FILE, begin()]])
def test_a_node_that_beats_and_gets_nowhere_is_given_up(parts: list[Any], here: Path) -> None:
    clock = HandClock(100.0)
    error = typed(Timed(clock, *parts, *[frame(b"H", b"")] * 200)).results[0].error
    assert error is not None and error.kind == "stalled" and "got nowhere for 120 s" in error.message
    assert clock.now < 300.0 and found(here) == []


def test_a_heartbeat_that_tells_of_work_is_progress(here: Path) -> None:
    """A folder that takes longer to look through than the limit."""
    clock = HandClock(100.0)
    work = [frame(b"H", b"%d" % number) for number in range(200)]
    end = frame(b"X", b'{"exit_status": 0}')
    report = typed(Timed(clock, *work, FILE, *work, begin(), frame(b"O", b"evil"), GIVEN, end))
    assert report.ok and found(here) == ["last.pt"]


@pytest.mark.parametrize("parts", [[], [tree(row("a"), mode=0o755, more=True)], [FILE], [FILE, begin()]])
def test_output_without_end_in_the_place_of_a_list_ends(parts: list[Any], here: Path) -> None:
    error = typed(Says(*parts, endless=True)).results[0].error
    assert error is not None and error.kind == "protocol" and found(here) == []

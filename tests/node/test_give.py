"""What a node gives to `fleet get`: files as they were at one moment, and what a run wrote by the node's own clocks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import Interrupted, UsageError
from fleet.events import Event, Notice, Progress
from fleet.model import Host, Inventory, Report
from fleet.node.base import wire
from fleet.node.base.errors import Refused, failed
from fleet.node.delivery import give, since
from fleet.ops import get
from fleet.requests.runs import Get
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.get_places import node_beside_here
from tests.node.nodes import Running

MIB = 1 << 20


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return node_beside_here(tmp_path, monkeypatch)


def typed(node: Path, what: str, events: list[Event], **more: Any) -> Report:
    runtime = Runtime(LocalTransport(), 1, more.pop("emit", events.append))
    return get.run(get.plan(Inventory((Host("n1", "n1", workdir=str(node)),)), Get(what, to=Path(), **more)), runtime)


@contextmanager
def writing(code: str, path: Path, *words: str) -> Iterator[None]:
    """Another process, which writes; from its first word on."""
    argv = [sys.executable, "-c", code, str(path), *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    try:
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


SAVE = """
import sys, time, torch
path, n = sys.argv[1], 0
while True:
    torch.save({"step": n, **{f"w{i}": torch.full((400_000,), n) for i in range(6)}}, path)
    print(n, flush=True) if n < 2 else None
    n += 1
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.real
def test_beside_a_torch_save_loop_what_comes_can_be_loaded(node: Path) -> None:
    torch = pytest.importorskip("torch")
    steps = []
    with writing(SAVE, node / "ck.pt", "0.4"):
        for _ in range(6):
            report = typed(node, "./ck.pt", [])
            if report.ok:
                saved = torch.load("ck.pt")
                assert {int(value.min()) for name, value in saved.items() if name != "step"} == {saved["step"]}
                assert all(int(value.max()) == saved["step"] for name, value in saved.items() if name != "step")
                steps.append(saved["step"])
    assert len(steps) > 2 and steps == sorted(steps)


REWRITE = """
import sys, time
n = 0
with open(sys.argv[1], "wb") as f:
    while True:
        f.seek(0)
        f.write(b"\\0" + bytes([n % 256]) * (4 << 20))  # the zero: 4 MiB of line ends alone would pass for a log
        f.flush()
        print(n, flush=True) if n < 2 else None
        n += 1
        time.sleep(0.02)
"""


@pytest.mark.parametrize(
    "name, beside",
    [
        ("ck-100.pt", ["ck-90.pt", "ck-80.pt"]),
        ("last.pt", ["step 3.pt", "ck-90.pt", "ck-80.pt"]),
        ("optimizer.pt", []),
        ("log", []),
    ],
)
def test_versions_at_rest_of_what_is_not_are_named(node: Path, name: str, beside: list[str]) -> None:
    """Neither that very file, whose writer waits, nor what is only called alike."""
    ages = {"ck-80.pt": 9000, "ck-90.pt": 900, "step 3.pt": 60, "model.pt": 30, "notes": 90, "half-7.pt": 20}
    for other, age in {**ages, name: 20}.items():
        (node / other).write_bytes(b"PK\3\4" if other == "half-7.pt" else b"x")
        os.utime(node / other, (time.time() - age,) * 2)
    first = FAR % 60 + "give.FILE_SECONDS, give.QUIET_SECONDS, give.UNSEEN = 0.0, 0.0, 99.0"
    moving = told(node / name, first)[-1]
    assert [each for each, _ in moving["quiet"]] == beside


def test_what_never_holds_still_is_an_error_and_the_earlier_copy_stays(node: Path) -> None:
    (node / "ck").mkdir()
    (node / "ck/last.pt").write_bytes(b"whole")
    assert typed(node, "ck/last.pt", []).ok
    with writing(REWRITE, node / "ck/last.pt"):
        (result,) = typed(node, "ck/last.pt", []).results
    assert result.error is not None and result.error.kind == "moving"
    assert "ck/last.pt was never whole and at rest when it was read; what is here of it stays" in result.error.message
    assert Path("last.pt").read_bytes() == b"whole"


@pytest.mark.slow
def test_what_holds_still_beside_it_comes(node: Path) -> None:
    (node / "out").mkdir()
    (node / "out/model").write_bytes(b"\0 at rest")
    with writing(REWRITE, node / "out/ck"):
        (result,) = typed(node, "./out", []).results
    assert result.error is not None and "out/ck was never" in result.error.message
    assert [path.name for path in Path("out").iterdir()] == ["model"]


LOG = """
import sys
with open(sys.argv[1], "w") as f:
    n = 0
    while True:
        f.write(f"line {n}\\n")
        f.flush()
        n += 1
        print(n, flush=True) if n < 2000 else None
"""


def test_a_log_that_grows_comes_as_far_as_it_was_and_is_named(node: Path) -> None:
    (node / "logs").mkdir()
    (node / "logs/silent.err").touch()
    events: list[Event] = []
    with writing(LOG, node / "logs/train.log"), open(node / "logs/silent.err", "a"):
        os.utime(node / "logs/silent.err", (0, 0))
        report = typed(node, "./logs", events)
        lines = (node / "logs/train.log").read_text().split("\n")
    assert report.ok
    came = Path("logs/train.log").read_text()
    assert came and "\n".join(lines).startswith(came)
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert "brought as far as it was when it was read" in notice.message and "train.log" in notice.message


def test_a_file_that_is_kept_open_and_is_at_rest_is_no_checkpoint_that_is_whole(node: Path) -> None:
    """Half of one, and its writer waits for something: as torch.save does on a slow disk."""
    half = "import sys, time; f = open(sys.argv[1], 'wb', 0); f.write(b'PK\\3\\4' + bytes(9000)); print(1, flush=True)"
    half += "; time.sleep(99)"
    with writing(half, node / "ck.pt"):
        (result,) = typed(node, "./ck.pt", []).results
    assert result.error is not None and result.error.kind == "moving" and not Path("ck.pt").exists()


# nobody who writes is seen here: a file server
FAR = "from fleet.node.delivery import give\ngive.LOCAL = ()\ngive.UNSEEN = %g\n"
# while the file, of that size, is read, this happens
MEANWHILE = """
import os
from fleet.node.delivery import give
give.SMALL = -1
read, times = os.pread, [%d]
def pread(fd, size, at):
    data = read(fd, size, at)
    if len(data) == size == %d and times[0]:
        times[0] -= 1
        with open(%r, %r) as file:
            file.write(%r)
    return data
os.pread = pread
"""


def told(path: Path, first: str = "") -> list[Any]:
    """The events of one file, as the node's program sends them."""
    wanted = [[path.name, 0, ""]]
    with Running(
        "delivery.give",
        {"path": str(path.parent), "run": None, "copy_unsafe_links": False},
        path.parents[1] / "home",
        first=first,
    ) as it:
        frames = it.frames()
        while next(frames).json().get("more"):
            pass
        it.send({"op": "give", "wanted": wanted})
        return [frame.json() for frame in frames if frame.kind == b"J"]


def events(path: Path, first: str = "") -> list[str]:
    return [message["event"] for message in told(path, first)]


def test_where_writers_are_not_seen_a_file_must_have_been_at_rest(node: Path) -> None:
    (node / "f").write_bytes(b"\0 of a checkpoint")
    # a file that was at rest before the node looked goes with others, in one message
    assert events(node / "f", FAR % 0.6) in (["begin", "given"], ["few"])
    assert time.time() - (node / "f").stat().st_ctime >= 0.6
    os.utime(node / "f")
    assert events(node / "f", FAR % 60 + "give.FILE_SECONDS = 0.2")[-1] == "moving", "it is not guessed"


def test_a_zip_file_without_its_end_is_half_a_checkpoint(node: Path) -> None:
    with zipfile.ZipFile(node / "ck.pt", "w") as archive:
        archive.writestr("data", os.urandom(300_000))
    whole = (node / "ck.pt").read_bytes()
    assert events(node / "ck.pt", FAR % 0.1) == ["begin", "given"]
    (node / "ck.pt").write_bytes(whole[:200_000])
    assert events(node / "ck.pt", FAR % 0.1)[-1] == "moving"
    idle = FAR % 0.1 + "give.IDLE_SECONDS = 0.0"
    assert events(node / "ck.pt", idle) == ["begin", "given"], "nobody will ever end it"


@pytest.mark.parametrize("text", [b"line\n", b"\0\1\2\3"])
def test_what_is_appended_while_it_is_read(node: Path, text: bytes) -> None:
    (node / "f").write_bytes(text * 100)
    os.utime(node / "f", (0, 0))
    size = len(text * 100)
    append = MEANWHILE % (1, size, str(node / "f"), "ab", text)
    assert events(node / "f", append) == (["begin", "given"] if text == b"line\n" else ["begin", "begin", "given"])


def test_what_is_rewritten_while_it_is_read_is_read_again(node: Path) -> None:
    (node / "f").write_bytes(b"old\n" * 100)
    rewrite = MEANWHILE % (1, 400, str(node / "f"), "r+b", b"new\n" * 100)
    assert events(node / "f", rewrite) == ["begin", "begin", "given"]


def test_what_is_rewritten_whenever_it_is_read_is_not_whole(node: Path) -> None:
    (node / "f").write_bytes(b"\0" + b"old" * 133)
    rewrite = MEANWHILE % (99, 400, str(node / "f"), "r+b", b"\0new")
    assert events(node / "f", rewrite)[-1] == "moving"


def test_what_went_away_or_is_no_file_any_more(node: Path) -> None:
    assert events(node / "gone") == ["gone"]
    os.mkfifo(node / "fifo")
    assert events(node / "fifo") == ["gone"]
    (node / "link").symlink_to("/etc/passwd")
    assert events(node / "link") == ["gone"]


def test_the_second_before_it_was_opened_tells_nobody_that_it_is_whole(node: Path) -> None:
    (node / "empty").touch()
    with open(node / "empty", "wb"):
        fd = os.open(node / "empty", os.O_RDONLY)
        assert give.is_written(fd) is True
    assert give.is_written(fd) is False
    os.close(fd)


def test_who_opens_it_while_it_is_looked_at_ends_nothing(node: Path) -> None:
    """The kernel sends SIGIO, which ends who does not expect it."""
    (node / "f").write_text("x")
    opens = "import sys\nprint(1, flush=True)\nwhile True: open(sys.argv[1], 'r+').close()"
    with writing(opens, node / "f"):
        for _ in range(3):
            report = typed(node, "./f", [])
            error = report.results[0].error
            assert report.ok or error and error.kind == "moving", report  # it was open whenever it was looked at


def test_an_interrupted_get_never_mixes_two_versions(node: Path) -> None:
    """Not even of one size and time: the second one begins at zero."""
    (node / "w").write_bytes(b"a" * 24 * MIB)
    before = (node / "w").stat()
    seen: list[int] = []

    def until_some(runtime_event: Event) -> None:
        if isinstance(runtime_event, Progress) and 0 < runtime_event.done < runtime_event.total:
            seen.append(runtime_event.done)
            raise Interrupted("interrupted")

    report = typed(node, "./w", [], emit=until_some)
    assert not report.ok and seen and not Path("w").exists()
    (staged,) = Path(".fleet-get/n1").iterdir()
    assert staged.stat().st_size > 0
    with open(node / "w", "r+b") as file:
        file.write(b"b" * 24 * MIB)
    os.utime(node / "w", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert typed(node, "./w", []).ok
    assert set(Path("w").read_bytes()) == {ord("b")} and not Path(".fleet-get").exists()


def test_an_interrupted_get_goes_on_where_it_was(node: Path) -> None:
    (node / "w").write_bytes(os.urandom(24 * MIB))
    totals: list[tuple[int, int]] = []

    def until_some(event: Event) -> None:
        if isinstance(event, Progress):
            totals.append((event.done, event.total))
            if len(totals) == 1 and event.done < event.total:
                raise Interrupted("interrupted")

    assert not typed(node, "./w", [], emit=until_some).ok
    held = sum(path.stat().st_size for path in Path(".fleet-get/n1").iterdir())
    assert typed(node, "./w", [], emit=until_some).ok
    assert totals[1][0] >= held > 0 and Path("w").read_bytes() == (node / "w").read_bytes()


@pytest.mark.parametrize("was", ["file", pytest.param("folder", marks=pytest.mark.slow)])
def test_an_interrupted_get_goes_on_where_a_file_became_a_folder_or_the_other_way(node: Path, was: str) -> None:
    def make(kind: str) -> None:
        (node / "x").mkdir(exist_ok=True)
        if kind == "folder":
            (node / "x/y").mkdir()
        ((node / "x/y/z") if kind == "folder" else (node / "x/y")).write_bytes(b"q" * 16 * MIB)

    def at_once(event: Event) -> None:
        if isinstance(event, Progress) and event.done < event.total:
            raise Interrupted("interrupted")

    make(was)
    assert not typed(node, "./x", [], emit=at_once).ok and list(Path(".fleet-get/n1").iterdir())
    subprocess.run(["rm", "-r", str(node / "x")], check=True)
    make("folder" if was == "file" else "file")
    assert typed(node, "./x", []).ok and not Path(".fleet-get").exists()
    assert Path("x/y").is_dir() == (was == "file")


# -- what a run wrote ------------------------------------------------------------------------------------------
RUN = "train-20261122-100000-ab12"


def begun(home: Path, at: float, *attempts: float) -> None:
    folder = home / ".fleet/runs" / RUN
    for name, when in {"": at, **{f"attempt{n}": when for n, when in enumerate(attempts)}}.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "spec.json").write_text(f'{{"node": "{os.uname().nodename}"}}')
        os.utime(folder / name / "spec.json", (when, when))


def test_a_run_began_when_its_first_attempt_left_its_mark(tmp_path: Path, node: Path) -> None:
    begun(tmp_path / "home", 5000.25)
    assert since.beginning(RUN, str(node)) == 5000_250_000_000
    begun(tmp_path / "home", 5000.25, 4000.5, 4500.0)
    assert since.beginning(RUN, str(node)) == 4000_500_000_000
    with pytest.raises(Refused, match="not known here any more"):
        since.beginning("train-20261122-100000-0000", str(node))


def made_in_turn(*paths: Path) -> float:
    """Makes two files; returns a time between these moments, of the clock of their file system."""
    first, second = paths
    first.touch()
    for _ in range(10_000):
        second.unlink(missing_ok=True)
        second.touch()
        if second.stat().st_ctime_ns > first.stat().st_ctime_ns + 10**6:
            break
    return (first.stat().st_ctime_ns + second.stat().st_ctime_ns) / 2e9


# the root is on a file server, whose clock is other than this machine's
OTHER_CLOCK = """
import os
from fleet.node.delivery import since
stat = os.stat
def other_device(path, **how):
    found = stat(path, **how)
    return os.stat_result((*found[:2], found.st_dev + 1, *found[3:])) if path == %r else found
os.stat = other_device
since.clock = lambda folder: %s
"""


@pytest.mark.parametrize(
    ("apart", "begins"), [("300.0", 5299.0), ("-300.0", 4699.0), ("0.01", 5000.0), ("-0.2", 5000.0), ("None", 5000.0)]
)
def test_a_file_servers_own_clock_is_taken_into_account(tmp_path: Path, node: Path, apart: str, begins: float) -> None:
    """None: nothing can be written there, and its clock not be seen."""
    mark = made_in_turn(node / "before", node / "since")
    begun(tmp_path / "home", mark - (begins - 5000.0))
    clock = "None" if apart == "None" else f"1e6 + {apart} * (folder == {str(node)!r})"
    first = OTHER_CLOCK % (str(node), clock)
    spec = {"path": str(node), "run": RUN, "copy_unsafe_links": False}
    with Running("delivery.give", spec, tmp_path / "home", first=first) as running:
        assert [path for path, *_ in next(running.frames()).json()["entries"]] == ["since"]


def test_the_probe_of_a_clock_leaves_nothing(node: Path) -> None:
    found = since.clock(str(node))
    assert found is not None and abs(found - time.time()) < 300 and not list(node.iterdir())
    assert since.clock(str(node / "missing")) is None


def test_what_is_new_by_ctime_with_the_folders_around_it() -> None:
    mark, old = 5 * 10**9 + 700, 5 * 10**9 - 1
    # path, kind: mtime, ctime
    times = {
        ("a", "d"): (mark, mark),
        ("a/b", "d"): (mark, mark),
        ("a/b/new", "f"): (mark, mark),
        ("a/b/old", "f"): (old, old),
        ("before", "f"): (4 * 10**9, 4 * 10**9),
        ("c", "d"): (old, mark),  # moved here with what it holds
        ("c/in", "d"): (old, old),
        ("c/in/old", "f"): (old, old),
        ("coarse", "f"): (5 * 10**9, 5 * 10**9),
        ("d", "d"): (old, mark + 10**10),  # its mode or owner was changed after anything was put here
        ("d/old", "f"): (old, old),
        ("delivered", "f"): (old, mark),
        ("e", "d"): (mark, mark),  # empty
        ("kept", "f"): (0, mark),  # by cp -p, tar, unzip, wget
        ("l", "l"): (mark, mark),
        ("o", "l"): (old, old),
        ("p", "d"): (old, old),
        ("r", "d"): (old, mark + 10**10),  # what was moved here, and then tar or rsync set the folder's mtime back
        ("r/in", "d"): (old, mark + 10**10),
        ("r/in/old", "f"): (old, old),
        ("s", "d"): (0, mark + 10**10),  # a link that is followed
        ("s/in", "d"): (old, mark + 10**10),
        ("s/in/old", "f"): (old, old),
    }
    walk = SimpleNamespace(times={"": (mark, mark), **{path: both for (path, _), both in times.items()}})
    rows: Any = [(path, kind, 0o700, 0, 0, "") for path, kind in times]
    found = since.written_since(mark, walk, rows, lambda path: path == "delivered")  # type: ignore[arg-type]
    new = [
        "a",
        "a/b",
        "a/b/new",
        "c",
        "c/in",
        "c/in/old",
        "coarse",
        "e",
        "kept",
        "l",
        "r",
        "r/in",
        "r/in/old",
        "s",
        "s/in",
        "s/in/old",
    ]
    assert [each[0] for each in found] == new


def test_a_path_that_is_missing_is_no_list_of_something_else(node: Path) -> None:
    with pytest.raises(UsageError, match="no host has"):
        typed(node, "./nothing", [])


def test_what_a_node_cannot_read_is_told_in_words() -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/proc/l\u00f6op".encode())
    message = {"event": "failed", "message": "/proc/l\u00f6op: Permission denied", "hint": None}
    assert failed(error, shown=wire.decode) == message


def test_to_look_through_a_folder_is_work_that_heartbeats_tell_of(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / str(number)).write_text("x")
    before = wire._moved[0]
    assert len(list(give.Walk(str(tmp_path), changing=True).entries())) >= 9
    assert wire._moved[0] >= before + 9

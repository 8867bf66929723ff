"""`fleet get` again: what is unchanged is not read, what a killed one put in place is known; links have one rule."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.delivery import brought
from fleet.errors import UsageError
from fleet.events import Event, Notice
from fleet.model import Host, Inventory, Result
from fleet.ops import get
from fleet.requests.runs import Get
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.get_places import node_beside_here
from tests.node.seams import Tap

READS_NOTHING = {"delivery.give": "import os\ndef pread(*_given): raise OSError('a file is read')\nos.pread = pread"}


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return node_beside_here(tmp_path, monkeypatch)


def typed(node: Path, what: str, transport: Any = None, events: list[Event] | None = None, **more: Any) -> Result:
    runtime = Runtime(transport or LocalTransport(), 1, (events if events is not None else []).append)
    host = Host("n1", "n1", workdir=str(node))
    return get.run(get.plan(Inventory((host,)), Get(what, to=Path(), **more)), runtime).results[0]


def made(node: Path) -> Path:
    out = node / "out"
    (out / "sub").mkdir(parents=True)
    for name, text in {"a": "small", "sub/b": "", "large": "x" * 200_000}.items():
        (out / name).write_text(text)
    (out / "l").symlink_to("a")
    return out


def test_what_is_unchanged_there_and_here_is_not_read(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = made(node)
    assert typed(node, "./out").data["files"] == 3
    known = next(Path(os.environ["HOME"], ".fleet/brought").glob("[0-9a-f]*"))
    before = known.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(brought, "digest_of", lambda place: pytest.fail(f"{place!r} is read"))
        again = typed(node, "./out", Tap(READS_NOTHING))
    assert (again.data["files"], again.data["same"]) == (0, 4) and known.read_bytes() == before

    # other times there, or here: digests tell that it is the same, and once is enough
    for name in ("a", "large"):
        (out / name).chmod(0o600)
    copy = Path("out/large.copy")
    copy.write_bytes(Path("out/large").read_bytes())
    os.utime(copy, ns=(0, Path("out/large").stat().st_mtime_ns))
    copy.replace("out/large")
    assert not typed(node, "./out", Tap(READS_NOTHING)).ok
    assert typed(node, "./out").data["same"] == 4
    assert typed(node, "./out", Tap(READS_NOTHING)).data["same"] == 4

    # of one size and time: the inode tells
    stat = (out / "a").stat()
    (out / "other").write_text("SMALL")
    os.utime(out / "other", ns=(0, stat.st_mtime_ns))
    (out / "other").replace(out / "a")
    assert typed(node, "./out").data["files"] == 1 and Path("out/a").read_text() == "SMALL"


def test_another_host_with_such_a_file_is_read(node: Path) -> None:
    made(node)
    assert typed(node, "./out").ok
    runtime = Runtime(Tap(READS_NOTHING), 1, id)
    other = Host("n2", "n2", workdir=str(node))
    assert not get.run(get.plan(Inventory((other,)), Get("./out", to=Path())), runtime).results[0].ok


def test_a_question_takes_as_long_as_it_takes_and_what_changed_meanwhile_comes(node: Path) -> None:
    out = made(node)
    Path("out").mkdir()
    Path("out/a").write_text("my own")

    def ask(question: str) -> bool:
        (out / "new").write_text("since")
        return True

    runtime = Runtime(LocalTransport(), 1, id, ask=ask)
    host = Host("n1", "n1", workdir=str(node))
    assert get.run(get.plan(Inventory((host,)), Get("./out", to=Path())), runtime).results[0].ok
    assert Path("out/a").read_text() == "small" and Path("out/new").read_text() == "since"


KILLED = """
import os, sys
from pathlib import Path
real, left = os.replace, [int(sys.argv[2])]
def replace(one, other, **how):
    left[0] -= 1
    if left[0] < 0:
        os._exit(9)
    real(one, other, **how)
os.replace = replace
from tests.node.test_get_again import typed
typed(Path(sys.argv[1]), "./out")
"""


@pytest.mark.parametrize("after", [0, 1, 3])
def test_what_a_killed_get_put_in_place_is_on_record(node: Path, after: int) -> None:
    out = made(node)
    assert typed(node, "./out").ok
    for text in ("second", "third!"):  # two in a row are killed
        for name in ("a", "sub/b", "large"):
            (out / name).write_text(text)
        (out / "l").unlink()
        (out / "l").symlink_to(text)
        path = {"PYTHONPATH": str(Path(__file__).parents[2])}
        argv = [sys.executable, "-c", KILLED, str(node), str(after)]
        assert subprocess.run(argv, env={**os.environ, **path}, capture_output=True).returncode == 9
    (out / "large").write_text("the last")
    assert typed(node, "./out").ok, "it asks nothing"
    assert [Path("out", name).read_text() for name in ("a", "sub/b", "large")] == ["third!", "third!", "the last"]
    assert os.readlink("out/l") == "third!" and not Path(".fleet-get").exists()
    Path("out/a").write_text("my own")
    with pytest.raises(UsageError, match="out/a"):
        typed(node, "./out")


def snapshot(node: Path) -> Path:
    """As Hugging Face's cache has one."""
    for name in ("blobs/1", "blobs/dir/in"):
        (node / "hub" / name).parent.mkdir(parents=True, exist_ok=True)
        (node / "hub" / name).write_text(name)
    (node / "hub/key").write_text("-----BEGIN PRIVATE KEY-----\n" + "x" * 99)
    folder = node / "hub/snapshots/abc"
    folder.mkdir(parents=True)
    for name, target in {
        "model": "../../blobs/1",
        "dir": "../../blobs/dir",
        "key": "../../key",
        "own": "model",
    }.items():
        (folder / name).symlink_to(target)
    return folder


def test_links_that_lead_out_are_named_and_followed_on_request(node: Path) -> None:
    snapshot(node)
    events: list[Event] = []
    assert typed(node, "hub/snapshots/abc", events=events).ok
    (notice,) = [event.message for event in events if isinstance(event, Notice)]
    assert notice.startswith("n1: links to what is not sent: dir -> ../../blobs/dir, key -> ../../key, model -> ")
    assert "--copy-unsafe-links" in notice and os.readlink("abc/model") == "../../blobs/1"
    assert typed(node, "hub/snapshots/abc", copy_unsafe_links=True).ok
    assert not Path("abc/model").is_symlink() and Path("abc/own").read_text() == "blobs/1"
    assert Path("abc/dir/in").read_text() == "blobs/dir/in"
    assert Path("abc/key").is_symlink(), "no key goes along"

"""`fleet sync --data PATH --from HOST` on this machine: a node as the chain's first sender, only ssh left out."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fleet.codec import Misfit, decode
from fleet.errors import ProtocolError, UsageError
from fleet.events import Event, Notice
from fleet.model import Report
from fleet.ops import broadcast
from fleet.protocol.messages.chain import FirstMessage
from fleet.requests.sync import SyncData
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport
from tests.node.nodes import until
from tests.node.seams import Tap
from tests.node.test_chain import MB, Fleet
from tests.node.test_code_sync import snapshot

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    (tmp_path / "n2").mkdir()
    return Fleet(tmp_path, 3)


@pytest.fixture
def big(fleet: Fleet) -> Path:
    path = fleet.folder / "n2/model.bin"
    path.write_bytes(os.urandom(20 * MB + 12345))
    return path


def send(
    fleet: Fleet,
    what: str,
    cancel: Cancel | None = None,
    seen: Callable[[Event], object] = id,
    transport: LocalTransport | None = None,
    **options: Any,
) -> Report:
    plan = broadcast.plan(fleet.inventory, SyncData(data=[what], **options), origin=fleet.inventory.host("n2"))
    return broadcast.run(plan, Runtime(transport or LocalTransport(), emit=seen, cancel=cancel or Cancel()))


def test_a_folder_of_one_node_comes_to_the_others_as_it_is(fleet: Fleet) -> None:
    source = fleet.folder / "n2/set"
    (source / "a" / "b").mkdir(parents=True)
    (source / "empty").mkdir(mode=0o711)
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o751)
    (source / "a" / "b" / "space 'n\" $(id)\nnewline*").write_bytes(b"odd")
    os.symlink("../run.sh", source / "a/link")
    with (source / "holes").open("wb") as file:
        file.truncate(5 * MB)
    os.mkfifo(source / "pipe")
    (source / ".x.fleet-data").mkdir()
    report = send(fleet, "set")
    assert report.exit_code == 0, report.results
    assert [result.host for result in report.results] == ["n1", "n3"]
    assert report.data["from"] == "n2" and report.data["skipped"] == [str(source / "pipe")]
    os.unlink(source / "pipe")
    (source / ".x.fleet-data").rmdir()
    for name in ("n1", "n3"):
        assert snapshot(fleet.folder / name / "set") == snapshot(source)
    assert not any(result.data["files"] for result in send(fleet, "set").results)


def test_links_that_lead_out_are_named_and_followed_on_request(fleet: Fleet) -> None:
    source = fleet.folder / "n2/hub/snapshots/abc"
    for path in ("hub/blobs/1", "hub/blobs/dir/in"):
        (fleet.folder / "n2" / path).parent.mkdir(parents=True, exist_ok=True)
        (fleet.folder / "n2" / path).write_text(path)
    source.mkdir(parents=True)
    (source / "model").symlink_to("../../blobs/1")
    (source / "dir").symlink_to("../../blobs/dir")
    seen: list[Event] = []
    assert send(fleet, "hub/snapshots/abc", seen=seen.append).exit_code == 0
    (notice,) = [event.message for event in seen if isinstance(event, Notice)]
    assert "links to what is not sent: dir -> ../../blobs/dir, model -> ../../blobs/1; --copy-unsafe-links" in notice
    report = send(fleet, "hub/snapshots/abc", copy_unsafe_links=True)
    assert report.exit_code == 0, report.results
    for name in ("n1", "n3"):
        arrived = fleet.folder / name / "hub/snapshots/abc"
        assert not (arrived / "model").is_symlink() and (arrived / "dir/in").read_text() == "hub/blobs/dir/in"


def test_what_cannot_be_had_from_it(fleet: Fleet, big: Path) -> None:
    with pytest.raises(UsageError, match="n2/nothing does not exist there") as raised:
        send(fleet, "nothing")
    assert raised.value.host == "n2"
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        send(fleet, "/dev/null")
    fleet.inventory = type(fleet.inventory)(fleet.inventory.hosts[1:2])
    with pytest.raises(UsageError, match="no other is selected"):
        send(fleet, "x")


@pytest.mark.slow
def test_a_file_that_grows_there_comes_as_far_as_it_was(fleet: Fleet, big: Path) -> None:
    size, said = big.stat().st_size, []

    def append(event: Event) -> None:
        said.append(event)
        if getattr(event, "done", 0) > 4 * MB:
            with big.open("ab") as file:
                file.write(b"x")

    report = send(fleet, big.name, seen=append, limit="3MB")
    assert report.exit_code == 0 and (fleet.folder / "n1" / big.name).read_bytes() == big.read_bytes()[:size]
    assert [e.message for e in said if isinstance(e, Notice)] == [
        f"sent up to the size that it had when it was listed, as it grows: {big.name}"
    ]


def test_a_file_that_changes_there_never_gets_its_name(fleet: Fleet, big: Path) -> None:
    def change(event: Event) -> None:
        if getattr(event, "done", 0) > 4 * MB:
            with big.open("r+b") as file:
                file.write(b"x")

    report = send(fleet, big.name, seen=change, limit="3MB")
    errors = [result.error and result.error.message for result in report.results]
    assert all(error and "changed in the source while it was read" in error for error in errors), errors
    assert not (fleet.folder / "n1" / big.name).exists()


def test_nothing_is_left_there_of_an_interrupted_one(fleet: Fleet, big: Path) -> None:
    cancel = Cancel()
    before = children()

    def stop(event: Event) -> None:
        if getattr(event, "done", 0) > 4 * MB:
            cancel.set()

    report = send(fleet, big.name, cancel, stop, limit="3MB")
    assert report.exit_code == 130
    until(lambda: children() <= before)
    report = send(fleet, big.name)
    assert report.exit_code == 0 and all(result.data["bytes"] < big.stat().st_size for result in report.results)


def children() -> set[str]:
    """The processes that this one has started."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(stat.parent.name)
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"entries": [["../x", "f", 0o644, 1, 1, ""]]},
        {"entries": [["/x", "f", 0o644, 1, 1, ""]]},
        {"entries": [["x", "f", 0o100644, 1, 1, ""]]},
        {"entries": [["x", "f", 0o644, -1, 1, ""]]},
        {"entries": [["x", "b", 0o644, 1, 1, ""]]},
        {"skipped": ["a\0"]},
    ],
)
def test_what_a_node_may_not_say_of_what_it_has(changes: dict[str, Any]) -> None:
    message: dict[str, Any] = {
        "event": "tree",
        "path": "/x",
        "entries": [],
        "allocated": {},
        "skipped": [],
        "linked": [],
        "unsafe": [],
    }
    message |= {"mode": 0o755, "more": False}
    decode(FirstMessage, message)
    with pytest.raises(Misfit):
        decode(FirstMessage, {**message, **changes})


LIES = """
from fleet.node.delivery import tree
send = tree.send_json
tree.send_json = lambda message: send(dict(message, entries=[*message["entries"], *%r]))
"""


@pytest.mark.parametrize(
    "lie",
    [
        [("one", "f", 0o644, 1, 1, "")],
        [("one", "l", 0, 0, 0, "/etc")],
        [("to", "l", 0, 0, 0, "/etc"), ("to/passwd", "f", 0o644, 1, 1, "")],
        [("one/more", "f", 0o644, 1, 1, "")],
        [("no/parent", "d", 0o755, 0, 0, "")],
        [("", "f", 0o644, 1, 1, "")],
    ],
    ids=["twice", "a link, too", "through a link", "below a file", "below nothing", "a file, too"],
)
def test_a_list_that_makes_no_sense_is_the_fault_of_who_tells_it(fleet: Fleet, lie: list[Any]) -> None:
    (fleet.folder / "n2/set").mkdir()
    (fleet.folder / "n2/set/one").write_text("1")
    with pytest.raises(ProtocolError, match="its list of files makes no sense") as caught:
        send(fleet, "set", transport=Tap({"delivery.chain.first": LIES % lie}, only="n2"))
    assert caught.value.host == "n2" and not (fleet.folder / "n1/set").exists()

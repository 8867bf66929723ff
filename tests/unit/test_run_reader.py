"""What is shown of a run's logs while they grow, and while its attempts follow each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fleet.ops.run.kept.reader import Reader
from fleet.requests.runs import Logs
from tests.run_folders import run_folder

RUN = "t-20261122-101500-0001"
Shown = list[bytes]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path, RUN)


def write(folder: Path, host: str, text: str) -> None:
    (folder / host).mkdir(exist_ok=True)
    with (folder / host / "rank0.out").open("a") as log:
        log.write(text)


def set_aside(folder: Path, attempt: int, *hosts: str) -> None:
    """As its leader does before it starts the next attempt."""
    (folder / f"attempt{attempt}").mkdir()
    for host in hosts:
        (folder / host).rename(folder / f"attempt{attempt}" / host)


def reader(
    folder: Path, show: Callable[[bytes], object], begins: Mapping[str, Mapping[str, int]] | None = None
) -> Reader:
    request = Logs(run="t", runs_dir=folder.parent, follow=True)
    return Reader(folder, request, lambda output: show(output.data), begins)


def test_what_is_shown_begins_where_the_nodes_reported_and_another_attempt_as_a_whole(folder: Path) -> None:
    for host in ("gpu1", "gpu2"):
        write(folder, host, "early late")
    shown = Shown()
    found = reader(folder, shown.append, {"gpu1": {"rank0.out": 6}})
    found.poll()
    set_aside(folder, 0, "gpu1", "gpu2")
    write(folder, "gpu1", "of another")
    found.poll()
    assert shown == [b"late", b"of another"], "and nothing of a host that could not report it"


def test_what_an_attempt_wrote_last_is_shown_though_the_next_one_has_begun(folder: Path) -> None:
    write(folder, "gpu1", "early ")
    shown = Shown()
    found = reader(folder, shown.append)
    found.poll()
    write(folder, "gpu1", "late")
    set_aside(folder, 0, "gpu1")
    write(folder, "gpu1", "of another")
    found.poll()
    found.poll()
    assert shown == [b"early ", b"late", b"of another"]


def test_logs_that_are_set_aside_while_they_are_looked_through_are_shown(folder: Path) -> None:
    for host in ("gpu1", "gpu2"):
        write(folder, host, f"early {host} ")
    shown = Shown()

    def show(data: bytes) -> None:
        shown.append(data)
        if data == b"late gpu1":
            set_aside(folder, 0, "gpu1", "gpu2")

    found = reader(folder, show)
    found.poll()
    for host in ("gpu1", "gpu2"):
        write(folder, host, f"late {host}")
    found.poll()
    write(folder, "gpu1", "of another")
    found.poll()
    assert shown == [b"early gpu1 ", b"early gpu2 ", b"late gpu1", b"late gpu2", b"of another"]

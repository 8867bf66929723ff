"""A member of a broadcast that lies: relays as they are shipped, one of them changed. The others get every byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.delivery.chain import judge
from fleet.events import Event, Notice
from fleet.model import Host, Inventory, Report
from fleet.ops import broadcast, sync
from fleet.requests.sync import Sync, SyncData
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.node import chain_lies
from tests.node.seams import Tap

pytestmark = pytest.mark.usefixtures("own_home")
SIZE = 3 << 20


def liar(lie: str) -> Tap:
    """Returns the local transport; host e's chain member does as LIES[lie] says."""
    first = Path(chain_lies.__file__).read_text() + f"\nLIES[{lie!r}]()\n"
    return Tap({"delivery.chain.member": first}, only="e")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_bytes(os.urandom(SIZE))
    (folder / "empty").touch()
    return folder


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(judge, "STALL_SECONDS", 8.0)
    yield


def run(tmp_path: Path, source: Path, order: str, lie: str | None = None) -> tuple[Report, list[Notice]]:
    """To the hosts of `order`, "e" the liar."""
    inventory = Inventory(tuple(Host(name, "127.0.0.1", workdir=str(tmp_path / name)) for name in order))
    notices: list[Notice] = []

    def emit(event: Event) -> None:
        if isinstance(event, Notice):
            notices.append(event)

    plan = broadcast.plan(inventory, SyncData(data=[f"{source}:{tmp_path}/hosts/d"]))
    dests = {name: str(tmp_path / name / "d") for name in order}
    plan = broadcast.BroadcastPlan(plan.hosts, tuple(type(item)(item.source, dests) for item in plan.items))
    return broadcast.run(plan, Runtime(liar(lie) if lie else LocalTransport(), emit=emit)), notices


SLOW = pytest.mark.slow


@pytest.mark.parametrize("order", ["eab", pytest.param("aeb", marks=SLOW), pytest.param("ea", marks=SLOW)])
@pytest.mark.parametrize("lie", chain_lies.LIES)
def test_the_others_get_every_byte(tmp_path: Path, source: Path, lie: str, order: str) -> None:
    report, notices = run(tmp_path, source, order, lie)
    results = {result.host: result for result in report.results}
    for name in order.replace("e", ""):
        assert results[name].ok, (results[name].error, [(n.host, n.message) for n in notices])
        for file in source.iterdir():
            assert (tmp_path / name / "d" / file.name).read_bytes() == file.read_bytes()
    named = {notice.host for notice in notices if notice.level == "warning"}
    if lie in ("odd-wants", "huge-wants"):
        assert results["e"].error is not None and results["e"].error.kind == "protocol" and named == {"e"}
    elif lie == "elsewhere":
        assert report.ok
    elif lie == "complains":
        assert results["e"].error is not None and "did not arrive as it was sent" in results["e"].error.message


def test_what_was_sent_is_what_this_machine_sent(tmp_path: Path, source: Path) -> None:
    report, _ = run(tmp_path, source, "ab")
    assert report.ok and report.data["sent"] == 3 * SIZE
    assert run(tmp_path, source, "ab")[0].data["sent"] == 0


def test_lists_longer_than_a_message_arrive_in_parts(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(1203):
        (source / f"{number:04}").write_text(str(number))
    assert run(tmp_path, source, "a")[0].ok
    (tmp_path / "a" / ".d.fleet-data" / "state").unlink()
    for number in range(0, 1203, 2):
        (tmp_path / "a" / "d" / f"{number:04}").unlink()
    (result,) = run(tmp_path, source, "a")[0].results
    assert result.ok and result.data["files"] == 1203 and len(os.listdir(tmp_path / "a" / "d")) == 1203
    inventory = Inventory((Host("a", "127.0.0.1"),))
    mirrored = sync.run(sync.plan(inventory, Sync(source, str(tmp_path / "m"))), Runtime(LocalTransport()))
    assert mirrored.results[0].data["sent"] == 1203 and len(os.listdir(tmp_path / "m")) == 1203

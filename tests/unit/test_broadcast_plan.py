"""Where `--data PATH[:DEST]` goes, and what is in it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet.delivery.manifest import scan
from fleet.errors import UsageError
from fleet.model import Host
from tests.in_process import fleet_here


def planned(*data: str, **options: Any) -> dict[str, Any]:
    return fleet_here(Host("a", "a", workdir="~/work"), "b").plan.sync_data(*data, **options).describe()


def dests(text: str) -> tuple[str, str]:
    to = planned(text)["data"][0]["to"]
    return to["a"], to["b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/m/llama:/data/", ("/data/llama", "/data/llama")),
        ("/m/llama/:/data/", ("/data/llama", "/data/llama")),
        ("/m/llama:/data/x", ("/data/x", "/data/x")),
        ("/m/llama:~/x", ("~/x", "~/x")),
        ("/m/llama", ("/m/llama", "/m/llama")),
        ("/m/a:b:/d/", ("/d/a:b", "/d/a:b")),
    ],
)
def test_destinations(text: str, expected: tuple[str, str]) -> None:
    assert dests(text) == expected


def test_a_relative_path_goes_below_the_workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dests("sets/x") == ("~/work/sets/x", str(tmp_path / "sets/x"))
    (tmp_path / "odd:name").touch()
    assert dests("odd:name") == ("~/work/odd:name", str(tmp_path / "odd:name"))
    assert dests("odd:name:/d/") == ("/d/odd:name", "/d/odd:name")


@pytest.mark.parametrize("text", ["", ":/data", "x:", "../x", "/:/d/", "a\0b"])
def test_what_makes_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        planned(text)


def test_two_sources_for_one_place() -> None:
    with pytest.raises(UsageError, match="both go to /d/x"):
        planned("/a/x:/d/", "/b/x:/d/")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100MB", 100_000_000),
        ("200mbit", 25_000_000),
        ("1.5GiB/s", 1_610_612_736),
        ("5000", 5000),
        ("1gbit", 125_000_000),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert planned("/x", limit=text)["limit"] == rate


@pytest.mark.parametrize("text", ["", "fast", "-5MB", "10", "0", "1e9", "5 parsecs"])
def test_no_rates(text: str) -> None:
    with pytest.raises(UsageError):
        planned("/x", limit=text)


def test_a_manifest_is_one_stream(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name, size in (("a", 3), ("b", 0), ("d/c", 5)):
        (tmp_path / name).write_bytes(b"x" * size)
    manifest = scan([tmp_path])
    assert [entry[1] for entry in manifest.entries] == ["", "a", "b", "d", "d/c"]
    assert manifest.size == 8 and scan([]).size == 0


def test_a_user_who_is_not_there() -> None:
    with pytest.raises(UsageError, match="no such user"):
        planned("~nosuch-user/x:/y")


def test_a_long_name_with_a_destination() -> None:
    name = "n" * 250
    assert dests(f"{name}:destination") == ("destination", "destination")


def test_folders_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
        with pytest.raises(UsageError, match="nested too deeply"):
            scan([tmp_path])
    finally:
        os.chdir(tmp_path)
        subprocess.run(["rm", "-rf", "d"], check=True)  # pytest could not


def test_a_snapshot_of_hugging_face(tmp_path: Path) -> None:
    for path, text in {"blobs/0a": "{}", "blobs/0b": "weights", "snapshots/r1/README": ""}.items():
        (tmp_path / "hub" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub" / path).write_text(text)
    for name, blob in (("config.json", "0a"), ("model.safetensors", "0b")):
        (tmp_path / "hub/snapshots/r1" / name).symlink_to(f"../../blobs/{blob}")
    snapshot = tmp_path / "hub/snapshots/r1"
    assert len(scan([snapshot]).unsafe_links) == 2
    found = scan([snapshot], copy_unsafe_links=True)
    assert found.unsafe_links == () and found.size == 9 and len(found.files) == 3
    hosts = fleet_here("a", "b")
    assert hosts.plan.sync_data(f"{snapshot}:/m", copy_unsafe_links=True).plan.copy_unsafe_links  # type: ignore[attr-defined]
    there = hosts.plan.sync_data("x:/m", from_host="a", copy_unsafe_links=True)
    assert there.plan.copy_unsafe_links  # type: ignore[attr-defined]

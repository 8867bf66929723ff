"""The inventory's `sync:` section: what a bare `fleet sync` carries."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import HostFailed, InventoryError
from fleet.inventory.find import parse
from fleet.ops.sync import Section, agreed, outside, read_section, remember
from tests.in_process import fleet_here, typed


def section(sync: dict[str, Any]) -> Section:
    return read_section(parse(json.dumps({"hosts": ["a"], "sync": sync}).encode(), "fleet.yaml"))


def test_all_of_it() -> None:
    assert section({"code": {"src": "src", "to": "~/w"}, "data": ["/d:/d/"], "wheels": "r.txt"}) == Section(
        (Path("src"), "~/w"), ("/d:/d/",), Path("r.txt")
    )
    assert section({"code": ".", "data": "/d"}) == Section((Path("."), None), ("/d",), None)
    assert section({"code": {"to": "~/w"}}).code == (Path("."), "~/w")


@pytest.mark.parametrize(
    ("sync", "text"),
    [
        ({"cod": "."}, "did you mean 'code'"),
        ({"code": 3}, "'src' must be text"),
        ({"code": ""}, "'src' must be text"),
        ({"code": {"dest": "x"}}, "it knows src, to"),
        ({"data": [{}]}, "'data' must be text"),
        ({"wheels": ["a"]}, "'wheels' must be text"),
    ],
)
def test_what_makes_no_sense_is_said_with_the_file(sync: dict[str, Any], text: str) -> None:
    with pytest.raises(InventoryError) as caught:
        section(sync)
    assert text in f"{caught.value} {caught.value.hint}" and caught.value.where == "fleet.yaml"


def test_it_is_said_where_the_inventory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text("hosts: [a]\nsync: {cod: .}\n")
    assert typed(["hosts"]) == 121
    assert capsys.readouterr().err.startswith("error: fleet.yaml: sync: unknown key 'cod' in the section")


def dry_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *args: str) -> dict[str, Any]:
    (tmp_path / "fleet.yaml").write_text(text)
    (tmp_path / "w").mkdir(exist_ok=True)
    assert typed(["--dry-run", "--json", "sync", *args]) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)["plan"]
    return plan


def test_a_bare_sync_does_what_the_section_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "d"  # a dry run refuses what is not there
    source.mkdir()
    text = f"hosts: [a]\nsync: {{code: {{to: ~/c}}, data: ['{source}:/e'], wheels: w}}\n"
    plan = dry_run(tmp_path, capsys, text)
    assert list(plan) == ["code", "data", "wheels"] and plan["code"]["to"] == {"a": "~/c"}
    assert plan["data"]["data"] == [{"source": str(source), "to": {"a": "/e"}}]
    assert dry_run(tmp_path, capsys, text, "w")["source"] == "w", "SRC means code, and code alone"
    assert "data" in dry_run(tmp_path, capsys, text, "--data", f"{source}:/y")
    only = dry_run(tmp_path, capsys, f"hosts: [a]\nsync: {{data: ['{source}:/e']}}\n")
    assert list(only) == ["data", "limit"]
    plain = dry_run(tmp_path, capsys, "hosts: [a]\n")
    assert plain["source"] == "."


def test_nothing_is_carried_when_a_later_part_has_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(
        "hosts: {a: {address: 127.0.0.1, port: 1}}\nsync: {code: ., data: [nosuch:/x]}\n"
    )
    assert typed(["sync"]) == 2
    assert "nosuch does not exist" in capsys.readouterr().err


def test_what_lies_outside_the_inventorys_folder_is_asked_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for folder in (theirs / "data", mine / "secrets", tmp_path / "home"):
        folder.mkdir(parents=True)
    (theirs / "link").symlink_to(mine)
    inventory = str(theirs / "fleet.yaml")
    monkeypatch.chdir(mine)
    assert outside(inventory, [Path("."), theirs / "data", Path("../theirs")]) == []
    bad = [Path("secrets"), theirs / "link", Path("~/.ssh"), theirs / "../mine/secrets"]
    found = outside(inventory, bad)
    assert found == [mine / "secrets", Path.home() / ".ssh"] and outside(inventory, [tmp_path]) == [tmp_path]
    home = tmp_path / "home"
    assert not agreed(home, inventory, found)
    remember(home, inventory, found)
    assert agreed(home, inventory, found) and not agreed(home, inventory, [*found, tmp_path])
    assert not agreed(home, str(mine / "fleet.yaml"), found)
    assert (home / ".fleet/agreed").stat().st_mode & 0o777 == 0o600


def test_no_yes_is_lost_where_two_are_given_at_once(tmp_path: Path) -> None:
    inventories = [str(tmp_path / f"{n}.yaml") for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda inventory: remember(tmp_path, inventory, [tmp_path]), inventories))
    assert [inventory for inventory in inventories if not agreed(tmp_path, inventory, [tmp_path])] == []


def test_without_a_terminal_such_a_section_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("mine")
    for name in ("home", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "theirs/fleet.yaml").write_text(
        f"hosts: {{a: {{address: 127.0.0.1, workdir: {tmp_path}/node}}}}\n"
        f"sync: {{data: ['{tmp_path}/secret:{tmp_path}/got']}}\n"
    )
    words = ["-i", "theirs/fleet.yaml", "--transport", "local", "sync"]
    assert typed(words) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/secret" in said and "fleet -i theirs/fleet.yaml --transport local sync --yes" in said
    assert not (tmp_path / "got").exists()
    assert typed([*words, "--yes"]) == 0 and (tmp_path / "got").read_text() == "mine"
    assert typed(words) == 0, "what was agreed to once is not asked for again"


def test_an_option_of_wheels_is_not_dropped_where_code_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostfile").write_text("a\n")
    for words in ([], ["."], ["--data", "hostfile"]):
        assert typed(["--dry-run", "sync", "--refresh", *words]) == 2
        assert capsys.readouterr().err == "error: --refresh has a meaning with --wheels only\n"
        assert typed(["--dry-run", "sync", "--import-timeout", "9", *words]) == 2
        assert capsys.readouterr().err.startswith("error: --import-timeout has a meaning with --wheels only\n")


def test_an_option_of_code_is_not_dropped_where_wheels_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostfile").write_text("a\n")
    assert typed(["--dry-run", "sync", "--wheels", ".", "--copy-unsafe-links"]) == 2
    told = "error: --copy-unsafe-links is for code and data, not for --wheels\n  hint: leave one of the two out\n"
    assert capsys.readouterr().err == told


def test_a_folder_that_begins_like_an_option_is_one_in_the_line_to_go_on_with() -> None:
    hint = fleet_here("a").plan.sync("./-x").plan.hint  # type: ignore[attr-defined]
    assert "fleet sync ./-x --force;" in hint


def test_a_home_that_cannot_be_written_has_a_way_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nosuch")
    with pytest.raises(HostFailed) as caught:
        fleet_here("a").get(f"{tmp_path}/f", to=tmp_path / "to")
    assert caught.value.hint == "$XDG_CACHE_HOME may name a folder that can be written"

"""The lab's state folder."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from fleet.errors import FleetError, InventoryError, LabError, UsageError
from fleet.lab.state import Folder, Machine, State, exclusive, inventory_path, select, write_file
from fleet.node.base.processes import start_time


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLEET_LAB", raising=False)
    monkeypatch.delenv("FLEET_LAB_DIR", raising=False)
    return tmp_path


def fails_with(error: type[FleetError], message: str, hint: str, do: object) -> None:
    with pytest.raises(error, match=message) as refused:
        do()  # type: ignore[operator]
    assert hint in (refused.value.hint or "")


def test_each_instance_has_its_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Folder().path == home / ".fleet/lab/lab"
    monkeypatch.setenv("FLEET_LAB", "bench")
    other = Folder()
    assert other.path == home / ".fleet/lab/bench"
    assert len(other.short_id) <= 15
    monkeypatch.setenv("FLEET_LAB_DIR", str(home / "elsewhere"))
    assert Folder().path == home / "elsewhere"
    assert Folder().short_id != other.short_id


def test_a_folder_with_other_things_in_it_is_left_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "mine").write_text("x")
    home.chmod(0o755)
    monkeypatch.setenv("FLEET_LAB_DIR", str(home))
    fails_with(LabError, "other things are in it", "FLEET_LAB_DIR", Folder().create)
    assert home.stat().st_mode & 0o777 == 0o755


def test_a_lock_is_not_made_through_a_link(home: Path) -> None:
    (home / "lock").symlink_to(home / "elsewhere")
    with pytest.raises(LabError, match="cannot lock"), exclusive(home / "lock", 1.0, "busy"):
        pass
    assert not (home / "elsewhere").exists()


@pytest.mark.parametrize("name", ["../x", "a b", "-a", "a-", "a" * 41, "a.b", "$(id)"])
def test_an_instance_that_is_no_host_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_LAB", name)
    fails_with(UsageError, "cannot be part of a host name", "at most 40", Folder)


def test_no_lab_no_inventory() -> None:
    fails_with(InventoryError, "lab 'lab' is not up", "fleet lab up", inventory_path)


def test_inventory_only_while_the_switch_lives() -> None:
    folder = Folder()
    folder.create()
    state = State(switch_pid=os.getpid(), switch_started=start_time(os.getpid()), hosts={"lab01": Machine(1, "::1")})
    folder.save(state)
    assert inventory_path() == folder.inventory
    state.switch_started = 1  # the pid was given to another process
    folder.save(state)
    fails_with(InventoryError, "not up", "fleet lab up", inventory_path)


def test_what_a_user_changes_in_the_inventory_stays_while_the_lab_has_the_same_hosts() -> None:
    folder = Folder()
    folder.create()
    folder.save(State(hosts={"lab01": Machine(1, "198.18.4.11")}))
    written = folder.inventory.read_text()
    assert "what you change stays" in written
    folder.inventory.write_text(changed := written.replace(sys.executable, "/opt/train/bin/python"))
    folder.save(State(hosts={"lab01": Machine(1, "198.18.4.11", pid=4711)}))  # as freeze and heal do
    assert folder.inventory.read_text() == changed != written
    more = State(hosts={f"lab0{n}": Machine(n, f"198.18.4.1{n}") for n in (1, 2)})
    folder.save(more)
    assert sys.executable in folder.inventory.read_text() and "lab02" in folder.inventory.read_text()
    folder.reset(State())
    folder.save(more)
    assert "lab02" in folder.inventory.read_text(), "another lab, of the same hosts"


def test_what_is_kept_is_private(home: Path) -> None:
    folder = Folder()
    with folder.locked():
        folder.save(State(network="198.18.4.0/22", hosts={"lab01": Machine(1, "198.18.4.11", pid=4711)}))
        password = folder.password()
        assert folder.password() == password
        assert folder.load().hosts["lab01"].pid == 4711
    assert folder.path.stat().st_mode & 0o777 == 0o700
    for file in (folder.password_file, folder.inventory, folder.path / "state.json"):
        assert file.stat().st_mode & 0o777 == 0o600, file
    assert password not in folder.inventory.read_text() + (folder.path / "state.json").read_text()
    folder.reset(State(network="198.18.4.0/22"))
    assert not folder.password_file.exists()
    assert folder.load().network == "198.18.4.0/22"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"hosts": 3}', '{"hosts": {"a": {"nonsense": 1}}}', "\udcff"])
def test_a_damaged_state_file_is_named(text: str) -> None:
    folder = Folder()
    folder.create()
    (folder.path / "state.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    fails_with(LabError, "state.json cannot be read", "fleet lab down", folder.load)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_file(tmp_path / "f", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_file(tmp_path / "f", "new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "f").read_text() == "old"


def test_a_second_command_waits_then_says_so(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock", 1, "never"):
        fails_with(LabError, "busy", "wait", lambda: exclusive(tmp_path / "lock", 0.1, "busy").__enter__())
    with exclusive(tmp_path / "lock", 0.1, "never"):
        pass


def test_unknown_hosts_are_refused() -> None:
    state = State(hosts={f"lab0{n}": Machine(n, f"198.18.0.1{n}") for n in (1, 2, 3)})
    assert select(state, ["lab03", "lab[01-02]"]) == ["lab01", "lab02", "lab03"]
    fails_with(UsageError, "no host gpu7", r"lab[01-03]", lambda: select(state, ["lab01,gpu7"]))
    fails_with(UsageError, "node set", "lab02", lambda: select(state, ["lab["]))
    fails_with(UsageError, "no host", "lab", lambda: select(state, ["lab01!lab01"]))
    fails_with(UsageError, "no host", "lab", lambda: select(state, ["@all"]))

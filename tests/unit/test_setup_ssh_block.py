"""The block in an ssh config: what ssh reads in it, and that the rest of the file stays."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import HostFailed, UsageError
from fleet.ops.setup_ssh.config_block import ConfigEntry, narrow, put, render, without_any

texts = st.binary(max_size=60) | st.lists(st.sampled_from([b"a b", b"", b"#c", b"\xff\xfe", b"x\r"])).map(b"\n".join)


ENTRIES = (
    ConfigEntry("gpu01", "10.0.0.1", 2222, "me", None, "/home/a b/.ssh/id_100%"),
    ConfigEntry("gpu02", "fe80::1%eth0", None, None, "gpu01", "/k"),
)


USERS = b"""User everybody
Port 44
Host gpu01
    Port 55
    User mine
Host *
    Compression yes
"""


def ssh_g(config: bytes, host: str, tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "config"
    file.write_bytes(config)
    done = subprocess.run(["ssh", "-G", "-F", str(file), host], capture_output=True, text=True, check=True)
    return dict(reversed([line.split(" ", 1) for line in done.stdout.splitlines() if " " in line]))


@pytest.fixture
def block() -> bytes:
    return render("lab-1", ENTRIES, "/home/a b/.ssh/known_hosts")


def test_ssh_reads_the_block_as_meant(block: bytes, tmp_path: Path) -> None:
    first = ssh_g(block, "gpu01", tmp_path)
    assert (first["hostname"], first["port"], first["user"]) == ("10.0.0.1", "2222", "me")
    assert first["userknownhostsfile"] == "/home/a b/.ssh/known_hosts"
    assert first["identityfile"] == "/home/a b/.ssh/id_100%%"  # ssh -G shows it unexpanded
    assert (first["stricthostkeychecking"], first["identitiesonly"]) == ("true", "yes")
    second = ssh_g(block, "gpu02", tmp_path)
    assert (second["hostname"], second["proxyjump"]) == ("fe80::1%eth0", "gpu01")


def test_the_inventory_wins_and_the_users_globals_still_hold(block: bytes, tmp_path: Path) -> None:
    config = put(USERS, "lab-1", block, "config")
    ours, theirs = ssh_g(config, "gpu01", tmp_path), ssh_g(config, "elsewhere", tmp_path)
    assert (ours["port"], ours["user"], ours["compression"]) == ("2222", "me", "yes")
    assert (theirs["port"], theirs["user"], theirs["compression"]) == ("44", "everybody", "yes")
    assert theirs == ssh_g(USERS, "elsewhere", tmp_path)
    # what the inventory leaves open is the user's
    assert ssh_g(config, "gpu02", tmp_path)["user"] == "everybody"


@given(st.none() | texts)
def test_put_and_take_leave_the_rest_alone(data: bytes | None) -> None:
    rendered = render("a", ENTRIES, "/k")
    once = put(data, "a", rendered, "config")
    assert once.endswith(data or b"") and put(once, "a", rendered, "config") == once
    assert narrow(once, "a", (), "config") == (data or b"")


def test_a_block_is_replaced_where_it_stands_and_others_are_not_touched() -> None:
    one, two = render("one", ENTRIES[:1], "/k"), render("two", ENTRIES, "/k")
    both = put(put(USERS, "one", one, "c"), "two", two, "c")
    assert both == two + one + USERS
    smaller = render("one", (), "/k")
    assert put(both, "one", smaller, "c") == two + smaller + USERS
    assert narrow(both, "two", (), "c") == one + USERS
    # emptied, so that the user's lines keep their numbers
    assert without_any(both) == b"\n" * (one + two).count(b"\n") + USERS
    assert without_any(USERS) == USERS


@pytest.mark.parametrize(
    "damage",
    [
        "# >>> fleet a >>>\n",
        "# <<< fleet a <<<\nHost x\n# >>> fleet a >>>\n",
        "# >>> fleet a >>>\n# >>> fleet a >>>\n# <<< fleet a <<<\n",
    ],
)
def test_a_broken_block_is_an_error_with_its_line(damage: str) -> None:
    with pytest.raises(HostFailed) as caught:
        put(b"# mine\n" + damage.encode(), "a", b"", "/h/.ssh/config")
    assert str(caught.value).startswith("/h/.ssh/config:2: ")


@pytest.mark.parametrize("user", ['a"b', "a\nProxyCommand touch /tmp/x", "a\x00"])
def test_nothing_breaks_out_of_a_value(user: str) -> None:
    with pytest.raises(UsageError):
        render("a", [ConfigEntry("h", user=user)], "/k")


def test_long_host_lines_are_broken() -> None:
    text = render("a", [ConfigEntry(f"gpu{i:04}") for i in range(1000)], "/k").decode()
    assert max(map(len, text.splitlines())) < 1024

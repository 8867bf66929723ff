"""node.sh, the one script setup-ssh runs on nodes: under dash and bash, on awkward homes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import ConnectError, HostFailed
from fleet.model import Host
from fleet.ops.setup_ssh import node
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport

contents = st.binary(max_size=300).filter(lambda data: b"\0" not in data)
TOOLS = (
    "sh",
    "cat",
    "ls",
    "rm",
    "mv",
    "cp",
    "ln",
    "mkdir",
    "rmdir",
    "chmod",
    "cksum",
    "sed",
    "tr",
    "readlink",
    "uname",
    "id",
    "ssh-keygen",
)


@pytest.fixture(params=["dash", "bash"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home on a node that has a POSIX sh, a dozen POSIX tools, ssh-keygen, and no python."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(request.param if tool == "sh" else tool)
        assert found
        (tools / tool).symlink_to(found)
    home = tmp_path / "home of it's"
    home.mkdir(mode=0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(tools))
    return home


@pytest.fixture
def session(home: Path) -> Iterator[Session]:
    session = LocalTransport().connect(Host("here", "here"), Cancel())
    yield session
    session.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def snapshot(home: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(p): (p.lstat().st_mtime_ns, p.lstat().st_mode, p.read_bytes() if p.is_file() else b"")
        for p in home.rglob("*")
    }


def test_an_empty_home_gets_a_private_folder_and_a_key(session: Session, home: Path) -> None:
    state = node.look(session, key_type="ed25519")
    assert state.created == [".ssh", "id_ed25519"] and state.key_name == "id_ed25519"
    assert state.key is not None and state.key.line + b"\n" == (home / ".ssh/id_ed25519.pub").read_bytes()
    assert state.files == dict.fromkeys(node.FILES, (None, "-"))
    assert mode(home / ".ssh") == 0o700 and mode(home / ".ssh/id_ed25519") == 0o600
    before = snapshot(home)
    again = node.look(session, key_type="ed25519")
    assert again.created == [] and again.modes == {} and again.key == state.key
    assert snapshot(home) == before
    assert sorted(os.listdir(home / ".ssh")) == ["id_ed25519", "id_ed25519.pub"]


def test_looking_without_repair_touches_nothing(session: Session, home: Path) -> None:
    node.look(session, key_type=None, repair=False)
    assert list(home.iterdir()) == []


def test_modes_are_repaired_and_an_open_home_is_told(session: Session, home: Path) -> None:
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o775)
    for name in ("authorized_keys", "config"):
        (ssh / name).write_bytes(b"")
        (ssh / name).chmod(0o664)
    ssh.chmod(0o775)
    home.chmod(0o775)
    state = node.look(session, key_type=None)
    assert [*state.modes] == [".ssh", "authorized_keys", "config"] and state.open_home == str(home)
    assert [mode(ssh), mode(ssh / "authorized_keys"), mode(ssh / "config"), mode(home)] == [0o755, 0o644, 0o644, 0o775]
    node.change(session, [node.call("widen", name, *modes) for name, modes in state.modes.items()])
    assert [mode(ssh), mode(ssh / "authorized_keys"), mode(ssh / "config")] == [0o775, 0o664, 0o664]


@pytest.mark.parametrize("bits", [0o755, 0o711, 0o700, 0o2755, 0o1755])
def test_modes_that_sshd_takes_stay(session: Session, home: Path, bits: int) -> None:
    ssh = home / ".ssh"
    ssh.mkdir()
    (ssh / "authorized_keys").write_bytes(b"")
    (ssh / "authorized_keys").chmod(bits & 0o644)
    ssh.chmod(bits)
    assert node.look(session, key_type=None).modes == {}
    assert (mode(ssh), mode(ssh / "authorized_keys")) == (bits, bits & 0o644)


@pytest.mark.parametrize("bits", [0o2775, 0o1777, 0o7777, 0o777, 0o4770, 0o2745])
def test_a_mode_comes_back_as_it_was(session: Session, home: Path, bits: int) -> None:
    ssh = home / ".ssh"
    ssh.mkdir()
    ssh.chmod(bits)
    state = node.look(session, key_type=None)
    assert mode(ssh) == bits & ~0o022
    node.change(session, [node.call("widen", name, *modes) for name, modes in state.modes.items()])
    assert mode(ssh) == bits
    ssh.chmod(0o700)  # somebody has set another since
    node.change(session, [node.call("widen", name, *modes) for name, modes in state.modes.items()])
    assert mode(ssh) == 0o700


def test_what_a_link_leads_to_elsewhere_is_written_and_never_narrowed(
    session: Session, home: Path, tmp_path: Path
) -> None:
    """A team's file, which other accounts have theirs linked to, too."""
    team = tmp_path / "team" / "keys"
    team.parent.mkdir(mode=0o775)
    team.parent.chmod(0o775)
    team.write_bytes(b"ssh-ed25519 AAAA x\n")
    team.chmod(0o664)
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/authorized_keys").symlink_to(team)
    state = node.look(session, key_type=None)
    assert state.modes == {} and mode(team) == 0o664 and mode(team.parent) == 0o775
    data, before = state.files["authorized_keys"]
    node.change(session, [node.put("authorized_keys", before, (data or b"") + b"more\n")])
    assert team.read_bytes() == b"ssh-ed25519 AAAA x\nmore\n" and mode(team) == 0o664
    assert (home / ".ssh/authorized_keys").is_symlink()


def test_a_folder_that_is_a_link_elsewhere_is_not_narrowed(session: Session, home: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    away.chmod(0o775)
    (away / "config").write_bytes(b"")
    (away / "config").chmod(0o664)
    (home / ".ssh").symlink_to(away)
    assert node.look(session, key_type=None).modes == {}
    assert (mode(away), mode(away / "config")) == (0o775, 0o664)


def test_a_key_with_a_passphrase_is_left_alone_and_another_made(session: Session, home: Path) -> None:
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(ssh / "id_ed25519")], check=True)
    before = (ssh / "id_ed25519").read_bytes()
    state = node.look(session, key_type="ed25519")
    assert state.key_name == "id_ed25519_fleet" and state.created == ["id_ed25519_fleet"]
    assert (ssh / "id_ed25519").read_bytes() == before


def test_an_orphaned_public_key_is_not_overwritten(session: Session, home: Path) -> None:
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/id_ed25519.pub").write_bytes(b"somebody's")
    assert node.look(session, key_type="ed25519").key_name == "id_ed25519_fleet"
    assert (home / ".ssh/id_ed25519.pub").read_bytes() == b"somebody's"


def test_no_ssh_keygen_is_told_and_the_rest_goes_on(session: Session, home: Path) -> None:
    (home.parent / "bin/ssh-keygen").unlink()
    state = node.look(session, key_type="ed25519")
    assert state.key is None and state.no_key == "ssh-keygen is not installed"
    assert set(state.files) == set(node.FILES)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents, contents)
def test_any_bytes_come_and_go_unchanged(session: Session, home: Path, old: bytes, new: bytes) -> None:
    file = home / ".ssh/authorized_keys"
    file.parent.mkdir(exist_ok=True, mode=0o700)
    file.write_bytes(old)
    file.chmod(0o600)
    state = node.look(session, key_type=None)
    assert state.data("authorized_keys") == old
    done = node.change(session, [node.put("authorized_keys", state.files["authorized_keys"][1], new)])
    assert file.read_bytes() == new
    assert done.sums["authorized_keys"] == node.look(session, key_type=None).files["authorized_keys"][1]


def test_nothing_in_a_file_is_run(session: Session, home: Path) -> None:
    nasty = b"'; touch pwned; $(touch pwned) `touch pwned` \\' \"\n%s%n\\n\r\n"
    node.look(session, key_type=None)
    node.change(session, [node.put("config", "-", nasty)])
    assert (home / ".ssh/config").read_bytes() == nasty
    assert not list(home.rglob("pwned")) and not Path("pwned").exists()


def test_a_megabyte_goes_through(session: Session, home: Path) -> None:
    node.look(session, key_type=None)
    data = b"ssh-ed25519 AAAA line\n" * 50_000
    node.change(session, [node.put("authorized_keys", "-", data)])
    assert node.look(session, key_type=None).data("authorized_keys") == data


def test_a_symlink_keeps_being_one_and_the_mode_stays(session: Session, home: Path) -> None:
    real = home / "elsewhere" / "keys"
    real.parent.mkdir()
    real.write_bytes(b"old\n")
    real.chmod(0o400)
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/authorized_keys").symlink_to("../elsewhere/keys")
    state = node.look(session, key_type=None)
    node.change(session, [node.put("authorized_keys", state.files["authorized_keys"][1], b"new\n")])
    assert (home / ".ssh/authorized_keys").is_symlink()
    assert real.read_bytes() == b"new\n" and mode(real) == 0o400
    assert os.listdir(real.parent) == ["keys"]


def test_a_change_by_somebody_else_is_not_overwritten(session: Session, home: Path) -> None:
    state = node.look(session, key_type=None)
    file = home / ".ssh/authorized_keys"
    file.write_bytes(b"theirs\n")
    with pytest.raises(HostFailed, match="changed by somebody else"):
        node.change(session, [node.put("authorized_keys", state.files["authorized_keys"][1], b"ours\n")])
    assert file.read_bytes() == b"theirs\n" and os.listdir(file.parent) == ["authorized_keys"]


def test_two_at_once_on_a_shared_home_agree(session: Session, home: Path) -> None:
    node.look(session, key_type=None)
    for _ in range(2):  # both saw no file, both bring the same bytes
        node.change(session, [node.put("config", "-", b"same\n")])
    with pytest.raises(HostFailed):
        node.change(session, [node.put("config", "-", b"other\n")])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_loses_nothing(session: Session, home: Path) -> None:
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700)
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", str(ssh)], check=True)
    try:
        (ssh / "authorized_keys").write_bytes(b"precious\n")
        state = node.look(session, key_type=None)
        with pytest.raises(HostFailed, match="No space left"):
            node.change(session, [node.put("authorized_keys", state.files["authorized_keys"][1], b"x" * 100_000)])
        assert (ssh / "authorized_keys").read_bytes() == b"precious\n"
        assert os.listdir(ssh) == ["authorized_keys"]
    finally:
        subprocess.run(["/bin/umount", str(ssh)], check=True)


def test_a_nul_byte_is_refused_not_lost() -> None:
    with pytest.raises(HostFailed, match="NUL"):
        node.put("authorized_keys", "-", b"a\0b")


def test_only_the_key_that_fleet_made_is_dropped(session: Session, home: Path) -> None:
    state = node.look(session, key_type="ed25519")
    assert state.key is not None
    public = f"{state.key.type.decode()} {state.key.blob.decode()}"
    node.change(session, [node.call("drop_key", "id_ed25519", public[:-4] + "AAAA")])
    assert (home / ".ssh/id_ed25519").exists()
    node.change(session, [node.call("drop_key", "id_ed25519", public), node.call("drop_dir")])
    assert list(home.iterdir()) == []


def test_a_shell_that_prints_and_one_that_does_not_start(session: Session, home: Path) -> None:
    state, failed = node.parse_answer(b"CREATED .ssh\nFAIL no\nEND\n", "h")
    assert failed == "no" and state.created == [".ssh"]
    with pytest.raises(HostFailed, match="cut off"):
        node.parse_answer(b"CREATED .ssh\n", "h")
    with pytest.raises(HostFailed, match="changed while it was read"):
        node.parse_answer(b"FILE config 1:50\nshort\nEND\n", "h")
    (home.parent / "bin/sh").unlink()
    with pytest.raises(ConnectError, match="did not start"):
        node.look(session, key_type=None)

"""The head's keys and files, as setup-ssh makes and reads them."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from fleet.errors import ConnectError, HostFailed
from fleet.ops.setup_ssh import files


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def test_a_missing_key_is_made_private_and_then_reused(tmp_path: Path) -> None:
    path = tmp_path / ".ssh" / "id_ed25519"
    before = os.umask(0)
    try:
        made = files.ensure_key(path, "ed25519")
    finally:
        os.umask(before)
    assert made.comment.endswith(b" fleet")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    again = files.ensure_key(path, "ed25519")
    assert again == made


@pytest.mark.parametrize("what", ["key", "any file", "link"])
def test_a_key_that_others_can_read_is_refused_and_no_file_is_changed(what: str, tmp_path: Path) -> None:
    path = tmp_path / "id's"
    if what == "key":
        files.ensure_key(path, "ed25519")
    else:
        path.write_text("somebody's")
    path.chmod(0o644)
    named = path
    if what == "link":
        named = tmp_path / "link"
        named.symlink_to(path)
    with pytest.raises(ConnectError, match=r"others can read the key .* \(mode 644\)") as caught:
        files.ensure_key(named, "ed25519")
    assert shlex.quote(str(named)) in str(caught.value.hint) and path.stat().st_mode & 0o777 == 0o644


def test_a_key_that_cannot_be_used_is_an_error_with_a_hint(tmp_path: Path) -> None:
    locked, orphan = tmp_path / "locked", tmp_path / "orphan"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)], check=True)
    with pytest.raises(ConnectError, match="passphrase") as caught:
        files.ensure_key(locked, "ed25519")
    assert caught.value.hint and "ssh-add" in caught.value.hint
    (tmp_path / "junk").write_text("junk")
    (tmp_path / "junk").chmod(0o600)
    with pytest.raises(ConnectError, match="cannot be used"):
        files.ensure_key(tmp_path / "junk", "ed25519")
    orphan.with_name("orphan.pub").write_text("ssh-ed25519 AAAA")
    with pytest.raises(HostFailed, match="not its private key"):
        files.ensure_key(orphan, "ed25519")


def test_only_the_key_that_was_made_is_discarded(tmp_path: Path) -> None:
    path = tmp_path / "id"
    text = files.ensure_key(path, "ed25519").id
    assert not files.discard_key(path, text[:-3] + "AAA") and path.exists()
    assert files.discard_key(path, text) and list(tmp_path.iterdir()) == []
    assert not files.discard_key(path, text)


def test_write_keeps_symlink_and_mode_and_does_nothing_for_equal_bytes(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(b"a")
    real.chmod(0o644)
    link = tmp_path / "link"
    link.symlink_to(real)
    assert files.write(link, b"b")
    assert link.is_symlink() and real.read_bytes() == b"b" and real.stat().st_mode & 0o777 == 0o644
    before = real.stat()
    assert not files.write(link, b"b")
    assert real.stat().st_mtime_ns == before.st_mtime_ns and real.stat().st_ino == before.st_ino
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_new_files_and_folders_are_private(tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "known_hosts"
    files.write(file, b"x")
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700

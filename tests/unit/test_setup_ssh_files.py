"""The pure edits of setup-ssh: what is added can be taken away again, and nothing else ever moves."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import HostFailed
from fleet.ops.setup_ssh import edits
from fleet.ops.setup_ssh.edits import PublicKey, add_keys, append, blobs, parse_public_key, remove
from fleet.transport.ssh.hostkeys import HostKey

KEY = PublicKey(b"ssh-ed25519", b"AAAAC3NzaC1lZDI1NTE5AAAAIPATzJK", b"me@head fleet")
OTHER = PublicKey(b"ssh-rsa", b"AAAAB3NzaC1yc2EAAAADAQABAAABgQ", b"x")
HOST_KEY = HostKey("ssh-ed25519", b"one key, not a real one")
NEW_KEY = HostKey("ssh-ed25519", b"another key")
RSA_KEY = HostKey("ssh-rsa", b"an rsa key")

texts = st.binary(max_size=60) | st.lists(st.sampled_from([b"a b", b"", b"#c", KEY.line, b"\xff\xfe", b"x\r"])).map(
    b"\n".join
)


# -- lines ------------------------------------------------------------------------------------------------
@given(st.none() | texts, st.lists(st.sampled_from([b"one 1", b"two \xff", b"three"]), unique=True))
def test_what_was_appended_is_removed_and_no_more(data: bytes | None, lines: list[bytes]) -> None:
    new, added = append(data, lines)
    if lines:
        assert new is not None and new.endswith(lines[-1] + b"\n")
        assert new.startswith(data or b"")
    assert remove(new or b"", added) in {data or b"", (data or b"") + b"\n"}


def test_a_line_added_after_ours_stays_whole_when_ours_goes() -> None:
    new, added = append(b"first", [b"ours"])
    assert new == b"first\nours\n"
    assert remove(new + b"theirs\n", added) == b"first\ntheirs\n"


def test_removing_what_is_gone_already_changes_nothing() -> None:
    _, added = append(b"first", [b"ours"])
    assert remove(b"else\n", added) == b"else\n"


# -- authorized_keys --------------------------------------------------------------------------------------
def test_a_key_is_added_once_and_behind_a_missing_newline() -> None:
    once, _ = add_keys(b"ssh-rsa AAAAB3Nzzzz old", [KEY, KEY])
    assert once == b"ssh-rsa AAAAB3Nzzzz old\n" + KEY.line + b"\n"
    assert add_keys(once, [KEY])[0] is once


@pytest.mark.parametrize(
    "line",
    [
        b'from="10.0.0.0/8",command="echo \\"hi there\\"" ' + KEY.line,
        b"  " + KEY.line,
        KEY.line + b" # remark",
        KEY.line.replace(b" ", b"\t"),
        KEY.line + b"\r",
    ],
)
def test_a_key_that_is_there_in_any_form_is_left_alone(line: bytes) -> None:
    assert add_keys(line, [KEY])[0] == line


def test_a_commented_key_does_not_count() -> None:
    assert KEY.blob not in blobs(b"# " + KEY.line)


@pytest.mark.parametrize("line", [b"", b"garbage", b"ssh-ed25519", b"ssh-ed25519 ===", b'command="x" ssh-ed25519 AAAA'])
def test_what_is_no_public_key_is_refused(line: bytes) -> None:
    with pytest.raises(HostFailed):
        parse_public_key(line)


def test_a_nodes_comment_cannot_carry_a_second_line() -> None:
    key = parse_public_key(b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 a\x1b[31m\rssh-rsa")
    assert b"\x1b" not in key.line and b"\r" not in key.line


# -- known_hosts ------------------------------------------------------------------------------------------
def entry(names: str, key: HostKey) -> bytes:
    return f"{names} {key.text}\n".encode()


def test_only_missing_names_are_added() -> None:
    data = b"# mine\n" + entry("gpu1", HOST_KEY)
    new, added = edits.add_hosts(data, [(("gpu1", "10.0.0.1"), HOST_KEY)])
    assert new == data + entry("10.0.0.1", HOST_KEY)
    assert edits.add_hosts(new, [(("gpu1", "10.0.0.1"), HOST_KEY)])[0] is new
    assert remove(new or b"", added) == data


def test_hashed_and_wildcard_entries_count(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    real = HostKey("ssh-ed25519", b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + b"k" * 32)
    file.write_bytes(entry("gpu1", real) + entry("[10.0.0.1]:2222", real))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, stderr=subprocess.DEVNULL)
    data = file.read_bytes()
    assert b"gpu1" not in data
    assert edits.add_hosts(data, [(("gpu1", "[10.0.0.1]:2222"), real)])[0] == data
    assert edits.add_hosts(entry("*.cluster", real), [(("a.cluster",), real)])[1] == []
    assert edits.forget_hosts(data, ["gpu1"]) == data.splitlines(keepends=True)[1]


def test_forgetting_keeps_other_names_policies_and_the_key_to_keep() -> None:
    revoked = b"@revoked " + entry("gpu1", RSA_KEY)
    authority = b"@cert-authority " + entry("*", RSA_KEY)
    pattern = entry("gpu*", HOST_KEY)
    data = b"# c\n" + entry("gpu1,shared", HOST_KEY) + entry("GPU1", RSA_KEY) + revoked + authority + pattern
    assert edits.forget_hosts(data + entry("gpu1", NEW_KEY), ["gpu1"], keep=NEW_KEY) == (
        b"# c\n" + entry("shared", HOST_KEY) + revoked + authority + pattern + entry("gpu1", NEW_KEY)
    )


@given(texts)
def test_garbage_in_known_hosts_survives(data: bytes) -> None:
    new, added = edits.add_hosts(data, [(("h",), HOST_KEY)])
    assert remove(new or b"", added) in {data, data + b"\n"}
    assert edits.forget_hosts(data, ["h"]) == data

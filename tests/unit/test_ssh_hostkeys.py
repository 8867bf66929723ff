"""The one decision whether a presented host key is the right one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.ssh.known_hosts import HostKey, KnownHosts, parse
from tests.ssh_ends import key_check


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, HostKey]:
    """Real keys by a short name: ed1, ed2, rsa, ec."""
    folder = tmp_path_factory.mktemp("keys")
    made = {}
    for name, kind in (("ed1", "ed25519"), ("ed2", "ed25519"), ("rsa", "rsa"), ("ec", "ecdsa")):
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(folder / name)], check=True)
        line = (folder / f"{name}.pub").read_text()
        made[name] = parse(f"x {line}".encode(), "made")[0].key
    return made


def check(
    tmp_path: Path,
    lines: str,
    *,
    port: int = 22,
    pin: str | None = None,
    address: str = "10.0.0.1",
    known: KnownHosts | None = None,
    revoked: Path | None = None,
) -> Any:
    file = tmp_path / "known_hosts"
    file.write_text(lines, newline="")
    host = Host("gpu1", address, port=port, host_key=pin)
    return key_check(host, file, known, revoked)


def refused(judge: Any, key: HostKey) -> ConnectError:
    with pytest.raises(ConnectError) as caught:
        judge.check(key)
    return caught.value


def test_fingerprint_is_that_of_ssh_keygen(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    for key in keys.values():
        (tmp_path / "k.pub").write_text(key.text + "\n")
        said = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "k.pub")], capture_output=True, text=True)
        assert key.fingerprint == said.stdout.split()[1]


def test_known_changed_unknown(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    judge = check(tmp_path, f"10.0.0.1 {keys['ed1'].text}\n")
    judge.check(keys["ed1"])
    error = refused(judge, keys["ed2"])
    assert error.kind == "host-key"
    assert keys["ed1"].fingerprint in error.message
    assert keys["ed2"].fingerprint in error.message
    assert "known_hosts:1" in error.message
    assert error.hint is not None
    assert "--replace-key gpu1" in error.hint
    error = refused(check(tmp_path, ""), keys["ed2"])
    assert error.kind == "unknown-host-key"
    assert keys["ed2"].fingerprint in error.message


def test_another_type_than_on_file_is_a_change(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    judge = check(tmp_path, f"10.0.0.1 {keys['rsa'].text}\n")
    assert judge.preferred[0] == "ssh-rsa"
    assert refused(judge, keys["ed1"]).kind == "host-key"


def test_several_keys_on_file(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    judge = check(tmp_path, "".join(f"a,10.0.0.1,b {keys[k].text} comment here\n" for k in ("rsa", "ec")))
    assert set(judge.preferred[:2]) == {"ssh-rsa", "ecdsa-sha2-nistp256"}
    judge.check(keys["rsa"])
    judge.check(keys["ec"])
    assert keys["rsa"].fingerprint in refused(judge, keys["ed1"]).message


def test_hashed_names_as_ssh_keygen_makes_them(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"[10.0.0.1]:2222 {keys['ed1'].text}\n10.0.0.9 {keys['ed2'].text}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", str(file)], check=True, capture_output=True)
    text = file.read_text()
    assert "10.0.0" not in text
    check(tmp_path, text, port=2222).check(keys["ed1"])
    assert refused(check(tmp_path, text, port=2222), keys["ed2"]).kind == "host-key"
    assert refused(check(tmp_path, text, address="10.0.0.7"), keys["ed2"]).kind == "unknown-host-key"


def test_ports(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    both = f"10.0.0.1 {keys['ed1'].text}\n[10.0.0.1]:33 {keys['ed2'].text}\n"
    check(tmp_path, both, port=33).check(keys["ed2"])
    assert refused(check(tmp_path, both, port=33), keys["ed1"]).kind == "host-key"
    # as OpenSSH: the key on file without a port speaks for it, a different one says nothing
    bare = f"10.0.0.1 {keys['ed1'].text}\n"
    check(tmp_path, bare, port=33).check(keys["ed1"])
    assert refused(check(tmp_path, bare, port=33), keys["ed2"]).kind == "unknown-host-key"


def test_revoked_beats_everything(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    lines = f"10.0.0.1 {keys['ed1'].text}\n@revoked * {keys['ed1'].text}\n"
    for pin in (None, keys["ed1"].fingerprint):
        error = refused(check(tmp_path, lines, pin=pin), keys["ed1"])
        assert error.kind == "host-key"
        assert "revoked" in error.message


def test_revoked_holds_on_every_port(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    lines = f"[10.0.0.1]:33 {keys['ed1'].text}\n@revoked 10.0.0.1 {keys['ed1'].text}\n"
    assert "revoked" in refused(check(tmp_path, lines, port=33), keys["ed1"]).message
    only = f"@revoked 10.0.0.1 {keys['ed1'].text}\n"
    assert "revoked" in refused(check(tmp_path, only, port=33, pin=keys["ed1"].fingerprint), keys["ed1"]).message


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\x1d", "\x1e", "\r", "\0"])
def test_a_line_ends_at_a_newline_only(tmp_path: Path, keys: dict[str, HostKey], end: str) -> None:
    """What Python takes for a line's end as well would let a comment, or a name, vouch for a key."""
    for before in ("# from our wiki", f"other {keys['ed2'].text} comment"):
        lines = f"{before}{end}10.0.0.1 {keys['ed1'].text}\n"
        assert refused(check(tmp_path, lines), keys["ed1"]).kind == "unknown-host-key"
    # the reverse: a revocation behind such a break is not cut off from its line
    assert refused(check(tmp_path, f"@revoked * {keys['ed1'].text} a{end}b\n"), keys["ed1"]).kind == "host-key"


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\x1f", "\v"])
def test_words_end_at_blanks_and_tabs_only(tmp_path: Path, keys: dict[str, HostKey], blank: str) -> None:
    lines = f"10.0.0.1{blank}{keys['ed1'].text}\n"
    assert refused(check(tmp_path, lines), keys["ed1"]).kind == "unknown-host-key"
    check(tmp_path, f"\t10.0.0.1 \t{keys['ed1'].text}\tcomment\r\n").check(keys["ed1"])


def test_lines_agree_with_ssh_keygen(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    """The real `ssh-keygen -F` on the same file, line for line."""
    text = keys["ed1"].text
    lines = [
        "# c\u202810.0.0.1 " + text,
        "a\v10.0.0.1 " + text,
        "10.0.0.1\t" + text,
        "x,10.0.0.1 " + text + "\r",
        "@revoked 10.0.0.1 " + text,
        "@cert-authority 10.0.0.1 " + text,
        "10.0.0.* " + text,
        "10.0.0.10 " + text,
        "10.0.0.1\u00a0" + text,
        "!10.0.0.1,10.* " + text,
    ]
    for line in lines:
        (tmp_path / "one").write_text(line + "\n", newline="")
        said = subprocess.run(["ssh-keygen", "-F", "10.0.0.1", "-f", tmp_path / "one"], capture_output=True)
        found = [entry for entry in parse((line + "\n").encode(), "one") if entry.covers("10.0.0.1")]
        assert bool(found) == (said.returncode == 0), line


def test_a_file_of_revoked_keys(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    revoked = tmp_path / "revoked"
    lines = f"10.0.0.1 {keys['ed1'].text}\n10.0.0.1 {keys['ec'].text}\n"
    revoked.write_text(f"# lost\n\n  {keys['ed1'].text} laptop\r\n")
    error = refused(check(tmp_path, lines, revoked=revoked), keys["ed1"])
    assert error.kind == "host-key"
    assert str(revoked) in error.message
    check(tmp_path, lines, revoked=revoked).check(keys["ec"])
    # as ssh: without the file nobody is trusted
    error = refused(check(tmp_path, lines, revoked=tmp_path / "gone"), keys["ec"])
    assert (error.kind, error.where) == ("config", str(tmp_path / "gone"))


def test_a_krl_is_read_by_ssh_keygen(tmp_path: Path, keys: dict[str, HostKey], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost.pub").write_text(keys["ed1"].text + "\n")
    krl = tmp_path / "krl"
    subprocess.run(["ssh-keygen", "-q", "-k", "-f", krl, tmp_path / "lost.pub"], check=True)
    lines = f"10.0.0.1 {keys['ed1'].text}\n10.0.0.1 {keys['ec'].text}\n"
    assert refused(check(tmp_path, lines, revoked=krl), keys["ed1"]).kind == "host-key"
    check(tmp_path, lines, revoked=krl).check(keys["ec"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ssh-keygen" in refused(check(tmp_path, lines, revoked=krl), keys["ec"]).message


def test_a_certificate_authority_is_named(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    for names in ("*", "10.0.0.1"):
        error = refused(check(tmp_path, f"# c\n@cert-authority {names} {keys['rsa'].text}\n", port=33), keys["ed1"])
        assert error.kind == "unknown-host-key"
        assert "@cert-authority" in error.message
        assert "known_hosts:2" in error.message
    # it vouches for no key itself, and does not stand in the way of one on file
    both = f"@cert-authority * {keys['rsa'].text}\n10.0.0.1 {keys['ed1'].text}\n"
    assert refused(check(tmp_path, both), keys["rsa"]).kind == "host-key"
    check(tmp_path, both).check(keys["ed1"])


def test_wildcards_and_negation(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    lines = f"10.0.0.*,!10.0.0.2 {keys['ed1'].text}\n"
    check(tmp_path, lines).check(keys["ed1"])
    assert refused(check(tmp_path, lines, address="10.0.0.2"), keys["ed1"]).kind == "unknown-host-key"


def test_garbage_is_skipped(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    lines = "\n".join(
        [
            "# c",
            "x",
            "a b c",
            "|1|x ssh-rsa AAAA",
            "@cert-authority * ssh-rsa AAAA",
            "\0\xff",
            f"|1|!!|== {keys['ed1'].text}",
            "10.0.0.1 ssh-rsa A",
            f"10.0.0.1 {keys['ed1'].text}",
        ]
    )
    check(tmp_path, lines).check(keys["ed1"])


def test_pin(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    pin = keys["ed1"].fingerprint
    check(tmp_path, "", pin=pin).check(keys["ed1"])
    error = refused(check(tmp_path, "", pin=pin), keys["ed2"])
    assert error.kind == "host-key"
    assert pin in error.message
    assert keys["ed2"].fingerprint in error.message
    # also where known_hosts has the presented one
    assert refused(check(tmp_path, f"10.0.0.1 {keys['ed2'].text}\n", pin=pin), keys["ed2"]).kind == "host-key"
    # a pin does not overrule a contradiction, but a key of another type on file is none
    assert refused(check(tmp_path, f"10.0.0.1 {keys['ed2'].text}\n", pin=pin), keys["ed1"]).kind == "host-key"
    check(tmp_path, f"10.0.0.1 {keys['rsa'].text}\n", pin=pin).check(keys["ed1"])


def test_an_enrolment_is_seen_at_once(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    known = KnownHosts()
    assert refused(check(tmp_path, "", known=known), keys["ed1"]).kind == "unknown-host-key"
    check(tmp_path, f"10.0.0.1 {keys['ed1'].text}\n", known=known).check(keys["ed1"])

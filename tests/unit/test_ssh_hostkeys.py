"""The one decision whether a presented host key is the right one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.ssh_endpoint import Endpoint
from fleet.transport.ssh_hostkeys import HostKey, HostKeyCheck, KnownHosts, parse


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, HostKey]:
    """Real keys by a short name: ed1, ed2, rsa, ec."""
    folder = tmp_path_factory.mktemp("keys")
    made = {}
    for name, kind in (("ed1", "ed25519"), ("ed2", "ed25519"), ("rsa", "rsa"), ("ec", "ecdsa")):
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(folder / name)], check=True)
        line = (folder / f"{name}.pub").read_text()
        made[name] = parse(f"x {line}", "made")[0].key
    return made


def check(
    tmp_path: Path, lines: str, *, port: int = 22, pin: str | None = None, address: str = "10.0.0.1",
    known: KnownHosts | None = None,
) -> HostKeyCheck:
    file = tmp_path / "known_hosts"
    file.write_text(lines)
    host = Host("gpu1", address, port=port, host_key=pin)
    return HostKeyCheck(host, Endpoint(address, port, "me", (), (), (file,)), known or KnownHosts())


def refused(judge: HostKeyCheck, key: HostKey) -> ConnectError:
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


def test_wildcards_and_negation(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    lines = f"10.0.0.*,!10.0.0.2 {keys['ed1'].text}\n"
    check(tmp_path, lines).check(keys["ed1"])
    assert refused(check(tmp_path, lines, address="10.0.0.2"), keys["ed1"]).kind == "unknown-host-key"


def test_garbage_is_skipped(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    lines = "\n".join(["# c", "x", "a b c", "|1|x ssh-rsa AAAA", "@cert-authority * ssh-rsa AAAA", "\0\xff",
                       f"|1|!!|== {keys['ed1'].text}", "10.0.0.1 ssh-rsa A", f"10.0.0.1 {keys['ed1'].text}"])
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


def test_accept_unknown_is_never_asked_about_a_change(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    file = tmp_path / "known_hosts"
    asked: list[str] = []

    def accept(host: Host, key: HostKey) -> bool:
        asked.append(key.fingerprint)
        return True

    for text, asks in (("", 1), (f"10.0.0.1 {keys['ed1'].text}\n", 0)):
        asked.clear()
        file.write_text(text)
        judge = HostKeyCheck(Host("g", "10.0.0.1"), Endpoint("10.0.0.1", 22, "me", (), (), (file,)),
                             KnownHosts(), accept)
        if asks:
            judge.check(keys["ed2"])
        else:
            assert refused(judge, keys["ed2"]).kind == "host-key"
        assert len(asked) == asks


def test_an_enrolment_is_seen_at_once(tmp_path: Path, keys: dict[str, HostKey]) -> None:
    known = KnownHosts()
    assert refused(check(tmp_path, "", known=known), keys["ed1"]).kind == "unknown-host-key"
    check(tmp_path, f"10.0.0.1 {keys['ed1'].text}\n", known=known).check(keys["ed1"])

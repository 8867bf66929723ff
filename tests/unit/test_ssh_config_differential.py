"""~/.ssh/config as OpenSSH reads it: the real `ssh -G` beside fleet, file by file."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.ssh.endpoint import Endpoint, parse_hop
from tests.ssh_ends import reader, spied_ssh
from tests.unit import ssh_config_cases as cases

pytestmark = pytest.mark.slow
OWN = pwd.getpwuid(os.getuid()).pw_dir
SSH = shutil.which("ssh") or "ssh"
BOTH = {**cases.COMMON, **cases.ASKED}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the files to include. ssh takes ~ of an Include from HOME, every other from the user database."""
    for name, text in cases.INCLUDED.items():
        file = tmp_path / ".ssh" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FLEET_TEST_KEYS", "/keys")
    monkeypatch.setenv("FLEET_TEST_SOCK", "/run/sock")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/auth")
    return tmp_path


def ssh(home: Path, name: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SSH, "-T", "-F", str(home / ".ssh/config"), *options, "-G", "--", name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def put_in(home: Path, name: str, text: str) -> str:
    """What ssh makes of ~ and tokens: it shows that of a ControlPath."""
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    said = ssh(home, name, "-o", f'ControlPath="{text}"').stdout
    return next(line.split(" ", 1)[1] for line in said.split("\n") if line.startswith("controlpath "))


def theirs(home: Path, name: str, said: str) -> dict[str, object]:
    """What ssh says of a host, in the words of an Endpoint."""
    lines = [line.partition(" ")[::2] for line in said.split("\n")]
    one = dict(lines)
    several = {key: [value for k, value in lines if k == key] for key, _ in lines}
    files = [put_in(home, name, text) for text in several.get("identityfile", []) if text != "none"]
    default = [f"{OWN}/.ssh/id_rsa", f"{OWN}/.ssh/id_ecdsa"]
    agent = one.get("identityagent", "SSH_AUTH_SOCK")
    return {
        "address": one["hostname"],
        "port": int(one["port"]),
        "user": one["user"],
        "identities": None if files[:2] == default else list(dict.fromkeys(files)),
        "only": one["identitiesonly"] == "yes",
        "jump": [parse_hop(put_in(home, name, hop)) for hop in one.get("proxyjump", "").split(",") if hop],
        "known": [one[key] for key in ("userknownhostsfile", "globalknownhostsfile") if one[key].lower() != "none"],
        "alias": one.get("hostkeyalias"),
        "agent": {"none": None, "SSH_AUTH_SOCK": "/run/auth", "$FLEET_TEST_SOCK": "/run/sock"}.get(agent, agent),
        "certificates": [put_in(home, name, text) for text in several.get("certificatefile", [])],
    }


def ours(home: Path, found: Endpoint) -> dict[str, object]:
    def text(path: object) -> str:
        return re.sub(f"^{re.escape(str(home))}/", f"{OWN}/", str(path))

    known = [text(path) for path in found.known_hosts_files]
    system = [path for path in known if path in ("/k/g", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")]
    return {
        "address": found.address,
        "port": found.port,
        "user": found.user,
        "identities": [text(p) for p in found.identity_files] if found.explicit_identities else None,
        "only": found.identities_only,
        "jump": [parse_hop(hop) for hop in found.proxy_jump],
        "known": [" ".join(part) for part in ([p for p in known if p not in system], system) if part],
        "alias": found.host_key_alias,
        "agent": found.agent and text(found.agent),
        "certificates": [text(path) for path in found.certificates],
    }


@pytest.mark.parametrize("case", BOTH)
def test_agrees_with_ssh(case: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, names = BOTH[case]
    file = home / ".ssh/config"
    file.write_text(text)
    read = reader(home, file)
    asked = spied_ssh(home, monkeypatch)
    for name in names:
        said = ssh(home, name)
        reason = re.search(r"^(\S+?):? line (\d+): ", said.stderr, re.MULTILINE)
        command = re.search(r"^proxycommand (.*)", said.stdout, re.MULTILINE)
        if command and not said.returncode:
            line = next(i for i, line in enumerate(text.split("\n"), 1) if command[1] in line)
            assert read(Host(name, name)).proxy_command == f"{file}:{line}"
        elif said.returncode:
            with pytest.raises(ConnectError) as caught:
                read(Host(name, name))
            assert caught.value.kind == "config"
            assert caught.value.where
            if reason:
                assert caught.value.where == f"{reason[1]}:{reason[2]}"
        else:
            assert ours(home, read(Host(name, name))) == theirs(home, name, said.stdout), name
    if case in cases.COMMON:
        assert asked() == []


def test_there_are_enough_of_them() -> None:
    assert len(BOTH) >= 80
    assert len(cases.COMMON) + len(cases.ASKED) == len(BOTH)

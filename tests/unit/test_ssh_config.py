"""Where SSH goes: the inventory over ~/.ssh/config over OpenSSH's defaults."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.ssh_config import SshConfig
from fleet.transport.ssh_endpoint import Endpoint, parse_hop, resolve

ME = pwd.getpwuid(os.getuid()).pw_name


def endpoint(home: Path, host: Host, text: str = "") -> Endpoint:
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/config").write_text(text)
    return resolve(host, SshConfig(home, (home / ".ssh/config",)))


def test_defaults_are_those_of_openssh(tmp_path: Path) -> None:
    found = endpoint(tmp_path, Host("gpu1", "gpu1"))
    assert (found.address, found.port, found.user) == ("gpu1", 22, ME)
    assert found.identity_files == tuple(tmp_path / ".ssh" / k for k in ("id_ed25519", "id_ecdsa", "id_rsa"))
    assert found.known_hosts_files == (tmp_path / ".ssh/known_hosts", Path("/etc/ssh/ssh_known_hosts"))
    assert not found.proxy_jump
    assert not found.identities_only
    assert found.known_name == "gpu1"


def test_config_fills_in_and_the_inventory_wins(tmp_path: Path) -> None:
    text = """
    # a comment
    Host gpu1 gpu2
        HostName 10.0.0.%h
        User=train
        Port 2222
        IdentityFile ~/.ssh/one
        IdentityFile %d/keys/%r@%h
        ProxyJump me@bastion:2200,inner
    Host *
        User nobody
        IdentityFile "~/.ssh/last one"
        UserKnownHostsFile ~/kh1 ~/kh2
        HostKeyAlias shared
        IdentitiesOnly yes
    """
    found = endpoint(tmp_path, Host("gpu1", "gpu1"), text)
    assert (found.address, found.port, found.user) == ("10.0.0.gpu1", 2222, "train")
    assert found.identity_files == (
        tmp_path / ".ssh/one", tmp_path / "keys/train@10.0.0.gpu1", tmp_path / ".ssh/last one")
    assert found.proxy_jump == ("me@bastion:2200", "inner")
    assert found.known_hosts_files[:2] == (tmp_path / "kh1", tmp_path / "kh2")
    assert found.known_name == "shared"
    assert found.identities_only

    own = Host("gpu1", "1.2.3.4", user="root", port=22, identity_file="~/mine", proxy_jump="none")
    found = endpoint(tmp_path, own, text)
    assert (found.address, found.port, found.user, found.proxy_jump) == ("1.2.3.4", 22, "root", ())
    assert found.identity_files[0] == tmp_path / "mine"


def test_an_address_of_its_own_is_looked_up_behind_the_name(tmp_path: Path) -> None:
    text = "Host gpu1\n User byname\nHost 10.*\n User byaddress\n Port 33\n"
    found = endpoint(tmp_path, Host("gpu1", "10.1.2.3"), text)
    assert (found.user, found.port) == ("byname", 33)


def test_patterns(tmp_path: Path) -> None:
    text = "Host gpu? !gpu3\n Port 1\nHost !*\n Port 2\nHost g[p]u3\n Port 3\n"
    ports = [endpoint(tmp_path, Host(n, n), text).port for n in ("gpu1", "GPU2", "gpu3", "gpu10")]
    assert ports == [1, 1, 22, 22]


def test_match(tmp_path: Path) -> None:
    text = (
        "Host alias\n HostName real\n"
        "Match host real originalhost alias\n Port 10\n"
        f"Match localuser {ME} user other\n Port 11\n"
        "Match !host real\n User seen\n"
        "Match all\n Port 12\n"
    )
    assert endpoint(tmp_path, Host("alias", "alias"), text).port == 10
    other = endpoint(tmp_path, Host("x", "x"), text)
    assert (other.port, other.user) == (12, "seen")


def test_match_exec_runs_nothing_and_says_so(tmp_path: Path) -> None:
    text = f'Match exec "touch {tmp_path}/ran"\n Port 10\nMatch all\n Port 11\n'
    found = endpoint(tmp_path, Host("x", "x"), text)
    assert found.port == 11
    assert not (tmp_path / "ran").exists()
    assert "Match exec" in found.notes[0]
    assert ":1:" in found.notes[0]


def test_include_ends_with_its_file_and_stays_within_its_block(tmp_path: Path) -> None:
    ssh = tmp_path / ".ssh"
    (ssh / "config.d").mkdir(parents=True)
    (ssh / "config.d/a").write_text("Host gpu1\n Port 1\n")
    (ssh / "config.d/b").write_text("Host *\n User fromb\n")
    (ssh / "loop").write_text("Include loop\n")
    text = ("Include config.d/* nowhere\nCompression yes\nIdentityFile /k\n"
            "Host gpu2\n Include ~/.ssh/config.d/a\n Port 2\n")
    one, two = (endpoint(tmp_path, Host(n, n), text) for n in ("gpu1", "gpu2"))
    assert (one.port, one.user, one.identity_files) == (1, "fromb", (Path("/k"),))
    assert two.port == 2
    with pytest.raises(ConnectError, match="too deep"):
        endpoint(tmp_path, Host("x", "x"), "Include loop\n")


@pytest.mark.parametrize(
    ("text", "where"),
    [("Port no", ":1"), ("\nPort 70000", ":2"), ('Host "x', ":1"), ("ProxyCommand nc %h %p", ":1")],
)
def test_what_cannot_be_followed_is_an_error_with_its_line(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(ConnectError) as caught:
        endpoint(tmp_path, Host("x", "x"), text)
    assert caught.value.where is not None
    assert caught.value.where.endswith(where)
    assert caught.value.kind == "config"


@pytest.mark.parametrize("command", ["ssh -W %h:%p jump", "ssh -q -W %h:%p jump", "ssh jump -W %h:%p"])
def test_the_old_spelling_of_proxyjump(tmp_path: Path, command: str) -> None:
    assert endpoint(tmp_path, Host("x", "x"), f"ProxyCommand {command}").proxy_jump == ("jump",)
    assert endpoint(tmp_path, Host("x", "x"), f"ProxyJump none\nProxyCommand {command}").proxy_jump == ()
    own = Host("x", "x", proxy_jump="other")
    assert endpoint(tmp_path, own, "ProxyCommand rm -rf /").proxy_jump == ("other",)


def test_hops() -> None:
    assert parse_hop("me@host.example:2222") == Host("host.example", "host.example", user="me", port=2222)
    assert parse_hop("[::1]:22").address == "::1"
    for bad in ("-oProxyCommand=id", "a b", "x:0", "x:99999", "me@-x", "@x", "$(id)", "-l@x"):
        with pytest.raises(ConnectError) as caught:
            parse_hop(bad)
        assert caught.value.kind == "gateway"


def test_ports_and_ipv6_in_known_names(tmp_path: Path) -> None:
    assert endpoint(tmp_path, Host("a", "::1", port=2200)).known_name == "[::1]:2200"
    assert endpoint(tmp_path, Host("a", "::1")).known_name == "::1"
    assert str(endpoint(tmp_path, Host("a", "::1", user="me"))) == "me@[::1]:22"


def test_agrees_with_ssh_itself(tmp_path: Path) -> None:
    """The real `ssh -G` on the same config, for what both print."""
    text = (
        "Host a b !c\n User u1\n HostName 10.0.0.1\n"
        "Match originalhost b\n Port 99\n"
        "Host *\n Port 55\n User u2\n IdentityFile /k/%r\n ProxyJump q@jump:7\n"
    )
    for name in ("a", "b", "c"):
        found = endpoint(tmp_path, Host(name, name), text)
        said = subprocess.run(["ssh", "-F", str(tmp_path / ".ssh/config"), "-G", name], check=True,
                              capture_output=True, text=True).stdout.splitlines()
        theirs = dict(line.split(" ", 1) for line in said if " " in line)
        assert found.address == theirs["hostname"]
        assert str(found.port) == theirs["port"]
        assert found.user == theirs["user"]
        assert found.proxy_jump == (theirs["proxyjump"],)
        # ssh -G leaves tokens of IdentityFile as they are
        assert theirs["identityfile"].replace("%r", found.user) == str(found.identity_files[0])

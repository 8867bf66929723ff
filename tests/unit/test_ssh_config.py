"""Where SSH goes: the inventory over ~/.ssh/config over OpenSSH's defaults."""

from __future__ import annotations

import os
import pwd
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.errors import ConnectError, Interrupted
from fleet.model import Host
from fleet.transport.ssh.endpoint import parse_hop
from tests.ssh_ends import Cancel, KnownHosts, endpoint, reader, setup_block, spied_ssh

ME = pwd.getpwuid(os.getuid()).pw_name


def test_defaults_are_those_of_openssh(tmp_path: Path) -> None:
    found = endpoint(tmp_path, Host("gpu1", "gpu1"))
    assert (found.address, found.port, found.user) == ("gpu1", 22, ME)
    assert found.identity_files == tuple(tmp_path / ".ssh" / k for k in ("id_ed25519", "id_ecdsa", "id_rsa"))
    assert found.known_hosts_files == (
        tmp_path / ".ssh/known_hosts",
        tmp_path / ".ssh/known_hosts2",
        Path("/etc/ssh/ssh_known_hosts"),
        Path("/etc/ssh/ssh_known_hosts2"),
    )
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
        tmp_path / ".ssh/one",
        tmp_path / "keys/train@10.0.0.gpu1",
        tmp_path / ".ssh/last one",
    )
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
    assert ports == [1, 22, 22, 22]


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


def test_match_exec_runs_as_under_ssh(tmp_path: Path) -> None:
    text = f'Match exec "touch {tmp_path}/ran-%n; test %n = x"\n Port 10\nMatch all\n Port 11\n'
    assert [endpoint(tmp_path, Host(n, n), text).port for n in ("x", "y")] == [10, 11]
    assert sorted(file.name for file in tmp_path.glob("ran-*")) == ["ran-x", "ran-y"]


@pytest.mark.parametrize("name", ["$(touch${IFS}RAN)", "-oProxyCommand=touch RAN", "x;touch RAN", "x RAN", "", "x\n"])
def test_a_name_that_is_none_reaches_no_ssh(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConnectError, match="not a host name"):
        endpoint(tmp_path, Host(name, name), 'Match exec "echo %n > ran"\n Port 10\n')
    assert sorted(file.name for file in tmp_path.iterdir()) == [".ssh"]


def test_an_address_that_is_none_reaches_no_ssh(tmp_path: Path) -> None:
    for address in ("x\nProxyCommand id", "-x", "a b", '"', "%h;id"):
        with pytest.raises(ConnectError, match="not a host name"):
            endpoint(tmp_path, Host("gpu1", address), "User 'me'\n")


@pytest.mark.parametrize("address", ["::1", "fe80::1%lo", "10.0.0.9"])
def test_addresses_of_every_kind_can_be_asked_about(tmp_path: Path, address: str) -> None:
    found = endpoint(tmp_path, Host("gpu1", address), f"Match host {address}\n IdentityFile /k/%h\n")
    assert (found.address, found.identity_files) == (address, (Path(f"/k/{address}"),))


def test_a_file_of_revoked_keys_is_heeded(tmp_path: Path) -> None:
    assert endpoint(tmp_path, Host("x", "x"), "RevokedHostKeys ~/.ssh/revoked-%h\n").revoked == (
        tmp_path / ".ssh/revoked-x"
    )
    assert endpoint(tmp_path, Host("x", "x"), "RevokedHostKeys none\n").revoked is None


def test_what_the_inventory_says_is_on_the_command_line(tmp_path: Path) -> None:
    """As ssh -l, -p and -o HostName: Match and tokens see it."""
    text = "Match user train host 10.0.0.9\n IdentityFile /k/%h-%p-%r\n"
    host = Host("gpu1", "10.0.0.9", user="train", port=33)
    assert endpoint(tmp_path, host, text).identity_files == (Path("/k/10.0.0.9-33-train"),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\nIdentityFile /k/%z\n", "no token %z"),
        ("\nIdentityFile ${FLEET_NO_SUCH}/k\n", "no FLEET_NO_SUCH"),
        ("\nProxyJump %z.gate\n", "no token %z"),
        ("\nProxyCommand nc %h 22 # so\n", "runs no ProxyCommand"),
    ],
)
def test_what_ssh_would_fail_on_later_is_told_at_once(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConnectError, match=says) as caught:
        endpoint(tmp_path, Host("x", "x"), text)
    assert caught.value.where == f"{tmp_path}/.ssh/config:2"


def test_what_fleet_does_not_follow_is_noted_with_its_line(tmp_path: Path) -> None:
    found = endpoint(tmp_path, Host("x", "x"), "\nBindAddress 127.0.0.1\n")
    assert found.notes == (f"{tmp_path}/.ssh/config:2: fleet does not follow BindAddress",)


def test_everything_through_the_bastion_is_also_about_the_bastion(tmp_path: Path) -> None:
    """ssh itself says "jumphost loop"."""
    text = "Host *\n ProxyJump gate # all\n User me\n"
    assert endpoint(tmp_path, Host("gate", "gate"), text).proxy_jump == ()
    assert endpoint(tmp_path, Host("gate", "gate"), text).user == "me"
    assert endpoint(tmp_path, Host("x", "x"), text).proxy_jump == ("gate",)


def test_without_an_openssh_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    text = 'Host one\n Port 33\nHost two\n User "me"\n'
    assert endpoint(tmp_path, Host("one", "one"), text).port == 33
    with pytest.raises(ConnectError, match="OpenSSH") as caught:
        endpoint(tmp_path, Host("two", "two"), text)
    assert caught.value.where == f"{tmp_path}/.ssh/config:4"
    assert caught.value.hint is not None
    assert "openssh-client" in caught.value.hint


def test_who_may_write_to_it_is_for_ssh_to_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/open").write_text("Port 33\n")
    (tmp_path / ".ssh/open").chmod(0o666)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConnectError, match="Bad owner or permissions"):
        endpoint(tmp_path, Host("x", "x"), "Include open\n")


def test_ssh_is_asked_once_about_a_host_and_at_all_only_where_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spied_ssh(tmp_path, monkeypatch)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text('Host gate\n User "me"\nHost *\n Port 33\n')
    read = reader(tmp_path, tmp_path / ".ssh/config")
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: read(Host("gate", "gate")), range(64)))
    assert {e.user for e in found} == {"me"}
    assert sorted(words[-1] for words in asked()) == [
        "gate",
        "nobody.invalid",
    ]  # and once, what ssh says of a host that nothing is set for
    for i in range(64):
        assert read(Host(f"n{i}", f"n{i}")).port == 33
    assert len(asked()) == 2


SYSTEMS = {
    "Debian": {
        "ssh_config": "Include {etc}/ssh_config.d/*.conf\n\nHost *\n#   Port 22\n    SendEnv LANG LC_*\n"
        "    HashKnownHosts yes\n    GSSAPIAuthentication yes\n"
    },
    "Red Hat": {
        "ssh_config": "# $OpenBSD$\n\n# Host *\n#   Port 22\nInclude {etc}/ssh_config.d/*.conf\n",
        "ssh_config.d/50-redhat.conf": "Match final all\n\t# Follow system-wide Crypto Policy\n"
        "\tInclude {etc}/openssh.config\n\n\tGSSAPIAuthentication yes\n"
        "\n\tForwardX11Trusted yes\n",
        "openssh.config": "Ciphers aes256-gcm@openssh.com,aes128-ctr\nMACs hmac-sha2-256-etm@openssh.com\n"
        "KexAlgorithms curve25519-sha256\nPubkeyAcceptedAlgorithms ssh-ed25519\n"
        "RequiredRSASize 2048\n",
    },
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_distributions_own_file_needs_no_ssh(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SYSTEMS[system].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("{etc}", str(tmp_path)))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host x\n HostName 10.0.0.7\nHost 10.*\n User byaddress\n")
    monkeypatch.setattr("fleet.transport.ssh.config.SYSTEM_CONFIG", tmp_path / "ssh_config")
    monkeypatch.setenv("PATH", "")
    found = reader(tmp_path, tmp_path / ".ssh/config", tmp_path / "ssh_config")(Host("x", "x"))
    # with "Match final", ssh reads the file once more for the address
    assert (found.address, found.user) == ("10.0.0.7", "byaddress" if system == "Red Hat" else ME)


def test_a_match_exec_that_hangs_is_bounded_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Timer(threading.Thread):
        """Its time is over when the command has begun, however long that takes."""

        def __init__(self, seconds: float, over: Callable[[], None]) -> None:
            super().__init__(daemon=True)
            self.over, self.cancelled = over, threading.Event()
            assert seconds == 10.0

        def run(self) -> None:
            while not self.cancelled.wait(0.02):
                if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
                    self.over()
                    return

        def cancel(self) -> None:
            self.cancelled.set()

    monkeypatch.setattr(threading, "Timer", Timer)
    text = f'Match exec "echo $$ > {tmp_path}/pid; exec sleep 99"\n Port 10\n'
    with pytest.raises(ConnectError, match="no answer within"):
        endpoint(tmp_path, Host("x", "x"), text)
    cmdline = Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")
    deadline = time.monotonic() + 60  # killed it is, but who is killed still has to get the processor
    while cmdline.exists() and cmdline.read_bytes() == b"sleep\x0099\0":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_ctrl_c_ends_a_match_exec_that_hangs(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text(f'Match exec "touch {tmp_path}/began; exec sleep 99"\n Port 10\n')
    cancel = Cancel()

    def interrupt() -> None:
        while not (tmp_path / "began").exists():
            time.sleep(0.01)
        cancel.set()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted):
        reader(tmp_path, tmp_path / ".ssh/config")(Host("x", "x"), cancel)


def test_ssh_reads_the_users_own_file_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With -F it would judge no permissions, and read no other file."""
    me = pwd.struct_passwd(("me", "x", os.getuid(), 0, "", str(tmp_path), "/bin/sh"))
    monkeypatch.setattr("pwd.getpwuid", lambda uid: me)
    asked = spied_ssh(tmp_path, monkeypatch)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text('User "me"\n')
    reader(tmp_path)(Host("x", "x"))
    assert ["-T", "-N", "-G", "--", "x"] in asked()


def _calls(home: Path, names: list[str]) -> int:
    """Functions called to resolve these hosts and to look up their keys."""
    block = setup_block(names, home / "known")
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/config").write_bytes(block + b"Host *\n Port 33\n")
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    (home / "known").write_text("".join(f"ip-{name} {key}\n" for name in names))
    count = 0

    def count_one(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    read, known = reader(home, home / ".ssh/config"), KnownHosts()
    sys.setprofile(count_one)
    try:
        for name in names:
            found = read(Host(name, name))
            assert (found.address, len(known.of(found).known)) == (f"ip-{name}", 1)
    finally:
        sys.setprofile(None)
    return count


def test_the_work_is_linear_in_hosts_with_the_blocks_of_setup_ssh(tmp_path: Path) -> None:
    few, many = (_calls(tmp_path, [f"gpu{i}" for i in range(n)]) for n in (100, 400))
    assert many < 4.2 * few


def test_include_ends_with_its_file_and_stays_within_its_block(tmp_path: Path) -> None:
    ssh = tmp_path / ".ssh"
    (ssh / "config.d").mkdir(parents=True)
    (ssh / "config.d/a").write_text("Host gpu1\n Port 1\n")
    (ssh / "config.d/b").write_text("Host *\n User fromb\n")
    (ssh / "loop").write_text("Include loop\n")
    text = (
        "Include config.d/* nowhere\nCompression yes\nIdentityFile /k\nHost gpu2\n Include ~/.ssh/config.d/a\n Port 2\n"
    )
    one, two = (endpoint(tmp_path, Host(n, n), text) for n in ("gpu1", "gpu2"))
    assert (one.port, one.user, one.identity_files) == (1, "fromb", (Path("/k"),))
    assert two.port == 2
    with pytest.raises(ConnectError, match="Too many recursive"):
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

"""What only OpenSSH's own client does, and what `ssh` processes must not do: outlive their fleet."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import Cancel
from fleet.transport.openssh.master import Master
from fleet.transport.openssh.transport import OpensshChannel, OpensshTransport
from fleet.transport.pdsh import PdshTransport
from fleet.transport.shell import run_line
from tests.lab.private_sshd import Head, Sshd, listener, make_key, running_agent
from tests.lab.transport_tools import TIMEOUT, failure, transport, wait_until

KINDS = ("openssh",)


def runs(head: Head, host: Host) -> bool:
    session = transport(head).connect(host, Cancel())
    with contextlib.closing(session):
        done = run_line(session, "echo in")
    return (done.stdout, done.stderr) == (b"in\n", b"")


def test_a_host_that_takes_nothing_but_a_certificate(tmp_path: Path, head: Head) -> None:
    make_key(tmp_path / "ca")
    settings = [f"TrustedUserCAKeys {tmp_path}/ca.pub", "AuthorizedKeysFile none"]
    server = Sshd(tmp_path / "s", settings=settings)
    try:
        head.knows(server)
        assert failure(head, server.host()).kind == "auth"
        subprocess.run(["ssh-keygen", "-q", "-s", tmp_path / "ca", "-I", "me", "-n", "root", head.public], check=True)
        assert runs(head, server.host())
    finally:
        server.stop()


@pytest.fixture()
def walled(head: Head, sshd: Sshd) -> Head:
    """Its config leads to "node" through a command; the command reaches what the name stands for."""
    code = "import os, socket, sys, threading; s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
    code += "def up():\n while d := os.read(0, 65536): s.sendall(d)\n s.shutdown(1)\n"
    code += "threading.Thread(target=up, daemon=True).start()\nwhile d := s.recv(65536): os.write(1, d)\n"
    (head.home / "lead.py").write_text(code)
    (head.ssh / "config").write_text(
        f"Host node\n HostKeyAlias there\n ProxyCommand {sys.executable} {head.home}/lead.py 127.0.0.1 {sshd.port}\n"
        'Host nowhere\n ProxyCommand sh -c "echo no way there >&2; exit 1"\n'
    )
    with head.known_hosts.open("a") as file:
        file.write(f"there {sshd.public_key()}\n")
    return head


def test_a_host_behind_a_proxy_command(walled: Head) -> None:
    assert runs(walled, Host("node", "node", user="root"))
    error = failure(walled, Host("nowhere", "nowhere"))
    assert error.kind == "gateway" and "no way there" in error.message
    assert error.where == f"{walled.ssh}/config:5"


def test_a_match_exec_and_the_users_own_multiplexing(head: Head, sshd: Sshd) -> None:
    (head.ssh / "config").write_text(
        f'Match exec "test %n = node"\n HostName 127.0.0.1\n Port {sshd.port}\n User root\n'
        f"Host *\n ControlMaster auto\n ControlPath {head.home}/%C\n ControlPersist 600\n LocalForward 9 127.0.0.1:9\n"
        " RemoteCommand false\n RequestTTY force\n StrictHostKeyChecking no\n"
        " LogVerbose ssh.c:*,clientloop.c:*,mux.c:*\n"
    )
    assert runs(head, Host("node", "node"))
    assert not [path for path in head.home.iterdir() if path.is_socket()]
    # no word of the user's config makes it trust whoever answers
    head.known_hosts.write_text("")
    assert failure(head, Host("node", "node")).kind == "unknown-host-key"


@pytest.mark.parametrize(
    "word", ["ForkAfterAuthentication yes", "SessionType none", "SessionType subsystem", "StdinNull yes"]
)
def test_what_a_config_says_for_other_uses_of_ssh(head: Head, sshd: Sshd, word: str) -> None:
    (head.ssh / "config").write_text(f"Host *\n {word}\n")
    with contextlib.closing(transport(head).connect(sshd.host(), Cancel())) as session:
        channel = session.start("cat")
        channel.send(b"in\n")
        channel.send_eof()
        assert channel.recv(TIMEOUT) == b"in\n"


AGENT = "echo ${SSH_AUTH_SOCK:+agent}${DISPLAY:+display}"


def test_no_agent_goes_along_but_to_the_users_own_terminal(
    head: Head, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever is root on the node could log in with it, as long as the connection lasts."""
    (head.ssh / "config").write_text("Host *\n ForwardAgent yes\n ForwardX11 yes\n GSSAPIDelegateCredentials yes\n")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    with running_agent(tmp_path / "agent"):
        assert run_on(transport(head), sshd.host()) == b"\n"
        assert run_on(OpensshTransport(home=head.home, users=True), sshd.host()) == b"agent\n"
        if shutil.which("pdsh"):
            monkeypatch.setenv("PDSH_SSH_ARGS", "-A -o ForwardAgent=yes")
            assert run_on(PdshTransport(home=head.home), sshd.host()) == b"\n"


def run_on(transport: OpensshTransport, host: Host) -> bytes:
    with contextlib.closing(transport), contextlib.closing(transport.connect(host, Cancel())) as session:
        return run_line(session, AGENT).stdout


@pytest.mark.parametrize("said", ["key", "known", "alias"])
def test_what_the_config_says_of_an_address(head: Head, sshd: Sshd, said: str) -> None:
    lines = {"key": f"IdentityFile {head.ssh}/other", "known": f"UserKnownHostsFile {head.ssh}/other"}
    if said in lines:
        (head.ssh / "id_ed25519" if said == "key" else head.known_hosts).rename(head.ssh / "other")
    else:
        head.known_hosts.write_text(f"there {sshd.public_key()}\n")
    (head.ssh / "config").write_text(f"Host {sshd.addresses[0]}\n {lines.get(said, 'HostKeyAlias there')}\n")
    assert runs(head, sshd.host())


def test_the_inventorys_way_there_is_the_way(head: Head, sshd: Sshd) -> None:
    """Also where it is the direct one: ssh's own ProxyJump would not verify the gateway."""
    (head.ssh / "config").write_text(f"Host *\n ProxyJump gate\nHost gate\n HostName 127.0.0.1\n Port {sshd.port}\n")
    assert runs(head, sshd.host("gate", user="root"))
    (head.ssh / "config").write_text("Host *\n ProxyJump fleet.invalid\n")
    assert runs(head, sshd.host(proxy_jump="none"))


@pytest.mark.parametrize("number", ["junk", "198.18.0.9"])
def test_a_banner_says_nothing_of_the_address(head: Head, tmp_path: Path, number: str) -> None:
    line = f'debug1: Connecting to x [{number}] port 22.\nAuthenticated to x ([{number}]:22) using "publickey".\n'
    (tmp_path / "banner").write_text(line)
    server = Sshd(tmp_path / "s", settings=[f"Banner {tmp_path}/banner"])
    try:
        head.trusted_by(server)
        with contextlib.closing(transport(head).connect(server.host(), Cancel())) as session:
            assert session.address is None
    finally:
        server.stop()


def test_a_pinned_key_in_a_certificate_that_nobody_vouches_for(head: Head, tmp_path: Path) -> None:
    server = Sshd(tmp_path / "s")
    server.stop()
    make_key(tmp_path / "ca")
    public = server.folder / "host_ed25519.pub"
    subprocess.run(["ssh-keygen", "-q", "-s", tmp_path / "ca", "-h", "-I", "it", "-n", "127.0.0.1", public], check=True)
    with (server.folder / "sshd_config").open("a") as file:
        file.write(f"HostCertificate {server.folder}/host_ed25519-cert.pub\n")
    (server.folder / "log").unlink()
    server.start()
    try:
        server.allow(head.public)
        said = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True)
        pin = said.stdout.split()[1]
        head.known_hosts.write_text("")
        assert runs(head, server.host(host_key=pin))
        error = failure(head, server.host(host_key="SHA256:" + "A" * 43))
        assert error.kind == "host-key" and pin in error.message
        head.known_hosts.write_text(f"@cert-authority * {(tmp_path / 'ca.pub').read_text()}")
        assert failure(head, server.host(host_key="SHA256:" + "A" * 43)).kind == "host-key"
    finally:
        server.stop()


def test_no_name_server_speaks_for_a_pinned_key(head: Head, sshd: Sshd) -> None:
    (head.ssh / "config").write_text("Host *\n VerifyHostKeyDNS yes\n")
    made = transport(head)
    host = sshd.host(host_key="SHA256:" + "A" * 43)
    argv = ["ssh", "-G", *made._host_options(host, made.resolve(host), []), host.name]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "verifyhostkeydns false\n" in said and "stricthostkeychecking true\n" in said


def test_names_and_paths_reach_no_shell(tmp_path: Path, head: Head, sshd: Sshd) -> None:
    key = tmp_path / "it's 100% $(touch RAN) `touch RAN` key"
    key.write_bytes((head.ssh / "id_ed25519").read_bytes())
    key.chmod(0o600)
    gateway = sshd.host("gate", identity_file=str(key))
    inside = sshd.host("inside", identity_file=str(key), proxy_jump="gate")
    session = transport(head, hosts=[gateway, inside]).connect(inside, Cancel())
    assert run_line(session, "echo $SSH_CONNECTION").stdout.split()[2] == b"127.0.0.1"
    session.close()
    assert not list(Path.cwd().glob("RAN")) and not list(head.home.rglob("RAN"))


def test_a_machine_without_ssh(head: Head, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tool in ("mv", "rm"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failure(head, sshd.host())
    assert error.kind == "config" and "openssh-client" in str(error.hint)


def test_a_config_that_ssh_refuses(head: Head, sshd: Sshd) -> None:
    (head.ssh / "config").write_text("Host *\n Ciphers nonsense\n")
    with pytest.raises(ConnectError) as caught:
        transport(head).connect(sshd.host(), Cancel())
    assert (caught.value.kind, caught.value.where) == ("config", f"{head.ssh}/config:2")


def test_a_command_whose_connection_is_gone_is_lost_however_slowly_that_ends(tmp_path: Path) -> None:
    """Not ended with the 255 of its own ssh."""
    master = Master(["sleep", "3"], tmp_path / "gone.sock", None)
    channel = OpensshChannel(["sh", "-c", "exit 255"], Host("node", "node"), master)
    assert channel.wait(TIMEOUT) is None
    channel.close()
    master.abort()


HOLD = """
import sys, time
from pathlib import Path
from fleet.model import Host
from fleet.transport.base import Cancel
from fleet.transport.openssh.transport import OpensshTransport
made = OpensshTransport(home=Path(sys.argv[1]))
channel = made.connect(Host("node", "127.0.0.1", port=int(sys.argv[2])), Cancel()).start("echo up; exec cat")
print(channel.recv(120), made._folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture()
def held(head: Head, sshd: Sshd) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that holds a connection with a command, and the folder of its sockets."""
    argv = [sys.executable, "-c", HOLD, str(head.home), str(sshd.port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        said, _, folder = process.stdout.readline().strip().rpartition(" ")
        assert said == "b'up\\n'"
        yield process, Path(folder)
        process.kill()


def of(folder: Path) -> list[str]:
    """The processes that have the folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] * (os.fsencode(folder) in path.read_bytes())
    return found


def test_a_killed_head_leaves_no_connection(held: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = held
    assert len(of(folder)) == 3 and folder.stat().st_mode & 0o777 == 0o700
    process.send_signal(signal.SIGKILL)
    wait_until(lambda: not of(folder) and not list(folder.parent.glob(f"{folder.name}*")))


def test_a_head_killed_while_a_host_hangs_leaves_no_connection(head: Head) -> None:
    with listener(lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        hold = HOLD.replace("channel =", "print(made._folder.path, flush=True); channel =")
        argv = [sys.executable, "-c", hold, str(head.home), str(port)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            folder = Path(process.stdout.readline().strip())
            wait_until(lambda: len(of(folder)) == 2)
            time.sleep(0.3)
            process.kill()
            wait_until(lambda: not of(folder) and not folder.exists())


def test_a_closed_transport_leaves_no_connection(head: Head, sshd: Sshd) -> None:
    made = transport(head)
    session = made.connect(sshd.host(), Cancel())
    session.start("exec cat")  # it ends with its input
    folder = made._folder.path
    assert of(folder)
    session.close()
    made.close()
    wait_until(lambda: not folder.exists() and not of(folder))
    with pytest.raises(ConnectError):  # by a thread that was left behind
        made.connect(sshd.host(), Cancel())
    wait_until(lambda: not of(folder))


def test_nobody_gets_between_a_killed_head_and_its_connections(held: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = held
    beside = folder.with_name(f"{folder.name}.over")
    beside.mkdir()
    try:
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: not of(folder) and not folder.exists())
        assert not list(beside.iterdir())
    finally:
        beside.rmdir()

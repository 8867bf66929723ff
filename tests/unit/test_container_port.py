"""The port where containers meet under attack: nobody is kept out, no beat is missed, and memory has a bound."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fleet.node.base.clock import CLOCK
from fleet.node.base.errors import Refused
from fleet.node.container.dial import Line, dial
from fleet.node.container.server import Server
from fleet.node.facts.way import is_here
from fleet.protocol.state import PROTOCOL
from tests.clock import HandClock
from tests.container_port import CLIENT, SECRET, Beats, Port, a_second, on_old_python
from tests.free_port import free_port
from tests.node.nodes import until

Make = Callable[..., Port]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Make]:
    made = list[Port]()

    def make(*args: object, **options: object) -> Port:
        made.append(Port(tmp_path / "server", *args, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for it in made:
        it.close()


def is_over(sock: socket.socket) -> bool:
    """Returns whether the server has closed it, now."""
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    finally:
        sock.settimeout(20)
    return True


@pytest.mark.parametrize("secret", [None, SECRET])
def test_containers_meet(secret: bytes | None, port: Make, tmp_path: Path) -> None:
    """Over IPv4 and IPv6, from the oldest python and this one."""
    it = port(secret)
    for address in ("127.0.0.1", "::1", "localhost"):
        line = it.member(address=address)
        line.send(beat=3)
        assert line.receive(20.0) == {"beat": 3} and line.receive(0.0) is None
        line.close()
    until(lambda: {address for kind, address, _ in it.events if kind == "message"} == {"127.0.0.1", "::1"})
    old = on_old_python(tmp_path / "client", CLIENT, str(it.port), (secret or b"").decode())
    out, _ = old.communicate(timeout=60)
    assert out == "{'begin': 1} {'beat': 7} None\n"
    until(lambda: it.of("gone") == ["its connection ended"] * 4)


def test_who_is_refused_gets_the_reason(port: Make) -> None:
    it = port()
    line = dial("127.0.0.1", it.port, SECRET, {"host": "stranger"}, 20.0, print, CLOCK)
    assert line.receive(20.0) == {"refused": "none of us", "hint": "go away"}
    with pytest.raises(OSError):
        line.receive(20.0)
    line.close()


@pytest.mark.parametrize("secret", [None, b"another"])
def test_another_secret_is_refused_at_both_ends(secret: bytes | None, port: Make) -> None:
    it = port(SECRET, 0.01)
    with Beats(it):
        for _ in range(5):
            with pytest.raises(Refused, match=r"127\.0\.0\.1:\d+: the containers of this run have") as refused:
                dial("127.0.0.1", it.port, secret, {"host": "x"}, 20.0, print, CLOCK)
            assert refused.value.hint and "FLEET_SECRET" in refused.value.hint
    until(lambda: it.of("refused"))
    assert len(it.of("refused")) == 1  # not once for each try
    assert not [each for each in it.of("message") if "x" in each.values()]


# -- attacks --------------------------------------------------------------------------------------------------
def test_attack_a_taken_place(port: Make) -> None:
    """200 idle connections of one source, the same as the real one's. The clock is slow: none runs out of time."""
    it = port(SECRET, 0.1)
    with Beats(it):
        idle = [it.stranger() for _ in range(200)]
        began = time.monotonic()
        it.member("real")
        it.member("real6", "::1")
        assert time.monotonic() < began + a_second()
        until(lambda: sum(map(is_over, idle)) >= 192, 20.0)
        members = [it.member(f"m{n}") for n in range(20)]
        for each in members:
            each.send(beat=1)
            assert each.receive(20.0) == {"beat": 1}


def test_attack_places_taken_from_many_sources(port: Make) -> None:
    it = port(SECRET, 0.1)
    with Beats(it):
        idle = [it.stranger(f"127.0.1.{1 + n % 200}") for n in range(400)]
        began = time.monotonic()
        it.member("real")
        assert time.monotonic() < began + a_second()
        until(lambda: sum(map(is_over, idle)) >= 400 - 64, 20.0)


def test_eight_containers_of_one_host_wait_at_the_same_time(port: Make) -> None:
    it = port()
    waiting = [it.stranger() for _ in range(8)]
    it.member("beside", "::1")
    assert not any(map(is_over, waiting))


@pytest.mark.parametrize("secret", [None, SECRET])
def test_attack_a_dribble(secret: bytes | None, port: Make) -> None:
    """A byte in time is no hello in time. The server's clock runs ten times as fast."""
    it = port(secret, 10.0)
    sock = it.stranger()
    hello = json.dumps({"fleet": PROTOCOL, "nonce": "0" * 64, "secret": secret is not None}).encode() + b"\n"
    with Beats(it):
        began = time.monotonic()
        with suppress(OSError):
            for byte in hello + b'{"x": 1, "host": "late"}\n':
                if is_over(sock):
                    break
                sock.sendall(bytes([byte]))
                time.sleep(0.02)
        until(lambda: is_over(sock))
        assert time.monotonic() < began + 2.0 * a_second()
    assert not [each for each in it.of("message") if each.get("host") == "late"]


@pytest.mark.parametrize("data", [b"x", b"[", b'{"fleet": 1, "a": "', b"{}\n", b'{"beat": 1}\n'])
@pytest.mark.parametrize("begin", [b"", b'{"fleet": %d, "nonce": "%s", "secret": false}\n' % (PROTOCOL, b"0" * 64)])
def test_attack_much_from_strangers(begin: bytes, data: bytes, port: Make) -> None:
    """Lines without an end, and messages without one, of a run without a secret."""
    it = port(None)
    much = data * ((1 << 20) // len(data))
    with Beats(it):
        for sock in [it.stranger() for _ in range(16)]:
            sock.settimeout(0.2)
            with suppress(OSError):
                sock.sendall(begin + much)


@pytest.mark.parametrize(
    "data",
    [b"[" * 60_000, b'{"a": ' * 10_000, b'{"each": 9%s}' % (b"0" * 60_000)],
    ids=["lists", "objects", "a number"],
)
def test_attack_deep_nesting_and_huge_counts(data: bytes, port: Make) -> None:
    it = port(None)
    with Beats(it):
        socks = [it.stranger() for _ in range(8)]
        for sock in socks:
            with suppress(OSError):
                sock.sendall(b'{"fleet": %d, "nonce": "%s", "secret": false}\n' % (PROTOCOL, b"0" * 64))
                sock.sendall(data + b"\n")
        it.member("real")


@pytest.mark.parametrize("forgery", ["altered", "replayed", "reordered", "reflected"])
def test_attack_a_forged_message(forgery: str, port: Make) -> None:
    """By who is between a member and the server, and sees all that it sends."""
    it = port()
    with Beats(it):
        sock, channel = it.insider()
        first, second = channel.pack({"beat": 1}), channel.pack({"beat": 2})
        sock.sendall(first)
        answer = sock.recv(1 << 12)
        forged = {
            "altered": second.replace(b"2}", b"3}"),
            "replayed": first,
            "reordered": channel.pack({"beat": 3}),
            "reflected": answer,
        }
        sock.sendall(forged[forgery])
        until(lambda: is_over(sock))
        until(lambda: it.of("gone") == ["a message is not authentic"])


class Fake:
    """What answers at MASTER_ADDR, and is not where containers meet. received: what it got."""

    def __init__(self, *answers: bytes) -> None:
        self.answers, self.received, self.dialled = answers, b"", 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self.server.accept()
                self.dialled += 1
                with sock, suppress(OSError):
                    for answer in self.answers:
                        data = sock.recv(1 << 16)
                        self.received += data
                        sock.sendall(answer or data)
                    while self.answers and (data := sock.recv(1 << 16)):
                        self.received += data

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()


NONCE = b"0" * 64
PLAIN = b'{"fleet": %d, "nonce": "%s", "secret": false, "serves": true}\n' % (PROTOCOL, NONCE)
CLAIM = PLAIN.replace(b"false", b"true")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ((PLAIN,), "this container has a secret"),
        ((CLAIM, b'{"proof": "%s"}\n' % NONCE), "have another secret"),
        ((CLAIM, b""), "have another secret"),  # its own proof
        ((b'{"refuse": "another"}\n',), "have another secret"),
        ((CLAIM.replace(b'"fleet": %d' % PROTOCOL, b'"fleet": 999'),), "another version of fleet"),
        ((b"",), "is no fleet"),
        ((b'{"begin": {"run": "../../x"}}\n',), "is no fleet"),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "is no fleet"),
        ((b"y" * (1 << 17),), "is no fleet"),
        ((b"[" * 60_000 + b"\n",), "is no fleet"),
    ],
)
def test_attack_a_false_answer(answers: tuple[bytes, ...], message: str) -> None:
    """It is believed nothing, gets nothing, and is refused at once."""
    with Fake(*answers) as fake:
        with pytest.raises(Refused, match=message) as refused:
            dial("127.0.0.1", fake.port, SECRET, {"host": "victim"}, 60.0, print, CLOCK)
        assert refused.value.hint and fake.dialled == 1 and b"victim" not in fake.received


def test_who_hangs_up_is_dialled_again() -> None:
    clock = HandClock()
    with Fake() as fake, pytest.raises(Refused, match="within 2 s nothing responded at 127"):
        dial("127.0.0.1", fake.port, SECRET, {"host": "victim"}, 2.0, print, clock)
    assert fake.dialled >= 4


# -- bounds ---------------------------------------------------------------------------------------------------
def test_a_member_that_does_not_read_is_dropped(port: Make) -> None:
    it = port()
    with Beats(it):
        line = it.member("full")
        line.send(flood=1)
        until(lambda: it.of("gone") == ["it does not read what is sent to it"])


def test_members_that_send_much_keep_nobody_waiting(port: Make) -> None:
    it = port(None)
    with Beats(it):
        for sock in [it.stranger() for _ in range(8)]:
            sock.sendall(b'{"fleet": %d, "nonce": "%s", "secret": false}\n{"host": "much"}\n' % (PROTOCOL, NONCE))
            sock.settimeout(0.2)
            with suppress(OSError):
                sock.sendall(b"{}\n" * (1 << 20))


def test_too_many_open_files_do_not_spin(port: Make) -> None:
    it = port(limits="ulimit -n 14;")
    with Beats(it):
        members = list[Line]()
        with suppress(Refused):
            while len(members) < 12:
                members.append(dial("127.0.0.1", it.port, SECRET, {"host": "m"}, 0.0, print, CLOCK))
                it.opened.append(members[-1])
                assert members[-1].receive(20.0) == {"begin": 1}  # one that is not admitted gives way to the next
        assert 2 < len(members) < 12
        strangers, before = [it.stranger() for _ in range(20)], it.cpu
        time.sleep(1.0)
        assert it.cpu < before + 0.3
        for each in [*strangers, *members]:
            each.close()
        it.member("later")


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        number = sock.getsockname()[1]
        with pytest.raises(Refused, match=f"port {number} cannot be listened at here") as refused:
            Server(number, None, CLOCK)
    assert refused.value.hint and "MASTER_PORT" in refused.value.hint


def test_a_place_has_one_deadline() -> None:
    clock = HandClock()
    server = Server(0, None, clock)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        until(lambda: server.turn(0.1) or server.connections)
        clock.now += 4.9
        sock.sendall(b'{"fleet": ')
        assert server.turn(0.05) == [] and len(server.connections) == 1
        clock.now += 0.2
        assert server.turn(0.05) == [] and not server.connections
    server.close()


def test_what_is_queued_is_sent_before_the_server_closes() -> None:
    server = Server(0, SECRET, CLOCK)
    lines = list[Line]()
    thread = threading.Thread(
        target=lambda: lines.append(dial("127.0.0.1", server.port, SECRET, {"host": "a"}, 20.0, print, CLOCK))
    )
    thread.start()
    events = until(lambda: server.turn(0.1))
    thread.join()
    connection = events[0][1]
    assert events[0] == ("message", connection, {"host": "a"}) and connection.own == "127.0.0.1"
    connection.admitted = True
    for _ in range(10):
        connection.send({"x": "y" * 60_000})
    connection.send({"verdict": 1})
    closer = threading.Thread(target=server.close)
    closer.start()
    assert [until(lambda: lines[0].receive(20.0)) for _ in range(11)][-1] == {"verdict": 1}
    lines[0].close()
    closer.join(60.0)
    assert not closer.is_alive()


# -- the client -----------------------------------------------------------------------------------------------
def test_who_dials_waits_for_who_listens_and_reports_it() -> None:
    """For its name, too; at most one report in ten seconds."""
    clock, reports, number = HandClock(), list[str](), free_port()
    with pytest.raises(Refused, match="within 25 s nothing responded at 127") as refused:
        dial("127.0.0.1", number, None, {"host": "a"}, 25.0, reports.append, clock)
    assert (
        reports
        == [f"waiting for 127.0.0.1:{number}, which begins first: nothing listens there (Connection refused)"] * 3
    )
    assert refused.value.hint and "MASTER_ADDR" in refused.value.hint
    with pytest.raises(Refused, match=r"nosuch\.invalid does not resolve"):
        dial("nosuch.invalid", number, None, {"host": "a"}, 1.0, reports.append, clock)
    with pytest.raises(Refused, match="does not resolve"):
        dial("x" * 300, number, None, {"host": "a"}, 1.0, reports.append, clock)


ONE_PORT = """exec unshare -n sh -c 'ip link set lo up
echo 40000 40001 >/proc/sys/net/ipv4/ip_local_port_range
exec "$@"' sh "$@";"""
DIAL_ITSELF = """\
import sys
from fleet.node.base.clock import CLOCK
from fleet.node.base.errors import Refused
from fleet.node.container.dial import dial

for port in (40000, 40001):
    try:
        dial("127.0.0.1", port, None, {"host": "a"}, 0.6, lambda text: None, CLOCK)
    except Refused as error:
        print(error.message)
"""


@pytest.mark.skipif("os.geteuid() != 0", reason="makes a network namespace")
def test_who_dials_a_free_port_may_reach_itself_and_dials_again(tmp_path: Path) -> None:
    """The kernel may choose the very port that is dialled as this end's own: then both ends are one."""
    process = on_old_python(tmp_path, DIAL_ITSELF, limits=ONE_PORT)
    out, _ = process.communicate(timeout=60)
    lines = out.splitlines()
    assert len(lines) == 2 and all("within 0.6 s nothing responded" in line for line in lines), out


def test_a_name_and_the_port_may_come_late(port: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try resolves anew, and tries all addresses: the first one here has no listener."""
    it, tries = port(), list[str]()

    def late(host: str, *args: object) -> list[object]:
        tries.append(host)
        if len(tries) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", each)) for each in (free_port(), it.port)]

    monkeypatch.setattr(socket, "getaddrinfo", late)
    line = dial("late.example", it.port, SECRET, {"host": "a"}, 60.0, print, HandClock())
    assert line.receive(20.0) == {"begin": 1} and tries == ["late.example"] * 3
    line.close()


def test_whether_an_address_is_this_machines() -> None:
    assert all(map(is_here, ("localhost", "127.0.0.1", "::1", socket.gethostname())))
    assert not any(map(is_here, ("192.0.2.1", "2001:db8::1", "nosuch.invalid", "x" * 300, "")))

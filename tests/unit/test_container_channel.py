"""Both ends of a connection between containers, as bytes: who proves what, and what is believed."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.node.base.errors import Refused
from fleet.node.container.channel import LINE_BYTES, Channel, Mismatch, bounded, numeric, secret_of
from fleet.node.container.news import time
from fleet.protocol.state import PROTOCOL

SECRET = b"correct horse battery staple"
BEAT = {"beat": 1}


def ends(client: bytes | None, server: bytes | None) -> tuple[Channel, Channel]:
    return Channel(client, False), Channel(server, True)


def joined(secret: bytes | None = SECRET) -> tuple[Channel, Channel]:
    """Both ends after their handshake."""
    client, server = ends(secret, secret)
    data = client.opening()
    while data:
        assert server.feed(data) == client.feed(server.take_outgoing()) == []
        data = client.take_outgoing()
    assert client.ready and server.ready
    return client, server


@pytest.mark.parametrize("secret", [None, SECRET])
def test_messages_pass_both_ways_however_the_bytes_come(secret: bytes | None) -> None:
    client, server = joined(secret)
    for source, end in ((client, server), (server, client)):
        data = source.pack({"a": "ü\ud800", "n": [1]}) + source.pack(BEAT)
        found = [message for byte in data for message in end.feed(bytes([byte]))]
        assert found == [{"a": "ü\ud800", "n": [1]}, BEAT]


def test_no_more_are_taken_than_are_wanted() -> None:
    client, server = joined()
    data = b"".join(client.pack({"n": n}) for n in range(5))
    assert server.feed(data, 2) == [{"n": 0}, {"n": 1}] and server.waiting
    assert server.feed(b"") == [{"n": 2}, {"n": 3}, {"n": 4}] and not server.waiting


def test_the_client_proves_first_and_sends_nothing_before_the_server_has_proved() -> None:
    """Who only reaches the port gets no proof by which secrets could be tried."""
    client, server = ends(SECRET, SECRET)
    assert server.opening() == b"" and sorted(json.loads(client.opening())) == ["fleet", "nonce", "secret"]
    server.feed(client.opening())
    introduced = server.take_outgoing()
    assert b"proof" not in introduced
    client.feed(introduced)
    assert (client.ready, server.ready) == (False, False)
    proof = client.take_outgoing()
    assert list(json.loads(proof)) == ["proof"]
    server.feed(proof)
    assert (client.ready, server.ready) == (False, True)
    client.feed(server.take_outgoing())
    assert client.ready


@pytest.mark.parametrize(
    ("client", "server", "code", "messages"),
    [
        (
            None,
            SECRET,
            "none",
            (
                "the containers of this run have a secret (FLEET_SECRET), this one has none",
                "a container without a secret (FLEET_SECRET) was refused: this one has one",
            ),
        ),
        (
            SECRET,
            None,
            "unwanted",
            (
                "this container has a secret (FLEET_SECRET), the one where all meet has none",
                "a container with a secret (FLEET_SECRET) was refused: this one has none",
            ),
        ),
        (
            b"x",
            SECRET,
            "another",
            (
                "the containers of this run have another secret (FLEET_SECRET) than this one",
                "a container with another secret (FLEET_SECRET) than this one was refused",
            ),
        ),
    ],
)
def test_ends_whose_secrets_differ_know_it_and_nothing_else(
    client: bytes | None, server: bytes | None, code: str, messages: tuple[str, str]
) -> None:
    one, other = ends(client, server)
    with pytest.raises(Mismatch) as refused:
        data = one.opening()
        while data:
            other.feed(data)
            one.feed(other.take_outgoing())
            data = one.take_outgoing()
    assert (refused.value.code, str(refused.value)) == (code, messages[1])
    sent = other.take_outgoing()
    assert json.loads(sent) == {"refuse": code}
    with pytest.raises(Mismatch) as refused:
        one.feed(sent)
    assert (refused.value.code, str(refused.value)) == (code, messages[0])
    assert not one.ready and not other.ready


def hello(**change: Any) -> bytes:
    return json.dumps({"fleet": PROTOCOL, "nonce": "0" * 64, "secret": True, **change}).encode() + b"\n"


@pytest.mark.parametrize(
    "data",
    [
        hello(fleet=PROTOCOL + 1),
        hello(nonce="0"),
        hello(nonce=["0"] * 64),
        hello(nonce=None),
        hello(serves=True),
        b'{"beat": 1}\n',
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\xff\n",
        b"[]\n",
        b"\n",
        b"x" * 1025,
        hello() + b'{"proof": null}\n',
        hello() + b'{"proof": {}}\n',
        hello() + b'{"proof": "%s"}\n' % (b"0" * 64),
        hello() + b'{"host": "x"}\n',
        hello(secret=False),
        hello(secret=1),
    ],
    ids=lambda data: repr(data)[-30:],
)
def test_a_server_believes_nothing_without_a_proof(data: bytes) -> None:
    server = Channel(SECRET, True)
    with pytest.raises(ValueError):
        server.feed(data)
    assert not server.ready
    with pytest.raises(ValueError, match="over"):  # whatever follows
        server.feed(hello())


@pytest.mark.parametrize(
    "data",
    [
        hello(serves=True, secret=False),
        hello(serves=True, fleet=PROTOCOL + 1),
        hello(serves=True) + b'{"proof": "%s"}\n' % (b"0" * 64),
        hello(serves=True) + b'{"begin": 1}\n',
        b'{"begin": 1}\n',
        b'{"refused": "x", "hint": "rm -rf /"}\n',
        b'{"refuse": "rm -rf /"}\n',
        b'{"refuse": ["none"]}\n',
        b'{"refuse": {}}\n',
    ],
    ids=lambda data: repr(data)[-30:],
)
def test_a_client_believes_nothing_without_a_proof(data: bytes) -> None:
    client = Channel(SECRET, False)
    with pytest.raises(ValueError) as refused:
        client.feed(data)
    assert not client.ready and "rm -rf" not in str(refused.value)


@pytest.mark.parametrize("secret", [None, SECRET])
def test_what_a_client_sent_is_no_answer_to_it(secret: bytes | None) -> None:
    client = Channel(secret, False)
    with pytest.raises(ValueError, match="no fleet"):
        client.feed(client.opening())
    client = Channel(secret, False)
    client.feed(hello(serves=True, secret=secret is not None))
    proof = client.take_outgoing()
    assert client.ready == (secret is None)
    if secret is not None:
        with pytest.raises(Mismatch):
            client.feed(proof)


def flipped(line: bytes) -> bytes:
    return line.replace(b'"n": 1', b'"n": 2')


FORGERIES: dict[str, Callable[[list[bytes], list[bytes], list[bytes]], bytes]] = {
    # lines of this end, of the other one, and of this end on another connection
    "altered": lambda mine, theirs, elsewhere: flipped(mine[0]),
    "without a MAC": lambda mine, theirs, elsewhere: mine[0][65:],
    "a wrong MAC": lambda mine, theirs, elsewhere: b"0" * 64 + mine[0][64:],
    "a short MAC": lambda mine, theirs, elsewhere: b" " + mine[0][65:],
    "no ASCII as MAC": lambda mine, theirs, elsewhere: b"\xff" * 64 + mine[0][64:],
    "replayed": lambda mine, theirs, elsewhere: mine[0] + mine[0],
    "reordered": lambda mine, theirs, elsewhere: mine[1] + mine[0],
    "one left out": lambda mine, theirs, elsewhere: mine[1],
    "reflected": lambda mine, theirs, elsewhere: theirs[0],
    "of another connection": lambda mine, theirs, elsewhere: elsewhere[0],
}


@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("to_server", [True, False])
def test_a_forged_message_ends_the_connection(forgery: str, to_server: bool) -> None:
    client, server = joined()
    source, end = (client, server) if to_server else (server, client)
    other = joined()[not to_server]
    lines = [[it.pack({"n": n}) for n in (1, 3)] for it in (source, end, other)]
    with pytest.raises(ValueError, match="not authentic"):
        end.feed(FORGERIES[forgery](*lines))
    with pytest.raises(ValueError, match="over"):
        end.feed(lines[0][0])


@pytest.mark.parametrize("data", [b"", b"[" * 60_000, b'{"a": ' * 10_000, b'{"a": ' + b"[" * 40 + b"]" * 40 + b"}"])
def test_deep_nesting_is_no_message(data: bytes) -> None:
    _, server = joined(None)
    with pytest.raises(ValueError, match=r"^a message is nested too deep$|^a line is no message$"):
        server.feed(data + b"\n")


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_has_bounds(end: bytes) -> None:
    client, server = joined()
    fits = {"x": "y" * (LINE_BYTES - 100)}
    assert server.feed(client.pack(fits)) == [fits]
    with pytest.raises(ValueError, match="bytes"):
        client.pack({"x": "y" * LINE_BYTES})
    with pytest.raises(ValueError, match="too long"):
        server.feed(b"x" * (LINE_BYTES + 1) + end)


@pytest.mark.parametrize(
    "value", [8, 1 << 40, -1, True, 1.0, float("inf"), float("nan"), "1", "1" * 5000, [2], {}, None]
)
def test_a_number_has_bounds(value: Any) -> None:
    assert [bounded(each, 8) for each in (0, 7)] == [0, 7]
    with pytest.raises(ValueError):
        bounded(value, 8)


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e13, float("inf"), float("nan"), True, "1", None])
def test_a_time_has_bounds(value: Any) -> None:
    assert time(0) == 0.0 and time(1e12) == 1e12
    with pytest.raises(ValueError):
        time(value)


@pytest.mark.parametrize("digits", [5, 5000, 60_000])
def test_a_huge_count_is_the_readers_to_refuse(digits: int) -> None:
    """Or no message, by pythons that read no number as long."""
    _, server = joined(None)
    with pytest.raises(ValueError):
        for message in server.feed(b'{"each": 9%s}\n' % (b"0" * digits)):
            bounded(message["each"], 4097)


def test_addresses_are_written_as_people_do() -> None:
    assert [numeric(it) for it in ("::ffff:10.0.0.1", "fe80::1%eth0", "::1", "10.0.0.1")] == [
        "10.0.0.1",
        "fe80::1",
        "::1",
        "10.0.0.1",
    ]


# -- the secret -----------------------------------------------------------------------------------------------
def secret_file(folder: Path, data: bytes = SECRET + b"\n", mode: int = 0o600) -> str:
    file = folder / "the secret"
    file.write_bytes(data)
    file.chmod(mode)
    return str(file)


def test_the_secret_is_of_the_environment_or_a_file(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    assert secret_of({}, None) is None
    assert secret_of({"FLEET_SECRET": "s\n"}, None) == secret_of({"FLEET_SECRET": "s"}, path) == b"s"
    assert secret_of({}, path) == SECRET
    assert secret_of({}, secret_file(tmp_path, mode=0o400)) == SECRET


@pytest.mark.parametrize(
    ("made", "message", "hint"),
    [
        ({"data": b" \n"}, "is empty", "umask 077"),
        ({"data": b"x" * 4097}, "more than 4096 bytes", "umask 077"),
        ({"mode": 0o640}, "mode 0640, not 0600", "chmod 600 "),
        ({"mode": 0o604}, "mode 0604, not 0600", "chmod 600 "),
    ],
    ids=str,
)
def test_a_file_that_others_may_read_or_without_a_secret_is_refused(
    made: dict[str, Any], message: str, hint: str, tmp_path: Path
) -> None:
    path = secret_file(tmp_path, **made)
    with pytest.raises(Refused, match=message) as refused:
        secret_of({}, path)
    assert refused.value.hint and hint in refused.value.hint
    subprocess.run(["sh", "-c", refused.value.hint], check=True)  # it works when pasted
    assert secret_of({}, path) and stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_no_link_folder_pipe_or_file_of_another_user_holds_a_secret(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    os.symlink(path, tmp_path / "link")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "pipe", "missing", "."):
        with pytest.raises(Refused, match="cannot be read") as refused:
            secret_of({}, str(tmp_path / name))
        assert refused.value.hint
    if os.geteuid() == 0:
        os.chown(path, 1234, -1)
        with pytest.raises(Refused, match="another user's"):
            secret_of({}, path)


def test_an_empty_variable_is_no_secret() -> None:
    with pytest.raises(Refused, match="FLEET_SECRET holds no secret") as refused:
        secret_of({"FLEET_SECRET": ""}, None)
    assert refused.value.hint and refused.value.hint.startswith("export FLEET_SECRET=")

"""A private sshd and a head that it trusts; a bastion with 64 addresses behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.transport.base import Cancel, Session
from tests.lab import transport_tools
from tests.lab.private_sshd import Head, Sshd
from tests.lab.transport_tools import transport


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One suite: each test runs over the transports of its module's KINDS, or of its own @over. pdsh starts the
    system's ssh, which the same test is about."""
    kinds = getattr(metafunc.function, "kinds", getattr(metafunc.module, "KINDS", ("ssh",)))
    marked = [
        pytest.param(kind, marks=pytest.mark.slow) if (kind, "openssh" in kinds) == ("pdsh", True) else kind
        for kind in kinds
    ]
    metafunc.parametrize("kind", marked, indirect=True)


@pytest.fixture(autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(transport_tools, "KIND", [request.param])
    yield request.param
    while transport_tools.MADE:
        transport_tools.MADE.pop().close()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd") / "a", key_types=("ed25519", "rsa", "ecdsa"))
    yield server
    server.stop()


@pytest.fixture()
def head(tmp_path: Path, sshd: Sshd) -> Head:
    made = Head(tmp_path / "home")
    made.trusted_by(sshd)
    return made


@pytest.fixture()
def session(head: Head, sshd: Sshd) -> Iterator[Session]:
    made = transport(head).connect(sshd.host(), Cancel())
    yield made
    made.close()


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Sshd]]:
    """A bastion with default limits, and 64 addresses (4 sshd with 16 each) behind it."""
    root = tmp_path_factory.mktemp("farm")
    bastion = Sshd(root / "bastion")
    nodes = [
        Sshd(root / f"n{i}", addresses=[f"127.7.{i}.{j}" for j in range(1, 17)], settings=["MaxStartups 100"])
        for i in range(4)
    ]
    yield [bastion, *nodes]
    for server in (bastion, *nodes):
        server.stop()

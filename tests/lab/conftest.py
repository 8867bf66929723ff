"""Virtual hosts for tests. A lab that cannot be had fails the tests: nothing here skips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.setup_ssh_tools import Head, forget_all
from tests.lab.virtual_lab import LabFactory, VirtualLab, labs
from tests.standin import standin_python


@pytest.fixture(scope="session")
def lab_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabFactory]:
    """make(count, *options of `lab up`): a new lab with its own $HOME, taken down when the session ends. It trains with
    the stand-in."""
    yield from labs(tmp_path_factory, python=standin_python())


@pytest.fixture(scope="session")
def lab(lab_factory: LabFactory) -> VirtualLab:
    """Four hosts for the whole session. Leave them as you found them; take lab_factory to break something."""
    return lab_factory(4)


@pytest.fixture
def ready_lab(lab: VirtualLab) -> VirtualLab:
    """The session's lab with `setup-ssh` done."""
    return lab.enrol()


@pytest.fixture(scope="module")
def hosts(lab_factory: LabFactory) -> VirtualLab:
    """Three of a module's own, whose ~/.ssh its tests change."""
    return lab_factory(3)


@pytest.fixture
def head(hosts: VirtualLab, tmp_path: Path) -> Head:
    """A head and these hosts as if fleet had never been there."""
    forget_all(hosts)
    home = tmp_path / "home"
    home.mkdir()
    head = Head(hosts, home, tmp_path / "fleet.yaml")
    head.write_inventory({name: {} for name in hosts.names})
    return head

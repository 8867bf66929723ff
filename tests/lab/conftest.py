"""Virtual hosts for tests. A lab that cannot be had fails the tests: nothing here skips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.healing import BreakableLab
from tests.lab.setup_ssh_tools import Head
from tests.lab.virtual_lab import LabFactory, VirtualLab, labs
from tests.standin import standin_python


@pytest.fixture(scope="session")
def lab_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabFactory]:
    """make(count, *options of `lab up`): a new lab with its own $HOME, taken down when the session ends. It trains with
    the stand-in."""
    yield from labs(tmp_path_factory, python=standin_python())


@pytest.fixture(scope="session")
def lab(lab_factory: LabFactory) -> VirtualLab:
    """Four hosts for the whole session. Leave them as you found them; take `breakable` to break something."""
    return lab_factory(4)


@pytest.fixture
def ready_lab(lab: VirtualLab) -> Iterator[VirtualLab]:
    """Three of the session's hosts with `setup-ssh` done."""
    with lab.enrol().narrowed(3) as three:
        yield three


@pytest.fixture(scope="session")
def session_breakable(lab_factory: LabFactory) -> BreakableLab:
    return BreakableLab.of(lab_factory(4))


@pytest.fixture(scope="module")
def breakable(session_breakable: BreakableLab) -> Iterator[BreakableLab]:
    """Four hosts that a module's tests may break: healed when the last of them is through."""
    yield session_breakable
    session_breakable.heal()


@pytest.fixture
def hosts(breakable: BreakableLab) -> Iterator[BreakableLab]:
    """Three of them that a single test may break, as if fleet had never been there: healed after each."""
    breakable.heal()  # of what a fixture of the module did
    yield breakable.first(3)
    breakable.heal()


@pytest.fixture
def head(hosts: BreakableLab, tmp_path: Path) -> Head:
    """A head with a home of its own, on these hosts."""
    home = tmp_path / "home"
    home.mkdir()
    head = Head(hosts, home, tmp_path / "fleet.yaml")
    head.write_inventory({name: {} for name in hosts.names})
    return head

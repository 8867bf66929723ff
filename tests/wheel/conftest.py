"""What the tests of the installed fleet share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.virtual_lab import VirtualLab, labs
from tests.standin import standin_python
from tests.wheel.packages import Installed, install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def lab(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualLab]:
    """Two hosts, brought up and enrolled by the installed fleet, with a home folder far from the clone. They train with
    the stand-in."""
    for factory in labs(tmp_path_factory, "w", str(installed.bin / "fleet"), standin_python()):
        yield factory(2).enrol()

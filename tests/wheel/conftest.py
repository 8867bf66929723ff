"""What the tests of the installed fleet share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from tests.lab.virtual_lab import VirtualLab, labs
from tests.wheel.packages import Installed, install


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def lab(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualLab]:
    """Two hosts, brought up and enrolled by the installed fleet, with a home folder far from the clone. They train with
    the Python that the tests run with, or with FLEET_TEST_TRAIN_PYTHON where that one has no torch."""
    for factory in labs(tmp_path_factory, "w", str(installed.bin / "fleet")):
        lab = factory(2)
        if python := os.environ.get("FLEET_TEST_TRAIN_PYTHON"):
            lab.inventory.write_text(re.sub("python: [^,}]+", f"python: {python}", lab.inventory.read_text()))
        yield lab.enrol()

"""For all suites: hypothesis takes the time that a busy machine needs; `make coverage` measures."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("fleet", deadline=None)
settings.load_profile("fleet")

if FOLDER := os.environ.get("FLEET_COVERAGE"):
    from tests.measure import measure_head, measure_nodes

    HEAD = measure_head(FOLDER)
    measure_nodes(FOLDER)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish() -> None:
        HEAD.stop()
        HEAD.save()

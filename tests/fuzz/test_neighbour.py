"""Some seconds of the hostile neighbour; `make fuzz` has longer ones."""

from __future__ import annotations

import os
import secrets

import pytest

from tests.fuzz.neighbour import run


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="another uid takes root")
@pytest.mark.parametrize("verbs", ["sync", "data", "get", "runs,builds,cache,inventory"])
def test_a_neighbour_is_in_no_way_that_leads_anywhere(verbs: str) -> None:
    run(6.0, secrets.randbelow(1 << 30), only=verbs)

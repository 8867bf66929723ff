"""A few seconds of the fuzzer of requirements; `make fuzz` has longer ones."""

from __future__ import annotations

import secrets

from tests.fuzz.requirements import run


def test_fleet_refuses_or_pip_reads_what_fleet_read() -> None:
    run(4.0, secrets.randbelow(1 << 32))

"""Some cases of the fuzzer of requirements; `make fuzz` has more of them."""

from __future__ import annotations

import secrets

from tests.fuzz.requirements import run
from tests.liar import steady


def test_fleet_refuses_or_pip_reads_what_fleet_read() -> None:
    run(600.0, secrets.randbelow(1 << 32), 4 * steady.max_examples)

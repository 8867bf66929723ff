"""For all suites: hypothesis has no deadlines; signals arrive; some folders are slow; `make coverage` measures."""

from __future__ import annotations

import os
import signal
import time

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fleet")

# What a shell starts behind an `&` ignores SIGINT, and so would all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup has SIGHUP ignored: the tests go on without their terminal, but what they start is to hear it. A handler, even
# one that does nothing, is not inherited.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# All of these is for `make test-full`: programs of others, the fuzzers, a reworded fleet, what sets machines up.
SLOW = {"foreign", "fuzz", "rewording", "tools"}
PURE = "test_rule.py"  # a fuzzer that takes seconds: no process, no lab


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    for item in items:
        if SLOW & {*item.path.relative_to(config.rootpath).parts[1:2]} and item.path.name != PURE:
            item.add_marker("slow")


# A time of the clock, of .ci/run: what has not begun by then is not run, and is counted as skipped.
UNTIL = float(os.environ.get("FLEET_UNTIL", "inf"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip("not run: the time was up")


if FOLDER := os.environ.get("FLEET_COVERAGE"):
    from tests.measure import measure_head, measure_nodes

    HEAD = measure_head(FOLDER)
    measure_nodes(FOLDER)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish() -> None:
        HEAD.stop()
        HEAD.save()

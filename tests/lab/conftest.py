"""Virtual hosts for tests. A lab that cannot be had fails the tests: nothing here skips."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from virtual_lab import FLEET, LabFactory, VirtualLab, bring_up, head_env

# Ends when pytest does, killed or not (its stdin is our pipe), and takes the lab with it.
WATCHER = "import subprocess, sys; sys.stdin.read(); subprocess.run([sys.argv[1], 'lab', 'down', '-q'])"


@pytest.fixture(scope="session")
def lab_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabFactory]:
    """make(count, *options of `lab up`): a new lab with its own $HOME, taken down when the session ends."""
    watchers: list[subprocess.Popen[bytes]] = []

    def make(count: int = 4, *options: str) -> VirtualLab:
        home = tmp_path_factory.mktemp("home")
        instance = f"t{os.getpid()}{'abcdefghijklmnopqrstuvwxyz'[len(watchers)]}"
        watchers.append(
            subprocess.Popen(
                [sys.executable, "-c", WATCHER, FLEET],
                stdin=subprocess.PIPE,
                env=head_env(home, instance),
                start_new_session=True,
            )
        )
        return bring_up(home, instance, [str(count), *options])

    yield make
    for watcher in watchers:
        watcher.communicate(timeout=60)


@pytest.fixture(scope="session")
def lab(lab_factory: LabFactory) -> VirtualLab:
    """Four hosts for the whole session. Leave them as you found them; take lab_factory to break something."""
    return lab_factory(4)


@pytest.fixture
def ready_lab(lab: VirtualLab) -> VirtualLab:
    """The session's lab with `setup-ssh` done."""
    return lab.enrol()

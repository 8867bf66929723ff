"""Steps that slurmctld does not start yet, as it is restarted just then."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet.errors import ConnectError
from fleet.transport import srun
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.srun import SrunTransport
from tests.node.nodes import until
from tests.sessions import shell
from tests.unit.test_srun import HOSTS
from tests.unit.test_srun import folder as folder

UNREACHED = "Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)"
NOT_YET = (
    UNREACHED,
    "Unable to create step for job 7: Memory required by task is not available",
    "Unable to create step for job 7: Job is pending execution",
)


def refusing(folder: Path, message: str, times: int = 99) -> None:
    """Has srun print that so often before it starts its tasks."""
    (folder / "srun").rename(folder / "well")
    (folder / "srun").write_text(
        f"""#!/bin/sh
        [ $(cat {folder}/asks | wc -l) = {times} ] && exec {folder}/well "$@"
        echo >>{folder}/asks; echo 'srun: error: {message}' >&2; exit 1"""
    )
    (folder / "srun").chmod(0o755)
    (folder / "asks").touch()


@pytest.mark.parametrize("message", NOT_YET)
def test_a_step_that_slurmctld_does_not_answer_is_requested_again(
    message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be restarted just then: nothing was started, and the job goes on."""
    monkeypatch.setattr(srun, "PAUSE_SECONDS", 0.01)
    refusing(folder, message, times=2)
    transport = SrunTransport(ConnectOptions(30.0), hosts=HOSTS)
    with ThreadPoolExecutor(2) as pool:
        sessions = pool.map(lambda host: transport.connect(host, Cancel()), HOSTS)
        assert [shell(it, "echo ok").stdout for it in sessions] == [b"ok\n"] * 2
    transport.close()


@pytest.mark.parametrize(
    ("message", "most"),
    [*((it, 4) for it in NOT_YET), ("Unable to create step for job 7: Job/step already completing or completed", 1)],
)
def test_a_step_is_requested_again_for_a_minute_and_no_other_answer_is(
    message: str, most: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(folder, message)
    transport, cancel, clock = SrunTransport(ConnectOptions(30.0), hosts=HOSTS), Cancel(), time.monotonic

    def paused(_: float) -> bool:
        monkeypatch.setattr(time, "monotonic", lambda shift=time.monotonic() - clock() + 25.0: clock() + shift)
        return False

    monkeypatch.setattr(cancel, "wait", paused)
    with pytest.raises(ConnectError, match=message.rpartition(": ")[2].partition(" (")[0]):
        transport.connect(HOSTS[0], cancel)
    assert 1 <= (folder / "asks").read_text().count("\n") <= most
    transport.close()


def test_no_step_is_requested_again_once_its_run_is_to_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srun, "PAUSE_SECONDS", 30.0)
    refusing(folder, UNREACHED)
    transport, cancel = SrunTransport(ConnectOptions(30.0), hosts=HOSTS), Cancel()

    def soon() -> None:
        until((folder / "asks").exists)
        time.sleep(1.0)
        cancel.set()

    timer = threading.Thread(target=soon)
    timer.start()
    with pytest.raises(ConnectError, match="connect failure"):
        transport.connect(HOSTS[0], cancel)
    timer.join()
    assert (folder / "asks").read_text() == "\n"
    transport.close()

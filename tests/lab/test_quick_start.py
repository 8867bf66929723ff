"""The guide's block to rehearse by hand, and the demo, as a user types them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.lab.virtual_lab import VirtualLab
from tests.pages import BLOCKS, ROOT
from tests.standin import standin_python


@pytest.mark.real
def test_the_block_to_rehearse_works_line_by_line(lab: VirtualLab, tmp_path: Path) -> None:
    block = next(each for each in BLOCKS if (each.page, each.heading) == ("docs/guide.md", "Rehearse it by hand"))
    commands = [shlex.split(command) for command in block.commands]
    assert [words[1:3] for words in (commands[0], commands[-1])] == [["lab", "up"], ["lab", "down"]]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert len(commands) == 8
    lab.train_with(sys.executable)
    for words in commands[1:-1]:
        here = [str(lab.password_file) if word.endswith("/password") else word for word in words[1:]]
        done = lab.fleet(*here, cwd=ROOT if "sync" in here else tmp_path, check=True)
        if "launch" in here:
            found = re.search(r"test accuracy: (\d\.\d+)", done.stdout)
            assert found and float(found[1]) > 0.9
            assert "[W" not in done.stderr  # torch warns of addresses without a name
            (run,) = (tmp_path / "runs").glob("digits-*")
            logs = sorted(str(path.relative_to(run)) for path in run.glob("*/rank*.out"))
            assert logs == [f"{name}/rank{rank}.out" for rank, name in enumerate(lab.names)]
    lab.train_with(standin_python())
    for name in lab.names:
        lab.sh(name, "rm -r /root/work /root/.work.fleet-sync")  # other tests sync their own there


def heed_interrupts() -> None:
    """A shell cannot trap what was ignored when it started, as ^C is for anything started behind an `&`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_demo_that_is_interrupted_takes_its_lab_down(tmp_path: Path) -> None:
    with tempfile.TemporaryFile() as output:
        env = {**os.environ, "TMPDIR": str(tmp_path)}
        demo = subprocess.Popen(
            [ROOT / "tools/demo"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )

        def said() -> str:
            output.seek(0)
            return output.read().decode(errors="replace")

        try:
            deadline = time.monotonic() + 300
            while "fleet -i lab check" not in said():
                assert time.monotonic() < deadline and demo.poll() is None, said()
                time.sleep(0.2)
            os.killpg(demo.pid, signal.SIGINT)
            code = demo.wait(300)
        finally:
            if demo.poll() is None:
                os.killpg(demo.pid, signal.SIGTERM)
                demo.wait(300)
        text = said()
    assert code == 130, text
    assert "lab demo is down" in text
    assert "Traceback" not in text
    assert list(tmp_path.glob("fleet-demo.*")) == []

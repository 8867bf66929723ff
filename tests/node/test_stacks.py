"""A rank tells where it stands, and goes on: through faulthandler, through py-spy, or the kernel speaks for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fleet
from fleet.codec import decode
from fleet.protocol.messages.stacks import RankStack, Stacks
from tests.node.nodes import PYTHON, RANK_FILES, answer, folder_of, supervise_spec, until

FILES = {
    **RANK_FILES,
    "arm/sitecustomize.py": (Path(fleet.__file__).parent / "node/run/rank/arm.py").read_text(),
}
BARE = {"PATH": "/usr/bin:/bin"}  # where no py-spy is
SCRIPT = """
import json, os, subprocess, sys, time
def stand():
    for n in range(1000000):
        print("tick", n, flush=True)
        time.sleep(0.01)
print(json.dumps([dict(os.environ), sys.path, subprocess.check_output([sys.executable, "-c", "print(1)"]).decode()]),
      flush=True)
{more}
stand()
"""


def begin(run: str, home: Path, *command: str, called: Sequence[str] = ("RANK=3", "LOCAL_RANK=0"), **env: str) -> Path:
    """One rank of that command; its folder, once it has said something. called: by its engine."""
    argv = ["env", *called, {"python": True}, {"run_dir": "rank.py"}, *command]
    spec = supervise_spec(run, argv, files=FILES, env={**BARE, **env}, ranks=[3])
    assert answer("run.supervise", spec, home, env=BARE)["event"] == "started"
    folder = folder_of(home, run)
    until(lambda: (folder / "rank3.out").exists() and b"\n" in (folder / "rank3.out").read_bytes())
    return folder


def script(tmp_path: Path, more: str = "") -> str:
    path = tmp_path / "s.py"
    path.write_text(SCRIPT.replace("{more}", more))
    return str(path)


def the_stack(run: str, home: Path, path: str = BARE["PATH"], **changes: Any) -> RankStack:
    spec = {"run": run, "ranks": None, "ended": False, "native": False, **changes}
    (found,) = decode(Stacks, answer("run.stacks", spec, home, env={"PATH": path}))["ranks"]
    assert found["rank"] == 3
    return found


def goes_on(folder: Path) -> None:
    out = folder / "rank3.out"
    size = out.stat().st_size
    until(lambda: out.stat().st_size > size + 100)
    assert not (folder / "rank3.json").exists()
    ticks = [line for line in out.read_text().splitlines()[:-1] if line.startswith("tick")]
    assert ticks == [f"tick {n}" for n in range(len(ticks))], "none was lost"


def names(stack: RankStack) -> list[str]:
    return [frame["name"] for thread in stack["threads"] if thread["main"] for frame in thread["frames"]]


def test_an_armed_rank_tells_and_sees_nothing_of_it(run: str, home: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'was imported'\n")
    folder = begin(run, home, PYTHON, "-u", script(tmp_path), PYTHONPATH=str(tmp_path / "own"))
    seen, path, inner = json.loads((folder / "rank3.out").read_text().splitlines()[0])
    assert (seen["PYTHONPATH"], seen["OWN"], inner) == (str(tmp_path / "own"), "was imported", "1\n")
    assert "FLEET_ARM" not in seen and not [part for part in path if part.endswith("/arm")], path
    for _ in range(3):
        stack = the_stack(run, home)
        assert (stack["by"], stack["why"], names(stack)) == ("faulthandler", "no py-spy there", ["stand", "<module>"])
    goes_on(folder)


SLOW = """
import ctypes
(fd,) = [fd for fd in range(3, 50) if os.path.realpath("/proc/self/fd/%d" % fd).endswith(".stack")]
def tell(_):
    os.write(fd, b'Stack (most recent call first):\\n  File "s.py", line 5 in inner\\n')
    time.sleep(1)
    os.write(fd, b'  File "s.py", line 7 in outer\\n')
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(tell)
ctypes.CDLL(None).signal(55, handler)
"""


def test_a_rank_that_is_long_in_telling_is_heard_out(run: str, home: Path, tmp_path: Path) -> None:
    """On a node with much to do it has to wait for the processor amid its words."""
    folder = begin(run, home, PYTHON, script(tmp_path, SLOW))
    until(lambda: b"tick" in (folder / "rank3.out").read_bytes())
    stack = the_stack(run, home)
    assert (stack["by"], names(stack)) == ("faulthandler", ["inner", "outer"]), stack


@pytest.mark.parametrize(
    ("options", "more"),
    [
        (["-I"], ""),
        ([], "import signal; signal.signal(55, signal.SIG_DFL)"),
        ([], "os.closerange(3, 100); own = open(__file__)"),
    ],
    ids=["isolated", "handler taken back", "file closed"],
)
def test_no_signal_is_sent_to_a_rank_that_is_not_armed(
    run: str, home: Path, tmp_path: Path, options: list[str], more: str
) -> None:
    folder = begin(run, home, PYTHON, *options, script(tmp_path, more))
    until(lambda: b"tick" in (folder / "rank3.out").read_bytes())
    stack = the_stack(run, home)
    assert stack["by"] == "kernel" and "not armed" in str(stack["why"]), stack
    goes_on(folder)


def test_a_rank_that_is_no_python_and_one_that_is_stopped(run: str, home: Path, tmp_path: Path) -> None:
    folder = begin(run, home, PYTHON, script(tmp_path))
    until(lambda: b"tick" in (folder / "rank3.out").read_bytes())
    pid = the_stack(run, home)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: the_stack(run, home)["state"] == "T")
        assert the_stack(run, home)["by"] == "kernel"
    finally:
        os.kill(pid, signal.SIGCONT)
    goes_on(folder)
    assert (
        answer("run.stacks", {"run": "no-such-run", "ranks": None, "ended": False, "native": False}, home)["event"]
        == "failed"
    )


@pytest.mark.parametrize("called", ["RANK=3 LOCAL_RANK=0", "FLEET_FIRST_RANK=3", "FLEET_FIRST_RANK=3 RANK=8"])
def test_a_shell_script_is_looked_into(run: str, home: Path, tmp_path: Path, called: str) -> None:
    begin(run, home, "sh", "-c", f"{PYTHON} {script(tmp_path)}; true", called=called.split())
    stack = the_stack(run, home)
    assert subprocess.check_output(["ps", "-o", "comm=", "-p", str(stack["pid"])]).startswith(b"python")


@pytest.mark.skipif(
    not shutil.which("py-spy", path=str(Path(sys.executable).parent)), reason="py-spy is not installed here"
)
def test_py_spy_tells_the_native_frames_too(run: str, home: Path, tmp_path: Path) -> None:
    folder = begin(run, home, PYTHON, script(tmp_path))
    until(lambda: b"tick" in (folder / "rank3.out").read_bytes())
    here = f"{Path(sys.executable).parent}:{BARE['PATH']}"
    for native in (False, True):
        stack = the_stack(run, home, here, native=native)
        assert (stack["by"], stack["why"]) == ("py-spy", None), stack
        assert {"stand", "<module>"} <= {name.rpartition(".")[2] for name in names(stack)}, stack
        assert any(frame["native"] for frame in stack["threads"][0]["frames"]) == native, stack
    goes_on(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_another_users_process_that_passes_itself_off_as_a_rank_is_not_believed(
    run: str, home: Path, tmp_path: Path
) -> None:
    folder = begin(run, home, PYTHON, script(tmp_path))
    assert folder.is_dir() and the_stack(run, home)["by"] == "faulthandler"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "py-spy").write_text(f"#!/bin/sh\nid > {home}/evil\necho '[]'\n")
    (theirs / "py-spy").chmod(0o755)
    pretend = "open('/proc/self/comm', 'w').write('fleet-rank'); import subprocess, sys, os; os.setuid(65534); "
    pretend += "subprocess.run(['/bin/sleep', '1000'])"
    env = {"PATH": str(theirs), "RANK": "7", "LOCAL_RANK": "1", "FLEET_RUN_ID": run}
    forged = subprocess.Popen([PYTHON, "-c", pretend], env=env, start_new_session=True)
    try:
        until(lambda: Path(f"/proc/{forged.pid}/comm").read_text() == "fleet-rank\n")
        until(lambda: Path(f"/proc/{forged.pid}/task/{forged.pid}/children").read_text())
        the_stack(run, home)
        assert not (home / "evil").exists()
    finally:
        os.killpg(forged.pid, signal.SIGKILL)
        forged.wait()


@pytest.mark.parametrize("options", [["-W", "ignore", "-I"], ["-Xutf8", "-X", "dev", "-E"]], ids=["W", "X"])
def test_what_looks_at_no_pythonpath_keeps_its_environment(
    run: str, home: Path, tmp_path: Path, options: list[str]
) -> None:
    folder = begin(run, home, PYTHON, *options, script(tmp_path), PYTHONPATH="/own")
    seen = json.loads((folder / "rank3.out").read_text().splitlines()[0])[0]
    assert seen["PYTHONPATH"] == "/own" and "FLEET_ARM" not in seen


def python_2() -> str | None:
    """Where there is one."""
    try:
        done = subprocess.run(
            ["python2", "-c", "import sys; print(sys.executable)"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


@pytest.mark.skipif(python_2() is None, reason="no Python 2 here")
def test_a_python_2_sees_nothing_of_it_either(run: str, home: Path, tmp_path: Path) -> None:
    """On old nodes that is 'python'."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'was imported'\n")
    (tmp_path / "s.py").write_text("import json, os, sys\nprint(json.dumps([dict(os.environ), sys.path]))\n")
    folder = begin(run, home, str(python_2()), "-B", str(tmp_path / "s.py"), PYTHONPATH=str(tmp_path))
    seen, path = json.loads((folder / "rank3.out").read_text())
    assert (seen["PYTHONPATH"], seen["OWN"], seen.get("FLEET_ARM")) == (str(tmp_path), "was imported", None)
    assert not [part for part in path if part.endswith("/arm")] and not (folder / "rank3.err").read_text()

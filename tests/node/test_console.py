"""console.py: a launcher finds sys.path and argv as its console script has them, whatever the working folder holds."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CONSOLE = Path(__file__).parents[2] / "fleet/node/run/rank/console.py"
LAUNCHER = """
import json, os, queue, sys
def main():
    print(json.dumps([sys.argv, sys.path, os.environ.get("PYTHONPATH")]))
    return 3
"""
SCRIPT = "import sys\nfrom launchers.one import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.mark.parametrize("safe", [{}, {"PYTHONSAFEPATH": "1"}])
def test_as_the_console_script(tmp_path: Path, safe: dict[str, str]) -> None:
    packages, run, work, scripts = (tmp_path / name for name in ("packages", "run", "work", "scripts"))
    for folder in (packages / "launchers", run, work, scripts):
        folder.mkdir(parents=True)
    (packages / "launchers/one.py").write_text(LAUNCHER)
    for name in ("queue", "types", "sysconfig", "launchers", "importlib"):
        (work / f"{name}.py").write_text("raise SystemExit('not yours')")
    (run / "console.py").write_text(CONSOLE.read_text())
    (scripts / "one").write_text(SCRIPT)
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(packages), **safe}

    def said(*words: str) -> tuple[list[str], list[str], str]:
        done = subprocess.run([sys.executable, *words], cwd=work, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 3, done.stderr
        argv, path, inherited = json.loads(done.stdout)
        return argv, path, inherited

    hand = said(str(scripts / "one"), "-m", "1", "a b")
    fleet = said(str(run / "console.py"), "launchers.one", "one", "-m", "1", "a b")
    place = sysconfig.get_path("scripts")
    assert fleet == (
        [f"{place}/one", *hand[0][1:]],
        [place if path == str(scripts) else path for path in hand[1]],
        hand[2],
    )
    argv, path, inherited = said(str(run / "console.py"), "--workdir-first", "launchers.one", "one")
    assert (path, inherited) == (fleet[1], f"{work}:{packages}"), "not the launcher, but what it starts"

"""What git says of the folder that a run is started in; nothing of the repository is run."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from fleet.ops.run.plan import origin


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=me", "-c", "user.email=me@x", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


NOTHING = dict.fromkeys(("commit", "branch", "dirty", "untracked", "sha256", "why"))
LONG = 300.0  # a busy machine's git may take more seconds than a launch waits for it


def test_what_git_says(tmp_path: Path) -> None:
    assert (
        origin.git_facts(str(tmp_path), LONG)[0]["why"]
        == "not a git repository (or any of the parent directories): .git"
    )
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("one\n")
    git(tmp_path, "add", ".")
    assert origin.git_facts(str(tmp_path), LONG) == (
        {**NOTHING, "folder": str(tmp_path), "branch": "main", "dirty": True, "untracked": 0},
        b"",
    ), "no commit yet"
    git(tmp_path, "commit", "-m", "x")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    assert origin.git_facts(str(tmp_path), LONG) == (
        {**NOTHING, "folder": str(tmp_path), "commit": head, "branch": "main", "dirty": False, "untracked": 0},
        b"",
    )
    (tmp_path / "train.py").write_text("two\n")
    (tmp_path / ".env").write_text("SECRET=hunter2\n")
    (tmp_path / "sub").mkdir()
    for folder in (tmp_path, tmp_path / "sub"):
        found, diff = origin.git_facts(str(folder), LONG)
        assert (found["commit"], found["dirty"], found["untracked"]) == (head, True, 1)
        assert b"-one\n+two\n" in diff and b"hunter2" not in diff
    git(tmp_path, "checkout", "--", "train.py")
    subprocess.run(["git", "apply"], input=diff, cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == "two\n", "it is a diff that can be applied"


def test_git_runs_nothing_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init")
    (tmp_path / "train.py").write_text("one\n")
    (tmp_path / ".gitattributes").write_text("*.py diff=odd\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    (tmp_path / "train.py").write_text("two\n")
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/$0.ran {tmp_path}/ran\ncat\n")
    trap.chmod(0o755)
    for hook in ("post-index-change", "fsmonitor-watchman"):
        (tmp_path / ".git/hooks").mkdir(exist_ok=True)
        (tmp_path / ".git/hooks" / hook).symlink_to(trap)
    for key in ("core.fsmonitor", "diff.external", "core.pager", "diff.odd.command", "diff.odd.textconv"):
        git(tmp_path, "config", key, str(trap))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(trap))
    index = (tmp_path / ".git/index").stat().st_mtime_ns
    found, diff = origin.git_facts(str(tmp_path), LONG)
    assert found["dirty"] and b"+two" in diff and not (tmp_path / "ran").exists()
    assert (tmp_path / ".git/index").stat().st_mtime_ns == index


def test_git_that_hangs_or_tells_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\nsleep 200 & sleep 200\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    begun = time.monotonic()
    found, diff = origin.git_facts(str(tmp_path), seconds=0.3)
    assert found["why"] == "git status took more than 0.3 s" and not diff and time.monotonic() - begun < 100
    fake.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    assert origin.git_facts(str(tmp_path), LONG)[0]["why"] == "git status prints more than 4 MiB"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert origin.git_facts(str(tmp_path))[0]["why"] == "git: No such file or directory"

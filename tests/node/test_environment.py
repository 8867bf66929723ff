"""The environment of the training interpreter: one text finds it for the probe, for an engine and for exec."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fleet.node.facts.environment import enter, job_env
from fleet.protocol.environment import SET, running
from fleet.requests.launch import Launch
from tests.node.nodes import answer, final, folder_of, supervise_spec
from tests.node.test_interpreters import conda, environment

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix", "-eu"], "busybox": ["busybox", "sh"]}
SHOW = f"import json,os,sys;print(json.dumps({{n: os.environ.get(n) for n in {SET}}}))"
BASE = "/usr/bin:/bin"


def seen(home: Path, shell: str, python: str, workdir: str = "~", **env: str) -> dict[str, str | None]:
    """What a program sees that is run there."""
    _, _, text, _ = running(None)
    argv = [*SHELLS[shell], "-c", text, "sh", python, workdir, "/usr/bin/python3", "-c", SHOW]
    said = subprocess.run(
        argv, env={"HOME": str(home), "PATH": BASE, **env}, capture_output=True, text=True, check=True
    )
    found: dict[str, str | None] = json.loads(said.stdout)
    return found


def wanted(path: str, venv: Path | None = None, prefix: Path | None = None, name: str | None = None) -> dict[str, Any]:
    return dict(zip(SET, (path, venv and str(venv), prefix and str(prefix), name), strict=True))


@pytest.mark.parametrize("shell", SHELLS)
def test_each_way_to_name_it(home: Path, shell: str) -> None:
    train = environment(home / "my envs/train").parents[1]  # its python is a link to the base's
    assert (train / "bin/python").is_symlink()
    inside = wanted(f"{train}/bin:{BASE}", train)
    for python in (f"{train}/bin/python", "~/my envs/train/bin/python"):
        assert seen(home, shell, python) == inside
    for python, workdir in (("train/bin/python", "~/my envs"), ("./train/bin/python", f"{home}/my envs")):
        found = seen(home, shell, python, workdir)
        assert os.path.samefile(str(found["VIRTUAL_ENV"]), train)
        assert str(found["PATH"]).split(":")[1:] == BASE.split(":")
    # an environment that is found by name; first already
    assert seen(home, shell, "python", PATH=f"{train}/bin:{BASE}") == inside
    assert seen(home, shell, "python", PATH=f"/bin:{train}/bin")["PATH"] == f"{train}/bin:/bin:{train}/bin"
    # the system's own by name: what PATH finds is as it was
    for python in ("", "python3"):
        assert seen(home, shell, python, PATH=f"/nothing:{BASE}") == wanted(f"/nothing:{BASE}")
    assert seen(home, shell, "/usr/bin/python3", PATH="/bin") == wanted("/usr/bin:/bin")
    for python in ("/nowhere/bin/python", "no-such-python", "/etc", "~no-such-user/bin/python", "~$(id)/bin/python"):
        assert seen(home, shell, python) == wanted(BASE)


@pytest.mark.skipif(os.geteuid() != 0, reason="root's home folder is the one that is known")
def test_the_home_folder_of_a_user(home: Path, tmp_path: Path) -> None:
    inside = os.path.relpath(environment(tmp_path / "train"), os.path.expanduser("~root"))
    found = seen(home, "dash", f"~root/{inside}")
    assert os.path.samefile(str(found["VIRTUAL_ENV"]), tmp_path / "train")


@pytest.mark.parametrize("shell", SHELLS)
def test_conda(home: Path, shell: str) -> None:
    root = home / "conda"
    conda(root)
    (root / "condabin").mkdir()
    assert seen(home, shell, "~/conda/bin/python") == wanted(f"{root}/bin:{BASE}", None, root, "base")
    conda(root / "envs/train")
    inside = wanted(f"{root}/envs/train/bin:{BASE}", None, root / "envs/train", "train")
    assert seen(home, shell, "~/conda/envs/train/bin/python") == inside
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to(root / "envs/train/bin/python")
    assert seen(home, shell, "~/bin/python") == inside, "conda's python follows the link"
    alone = home / "by path"
    conda(alone)
    assert seen(home, shell, f"{alone}/bin/python")["CONDA_DEFAULT_ENV"] == str(alone)


def tool(python: Path, name: str = "torchrun") -> Path:
    """A program that came with a package, beside the interpreter."""
    path = python.parent / name
    path.write_text(f"#!{python}\n{SHOW}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("line", [None, "torchrun > seen; PATH=$OTHER:$PATH; VIRTUAL_ENV=/other", "set -eu"])
def test_an_engine_finds_what_came_with_a_package(home: Path, run: str, line: str | None) -> None:
    train, other = environment(home / "work/.venv"), environment(home / "other")
    tool(train)
    tool(other).write_text("#!/bin/sh\necho the wrong one\n")
    changes = {"python": ".venv/bin/python", "cwd": "~/work", "activate": line, "env": {"OTHER": str(other.parent)}}
    answer("run.supervise", supervise_spec(run, ["/usr/bin/env", "torchrun"], **changes), home)
    assert final(home, run)["engine_status"] == 0
    said = json.loads((folder_of(home, run) / "node.log").read_text())
    assert said["VIRTUAL_ENV"] == str(train.parents[1]), "what is named outright wins over what the line says"
    assert said["PATH"].split(":")[0] == str(train.parent)
    if line and "seen" in line:  # the line itself has been given it
        assert json.loads((home / "work/seen").read_text())["VIRTUAL_ENV"] == said["VIRTUAL_ENV"]


@pytest.mark.parametrize("line", ["cd /", "set -eu; cd /usr", "cd() { false; }; builtin cd ..", "false"])
def test_an_activate_line_leads_to_no_other_folder(home: Path, run: str, line: str) -> None:
    (home / "work").mkdir()
    (home / "link").symlink_to("work")
    changes = {"cwd": "~/link", "activate": line}
    answer("run.supervise", supervise_spec(run, ["/bin/sh", "-c", "pwd -P; echo $PWD"], **changes), home)
    assert final(home, run)["engine_status"] == 0
    folders = (folder_of(home, run) / "node.log").read_text().splitlines()
    assert folders == [str((home / "work").resolve()), str(home / "link")]


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_missing_is_named(home: Path, shell: str) -> None:
    _, _, text, _ = running(None, needed=True)
    for python, argv, said in (
        ("/nowhere/python", "true", "fleet: /nowhere/python: no such interpreter\n"),
        ("python3", "no-such-program", "fleet: no-such-program: No such file or directory\n"),
    ):
        env = {"HOME": str(home), "PATH": BASE}
        line = [*SHELLS[shell], "-c", text, "sh", python, "~", argv]
        done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (127, said)


def test_the_probe_looks_where_a_run_would(home: Path) -> None:
    train = environment(home / "work/.venv", "2.5.1")
    tool(train)
    tool(train, "ninja").write_text("#!/bin/sh\necho 1.11.1\n")
    spec = {"deadline": 20, "python": ".venv/bin/python", "workdir": "~/work", "activate": "PATH=/usr/bin:/bin"}
    facts = answer("preflight.probe", spec, home)["facts"]
    assert facts["python"]["path"] == str(train) and facts["torch"]["version"] == "2.5.1"
    assert facts["compilers"]["ninja"] == "1.11.1"
    facts = answer("python.toolchain", spec, home)["facts"]
    assert facts["ninja"] == {"path": str(train.parent / "ninja"), "version": "1.11.1"}
    assert facts["python"]["executable"] == str(train)


def test_variables_that_no_shell_knows_survive(home: Path) -> None:
    env = {b"PATH": BASE.encode(), b"HOME": os.fsencode(home), b"odd.name%%": b"\xff\n"}
    train = environment(home / "train")
    assert enter(env, str(train), None) == os.fsencode(train)
    assert env[b"odd.name%%"] == b"\xff\n" and env[b"PATH"].startswith(os.fsencode(train.parent) + b":")


@pytest.mark.parametrize("keep", [[], ["SLURM_JOB_NAME", "SLURM"]])
def test_what_another_launcher_set_is_kept_from_ranks(
    keep: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_NAME", "SLURM_NTASKS", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURMS", "XPMI_RANK"):
        monkeypatch.setenv(name, "theirs")
    spec = {"unset": Launch("x.py", clean_env=True, keep_env=keep).unset, "env": {"PMI_RANK": "mine"}}
    env = job_env(str(tmp_path), spec)
    ours = {name.decode(): value for name, value in env.items() if b"SLURM" in name or b"PMI" in name}
    assert ours.pop("PMI_RANK") == b"mine" and set(ours) == {"SLURMS", "XPMI_RANK", *keep} - {"SLURM"}
    assert b"OMPI_COMM_WORLD_RANK" not in env and b"PATH" in env
    assert job_env(str(tmp_path), {"unset": Launch("x.py").unset})[b"OMPI_COMM_WORLD_RANK"] == b"theirs"

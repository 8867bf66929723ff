"""How each runtime starts an engine: argv, byte for byte. apptainer's and enroot's are by their manuals, untested;
docker's was tried by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.node.base.errors import Refused
from fleet.node.base.processes import is_inside, own_pid
from fleet.node.facts.containers import ENTER, client, inside, of_step, sealed
from fleet.node.run.marks import limit_of, marked
from fleet.node.run.start.containers import CLIENT_SECONDS, REMOVE_SECONDS, Apart
from tests.node.nodes import until

OWN = ["--shm-size=1g"]
MOUNTS = ["/home/ada/.fleet/runs/R", "/data"]
STORED = "--pull=never --network=host --ipc=host --log-driver=none --security-opt=label=disable --entrypoint="
IDS = "--user=1000:100 --volume=/home/ada/.fleet/runs/R:/home/ada/.fleet/runs/R --volume=/data:/data"
MARKED = "--name=fleet-R-gpu01 --env=FLEET_RUN_ID=R"
DEVICES = "--device=/dev/infiniband --device=/dev/kfd --device=/dev/dri"
TABLE = {
    ("podman", True): f"run --rm --interactive {STORED} {MARKED} {IDS} {DEVICES} --userns=keep-id --ulimit=host "
    "--device=nvidia.com/gpu=all --shm-size=1g train:1",
    ("podman", False): f"run --rm --interactive {STORED} {MARKED} {IDS} --userns=keep-id --ulimit=host --shm-size=1g "
    "train:1",
    ("docker", True): f"run --rm --interactive {STORED} {MARKED} {IDS} {DEVICES} --ulimit=memlock=-1 "
    "--ulimit=stack=67108864 --gpus=all --shm-size=1g train:1",
    ("apptainer", True): "exec --cleanenv --env=FLEET_RUN_ID=R --bind=/home/ada/.fleet/runs/R --bind=/data --nv --rocm "
    "--shm-size=1g train:1",
    ("enroot", True): "start --env=FLEET_RUN_ID=R --mount=/home/ada/.fleet/runs/R:/home/ada/.fleet/runs/R "
    "--mount=/data:/data --shm-size=1g train:1",
}


@pytest.mark.parametrize(("runtime", "devices"), TABLE)
def test_argv_of_each_runtime(runtime: str, devices: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 100)
    monkeypatch.setattr(os.path, "exists", lambda path: devices)
    found = {"runtime": runtime, "path": f"/usr/bin/{runtime}", "image": "train:1"}
    argv = client(found, OWN, "fleet-R-gpu01", MOUNTS, ["FLEET_RUN_ID=R"])
    assert " ".join(argv) == f"/usr/bin/{runtime} {TABLE[runtime, devices]}"


def test_options_of_a_step_of_slurm() -> None:
    """pyxis's, by its source: no test has run it."""
    assert " ".join(of_step("nvcr.io#nvidia/pytorch:24.05", ["--container-writable"], ["/scratch/ada", "/data"])) == (
        "--container-image=nvcr.io#nvidia/pytorch:24.05 --container-mount-home --container-workdir=/ "
        "--no-container-remap-root --container-mounts=/scratch/ada:/scratch/ada:nofail "
        "--container-mounts=/data:/data:nofail --container-writable"
    )
    with pytest.raises(Refused, match="pyxis cannot mount /my data"):
        of_step("train:1", [], ["/my data"])


def test_limits_of_the_users_own_take_the_place_of_the_nodes() -> None:
    found = {"runtime": "podman", "path": "podman", "image": "train:1"}
    assert "--ulimit=host" not in client(found, ["--ulimit=core=0"], None, [], [])


def test_the_first_process_has_the_runs_variables_and_mark_whatever_they_hold(tmp_path: Path) -> None:
    """Without a runtime: what it would start."""
    env = {b"A": b"two\nlines", b"B": b"\xff\xfe", b"C": "é".encode(), b"FLEET_RUN_ID": b"R"}
    values = "[os.environb[name] for name in (b'A', b'B', b'C')]"
    show = f"import os, sys; print(os.getcwd(), os.umask(0), sys.stdin.read() == '', {values})"
    argv = inside([sys.executable, "-c", show], sys.executable, str(tmp_path))
    with sealed(env, str(tmp_path), 0o027, limit_of("R")) as stdin:
        done = subprocess.run(
            argv, env={"PATH": os.defpath, "LC_ALL": "C"}, stdin=stdin, capture_output=True, check=True
        )
    assert done.stdout.decode() == f"{tmp_path} 23 True [b'two\\nlines', b'\\xff\\xfe', b'\\xc3\\xa9']\n"
    with sealed(env, str(tmp_path), 0o027, limit_of("R")) as stdin:
        limits = inside(["cat", "/proc/self/limits"], sys.executable, str(tmp_path))
        done = subprocess.run(limits, env={"PATH": os.defpath}, stdin=stdin, capture_output=True, check=True)
    assert str(limit_of("R")) in done.stdout.decode() and marked("R") == {}


@pytest.mark.parametrize(
    ("cwd", "argv", "why"), [("/nowhere", ["true"], "/nowhere"), ("/", ["no-such-program"], "no-such")]
)
def test_what_cannot_be_started_inside_is_named(cwd: str, argv: list[str], why: str) -> None:
    line = [sys.executable, "-I", "-S", "-c", ENTER, *argv]
    with sealed({}, cwd, 0o22, -1) as stdin:
        done = subprocess.run(line, stdin=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 127 and why in done.stderr and "Traceback" not in done.stderr


def test_a_process_is_known_by_the_number_of_its_own_namespace() -> None:
    """As a rank's record has it, which the rank writes."""
    script = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    line = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", script]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        assert outer.stdout and outer.stdin
        assert int(outer.stdout.readline()) == 1
        (pid,) = map(int, Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split())
        assert (own_pid(pid), is_inside(pid), own_pid(outer.pid), is_inside(outer.pid)) == (1, True, outer.pid, False)
        outer.stdin.close()


@pytest.mark.parametrize(
    ("runtime", "path", "option"),
    [
        ("podman", "/a b,c", "--volume=/a b,c:/a b,c"),
        ("docker", "/a:b", "--mount=type=bind,source=/a:b,target=/a:b"),
        *((runtime, "/a:b,c", None) for runtime in ("podman", "docker", "apptainer", "enroot")),
        *((runtime, path, None) for runtime in ("apptainer", "enroot") for path in ("/a:b", "/a,b", "/a b")),
    ],
)
def test_a_path_is_mounted_whatever_its_name_or_refused(runtime: str, path: str, option: str | None) -> None:
    found = {"runtime": runtime, "path": runtime, "image": "train:1"}
    if option:
        assert option in client(found, [], None, [path], [])
    else:
        with pytest.raises(Refused, match=f"{runtime} cannot mount {path}"):
            client(found, [], None, [path], [])


@pytest.mark.parametrize(
    ("client", "engine"), [(None, None), (0, 0), (1 << 8, 1 << 8), (128 << 8, 128 << 8), (137 << 8, 9), (9, 9)]
)
def test_the_engines_end_by_that_of_its_client(client: int | None, engine: int | None) -> None:
    """As wait statuses: a client exits with 128 + n after signal n."""
    assert Apart.ended(client) == engine


def apart(folder: Path, answer: str) -> Apart:
    """A container of a runtime that answers each request so."""
    program = folder / "podman"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/typed\n{answer}\n')
    program.chmod(0o755)
    return Apart("R", {"runtime": "podman", "path": str(program)}, str(folder))


def test_a_client_that_still_starts_its_container_has_time_and_is_ended_then(tmp_path: Path) -> None:
    container = apart(tmp_path, "exit 0")
    line = ["sh", "-c", "sleep 600 & wait", "sh", f"--name={container.name}"]
    with subprocess.Popen(line, start_new_session=True) as begun:
        try:
            until(lambda: container.name in Path(f"/proc/{begun.pid}/cmdline").read_text())
            assert not container.is_gone([], CLIENT_SECONDS / 2) and begun.poll() is None
            assert not (tmp_path / "typed").exists()
            assert not container.is_gone([], CLIENT_SECONDS), "what it has begun may have come meanwhile"
            assert begun.wait(60) == -9
        finally:
            begun.kill()
    assert container.is_gone([], CLIENT_SECONDS)
    assert (tmp_path / "typed").read_text() == f"rm --force --time=0 {container.name}\n" * 2


@pytest.mark.parametrize(
    ("answer", "gone"), [("exit 0", True), ("echo Error: No such container: x >&2; exit 1", True), ("exit 125", False)]
)
def test_a_container_is_gone_where_the_runtime_says_so(tmp_path: Path, answer: str, gone: bool) -> None:
    container = apart(tmp_path, answer)
    assert container.is_gone([], 0.0) == gone and not (tmp_path / "node.log").exists()
    if not gone:
        assert container.is_gone([], CLIENT_SECONDS + REMOVE_SECONDS)
        assert f"container {container.name} is left" in (tmp_path / "node.log").read_text()

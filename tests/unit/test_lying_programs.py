"""Whatever a program on a node says, a command line ends in time with an error of that host or none: no traceback, no
fault of ours, nothing that drives a terminal, no file outside of what the verb writes; the other host is not blamed.

FLEET_FUZZ=5000 looks harder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hasty import clean_up, without_pauses, without_silence
from tests.in_process import Outcome, command_line, snapshot
from tests.liar import HONEST_COMMAND, SECONDS, Liar, Part, Recorder, Said, lies, lies_of_a_command, plainly, steady
from tests.wheelmaker import make_env, make_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 + 5 * steady.max_examples)]
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LISTEN = """import socket, sys
s = socket.create_server(('127.0.0.1', 0))
print(s.getsockname()[1], flush=True)
sys.stdin.read()"""
AGAIN = ("ready", "supervise 2", "follow 2")
SETUP = "from setuptools import setup\nsetup(name='tinyext', version='0.1', py_modules=['tinyext'])\n"


class Head:
    """A user's home, a folder with an inventory, and what honest nodes say to each verb."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        self.honest: dict[str, dict[str, list[Part]]] = {}
        self.argv: dict[str, list[str]] = {}
        self.run = ""

    def record(self, verb: str, *argv: str, inventory: str = "one.yaml") -> None:
        recorder = Recorder()
        done = command_line(["-i", inventory, *argv], recorder)
        assert done.code == 0 and not done.faults, (done.out, done.err)
        self.honest[verb], self.argv[verb] = recorder.said, list(argv)

    def try_out(self, verb: str, name: str, said: Said, json: bool, times: int = 1) -> Outcome:
        wrote = [
            str(self.work / "runs"),
            str(self.work / "builds"),
            str(self.work / "got"),
            str(self.folder / "home/.cache"),
            str(self.folder / "home/.fleet/brought"),
            str(self.folder / "home/.fleet/deliveries"),
            str(self.folder / "home/.fleet/failed"),
        ]
        before = snapshot(self.folder, wrote)
        liar = Liar(self.honest[verb], (name, said), "gpu1", times)
        done = command_line([*["--json"] * json, *self.argv[verb]], liar)
        assert not done.faults, done.faults
        assert done.took < SECONDS
        assert snapshot(self.folder, wrote) == before
        assert "a fault in fleet itself" not in done.out + done.err
        assert len(done.out) + len(done.err) < 4 << 20
        if not json:
            assert not CONTROL.search(done.out + done.err), CONTROL.findall(done.out + done.err)
        else:
            document = done.document()
            assert document["exit_code"] == done.code
            assert "internal" not in {
                document.get("error", {}).get("kind"),
                *(host["error"] and host["error"]["kind"] for host in document["hosts"].values()),
            }
        return done

    def written(self) -> list[Path]:
        """What lies in runs/ and builds/."""
        found = []
        for name in ("runs", "builds", "got"):
            found += [path for path in (self.work / name).rglob("*") if path.is_file()]
        return found

    def clear(self) -> None:
        for name in ("runs", "builds", "got"):
            shutil.rmtree(self.work / name, ignore_errors=True)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    head = Head(tmp_path_factory.mktemp("head"))
    head.work.mkdir()
    (head.folder / "home").mkdir()
    python = make_env(head.folder / "env")
    # pip may lie behind another .pth file
    place = Path(pip.__file__).parent.parent
    next(head.folder.glob("env/lib/python3*/site-packages")).joinpath("pip.pth").write_text(f"{place}\n")
    (head.work / "one.yaml").write_text(f"hosts: {{gpu1: {{python: {python}}}}}\n")
    (head.work / "fleet.yaml").write_text(f"hosts: {{'gpu[1-2]': {{python: {python}}}}}\n")
    (head.work / "both.yaml").write_text("hosts: {gpu1: {data_address: 127.0.0.1}, gpu2: {data_address: 127.0.0.1}}\n")
    (head.work / "job").write_text("#!/bin/sh\necho hello; echo there >&2\n")
    (head.work / "job").chmod(0o755)
    (head.work / "twice").write_text("#!/bin/sh\ntest $FLEET_ATTEMPT = 1\n")
    (head.work / "twice").chmod(0o755)
    (head.work / "long").write_text('#!/bin/sh\nuntil test -e "$0.over"; do sleep 0.1; done\n')
    (head.work / "long").chmod(0o755)
    (head.work / "tree").mkdir()
    (head.work / "tree/setup.py").write_text(SETUP)
    (head.work / "tree/tinyext.py").write_text("x = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(head.folder / "home"))
        patch.delenv("XDG_CACHE_HOME", raising=False)
        patch.delenv("FLEET_INVENTORY", raising=False)
        patch.chdir(head.work)
        head.record("exec", "exec", "--", "sh", "-c", "echo hello; echo there >&2")
        head.record("check", "check", "--engine", "command")
        listener = subprocess.Popen(
            [sys.executable, "-c", LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert listener.stdout
        try:
            head.record("kill-port", "kill-port", "-y", "--grace", "1", listener.stdout.readline().strip())
        finally:
            listener.kill()
            listener.communicate()
        head.record("launch", "launch", "--engine", "command", "--grace", "1", str(head.work / "job"))
        recorder, (head.run,) = Recorder(), [path.name for path in (head.work / "runs").glob("*-*")]
        clean_up(head.work / "runs", head.run, recorder, 60)
        head.honest["stop"] = recorder.said
        head.record("ps", "ps", "--all")
        for verb in ("attach", "logs"):
            head.clear()
            head.record(verb, verb, head.run)
        (head.folder / "gives").mkdir()
        for name in ("a", "b"):
            (head.folder / "gives" / name).write_text(f"{name} of it\n")
        (head.folder / "gives/link").symlink_to("a")
        head.record("get", "get", str(head.folder / "gives"), "--to", "got")
        into = f"{head.folder / 'gives'}:{head.folder / 'gets'}"
        head.record("from", "sync", "--data", into, "--from", "gpu1", inventory="both.yaml")
        without_pauses(patch)
        there = ("--workdir", str(head.folder / "work2"), "--engine", "command", "--grace", "1")
        head.record("synced", "launch", "--sync", *there, "./job")
        head.record("restart", "launch", *there, "--max-restarts", "1", "./twice")
        words = ["-i", "one.yaml", "launch", *there, "--detach", "--name", "long", "./long"]
        assert command_line(words, Recorder()).code == 0
        head.record("stacks", "stacks", "long")
        (head.folder / "work2/long.over").touch()
        until = time.monotonic() + 300
        while "no live run" not in command_line(["-i", "one.yaml", "ps"], Recorder()).out:
            assert time.monotonic() < until
        head.record("sync", "sync", "tree", "--to", str(head.folder / "there"))
        head.record("wheels", "sync", "--wheels", str(make_wheel(head.work)))
        head.record("build", "build", "./tree", "--cpu", "-w", "gpu1")
        for verb in ("launch", "synced", "restart"):  # asked only where all that is left of a run is silent
            head.honest[verb]["list_runs"] = head.honest["ps"]["list_runs"]
        head.clear()
        # from here on what is silent is silent at once
        without_silence(patch)
        yield head


def test_honest(head: Head) -> None:
    for verb in head.argv:
        known = head.honest[verb]
        name = next(iter(known), "")
        done = head.try_out(verb, name, plainly(known[name]) if known else HONEST_COMMAND, False)
        # not of those who heed what they are told: which files, and that the others have them
        assert done.code == 0 or verb in ("from", "synced"), (verb, done.out, done.err)
        head.clear()


@steady
@given(st.data(), st.booleans())
def test_exec(head: Head, data: st.DataObject, json: bool) -> None:
    done = head.try_out("exec", "", data.draw(lies_of_a_command()), json)
    if json:
        assert done.document()["hosts"]["gpu2"]["ok"]


@steady
@given(st.data(), st.booleans())
def test_check(head: Head, data: st.DataObject, json: bool) -> None:
    done = head.try_out("check", "probe", data.draw(lies(head.honest["check"]["probe"])), json)
    if json:
        assert done.document()["hosts"]["gpu2"]["ok"]


@steady
@given(st.data(), st.booleans())
def test_kill_port(head: Head, data: st.DataObject, json: bool) -> None:
    name = data.draw(st.sampled_from(["kill_port scan", "kill_port end"]))
    done = head.try_out("kill-port", name, data.draw(lies(head.honest["kill-port"][name])), json)
    if json:
        assert done.document()["hosts"]["gpu2"]["ok"]


@pytest.mark.parametrize("name", ["probe", "supervise", "follow"])
@steady
@given(data=st.data(), json=st.booleans(), times=st.integers(1, 4))
def test_launch(head: Head, name: str, data: st.DataObject, json: bool, times: int) -> None:
    head.try_out("launch", name, data.draw(lies(head.honest["launch"][name])), json, times)
    for path in head.written():
        assert re.fullmatch(
            r"\.gitignore|[^/]+/(\.lock|\.made|(run|summary|state)\.json)|[^/]+/events\.jsonl|"
            r"[^/]+/gpu[12]/(node\.log|rank\d+\.(out|err))",
            str(path.relative_to(head.work / "runs")),
        )
    assert sum(path.stat().st_size for path in head.written()) < 8 << 20
    head.clear()


@pytest.mark.parametrize("name", ["stop", "follow"])
@steady
@given(data=st.data(), times=st.integers(1, 4))
def test_the_end_of_a_run(head: Head, name: str, data: st.DataObject, times: int) -> None:
    """By the helper that goes on when the command has ended: it tries again until it is told in good order."""
    liar = Liar(head.honest["stop"], (name, data.draw(lies(head.honest["stop"][name]))), "gpu1", times)
    began = time.monotonic()
    said, complete = clean_up(head.work / "runs", head.run, liar, SECONDS)
    assert time.monotonic() - began < SECONDS
    assert said.startswith("stopped; processes left: ")
    assert len(said) < 1000
    # who was given up after talking nonsense is not listened to any more
    assert complete or name == "follow"
    head.clear()


@pytest.mark.parametrize("verb", ["ps", "attach", "logs"])
@steady
@given(data=st.data(), json=st.booleans())
def test_runs_that_are_found(head: Head, verb: str, data: st.DataObject, json: bool) -> None:
    name = data.draw(st.sampled_from(sorted(head.honest[verb])))
    head.try_out(verb, name, data.draw(lies(head.honest[verb][name])), json and verb != "logs")
    assert sum(path.stat().st_size for path in head.written()) < 8 << 20
    head.clear()


@steady
@given(data=st.data(), json=st.booleans())
def test_get(head: Head, data: st.DataObject, json: bool) -> None:
    name = data.draw(st.sampled_from(sorted(head.honest["get"])))
    head.try_out("get", name, data.draw(lies(head.honest["get"][name])), json)
    assert sum(path.stat().st_size for path in head.written()) < 8 << 20
    head.clear()


@pytest.mark.parametrize("verb", ["sync", "wheels", "build"])
@steady
@given(data=st.data(), json=st.booleans())
def test_what_is_carried(head: Head, verb: str, data: st.DataObject, json: bool) -> None:
    name = data.draw(st.sampled_from(sorted(head.honest[verb])))
    head.try_out(verb, name, data.draw(lies(head.honest[verb][name])), json)
    for path in head.written():
        name = str(path.relative_to(head.work / "builds"))
        assert re.fullmatch(r"\.gitignore|[^/]+/(build\.log|[\w.+!-]+\.whl)", name)
    head.clear()


@steady
@given(data=st.data(), json=st.booleans())
def test_restart(head: Head, data: st.DataObject, json: bool) -> None:
    verb, name = data.draw(st.sampled_from([*(("restart", name) for name in AGAIN), ("synced", "neighbours")]))
    head.try_out(verb, name, data.draw(lies(head.honest[verb][name])), json)
    head.clear()


@steady
@given(data=st.data(), json=st.booleans())
def test_stacks(head: Head, data: st.DataObject, json: bool) -> None:
    name = data.draw(st.sampled_from(sorted(head.honest["stacks"])))
    head.try_out("stacks", name, data.draw(lies(head.honest["stacks"][name])), json)


@steady
@given(data=st.data(), json=st.booleans())
def test_data_from_a_node(head: Head, data: st.DataObject, json: bool) -> None:
    head.try_out("from", "first", data.draw(lies(head.honest["from"]["first"])), json)

"""Preflight on a node: the facts, the rehearsed meeting at the master's port, and that nothing can hold it up."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fleet.node.facts import way
from fleet.node.facts.network import Held
from tests.free_port import free_port
from tests.node.nodes import Running, answer, until

TOKEN = "ab" * 16


def spec(
    port: int,
    node_rank: int = 0,
    peers: int = 0,
    address: str = "127.0.0.1",
    own: str | None = None,
    other: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    return {
        "node_rank": node_rank,
        "script": None,
        "workdir": None,
        "python": sys.executable,
        "master": {"address": address, "port": port, "token": TOKEN, "is_me": node_rank == 0, "peers": peers},
        "activate": None,
        "env": {},
        "program": False,
        "modules": [],
        "deadline": 60.0,
        "way": {
            "master": address,
            "is_master": node_rank == 0,
            "own": own,
            "other": other or (address if peers else None),
        },
        **changes,
    }


def facts(home: Path, *args: Any, **changes: Any) -> dict[str, Any]:
    said = answer("preflight.probe", spec(*args, **changes), home)
    result: dict[str, Any] = said["facts"]
    return result


def together(home: Path, *specs: dict[str, Any]) -> list[dict[str, Any]]:
    """The facts of several nodes at once."""
    found: dict[int, dict[str, Any]] = {}

    def work(at: int) -> None:
        found[at] = answer("preflight.probe", specs[at], home)["facts"]

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(specs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[at] for at in range(len(specs))]


# -- the meeting ------------------------------------------------------------------------------------------------
def test_nodes_meet_and_leave_the_port_free(home: Path) -> None:
    port = free_port()
    master, *peers = together(home, *(spec(port, n, peers=3) for n in range(4)))
    assert master["port"]["ok"] and master["port"]["arrived"] == [1, 2, 3]
    assert all(peer["port"] == {"ok": True, "error": None, "hint": None} for peer in peers)
    with socket.socket() as check:
        check.bind(("", port))  # without SO_REUSEADDR: not even TIME_WAIT is left


@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_busy_port_names_its_holder(home: Path, where: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in where else socket.AF_INET) as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        busy.bind((where, 0))
        busy.listen()
        port = busy.getsockname()[1]
        found = facts(home, port)["port"]
    assert not found["ok"] and "in use" in found["error"] and f"kill-port {port}" in found["hint"]
    assert found["holder"]["pid"] == os.getpid() and "python" in found["holder"]["command"]


def test_a_master_that_nobody_reaches(home: Path) -> None:
    found = facts(home, free_port(), 1, deadline=5.0)["port"]
    assert not found["ok"] and "refused" in found["error"] and found["hint"]


def test_something_else_answers_at_the_masters_port(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def chatter() -> None:
            while True:
                try:
                    peer = other.accept()[0]
                except OSError:
                    return
                with peer:
                    peer.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=chatter)
        thread.start()
        found = facts(home, other.getsockname()[1], 1, deadline=5.0)["port"]
        other.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert not found["ok"] and ("something else" in found["error"] or "reset" in found["error"])


def test_strangers_at_the_masters_port_do_not_count(home: Path) -> None:
    port = free_port()
    with Running("preflight.probe", spec(port, peers=1, deadline=8.0), home) as master:
        give_up = time.monotonic() + 6
        while time.monotonic() < give_up:
            try:
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(b"\xff" * 16 + b" 1\n")
                    break
            except OSError:
                time.sleep(0.05)
        (found,) = [frame.json() for frame in master.frames() if frame.kind == b"J"]
    assert found["facts"]["port"]["arrived"] == []


def test_a_peer_that_was_too_busy_for_its_answer_comes_again(home: Path) -> None:
    """The port stays open for it, until it has said that it has the answer."""
    port = free_port()
    with Running("preflight.probe", spec(port, peers=1, deadline=100.0), home) as master:
        for has_it in (False, True):
            until(lambda: not refused(port))
            with socket.create_connection(("127.0.0.1", port), timeout=60) as peer:
                peer.sendall(TOKEN.encode() + b" 1\n")
                assert len(peer.makefile("rb").readline()) == 65, "an answer"
                peer.sendall(b"\n" * has_it)
        (found,) = [frame.json() for frame in master.frames() if frame.kind == b"J"]
    assert found["facts"]["port"]["arrived"] == [1]


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionRefusedError:
        return True
    return False


def test_done_ends_the_waiting(home: Path) -> None:
    with Running("preflight.probe", spec(free_port(), peers=5, deadline=300.0), home) as master:
        master.send({"op": "done"})
        frames = list(master.frames(200))
    assert frames[0].json()["facts"]["port"] == {"ok": True, "error": None, "hint": None, "holder": None, "arrived": []}


# -- the network ------------------------------------------------------------------------------------------------
def test_the_interface_that_holds_the_masters_address(home: Path) -> None:
    found = facts(home, free_port())["network"]
    there = {"master": "127.0.0.1", "address": "127.0.0.1", "interface": "lo", "advertised": "127.0.0.1", "nccl": "lo"}
    assert found == {**there, "error": None, "hint": None, "replaced": {}}


@pytest.mark.parametrize("node_rank", [0, 1])
def test_a_loopback_master_of_several_nodes(home: Path, node_rank: int) -> None:
    found = facts(home, free_port(), node_rank, peers=1, address="localhost", deadline=5.0)["network"]
    assert "means this node itself" in found["error"] and "data_address" in found["hint"]


def test_a_master_behind_nat(home: Path) -> None:
    found = facts(home, free_port(), address="203.0.113.7", peers=1, other="127.0.0.1", deadline=5.0)
    assert "no interface here holds" in found["network"]["error"] and "data_address" in found["network"]["hint"]
    assert found["network"]["interface"] == "lo", "still the one that leads to the others"


def test_a_data_address_that_is_nobodys(home: Path) -> None:
    found = facts(home, free_port(), 1, peers=1, own="203.0.113.9", deadline=5.0)["network"]
    assert found["error"] == "the master's address 127.0.0.1 means this node itself (127.0.0.1)"
    found = facts(home, free_port(), own="203.0.113.9", deadline=5.0)["network"]
    assert found["error"] == "no interface here holds its data_address 203.0.113.9" and "it has" in found["hint"]


def test_a_master_whose_name_does_not_resolve(home: Path) -> None:
    found = facts(home, free_port(), 1, address="no-such-host.invalid", deadline=5.0)
    assert "no way to the master" in found["network"]["error"] and found["network"]["hint"]
    assert not found["port"]["ok"]


# -- the rest ---------------------------------------------------------------------------------------------------
def test_interpreter_modules_and_files(home: Path) -> None:
    (home / "work").mkdir()
    (home / "work/train.py").write_text("print(1)\n")
    modules = ["pytest", "no-such-thing"]
    found = facts(
        home, free_port(), workdir="~/work", script="train.py", modules=modules, packages=modules, deadline=60.0
    )
    assert found["python"]["path"] == sys.executable and found["python"]["version"].startswith("3.")
    assert found["packages"] == {"pytest": pytest.__version__}
    workdir = found["disks"]["workdir"]
    assert workdir["path"] == str(home / "work") and workdir["exists"]
    assert found["script"] == {
        "path": str(home / "work/train.py"),
        "exists": True,
        "size": 9,
        "executable": False,
        "sha256": hashlib.sha256(b"print(1)\n").hexdigest(),
    }
    assert (found["timed_out"], found["failed"]) == ([], {})
    assert found["cpu"]["usable"] >= 1 and found["arch"]


def test_what_is_missing_is_said(home: Path) -> None:
    found = facts(
        home,
        free_port(),
        workdir="/no/such",
        script="train.py",
        python="no-such-python",
        modules=["torch"],
        packages=["torch"],
        activate="source /no/such/activate",
    )
    assert "no such program" in found["python"]["error"]
    assert found["torch"] is None and found["packages"] == {}
    assert (
        not found["disks"]["workdir"]["exists"] and not found["script"]["exists"] and found["script"]["sha256"] is None
    )
    assert "No such file" in found["activate"]


def test_a_program_is_looked_for_on_the_path(home: Path) -> None:
    found = facts(home, free_port(), program=True, script="sh")["script"]
    assert found["exists"] and found["executable"] and found["path"].startswith("/")


def test_a_script_that_a_shell_can_read_need_not_be_executable(home: Path) -> None:
    texts = {"a.sh": "id", "b": "#!/bin/sh", "c": "id", "d.py": "import os", "e.py": "#!/usr/bin/env python3"}
    for name, text in texts.items():
        (home / name).write_text(text)
    (home / "d.py").chmod(0o755)  # the kernel would leave it to a shell
    found = {name: facts(home, free_port(), program=True, workdir="~", script=name)["script"] for name in texts}
    startable = {name for name, script in found.items() if script["exists"] and script["executable"]}
    assert startable == {"a.sh", "b", "e.py"}


def test_a_module_is_looked_for_as_python_does_and_not_imported(home: Path) -> None:
    (home / "pkg/sub").mkdir(parents=True)
    for name in ("pkg/__init__.py", "pkg/sub/__main__.py", "pkg/train.py"):
        (home / name).write_text("raise SystemExit('imported')")
    paths = {
        name: facts(home, free_port(), module=True, workdir="~", script=name)["script"]
        for name in ("pkg.train", "pkg.sub", "timeit", "pkg.nosuch", "nosuch.x")
    }
    assert paths["pkg.train"]["path"] == str(home / "pkg/train.py")
    assert paths["pkg.sub"]["path"] == str(home / "pkg/sub/__main__.py")
    assert [found["exists"] for found in paths.values()] == [True, True, True, False, False]


TRAP = "import os; open(os.path.expanduser('~/ran'), 'a').write(__file__); raise SystemExit('it was run')"
# as setuptools installs them
EDITABLE = """
import os, sys
from importlib.util import spec_from_file_location
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "own":
            file = os.environ["EDITABLE"] + "/__init__.py"
            return spec_from_file_location(name, file, submodule_search_locations=[os.environ["EDITABLE"]])
sys.meta_path.append(Finder)
"""


@pytest.mark.slow
def test_a_module_is_found_wherever_python_finds_it(home: Path) -> None:
    """Namespace packages, archives, PYTHONPATH as a run has it, finders of editable installs, paths that packages make
    themselves; nothing of it is run, the launcher's modules included that have a name of the user's."""
    texts = {
        "side.py": TRAP,
        "ns/inner/train.py": TRAP,
        "ns/inner/deep/__main__.py": TRAP,
        "src/relative.py": TRAP,
        "lib/literal.py": TRAP,
        "more/legacy/there.py": TRAP,
        "legacy/__init__.py": "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n" + TRAP,
        "editable/own/__init__.py": TRAP,
        "editable/own/train.py": TRAP,
        "queue.py": TRAP,
        "types.py": TRAP,
        "json.py": TRAP,
        "site/sitecustomize.py": EDITABLE,
    }
    for name, text in texts.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    with zipfile.ZipFile(home / "code.zip", "w") as archive:
        archive.writestr("packed/__init__.py", TRAP)
        archive.writestr("packed/train.py", TRAP)
    env = {"PYTHONPATH": f"src:{home}/lib:{home}/code.zip:{home}/site:{home}/more", "EDITABLE": f"{home}/editable/own"}
    expand = {"PYTHONPATH": "src:$PWD/lib:$HOME/code.zip:${HOME}/site"}
    wanted = {
        "ns.inner.train": "ns/inner/train.py",
        "ns.inner.deep": "ns/inner/deep/__main__.py",
        "relative": "src/relative.py",
        "literal": "lib/literal.py",
        "packed.train": "code.zip",
        "legacy.there": "legacy/__init__.py",
        "own.train": "editable/own/train.py",
        "queue": "queue.py",
    }
    absent = ["side.py", "ns", "ns.inner", "packed.none", "own.none", "literal.x", ".x", "ns..inner"]
    expanding = {"env": {"EDITABLE": env["EDITABLE"]}, "env_expand": expand}
    for given, names in (({"env": env}, [*wanted, *absent]), (expanding, ["literal", "packed.train", "own.train"])):
        for name in names:
            found = facts(home, free_port(), module=True, workdir="~", script=name, **given)
            assert found["python"]["version"], "modules of the user's are no hindrance"
            path = found["script"]["path"] if found["script"]["exists"] else None
            assert path == (str(home / wanted[name]) if name in wanted else None), name
    assert not (home / "ran").exists()


def test_the_path_of_the_activated_environment_counts(home: Path) -> None:
    (home / "bin").mkdir()
    (home / "bin/mypython").symlink_to(sys.executable)
    found = facts(home, free_port(), python="mypython", activate='export PATH="$HOME/bin:$PATH"')["python"]
    assert found["path"] == str(home / "bin/mypython") and not found["error"]


def test_an_interpreter_that_hangs(home: Path) -> None:
    (home / "slow").write_text("#!/bin/sh\nsleep 1000\n")
    (home / "slow").chmod(0o755)
    found = facts(home, free_port(), python=str(home / "slow"), modules=["torch"], deadline=10.0)
    assert found["timed_out"] == ["python", "imports"] and "packages" not in found


def test_a_configuration_that_is_not_there(home: Path, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text("{}")
    script = {"workdir": str(tmp_path), "script": "t.py", "configs": ["ds.json", "./deepspeed.json"]}
    assert facts(home, 0, **script)["configs_missing"] == ["./deepspeed.json"]


@pytest.mark.parametrize(
    "value, label",
    [
        ("eth1", "eth1"),
        ("eth", "eth0"),
        ("=eth1", "eth1"),
        ("=eth", None),
        ("ib,bond0", "bond0"),
        ("^eth0,eth10,lo", "eth1"),
        ("nosuch", None),
        ("", None),
    ],
)
def test_a_name_of_nccls_is_the_beginning_of_names(value: str, label: str | None) -> None:
    own = [Held(n, name, f"10.0.{n}.1", 24) for n, name in enumerate(("lo", "eth0", "eth10", "eth1", "bond0"))]
    if value == "eth1":
        own = own[:2] + own[3:]
    found = way.named(value, own)
    assert (found and found.label) == label


def test_which_interface_is_proved(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this run was given comes before a data_address, and what the node's own files have after it."""
    own = [Held(1, "lo", "127.0.0.1", 8), Held(1, "eth1", "10.0.1.1", 24), Held(1, "eth10", "10.0.10.1", 24)]
    monkeypatch.setattr(way, "addresses", lambda: own)
    monkeypatch.setattr(way, "resolve", str)
    monkeypatch.setattr(way, "source_towards", lambda _: "10.0.1.1")
    monkeypatch.setenv("HOME", str(home))
    (home / ".nccl.conf").write_text("# ours\nNCCL_SOCKET_IFNAME==eth10 # the fast one\n")
    assert way.nccl_conf() == {"NCCL_SOCKET_IFNAME": "=eth10"}

    def found(data_address: str | None, env: dict[str, str], **given: str) -> tuple[str, str, dict[str, str]]:
        road = {"master": "10.0.1.9", "is_master": False, "own": data_address, "other": "10.0.1.9"}
        facts = way.network({"way": road, "env": given}, {**env, **given})["network"]
        assert facts["error"] is None
        return facts["interface"], facts["nccl"], facts["replaced"]

    fast, slow = {"NCCL_SOCKET_IFNAME": "=eth10"}, {"GLOO_SOCKET_IFNAME": "eth1"}
    assert found(None, {}) == ("eth1", "=eth1", {})
    assert found(None, fast) == ("eth10", "eth10", {})
    assert found("10.0.1.1", fast) == ("eth1", "=eth1", fast)
    assert found("10.0.1.1", slow) == ("eth1", "=eth1", {})
    assert found("10.0.1.1", {}, **fast) == ("eth10", "eth10", {})

"""`fleet play tasks.py`: fabric's tasks as they are written today, on two hosts that are this machine (local)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import run

FILE = '''
import sys
from fabric import Config, Connection, ThreadingGroup, task
from invoke import Collection, Context, Exit, UnexpectedExit, task as plain

there = Connection("a")   # while the file is read

@task
def before(c):
    print("before, once")

@task(pre=[before])
def typed(c, word="x", number=1, flag=False, names=[]):
    """Says what it was given.

    And more."""
    print(word, type(number).__name__, number, flag)

@task
def odd(c):
    with c.cd("/"), c.prefix("P=$(pwd)"):
        r = c.run("printf '%s|%s' \\"$X\\" $P; echo e >&2", env={"X": "a b'; $(id)\\n"}, hide=True)
    assert r.stdout == "a b'; $(id)\\n|/" and r.stderr == "e\\n" and r.exited == 0 and r.connection is c, r.stdout
    r = c.run("echo out; exit 3", warn=True, hide="out")
    assert r.failed and r.return_code == 3 and not r and r.stdout == "out\\n"
    try:
        c.run("exit 4")
    except UnexpectedExit as error:
        assert error.result.exited == 4
    c.local("echo from here")

@task
def status(c, code):
    c.run(f"echo said; exit {code}", hide=True)

@task
def bug(c):
    print("so far")
    return c.nothing_of_the_sort()

@task
def enough(c, code=0):
    raise Exit("enough", code=int(code))

@task
def slow(c):
    c.run("sleep 1000", timeout=0.3)

@task(hosts=["b"])
def own(c):
    print(c.original_host)

@task
def once(c: Context):
    c.run("echo once")
    print(there.run("echo $((1 + 1))", hide=True).stdout, end="")

@task
def group(g: ThreadingGroup):
    print(sorted(f"{c.original_host}={r.stdout}" for c, r in g.run("printf x", hide=True).items()))

@task
def torn(g: ThreadingGroup):
    g.run("exit 6")

@task
def nul(c):
    c.run("true", env={"A": "x\\0y"})

@task(hosts=["ada@a", {"host": "a", "user": "bob"}])
def users(c):
    print(c.user)

@task(hosts=["a"])
def others(c):
    Connection("b", config=Config(overrides={"run": {"echo": True}})).run("echo $((2 + 3))")
    with ThreadingGroup("b") as group:
        group.run("echo $((3 + 3))")

@plain(autoprint=True)
def invokes(c):
    return "printed"

@task
def put(c):
    c.put(__file__)

@task(hosts=["a"])
def leave(c):
    sys.exit("because of this")

@task(hosts=["a b;c"])
def nowhere(c):
    pass

@task(default=True)
def usual(c):
    print("the usual")
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # pytest's own must not be read
    (tmp_path / "fleet.yaml").write_text("env: {OF_ALL: 'x y'}\nhosts: [a, b]\n")
    (tmp_path / "tasks.py").write_text(FILE)
    return tmp_path


def play(*words: str, before: tuple[str, ...] = ()) -> int:
    return run(["--transport", "local", *before, "play", *words])


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["tasks.py"], 0, "the usual", ""),
        (["tasks.py:typed", "--word=-v", "-n", "4", "--flag"], 0, "before, once\n--- a,b (2) ---\n-v int 4 True", ""),
        (["tasks.py:odd"], 0, "from here", ""),
        (["tasks.py", "status", "0", "usual"], 0, "the usual", "# status(code='0')\n# usual()"),
        (["tasks.py", "status", "--code=9", "usual"], 9, "", "tasks.py:34: echo said; exit 9: exit status 9"),
        (["tasks.py:bug"], 1, "so far", "tasks.py:39: AttributeError: "),
        (["tasks.py", "enough", "usual"], 0, "", "enough"),
        (["tasks.py", "enough", "--code=7", "usual"], 7, "", "enough"),
        (["tasks.py:slow"], 124, "", "sleep 1000: still running after 0.3 s; ended there"),
        (["tasks.py:own"], 0, "--- b ---\nb", ""),
        (["tasks.py:leave"], 1, "", "because of this"),
        (["tasks.py:nowhere"], 2, "", "'a b;c' is not the name or the address of a host"),
        (["tasks.py:once"], 0, "2", ""),
        (["tasks.py:group"], 0, "['a=x', 'b=x']", ""),
        (["tasks.py:torn"], 6, "", "tasks.py:64: exit 6: exit status 6"),
        (["tasks.py:nul"], 2, "", "env of a task: A holds a NUL character"),
        (["tasks.py:users"], 0, "--- a ---\nada\n--- a ---\nbob\n", ""),
        (["tasks.py:others"], 0, "--- a ---\n\x1b[1;37mecho $((2 + 3))\x1b[0m\n5\n6\n", ""),
        (["tasks.py:invokes"], 0, "--- a,b (2) ---\nprinted", ""),
        (["tasks.py:put"], 2, "", "put or get of a task goes over --transport ssh only"),
        (["tasks.py:nope"], 2, "", "tasks.py: No idea what 'nope' is!\n  hint: its tasks: before, bug, enough"),
        (["tasks.py:status"], 2, "", "did not receive required positional arguments: 'code'"),
        (["tasks.py", "-H", "web1", "status"], 2, "", "hint: hosts come from the inventory: fleet -w HOSTS play"),
        (["nothing.py"], 2, "", "there is no nothing.py"),
        (["--var", "a=b", "tasks.py"], 2, "", "--var is for YAML playbooks"),
    ],
)
def test_a_task(
    words: list[str], code: int, out: str, err: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert play(*words) == code
    said = capfd.readouterr()
    assert out in said.out and err in said.err
    assert "Traceback" not in said.err


def test_the_plan_runs_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("tasks.py", "typed", "--word", "it's", "own", "once", "group", before=("--dry-run",)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "would run before() here, once",
        'would run typed(word="it\'s", number=1, flag=False, names=[]) on a,b',
        "would run own() on b",
        "would run once() here, once",
        "would run group() once, with a group of a,b",
    ]
    assert play("tasks.py:own", before=("--dry-run", "--json", "-w", "a")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dry_run"] and [task["hosts"] for task in document["plan"]["tasks"]] == [["a"]]  # -w counts more


def test_the_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("tasks.py", "--list") == 0
    assert "typed    Says what it was given.\n" in capsys.readouterr().out
    for words in (["tasks.py:typed", "--help"], ["tasks.py", "typed", "-h"]):
        assert play(*words) == 0
        said = capsys.readouterr().out
        assert said.startswith("Says what it was given.\n\nAnd more.\n\n") and "--word=STRING" in said
    assert play("tasks.py", "nope", "--help") == 2
    assert "there is no task 'nope'" in capsys.readouterr().err


def test_the_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("tasks.py", "usual", "status", "5", before=("--json",)) == 5
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["verb"] == "play" and document["ok"] is False and document["exit_code"] == 5
    assert [(task["task"], task["exit_code"]) for task in document["tasks"]] == [("usual", 0), ("status", 5)]
    assert document["tasks"][0]["hosts"]["a"]["stdout"] == "the usual\n"
    last = document["hosts"]["b"]
    assert last["exit_status"] == 5 and last["command"] == "echo said; exit 5" and "said" in last["stderr"]


def test_what_a_file_prints_of_its_own_is_not_in_the_document(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "loud.py").write_text(
        "import os\nfrom invoke import Context, task\nprint('read')\n@task\ndef here(c: Context):\n"
        "    print('printed')\n    c.run('echo ran')\n    os.system('echo started')\n"
    )
    (folder / "p.yaml").write_text("- task: loud.py:here\n- exec: ['true']\n")
    for words in (["loud.py:here"], ["p.yaml"]):
        assert play(*words, before=("--json",)) == 0
        said = capfd.readouterr()
        document = json.loads(said.out)
        assert document["ok"], words
        assert {"printed", "ran", "started"} <= set(said.err.split()), words
    assert [step["documents"][0]["verb"] for step in document["steps"]] == ["play", "exec"]


def test_variables_of_the_inventory_and_no_inventory(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "t.py").write_text("from fabric import task\n@task\ndef env(c):\n    c.run('echo $OF_ALL')\n")
    assert play("t.py:env") == 0
    assert "x y" in capfd.readouterr().out
    (folder / "fleet.yaml").unlink()
    assert play("t.py:env") == 121
    assert "task 'env' runs on hosts, and there is no inventory" in capfd.readouterr().err
    assert play("tasks.py:own") == 0


@pytest.mark.parametrize(
    ("text", "line", "hint"),
    [
        ("from fabric.api import run, env\n", "1: cannot be read: ModuleNotFoundError", "written for fabric 1?"),
        ("import no_such_module\n", "1: cannot be read: ModuleNotFoundError", "-m pip install no_such_module"),
        ("\ndef (\n", "2: cannot be read: SyntaxError", ""),
        ("x = 1\nraise SystemExit(3)\n", "2: cannot be read: SystemExit: 3", ""),
        (
            "from fabric import Connection\nConnection('a').run('true')\n",
            "2: cannot be read: a task",
            "do that in a task",
        ),
    ],
)
def test_a_file_that_cannot_be_read(
    text: str, line: str, hint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tasks.py").write_text(text)
    assert play("tasks.py") == 121
    said = capsys.readouterr().err
    assert f"tasks.py:{line}" in said and hint in said


def test_a_training_script_is_not_played(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("import sys\nfrom pathlib import Path\nPath('ran').touch()\n")
    assert play("train.py", "--lr", "1") == 2
    assert capsys.readouterr().err.endswith("  hint: fleet --transport local launch train.py --lr 1\n")
    assert not (folder / "ran").exists()


def test_namespaces_and_files_beside(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "beside_it.py").write_text("from fabric import task\n@task\ndef migrate(c):\n    print(c.db.name)\n")
    (folder / "spaces.py").write_text(
        "from invoke import Collection\nimport beside_it\nns = Collection(db=beside_it)\n"
        "ns.configure({'db': {'name': 'configured'}})\n"
    )
    assert play("spaces.py:db.migrate") == 0
    assert "configured" in capfd.readouterr().out


PATIENT = "import fleet.tasks.runner as r; r.GRACE_SECONDS = 600.0; from fleet.cli.main import main; main()"


@pytest.mark.parametrize(
    ("command", "fleet"),
    [
        ("echo $$; exec sleep 300", ["-m", "fleet"]),
        # its thread that would kill it does not come to that before fleet ends, as on a busy machine
        ('trap "" TERM; echo $$; exec sleep 300', ["-c", PATIENT]),
    ],
)
def test_an_interrupt_ends_what_a_task_runs_here(command: str, fleet: list[str], folder: Path) -> None:
    (folder / "t.py").write_text(
        f"from invoke import Context, task\n@task\ndef here(c: Context):\n    c.run({command!r})\n"
    )
    argv = [sys.executable, *fleet, "play", "t.py:here"]
    with subprocess.Popen(argv, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        process.terminate()
        try:
            assert process.wait(300) == 130
            assert not Path(f"/proc/{pid}").exists(), "it is fleet's own child, and waited for"
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("first", ["c: Context", "g: ThreadingGroup", "c"])
def test_one_ctrl_c_ends_a_loop_that_waits_for_something(first: str, folder: Path) -> None:
    (folder / "loop.py").write_text(
        "import time\nfrom fabric import ThreadingGroup, task\nfrom invoke import Context\n@task\n"
        f"def loop({first}):\n    while True:\n        print('waiting', flush=True)\n        time.sleep(0.1)\n"
    )
    words = [sys.executable, "-m", "fleet", "--transport", "local", "play", "loop.py", "loop"]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with process:
        assert process.stdout
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130 and b"Traceback" not in said


def test_nothing_trusts_an_unknown_host() -> None:
    code = (
        "import fleet.tasks.connection as ours, fabric, fabric.connection, fabric.group, fabric.tasks, paramiko\n"
        "assert fabric.Connection is fabric.connection.Connection is fabric.group.Connection is ours.Connection\n"
        "assert fabric.tasks.Connection is ours.Connection\n"
        "assert fabric.connection.AutoAddPolicy is paramiko.RejectPolicy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_yaml_playbooks_load_no_fabric(folder: Path) -> None:
    (folder / "p.yaml").write_text("- exec: ['true']\n")
    code = "import sys; from fleet.cli.main import run; print(run(['--transport', 'local', 'play', 'p.yaml'])); "
    code += "print('fabric' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]
